#!/usr/bin/env python3
"""No page, help text or message installs rollring by its name: the name is on no package index, and
anybody could take it there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# An installer, with the words behind it up to the end of the command.
COMMAND = re.compile(r"\b(pip3? (?:install|download|wheel)|uv (?:add|pip install|tool install|run)|"
                     r"uvx|pipx (?:install|run|inject)|poetry add|pdm add|conda install|"
                     r"mamba install)\b([^\n#;&|`)]*)")
# In these the name is a program of the wheel that is named before.
FROM_A_FILE = re.compile(r"--(from|spec|with)[ =]\S*(\.whl|dist/|\.)")
NAME = re.compile(r"rollring(\[[\w,-]*\])?([=<>~!@].*)?", re.IGNORECASE)
SAMPLES = {
    "pip install rollring": True,
    'python -m pip install "rollring[top]"': True,
    "pip install -U 'rollring==0.1'": True,
    "run 'uv add rollring', or": True,
    "uvx rollring demo": True,
    "uvx --from dist/rollring-0.1.0-cp312-abi3-manylinux_2_35_x86_64.whl rollring demo": False,
    "pip install dist/rollring-*.whl": False,
    "pip install .": False,
    "pip install textual   # rollring top needs it": False,
    'python -m pip install ".[top]"': False,
}


def words_of(text: str) -> list[str]:
    """Quotation marks end a word; an apostrophe within one does not."""
    return re.sub(r"(?<!\w)[\"']|[\"'](?!\w)", " ", text).split()


def installs_by_name(line: str) -> bool:
    return any(NAME.fullmatch(word.strip("\"'.,:")) for _, rest in COMMAND.findall(line)
               if not FROM_A_FILE.search(rest) for word in words_of(rest))


def main() -> int:
    wrong = [sample for sample, answer in SAMPLES.items() if installs_by_name(sample) != answer]
    assert not wrong, wrong
    try:
        listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT,
                                check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: not a git checkout ({error})")
        return 77
    found = 0
    paths = [ROOT / name for name in listed.split("\0") if name]
    for path in paths:
        if not path.is_file() or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            if installs_by_name(line):
                print(f"{path.relative_to(ROOT)}:{number}: rollring is on no package index: "
                      "install a clone ('.') or a wheel file")
                found += 1
    print(f"index_names: {len(paths)} files, breaches: {found}")
    return 1 if found or len(paths) < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
