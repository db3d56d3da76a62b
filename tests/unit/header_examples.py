#!/usr/bin/env python3
"""The code in the comments of the public headers compiles; there, `...` leaves the function.

usage: header_examples.py INCLUDE COMPILER...
"""
import pathlib
import re
import subprocess
import sys

include, *compiler = sys.argv[1:]
BLOCK = re.compile(r"(?:^ *//   .*\n|^ *//\n)+", flags=re.MULTILINE)
AROUND = """#include <{header}>
using namespace rollring;
template <class T> void train(const T&);
int shown(std::int64_t step) {{
{code}
    return static_cast<int>(step);
}}
"""


def blocks(header):
    """Runs of comment lines that are indented as code is, and have a statement in them."""
    for found in BLOCK.findall(header.read_text(encoding="utf-8")):
        lines = [re.sub(r"^ *//", "", line) for line in found.splitlines()]
        if any(re.search(r";(\s*//.*)?$", line) for line in lines):
            yield "\n".join(lines).replace("...", "return 1;")


def refused(name, code):
    """The compiler's errors; empty if there are none."""
    command = [*compiler, "-std=c++23", "-fsyntax-only", "-I", include, "-x", "c++", "-"]
    done = subprocess.run(command, input=AROUND.format(header=name, code=code), text=True,
                          capture_output=True, check=False)
    return done.stderr if done.returncode else ""


def main():
    count = 0
    for header in sorted(pathlib.Path(include).rglob("*.hpp")):
        name = header.relative_to(include)
        for code in blocks(header):
            count += 1
            problem = refused(name, code)
            if problem:
                sys.exit(f"{name} shows what does not compile:\n{code}\n{problem}")
            if not refused(name, code + "\n    int no = shown;"):
                sys.exit("the check is blind")
    if count == 0:
        sys.exit("no header shows code: is it indented by three blanks?")
    print(f"{count} examples in headers compile")


main()
