#!/usr/bin/env python3
"""Messages, help texts, docstrings and public headers are written in plain English: prints
`file:line: what` for each breach, exits 1. The rules are those of prose.py, for all text that a
user of the program, the library, the Python package or `./dev` reads.

 - C++: string literals with a space, adjacent ones joined; raw strings whole. In the folders of
   `COMMENTED` also the comments: the site publishes those of public headers, and engineers read
   the others.
 - Python: the same literals, and the docstrings of public classes and functions: of modules without
   an underscore before their names, and the names that `rollring` exports. Of programs, the
   docstring that their --help shows.
 - `dev`: its help page and its messages.

A place that is not there is an error: a moved folder would be read no longer.

usage: prose_strings.py [FILE ...]
"""
import ast
import inspect
import re
import sys
from pathlib import Path

from prose import ROOT, breaches, comments

PACKAGE = ROOT / "python/rollring"
PLACES = {
    ".cpp .hpp .cu .cuh": ("cli", "lib", "producer", "consumer", "stash", "extras", "integrations",
                           "include", "bench", "python/src"),
    ".py": ("python/rollring", "bench", "tools", "examples/grpo/options.py"),
    "": ("dev",),
}
COMMENTED = ("include", "lib", "producer", "consumer", "stash", "extras", "integrations",
             "python/src", "cli")
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


def public_docstrings(node, is_public):
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not is_public(child.name):
            continue
        if docstring_of(child) is not None:
            yield docstring_of(child)
        if isinstance(child, ast.ClassDef):
            yield from public_docstrings(child, lambda name: not name.startswith("_"))


def python_texts(source, is_public=lambda name: not name.startswith("_")):
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
    shown = [docstring_of(tree)] if "__doc__" in source and docstring_of(tree) else []
    for node in (*shown, *public_docstrings(tree, is_public)):
        # Text that is indented counts as code: a docstring is indented with its function.
        yield node.lineno, inspect.cleandoc(node.value)


def exported():
    """The names that rollring and its public modules have."""
    found = set()
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                found |= set(ast.literal_eval(node.value))
    return found or sys.exit("python/rollring has no __all__")


def has_comments(path):
    """Whether the comments of this file are read, too."""
    return any(ROOT / name in path.parents for name in COMMENTED)


def texts_of(path, names):
    source = path.read_text(encoding="utf-8")
    if not path.suffix:
        return shell_texts(source)
    if path.suffix != ".py":
        return [*cpp_texts(source), *([(1, comments(path, source))] if has_comments(path) else ())]
    if PACKAGE not in path.parents:
        return python_texts(source, lambda name: False)
    if path.name.startswith("_") and path.name != "__init__.py":
        inner = path.parent != PACKAGE
        return python_texts(source, lambda name: not inner and name in names)
    return python_texts(source)


def check_the_check():
    cpp = 'f("a b is no c");  // what is no text\ng("d " /* "who is it" */\n  "who e");'
    cpp += '\nstatic_assert(x, "what f");\nh(R"(i j\nwhat k)");\n'
    python = ('"""Who is private."""\nclass A:\n    """Who a is."""\n    def _b(self):\n'
              '        """Who b is."""\n        raise C(f"what {1} is")\n')
    sections = ('class A:\n    """A noun.\n\n    Who a is\n    goes.\n\n    Args:\n'
                '        b: What b is.\n        c: Of a\n            d. What e is.\n    """\n'
                '    def f(self):\n        """A noun.\n\n        Raises:\n'
                '            G: It is no h.\n        """\n')
    shell = "cat <<'HELP'\n  a  b\n     what c\nHELP\n# what d\nsay \"what $e is\"\n"
    for texts, source, wanted in ((cpp_texts, cpp, [1, 2, 6]), (python_texts, python, [3, 6]),
                                  (python_texts, sections, [4, 8, 10, 16]),
                                  (python_texts, '"""What a is."""\n', []),
                                  (python_texts, '"""What a is."""\nb(__doc__)\n', [1]),
                                  (shell_texts, shell, [3, 6])):
        found = sorted({line + number - 1 for line, text in texts(source)
                        for number, _ in breaches(text)})
        if found != wanted:
            sys.exit(f"the check sees lines {found}, not {wanted}, of {source}")
    header = "// A noun.\n//\n// What a is\n#define B\nint c;  // who d\n"
    if [line for line, _ in breaches(comments(Path("a.hpp"), header))] != [3, 5]:
        sys.exit("the check does not read the comments of headers")
    kernel = "int a;  // the sum\n// What a warp reads\n"
    if [line for line, _ in breaches(comments(Path("a.cuh"), kernel))] != [2]:
        sys.exit("the check does not read the comments of kernels")
    if [name for name in COMMENTED if not has_comments(ROOT / name / "a/b.hpp")] or has_comments(
            ROOT / "tests/a.cpp") or set(COMMENTED) - set(PLACES[".cpp .hpp .cu .cuh"]):
        sys.exit("the check does not read the comments of the folders in COMMENTED")
    if not is_refused({".py": ("no/such/folder",)}):
        sys.exit("the check passes over a folder that is not there")


def is_refused(places):
    try:
        return not list(files(places))
    except FileNotFoundError:
        return True


def files(places=None):
    """The files of our text. Raises FileNotFoundError: a place is not there, or has none."""
    for suffixes, names in (places or PLACES).items():
        for name in names:
            place = ROOT / name
            found = [place] if place.is_file() else [
                path for path in sorted(place.rglob("*")) if path.suffix in suffixes.split()]
            if not found:
                raise FileNotFoundError(f"no text to read in {name}: PLACES names it")
            yield from found


def main():
    check_the_check()
    try:
        chosen = [Path(name).resolve() for name in sys.argv[1:]] or list(files())
    except FileNotFoundError as missing:
        sys.exit(f"prose_strings: {missing}")
    count = 0
    names = exported()
    for path in chosen:
        for line, text in texts_of(path, names):
            for number, what in breaches(text):
                print(f"{path.relative_to(ROOT)}:{line + number - 1}: {what}")
                count += 1
    print(f"prose_strings: {len(chosen)} files, breaches: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
