#!/usr/bin/env python3
"""Messages, help texts, comments and docstrings are written in plain English: prints
`file:line: what` for each breach, exits 1. The rules are those of prose.py.

 - Text for users of the program, the library, the Python package or `./dev`, in `PLACES`: string
   literals of C++ and Python with a space, adjacent ones joined, raw strings whole; the help page
   and the messages of `dev`.
 - Text for engineers, in `COMMENTED`: every comment of C++, Python, builds, scripts and
   configuration, and every docstring, private ones and those of tests included.

A place that is not there is an error: a moved folder would be read no longer.

usage: prose_strings.py [FILE ...]
"""
import ast
import inspect
import re
import sys
from pathlib import Path

from prose import ROOT, breaches, comments

PLACES = {
    ".cpp .hpp .cu .cuh": ("cli", "lib", "producer", "consumer", "stash", "extras", "integrations",
                           "include", "bench", "python/src"),
    ".py": ("python/rollring", "bench", "tools", "examples/grpo/options.py"),
    "": ("dev",),
}
COMMENTED = {
    ".cpp .hpp .cu .cuh": ("cli", "lib", "producer", "consumer", "stash", "extras", "integrations",
                           "include", "bench", "python/src", "tests"),
    ".py": ("python", "cli", "bench", "tools", "tests", "docs"),
    ".build .sh .ini .txt .yaml .yml .toml": (
        ".github", ".pre-commit-config.yaml", "bench", "cli", "cmake", "consumer", "docker", "docs",
        "examples", "extras", "include", "integrations", "lib", "meson.build", "producer",
        "pyproject.toml", "python", "stash", "tests"),
    "": (".ci/run", ".clang-tidy", ".editorconfig", "bench/.clang-tidy", "dev",
         "tests/.clang-tidy"),
}
# The arguments of a macro or an attribute are for developers.
FOR_DEVELOPERS = re.compile(
    r"(?:FAULT_POINT|static_assert|ROLLRING_ASSERT|\[\[nodiscard)\s*\([^;]*$")
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
TEXT = re.compile(rf'R"\((?P<raw>.*?)\)"|(?P<plain>{LITERAL}(?:\s*{LITERAL})*)', re.DOTALL)
COMMENT = re.compile(rf"(?P<keep>{LITERAL})|//[^\n]*|/\*.*?\*/", re.DOTALL)
SHELL_TEXT = re.compile(r"<<'HELP'\n(?P<page>.*?)\nHELP|\b(?:say|die|misuse) \"(?P<said>[^\"]*)\"|"
                        r"\bprintf '(?P<printed>[^']*)'", re.DOTALL)


def cpp_texts(source):
    """Yields (line, text) of each literal that is for people."""
    source = COMMENT.sub(
        lambda found: found["keep"] or "\n" * found[0].count("\n"), source)
    for found in TEXT.finditer(source):
        if FOR_DEVELOPERS.search(source[:found.start()].rstrip()[-200:]):
            continue
        if found["raw"] is not None:
            text = found["raw"]
        else:
            text = "".join(one[1:-1] for one in re.findall(LITERAL, found["plain"]))
            text = text.replace("\\n", "\n").replace('\\"', '"')
        if " " in text.strip():
            yield source.count("\n", 0, found.start()) + 1, text


def shell_texts(source):
    """Yields (line, text) of the help page and of each message."""
    for found in SHELL_TEXT.finditer(source):
        yield source.count("\n", 0, found.start(found.lastgroup)) + 1, found[found.lastgroup]


def docstring_of(node):
    """The statement, if the node has one."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    first = node.body[0] if node.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first.value if is_text and isinstance(first.value.value, str) else None


def python_texts(source):
    """Yields (line, text) of each literal."""
    tree = ast.parse(source)
    own = {id(docstring_of(node)) for node in ast.walk(tree) if docstring_of(node) is not None}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
             for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}"
                           for part in node.values)
        elif (isinstance(node, ast.Constant) and isinstance(node.value, str)
              and id(node) not in own and id(node) not in inner):
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, text


def comment_texts(path, source):
    """Yields (line, text) of all comments together, and of each docstring."""
    yield 1, comments(path, source, docstrings=False)
    if path.suffix != ".py":
        return
    for node in filter(None, map(docstring_of, ast.walk(ast.parse(source)))):
        # Text that is indented counts as code: a docstring is indented with its function.
        yield node.lineno, inspect.cleandoc(node.value)


def is_in(places, path):
    return any(ROOT / name in (path, *path.parents) for suffixes, names in places.items()
               if path.suffix in suffixes.split() or not suffixes for name in names)


def texts_of(path):
    source = path.read_text(encoding="utf-8")
    if is_in(PLACES, path):
        read = python_texts if path.suffix == ".py" else cpp_texts if path.suffix else shell_texts
        yield from read(source)
    if is_in(COMMENTED, path):
        yield from comment_texts(path, source)


def check_the_check():
    cpp = 'f("a b is no c");  // what is no text\ng("d " /* "who is it" */\n  "who e");'
    cpp += '\nstatic_assert(x, "what f");\nh(R"(i j\nwhat k)");\n'
    python = ('"""What _a is."""\n# What _b is.\nclass _C:\n    """Who d is."""\n'
              '    def _e(self):\n        """Who f is."""\n'
              '        raise G(f"what {1} is")  # who h is\nI = """J.\n\nWho k is.\n"""\n')
    sections = ('class A:\n    """A noun.\n\n    Who a is\n    goes.\n\n    Args:\n'
                '        b: What b is.\n        c: Of a\n            d. What e is.\n\n'
                '    usage:\n\n        f    what f is\n    """\n'
                '    def f(self):\n        """A noun.\n\n        Raises:\n'
                '            G: It is no h.\n        """\n')
    shell = "cat <<'HELP'\n  a  b\n     what c\nHELP\n# what d\nsay \"what $e is\"\n"
    header = "// A noun.\n//\n// What a is\n#define B\nint c;  // who d\n"
    kernel = "int a;  // the sum\n// What a warp reads\n"
    build = "#!/bin/sh\na=$#  # what b is\nc # d\n# Who e is.\n"
    for name, texts, source, wanted in (
            ("a.cpp", cpp_texts, cpp, [1, 2, 6]), ("a.py", python_texts, python, [7, 10]),
            ("a.py", comment_texts, python, [1, 2, 4, 6, 7]),
            ("a.py", comment_texts, sections, [4, 8, 10, 20]), ("dev", shell_texts, shell, [3, 6]),
            ("a.hpp", comment_texts, header, [3, 5]), ("a.cuh", comment_texts, kernel, [2]),
            ("meson.build", comment_texts, build, [2, 4]), ("dev", comment_texts, build, [2, 4])):
        given = (Path(name), source) if texts is comment_texts else (source,)
        found = sorted({line + number - 1 for line, text in texts(*given)
                        for number, _ in breaches(text)})
        if found != wanted:
            sys.exit(f"{texts.__name__} sees lines {found}, not {wanted}, of {source}")
    if not is_in(COMMENTED, ROOT / "tests/a/b.cpp") or is_in(PLACES, ROOT / "tests/a/b.py"):
        sys.exit("the check does not read the comments of tests alone")
    if not is_refused({".py": ("no/such/folder",)}):
        sys.exit("the check passes over a folder that is not there")


def is_refused(places):
    try:
        return not list(files(places))
    except FileNotFoundError:
        return True


def files(places):
    """The files of our text. Raises FileNotFoundError: a place is not there, or has none."""
    for suffixes, names in places.items():
        for name in names:
            place = ROOT / name
            found = [place] if place.is_file() else [
                path for path in sorted(place.rglob("*")) if path.suffix in suffixes.split()]
            if not found:
                raise FileNotFoundError(f"no text to read in {name}: a table of this file names it")
            yield from found


def main():
    check_the_check()
    try:
        every = sorted({*files(PLACES), *files(COMMENTED)})
    except FileNotFoundError as missing:
        sys.exit(f"prose_strings: {missing}")
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or every
    if strange := set(chosen) - set(every):
        sys.exit(f"prose_strings: no table of this file names {', '.join(map(str, strange))}")
    count = 0
    for path in chosen:
        for line, text in texts_of(path):
            for number, what in breaches(text):
                print(f"{path.relative_to(ROOT)}:{line + number - 1}: {what}")
                count += 1
    print(f"prose_strings: {len(chosen)} files, breaches: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
