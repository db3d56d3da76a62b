#!/usr/bin/env python3
"""The completions of zsh and fish, asked in the shells; one that is missing is skipped.

usage: completions.py DIRECTORY ROLLRING
DIRECTORY has _rollring and rollring.fish.
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import pages

PATIENCE_S = 60
directory, rollring = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
environment = {**os.environ, "PATH": f"{os.path.dirname(rollring)}:{os.environ['PATH']}",
               "TERM": "dumb", "HOME": "/nonexistent"}

# The input, and the words that the shell has to offer among others, or, with "only", alone.
QUESTIONS = [
    ("rollring wei", {"weights"}, {"stat"}),
    ("rollring consume --sel", {"--select"}, {"--lanes"}),
    ("rollring consume --select ", {"first", "uniform"}, {"--lanes"}),
    ("rollring produce --inp", {"--input"}, {"--lanes"}),
    ("rollring doctor --", {"--fix", "--json"}, {"--lanes"}),
]


class Fish:
    """One that finds the completions by itself, after the commands of the page: its data
    directories are those of Debian, without /usr/local."""

    def __init__(self, home):
        unset = ("XDG_DATA_DIRS", "XDG_CONFIG_HOME")
        self.environment = {**{k: v for k, v in environment.items() if k not in unset},
                            "HOME": home}
        if self.offers("rollring wei") & {"weights"}:
            sys.exit("fish: it finds the completions without the commands of the page")
        (block,) = pages.named("tests/install/completions.py", "fish")
        installed = "/usr/local/share/fish/vendor_completions.d"
        if installed not in block.text:
            sys.exit(f"the page does not name {installed}")
        subprocess.run(["sh", "-ec", block.text.replace(installed, directory)], check=True,
                       env=self.environment)

    def offers(self, line):
        done = subprocess.run(["fish", "-c", f"complete -C '{line}'"], env=self.environment,
                              capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return {entry.split("\t")[0] for entry in done.stdout.splitlines()}


class Zsh:
    """An interactive one, which lists what it offers between two marks."""

    def __init__(self):
        self.process, self.text = None, ""
        master, slave = pty.openpty()
        self.master = master
        self.process = subprocess.Popen(["zsh", "-f", "-i"], stdin=slave, stdout=slave,
                                        stderr=slave, env=environment)
        os.close(slave)
        self.say("PS1= PS2= PROMPT_EOL_MARK=; stty -echo; unsetopt zle_bracketed_paste; "
                 f"fpath=({directory} $fpath); autoload -Uz compinit; compinit -u -D; "
                 # Offered words are written down instead of shown.
                 "compadd() { local -a o; builtin compadd -O o \"$@\"; "
                 "(( $#o )) && print -rl -- 'offer '$^o; builtin compadd \"$@\" }; "
                 # Keys that follow a completion at once would change it: the mark comes after it.
                 "ask() { zle complete-word; print -r 'do''ne' }; zle -N ask; bindkey '^T' ask; "
                 "print rea''dy\n")
        self.until("ready")

    def say(self, text):
        os.write(self.master, text.encode())

    def until(self, mark):
        """The output up to the mark."""
        end = time.monotonic() + PATIENCE_S
        while mark not in self.text:
            if time.monotonic() > end:
                sys.exit(f"zsh: no {mark!r} in {self.text!r}")
            if select.select([self.master], [], [], 0.1)[0]:
                self.text += os.read(self.master, 65536).decode(errors="replace")
        found, _, self.text = self.text.partition(mark)
        return found

    def offers(self, line):
        self.say(f"{line}\x14")
        found = set(re.findall(r"offer (\S+)", self.until("done")))
        self.say("\x15")  # an empty line again
        return found


def check(shell, offers):
    for line, wanted, unwanted in QUESTIONS:
        found = offers(line)
        if not wanted <= found or found & unwanted:
            sys.exit(f"{shell}: {line!r} offers {sorted(found)}, not {sorted(wanted)}")
    print(f"{shell}: ok")


def main():
    with tempfile.TemporaryDirectory() as home:
        for shell, start in (("zsh", Zsh), ("fish", lambda: Fish(home))):
            if shutil.which(shell) is None:
                print(f"skipped: there is no {shell}")
            else:
                check(shell, start().offers)


main()
