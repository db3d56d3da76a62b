#!/usr/bin/env python3
"""Man pages and bash completion of the program `rollring`, from nothing but its --help.

pages.py ROLLRING VERSION DIRECTORY COMMAND...: writes rollring.1, rollring-COMMAND.1 for each
command and rollring.bash. The commands have to be those of the program."""

import pathlib
import re
import subprocess
import sys

HEADING = re.compile(r"^([A-Z][A-Za-z ]*):$")
ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
FLAGS = re.compile(r"--?[A-Za-z][A-Za-z-]*")
WORDS = re.compile(r"\b[A-Z]+:\{([^}]*)\}")


class Help:
    """The parts of a help page: what it is, its usage, its sections of entries, and the rest."""

    def __init__(self, rollring, *command):
        text = subprocess.run([rollring, *command, "--help"], check=True, text=True,
                              capture_output=True).stdout
        about, usage, rest = re.split(r"^Usage: (.*)$", text, maxsplit=1, flags=re.MULTILINE)
        self.about = about.strip()
        self.usage = usage.strip()
        self.sections = []  # (title, [[left side, what it means], ...])
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


def completion(commands):
    """`commands` maps names to their help."""
    values, flags = [], []
    for command, page in commands.items():
        own = []
        for left, _ in page.options():
            names = FLAGS.findall(left.split(" ")[0])
            own += [name for name in names if name.startswith("--")]
            pattern = "|".join(f"{command}:{name}" for name in names)
            choice = WORDS.search(left)
            if choice:
                values.append(f"        {pattern}) words='{choice[1].replace(',', ' ')}' ;;")
            elif re.search(r"\bFILE\b", left):
                values.append(f"        {pattern}) files=1 ;;")
            elif " " in re.sub(r" (Excludes|Needs): .*", "", left):
                values.append(f"        {pattern}) return ;;")
        ring = any(left.startswith("NAME") for left, _ in page.entries("Positionals"))
        flags.append(f"        {command}) flags='{' '.join(own)}' rings={int(ring)} ;;")
    return f"""# bash completion for rollring, made from its --help
_rollring() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    local command=${{COMP_WORDS[1]}} words='' files='' flags='' rings=0
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{' '.join(commands)} --help --version' -- "$cur"))
        return
    fi
    # --option=value comes as three words.
    if [ "$cur" = = ]; then
        cur=''
    elif [ "$prev" = = ]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case $command:$prev in
{chr(10).join(values)}
    esac
    if [ -n "$files" ]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$cur"))
        return
    fi
    if [ -z "$words" ]; then
        case $command in
{chr(10).join(flags)}
        esac
        if [[ $cur == -* ]]; then
            words=$flags
        elif [ "$rings" = 1 ]; then
            words=$(rollring ls --json 2>/dev/null | grep -o '"ring":"[^"]*"' | cut -d'"' -f4)
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -F _rollring rollring
"""


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
    (target / "rollring.bash").write_text(completion(commands))


main()
