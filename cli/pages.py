#!/usr/bin/env python3
"""Man pages and shell completions of the program `rollring`, from nothing but its --help.

pages.py ROLLRING VERSION DIRECTORY COMMAND...: writes rollring.1, rollring-COMMAND.1 for each
command, rollring.bash, _rollring (zsh) and rollring.fish. The commands have to be those of the
program."""

import pathlib
import re
import subprocess
import sys

import completions

HEADING = re.compile(r"^([A-Z][A-Za-z ]*):$")
ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")


class Help:
    """The parts of a help page: its summary, its usage, its sections of entries, and the rest."""

    def __init__(self, rollring, *command):
        text = subprocess.run([rollring, *command, "--help"], check=True, text=True,
                              capture_output=True).stdout
        about, usage, rest = re.split(r"^Usage: (.*)$", text, maxsplit=1, flags=re.MULTILINE)
        self.about = about.strip()
        self.usage = usage.strip()
        self.sections = []  # (title, [[left side, its meaning], ...])
        lines = rest.strip("\n").split("\n")
        at = 0
        while at < len(lines):
            heading = HEADING.match(lines[at])
            if not lines[at].strip():
                at += 1
            elif heading and heading[1] not in ("Examples", "Try it", "Step by step"):
                at = self.read_section(heading[1], lines, at + 1)
            else:
                break
        self.footer = "\n".join(lines[at:]).rstrip()

    def read_section(self, title, lines, at):
        entries = []
        while at < len(lines) and lines[at].startswith("  "):
            entry = ENTRY.match(lines[at])
            if entry:
                entries.append([entry[1], entry[2] or ""])
            else:  # the explanation goes on, or begins
                entries[-1][1] = (entries[-1][1] + "\n" + lines[at].strip()).strip()
            at += 1
        self.sections.append((title, entries))
        return at

    def entries(self, *titles):
        return [entry for title, found in self.sections if title in titles for entry in found]

    def options(self):
        return [entry for _, found in self.sections for entry in found if entry[0].startswith("-")]


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def man_page(name, version, page, others):
    title = page.about.split("\n")[0].rstrip(".")
    out = [f'.TH {name.upper()} 1 "" "rollring {version}" "rollring"', ".SH NAME",
           f"{roff(name)} \\- {roff(title)}", ".SH SYNOPSIS", f".B {roff(page.usage)}",
           ".SH DESCRIPTION", roff(page.about)]
    for heading, entries in page.sections:
        out.append(f".SH {heading.upper()}")
        for left, meaning in entries:
            out += [".TP", f".B {roff(left)}", roff(meaning) or "\\&"]
    if page.footer:
        out += [".SH NOTES", ".nf", roff(page.footer), ".fi"]
    out += [".SH SEE ALSO", ", ".join(f"\\fB{roff(other)}\\fR(1)" for other in others)]
    return "\n".join(out) + "\n"


def main():
    rollring, version, directory, *names = sys.argv[1:]
    target = pathlib.Path(directory)
    top = Help(rollring)
    known = [left for left, _ in top.entries("Subcommands")]
    if known != names:
        sys.exit(f"cli/meson.build lists {names}, but the program has {known}")
    commands = {name: Help(rollring, name) for name in names}
    pages = [f"rollring-{name}" for name in names]
    (target / "rollring.1").write_text(man_page("rollring", version, top, pages))
    for name, page in commands.items():
        others = ["rollring", *(other for other in pages if other != f"rollring-{name}")]
        (target / f"rollring-{name}.1").write_text(
            man_page(f"rollring-{name}", version, page, others))
    rows = completions.table(commands)
    (target / "rollring.bash").write_text(completions.bash(rows))
    (target / "_rollring").write_text(completions.zsh(rows))
    (target / "rollring.fish").write_text(completions.fish(rows))


main()
