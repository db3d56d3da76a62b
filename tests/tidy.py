#!/usr/bin/env python3
"""Repository rules, as a test: prints `file:line: rule` for each breach, exits 1 if there is one.

Comments and string literals are not code and are not searched. A line that must break a rule says
why, in a comment on the line: `tidy-ok: <reason>`. Only tracked files, and new ones that git does
not ignore, are read.
"""
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS_MAX = 100
LINES_BELOW = 450
SKIPPED = 77  # Meson's exit status for a skipped test

CPP = ("*.hpp", "*.cpp")
SOURCES = CPP + ("*.py", "*.sh", "*.ini", "*meson.build", "meson_options.txt", "dev", ".ci/run")
DOUBLES = ("tests/system/refusals.*",)  # of the C library's functions
SEGMENT = ("lib/shm/segment*.cpp", "lib/shm/segment_object.hpp") + DOUBLES
SEALED = SEGMENT + ("lib/shm/sealed.cpp",)
NOWHERE = ()

# (pattern, the only files that may contain it, what to do instead)
ONLY_IN = [
    (r"\bvolatile\b", NOWHERE, "no volatile: it orders nothing; use std::atomic"),
    (r"\batomic_thread_fence\b", NOWHERE, "no fences: ThreadSanitizer cannot follow them"),
    (r"\bmanaged_shared_memory\b", NOWHERE, "no managed_shared_memory: hangs when a creator dies"),
    (r"\binterprocess_mutex\b", NOWHERE, "no interprocess_mutex: hangs when its owner dies"),
    (r"hardware_(de|con)structive", NOWHERE, "line_bytes is part of the ABI, not of the compiler"),
    (r"memory_order", ("lib/ring/lane*.hpp", "lib/ring/orders.hpp", "lib/shm/doorbell.*",
                       "lib/shm/layout.hpp", "tests/*", "bench/*"),
     "memory orders live in the lane core, the doorbell and the layout"),
    (r"\bshm_open\b", SEGMENT, "shm_open is the segment's business"),
    (r"\bposix_fallocate\b", SEALED, "posix_fallocate is the segment's business"),
    (r"\bftruncate\b", SEGMENT, "ftruncate is the segment's business"),
    (r"\bmmap\s*\(", SEALED, "mmap is the segment's business"),
    (r"boost/interprocess", SEGMENT, "Boost.Interprocess is the segment's business"),
    (r"\b(SYS|__NR)_futex\b", ("lib/shm/doorbell.cpp",) + DOUBLES,
     "futex is the doorbell's business"),
    (r"#\s*include\s*[<\"]cuda\w*\.h[>\"]", ("lib/cuda/*",), "CUDA headers stay in lib/cuda"),
]
# (pattern, the files that must not contain it, what to do instead)
NEVER_IN = [
    (r"\bsleep_(for|until)\b|\busleep\s*\(|nanosleep", ("tests/*",),
     "tests do not sleep: wait for a condition under a deadline"),
]

# What the files of a folder may include beside their own folder's and the public headers. Arrows
# point down; tests and benchmarks may look anywhere.
PUBLIC = "include/rollring"
ARROWS = {
    PUBLIC: (),
    "lib/cpu": (),
    "lib/shm": ("lib/cpu",),
    "lib/record": ("lib/shm", "lib/cpu"),
    "lib/ring": ("lib/record", "lib/shm", "lib/cpu"),
    "lib/weights": ("lib/shm", "lib/cpu"),
    "lib/cuda": ("lib/weights", "lib/shm"),
    "producer": ("lib/ring", "lib/record", "lib/shm", "lib/cpu"),
    "consumer": ("lib/ring", "lib/record", "lib/shm", "lib/cpu"),
    "stash/groups": ("lib/cpu",),
    "stash": ("stash/groups", "consumer", "lib/ring", "lib/record", "lib/shm", "lib/cpu"),
    "cli/terminal": (),
    "cli/formats": ("cli/terminal",),
    "cli/commands": ("cli/formats", "cli/terminal"),
    "cli": ("cli/commands", "cli/formats", "cli/terminal"),
    "examples": (),
}

ATOMIC_NAME = re.compile(r"\b(?:Atomic|atomic|atomic_ref)<[^;(){}]*>\s*&?\s*(\w+)\s*[;{=(,)\[]")
INCLUDE = re.compile(r"\s*#\s*include\b")
OWN_INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/                   # comments
    |R"(?P<tag>[^\s()\\]*)\(.*?\)(?P=tag)"   # raw strings
    |"(?:\\.|[^"\\\n])*"                     # strings
    |(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'     # characters, but not the ' of 1'000""",
    re.DOTALL | re.VERBOSE)


def listed_files() -> list[str]:
    """Paths from the root; no list (a tarball, no git) means that there is nothing to judge."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        out = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: not a git checkout ({error})")
        sys.exit(SKIPPED)
    paths = sorted(set(out.decode().split("\0")) - {""})
    return [path for path in paths if (ROOT / path).is_file()]


def matches(path: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch(path, glob) for glob in globs)


def code_lines(text: str) -> list[str]:
    """The text's lines without comments and literals; include lines keep their quoted name."""
    bare = NOT_CODE.sub(lambda found: "\n" * found[0].count("\n") or " ", text).split("\n")
    return [raw if INCLUDE.match(raw) else code for raw, code in zip(text.split("\n"), bare)]


def cpp_breaches(path: str, text: str, atomic_wait: re.Pattern | None):
    """Yields (line number, rule)."""
    code = code_lines(text)
    if path.endswith(".hpp") and not any(line.strip() == "#pragma once" for line in code):
        yield 1, "a header starts with #pragma once"
    if text.count("\n") >= LINES_BELOW:
        yield text.count("\n"), f"a C++ file stays below {LINES_BELOW} lines: split it by idea"
    rules = [(pattern, rule) for pattern, homes, rule in ONLY_IN if not matches(path, homes)]
    rules += [(pattern, rule) for pattern, places, rule in NEVER_IN if matches(path, places)]
    for number, line in enumerate(code, 1):
        yield from ((number, rule) for pattern, rule in rules if re.search(pattern, line))
        if atomic_wait and atomic_wait.search(line):
            yield number, "no wait or notify on atomics: it wakes no other process; use a doorbell"


def arrow_breaches(path: str, text: str, homes: dict[str, str]):
    """Yields (line number, rule). `homes`: the folder of each header, by its name."""
    folder = str(Path(path).parent)
    for number, line in enumerate(text.split("\n"), 1):
        found = OWN_INCLUDE.match(line)
        home = found and homes.get(Path(found[1]).name)
        if home and home not in (folder, PUBLIC) and home not in ARROWS[folder]:
            yield number, f"{folder} may not include {home}: see ARROWS in tests/tidy.py"


def main() -> int:
    texts = {path: (ROOT / path).read_text(encoding="utf-8", errors="replace")
             for path in listed_files() if matches(path, SOURCES)}
    cpp = {path for path in texts if matches(path, CPP)}
    code = "\n".join(line for path in cpp for line in code_lines(texts[path]))
    names = set(ATOMIC_NAME.findall(code))
    atomic_wait = names and re.compile(
        rf"\b({'|'.join(sorted(names))})(\(\)|\[\w*\])?\.(wait|notify_one|notify_all)\s*\("
        r"|\batomic_(wait|notify)") or None
    homes = {Path(path).name: str(Path(path).parent)
             for path in cpp if path.endswith(".hpp") and str(Path(path).parent) in ARROWS}
    breaches = 0
    for path, text in texts.items():
        lines = text.split("\n")
        found = [(number, f"more than {COLUMNS_MAX} columns")
                 for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
        if path in cpp:
            found += cpp_breaches(path, text, atomic_wait)
            if str(Path(path).parent) in ARROWS:
                found += arrow_breaches(path, text, homes)
        for number, rule in sorted(found):
            if not re.search(r"tidy-ok: *\S", lines[number - 1]):
                print(f"{path}:{number}: {rule}")
                breaches += 1
    print(f"tidy: {len(texts)} files, {breaches} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
