#!/usr/bin/env python3
"""Repository rules, as a test: prints `file:line: rule` for each breach, exits 1 if there is one.

Comments and string literals are not code and are not searched. A line that must break a rule says
why, in a comment on the line: `tidy-ok: <reason>`. Only tracked files, and new ones that git does
not ignore, are read.
"""
import re
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import walls
import words

ROOT = Path(__file__).resolve().parent.parent
COLUMNS_MAX = 100
LINES_BELOW = 450
SKIPPED = 77  # Meson's exit status for a skipped test

CPP = ("*.hpp", "*.cpp", "*.cuh", "*.cu")
SOURCES = CPP + ("*.py", "*.sh", "*.ini", "*meson.build", "meson_options.txt", "dev", ".ci/run")
PROSE = ("*.md",)  # its words and file names are looked at, too
DOUBLES = ("tests/system/refusals.*",)  # of the C library's functions
MAPPING = ("lib/shm/mapping.cpp",)
SEGMENT = ("lib/shm/make_once.cpp", "lib/shm/segment*.cpp") + DOUBLES
NOWHERE = ()

# (pattern, the only files that may contain it, the remedy)
ONLY_IN = [
    (r"(?<!asm )\bvolatile\b", NOWHERE, "no volatile: it orders nothing; use std::atomic"),
    (r"\batomic_thread_fence\b", NOWHERE, "no fences: ThreadSanitizer cannot follow them"),
    (r"\bmanaged_shared_memory\b", NOWHERE, "no managed_shared_memory: hangs when a creator dies"),
    (r"\binterprocess_mutex\b", NOWHERE, "no interprocess_mutex: hangs when its owner dies"),
    (r"\b(stable_sort|stable_partition|inplace_merge)\b", NOWHERE,
     "clang refuses these over g++ 12's library: sort by a key that decides"),
    (r"hardware_(de|con)structive", NOWHERE, "line_bytes is part of the ABI, not of the compiler"),
    (r"memory_order", ("lib/base/words.hpp", "lib/ring/lane*.hpp", "lib/ring/orders.hpp",
                       "lib/shm/doorbell.*", "tests/*", "bench/*"),
     "memory orders live in the lane core, the doorbell and the words"),
    (r"\bshm_open\b", MAPPING + DOUBLES, "SharedObject opens shared memory"),
    (r"\bposix_fallocate\b", MAPPING + DOUBLES, "allocate() reserves pages"),
    (r"\bftruncate\b", (*SEGMENT, "extras/recording/append_file.cpp"),
     "ftruncate is the segment's business"),
    (r"\bmmap\s*\(", ("lib/shm/segment_overflow.cpp", "python/src/window.cpp") + DOUBLES,
     "Mapping maps memory"),
    (r"boost/interprocess", MAPPING, "Boost.Interprocess stands behind Mapping"),
    (r"\b(SYS|__NR)_futex\b", ("lib/shm/doorbell.cpp",) + DOUBLES,
     "futex is the doorbell's business"),
    (r"#\s*include\s*[<\"]cuda\w*\.h[>\"]", ("lib/cuda/*", "bench/weights/gpu_arena.cpp"),
     "CUDA headers stay in lib/cuda"),
    (r"#\s*include\s*<fmt/format\.h>",
     ("lib/base/bundled_fmt.cpp", "cli/terminal/options.cpp", "cli/formats/meant_keys.cpp"),
     "include <fmt/core.h>: format.h compiles the formatters of libfmt into each file again"),
]
# The same for patterns that may be broken over lines.
ONLY_IN_WHOLE = [
    (re.compile(r"\bunexpected\s*(?:<\s*(?:\w+::)*Error\s*>\s*)?[({]\s*(?:\w+::)*Error\s*\{"),
     ("include/rollring/error.hpp",), "an error is made by failed() or refused()"),
]
# (pattern, the files that must not contain it, the remedy)
NEVER_IN = [
    (r"\bsleep_(for|until)\b|\busleep\s*\(|nanosleep", ("tests/*",),
     "tests do not sleep: wait for a condition under a deadline"),
]

# The folders whose headers a folder's files may include beside their own and the public ones.
# Arrows point down; tests may look anywhere. A folder with C++ that is neither here nor a test's is
# a breach.
PUBLIC = "include/rollring"
PUBLIC_EXTRAS = "include/rollring/extras"
ARROWS = {
    PUBLIC: (),
    PUBLIC_EXTRAS: (),
    "lib/base": (),
    "lib/shm": ("lib/base",),
    "lib/record": ("lib/shm", "lib/base"),
    "lib/ring": ("lib/record", "lib/shm", "lib/base"),
    "lib/credits": ("lib/ring", "lib/shm", "lib/base"),
    "lib/device": ("lib/shm", "lib/base"),
    "lib/shards": ("lib/base",),
    "lib/weights": ("lib/device", "lib/shm", "lib/base"),
    "lib/gather": ("lib/device", "lib/shm", "lib/base"),
    "lib/stat": ("lib/weights", "lib/ring", "lib/shm", "lib/base"),
    "lib/tap": ("lib/ring", "lib/shm"),
    "lib/cuda": ("lib/device", "lib/base"),
    "producer": ("lib/credits", "lib/ring", "lib/record", "lib/shm", "lib/base"),
    "consumer": ("lib/credits", "lib/ring", "lib/shm", "lib/base"),
    "stash/groups": (),
    "stash/shares": ("consumer", "lib/ring", "lib/shm", "lib/base"),
    "stash": ("stash/groups", "stash/shares", "consumer", "lib/credits", "lib/ring", "lib/record",
              "lib/shm", "lib/base"),
    "extras/ledger": ("extras/recording", "stash", "lib/shm", "lib/base"),
    "extras/memory": ("lib/device", "lib/shm", "lib/base"),
    "extras/recording": ("lib/shm", "lib/base"),
    "extras/relay": (),
    "extras/requests": ("lib/ring", "lib/shm", "lib/base"),
    "extras/server_seat": ("lib/shm",),
    "extras/store": ("lib/ring", "lib/record", "lib/shm", "lib/base"),
    "cli/terminal": (),
    "cli/formats": ("cli/terminal",),
    "cli/http": ("cli/formats", "cli/terminal"),
    "integrations/atropos": ("cli/http", "cli/formats", "cli/terminal"),
    "cli/records": ("integrations/atropos", "cli/formats", "cli/terminal"),
    "cli/commands": ("cli/http", "cli/records", "cli/formats", "cli/terminal"),
    "integrations/atropos/commands": ("integrations/atropos", "cli/commands", "cli/http",
                                      "cli/formats"),
    "cli": ("cli/commands", "integrations/atropos/commands"),
    "python/src": ("extras/relay",),
    "examples": (),
    "bench": ("cli/terminal",),
    "bench/ring": ("bench",),
    "bench/gather": ("bench/ring", "bench"),
    "bench/ledger": ("bench/peers", "bench/ring", "bench"),
    "bench/stash": ("bench/ring", "bench"),
    "bench/scale": ("bench", "cli/terminal"),
    "bench/weights": ("bench",),
    "bench/peers": ("bench/stash", "bench/ring", "bench"),
}

# Lines that a file has more than others may. A file leaves the table when it is split by its idea;
# none comes.
LONG_FILES: dict[str, int] = {}

FAULT_POINT = re.compile(r'FAULT_POINT\("([a-z_.]+)"\);')
FAULT_TABLES = "tests/crash/*fault_points.cpp"

ATOMIC_NAME = re.compile(r"\b(?:Atomic|atomic|atomic_ref)<[^;(){}]*>\s*&?\s*(\w+)\s*[;{=(,)\[]")
INCLUDE = re.compile(r"\s*#\s*include\b")
OWN_INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
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
    return [raw if INCLUDE.match(raw) else code
            for raw, code in zip(text.split("\n"), bare, strict=True)]


def cpp_breaches(path: str, text: str, atomic_wait: re.Pattern | None):
    """Yields (line number, rule)."""
    code = code_lines(text)
    if path.endswith(".hpp") and not any(line.strip() == "#pragma once" for line in code):
        yield 1, "a header starts with #pragma once"
    rules = [(pattern, rule) for pattern, homes, rule in ONLY_IN if not matches(path, homes)]
    rules += [(pattern, rule) for pattern, places, rule in NEVER_IN if matches(path, places)]
    for number, line in enumerate(code, 1):
        yield from ((number, rule) for pattern, rule in rules if re.search(pattern, line))
        if atomic_wait and atomic_wait.search(line):
            yield number, "no wait or notify on atomics: it wakes no other process; use a doorbell"
    whole = "\n".join(code)
    for pattern, homes, rule in ONLY_IN_WHOLE:
        if not matches(path, homes):
            yield from ((whole.count("\n", 0, found.start()) + 1, rule)
                        for found in pattern.finditer(whole))


def folder_of(path: str) -> str:
    return str(Path(path).parent)


def homes_of(cpp: set[str]) -> dict[str, set[str]]:
    """The folders that have a file, by each end of its path: the name alone, with one folder..."""
    homes = defaultdict(set)
    for path in cpp:
        parts = path.split("/")
        for first in range(len(parts)):
            homes["/".join(parts[first:])].add(folder_of(path))
    return homes


class Arrows:
    """Judges includes, and remembers which arrows were needed."""

    def __init__(self, homes: dict[str, set[str]]) -> None:
        self._homes = homes
        self._used: set[tuple[str, str]] = set()
        self._walls = walls.Includes()

    def breaches(self, path: str, text: str):
        """Yields (line number, rule). A name that several folders have is judged as the best of
        them: no two folders of one group of files have it. In <...>, a name that no folder has is
        a system's."""
        folder = folder_of(path)
        allowed = {folder, PUBLIC, PUBLIC_EXTRAS, *ARROWS[folder]}
        for number, line in enumerate(text.split("\n"), 1):
            found = OWN_INCLUDE.match(line)
            name = found and (found[1] or found[2])
            places = self._homes.get(name.replace("../", ""), set()) if name else set()
            if not places:
                continue
            seen = places & allowed
            self._used.update((folder, one) for one in seen)
            if not seen:
                yield number, f"{folder} may not include {min(places)}: see ARROWS in tests/tidy.py"
            else:
                home = folder if folder in seen else min(seen)
                yield from ((number, rule) for rule in self._walls.breaches(path, name, home))

    def needless(self):
        """Yields (file or folder, rule); once all files were judged."""
        for folder, row in ARROWS.items():
            for other in row:
                if (folder, other) not in self._used:
                    yield folder, f"its arrow to {other} in tests/tidy.py is not needed"
        yield from self._walls.needless()


def folder_breaches(cpp: set[str]):
    """Yields (file or folder, rule): code that no arrow binds, and arrows without code."""
    folders = {folder_of(path) for path in cpp}
    for folder in sorted(folders):
        if folder not in ARROWS and not f"{folder}/".startswith("tests/"):
            yield folder, "no folder of ARROWS in tests/tidy.py: say there what it may include"
    for folder in sorted({*ARROWS, *(one for row in ARROWS.values() for one in row)} - folders):
        yield folder, "in ARROWS of tests/tidy.py, but without C++"


def fault_breaches(texts: dict[str, str]):
    """Yields (file, line number, rule). The builds that strike at these points run in --full only,
    so that a point without its row is told here."""
    tables = "".join(text for path, text in texts.items() if fnmatch(path, FAULT_TABLES))
    for path, text in texts.items():
        for found in FAULT_POINT.finditer(text) if not path.startswith("tests/") else ():
            if f'"{found[1]}"' not in tables:
                yield (path, text.count("\n", 0, found.start()) + 1,
                       f"{found[1]} is in no table of {FAULT_TABLES}")


def package_breaches(listed: list[str]):
    """Modules of the package that meson.build does not install."""
    build = (ROOT / "python/meson.build").read_text(encoding="utf-8")
    for path in listed:
        inside = path.removeprefix("python/")
        if path.startswith("python/rollring/") and path.endswith((".py", ".pyi")) and \
                f"'{inside}'" not in build:
            yield path, "python/meson.build does not install it"


def main() -> int:
    words.check_the_check()
    listed = listed_files()
    every = {path: (ROOT / path).read_text(encoding="utf-8", errors="replace")
             for path in listed if matches(path, SOURCES + PROSE)}
    rules, ends = list(words.banned(every[words.GLOSSARY])), words.ends_of(listed)
    texts = {path: text for path, text in every.items() if matches(path, SOURCES)}
    cpp = {path for path in texts if matches(path, CPP)}
    code = "\n".join(line for path in cpp for line in code_lines(texts[path]))
    names = set(ATOMIC_NAME.findall(code))
    atomic_wait = names and re.compile(
        rf"\b({'|'.join(sorted(names))})(\(\)|\[\w*\])?\.(wait|notify_one|notify_all)\s*\("
        r"|\batomic_(wait|notify)") or None
    arrows = Arrows(homes_of(cpp))
    in_python = defaultdict(list)
    for path, number, rule in walls.Package(texts).breaches():
        in_python[path].append((number, rule))
    breaches = 0
    for path, text in every.items():
        lines = text.split("\n")
        found = [*words.word_breaches(path, text, rules), *words.cited_breaches(path, text, ends)]
        if path in texts:
            found += [(number, f"more than {COLUMNS_MAX} columns")
                      for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
        if (path in cpp or path.endswith(".py")) and text.count("\n") >= LINES_BELOW + \
                LONG_FILES.get(path, 0):
            found.append((text.count("\n"), f"a file stays below {LINES_BELOW} lines: split it "
                                            "by idea"))
        if path in cpp:
            found += cpp_breaches(path, text, atomic_wait)
            if folder_of(path) in ARROWS:
                found += arrows.breaches(path, text)
        for number, rule in sorted([*found, *in_python[path]]):
            if not re.search(r"tidy-ok: *\S", lines[number - 1]):
                print(f"{path}:{number}: {rule}")
                breaches += 1
    for path, number, rule in fault_breaches({path: texts[path] for path in sorted(cpp)}):
        print(f"{path}:{number}: {rule}")
        breaches += 1
    for path, rule in (*folder_breaches(cpp), *arrows.needless(), *package_breaches(listed)):
        print(f"{path}:1: {rule}")
        breaches += 1
    print(f"tidy: {len(texts)} files, breaches: {breaches}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
