#!/usr/bin/env python3
"""Messages, help texts and docstrings are written in plain English: prints `file:line: what` for
each breach, exits 1. The rules are those of prose.py, for all text that a user of the program, the
library or the Python package reads.

 - C++: string literals with a space, adjacent ones joined; raw strings whole.
 - Python: the same, and the docstrings of public classes and functions: of modules without an
   underscore before their names, and the names that `rollring` exports.

usage: prose_strings.py [FILE ...]
"""
import ast
import re
import sys
from pathlib import Path

from prose import ROOT, breaches

CPP = ("cli", "lib", "producer", "consumer", "stash", "store", "shares", "include", "python/src")
PYTHON = ("python/rollring",)
# What a macro or an attribute takes is for developers.
FOR_DEVELOPERS = re.compile(
    r"(?:FAULT_POINT|static_assert|ROLLRING_ASSERT|\[\[nodiscard)\s*\([^;]*$")
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
TEXT = re.compile(rf'R"\((?P<raw>.*?)\)"|(?P<plain>{LITERAL}(?:\s*{LITERAL})*)', re.DOTALL)
COMMENT = re.compile(rf"(?P<keep>{LITERAL})|//[^\n]*|/\*.*?\*/", re.DOTALL)


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
    for node in public_docstrings(tree, is_public):
        yield node.lineno, node.value


def exported():
    """The names that rollring and its public modules have."""
    found = set()
    for path in (ROOT / "python/rollring").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                found |= set(ast.literal_eval(node.value))
    return found or sys.exit("python/rollring has no __all__")


def texts_of(path, names):
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return cpp_texts(source)
    if path.name.startswith("_") and path.name != "__init__.py":
        inner = path.parent != ROOT / "python/rollring"
        return python_texts(source, lambda name: not inner and name in names)
    return python_texts(source)


def check_the_check():
    cpp = 'f("a b is no c");  // what is no text\ng("d " /* "who is it" */\n  "who e");'
    cpp += '\nstatic_assert(x, "what f");\nh(R"(i j\nwhat k)");\n'
    python = ('"""Who is private."""\nclass A:\n    """Who a is."""\n    def _b(self):\n'
              '        """Who b is."""\n        raise C(f"what {1} is")\n')
    for texts, source, wanted in ((cpp_texts, cpp, [1, 2, 5]), (python_texts, python, [3, 6])):
        found = sorted({line for line, text in texts(source) if list(breaches(text))})
        if found != wanted:
            sys.exit(f"the check sees lines {found}, not {wanted}")


def files():
    for folder in CPP:
        for pattern in ("*.cpp", "*.hpp"):
            yield from sorted((ROOT / folder).rglob(pattern))
    for folder in PYTHON:
        yield from sorted((ROOT / folder).rglob("*.py"))


def main():
    check_the_check()
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or list(files())
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
