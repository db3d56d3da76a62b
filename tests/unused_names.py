#!/usr/bin/env python3
"""Public names that only tests call, as a test: prints `file:line: name` for each, exits 1.

A name is used if code of the library, the program, the bindings, the package, the benchmarks or the
examples has it, or a code block of a page. Its own declaration and definition are not a use of it.
The search knows names and not types: a name that two classes have is used if one of them is.

UNCALLED lists the names that stay although nothing here calls them, each with its reason; a row
whose name is called or gone is a breach, too.
"""
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

import pages
import tidy

TORCH_SAVER = "torch_memory_saver has it: its callers change one import"
COPIES = "trainers keep its copies: docs/python.md"
UNCALLED = {
    "include/rollring": {
        "is_transparent": "std::unordered_map asks for it",
        "layout_version": "programs log it where they may meet a ring of another version",
        "resend": "begin_again() as a whole, which a trainer in C++ needs",
    },
    "python/rollring": {
        "action_*": "Textual calls it by its key",
        "on_*": "Textual calls it by its event",
        "render_line": "Textual calls it for each line of a widget",
        "check_health": "TRL calls it",
        "init_weight_transfer": "TRL calls it",
        "update_model_version": "TRL calls it",
        "clear_data": "TransferQueue calls it",
        "*_colocate_weight_update": "AReaL calls it",
        "preserves_*": "vLLM calls it",
        "trainer_send_weights": "vLLM 0.26 wants it of every engine",
        "cancel_join_thread": "multiprocessing.Queue has it",
        "enabled": TORCH_SAVER,
        "get_cpu_backup": TORCH_SAVER,
        "set_disk_backup_dir": TORCH_SAVER,
        "disable": TORCH_SAVER,
        "aget": "event loops wait with it: docs/python.md",
        "aput": "event loops wait with it: docs/python.md",
        "to_tensordict": COPIES,
        "to_parquet": "pandas and datasets read its table: docs/recording.md",
        "image_list": "trainers read with it what push(images=...) took",
        "push_later": "workers show several records at once with it: docs/using.md",
        "share_rollout_queue": "trainers call it before train(): docs/trl.md",
    },
}

# A declaration in a header: types, then a name and its parameters.
FUNCTION = re.compile(
    r"^\s*(?:(?:\[\[\w+\]\]|template\s*<[^>]*>)\s*)*"
    r"(?!return\b|if\b|else\b|for\b|while\b|switch\b|case\b|throw\b|using\b)"
    r"(?:[\w:]+(?:<.*?>)?(?:::\w+)*(?:\s*[&*]+|\s)\s*)+([a-z]\w*)\s*\(")
TYPE = re.compile(r"\b(?:class|struct|enum class|using|concept)\s+(?:ROLLRING_API\s+)?"
                  r"(?:\[\[\w+\]\]\s*)?(\w+)")
WORD = re.compile(r"(?:(?:\.|->|::)\s*)?\b[A-Za-z_]\w*")

Place = tuple[str, int]


def cpp_declared(headers: dict[str, list[str]]) -> dict[str, list[Place]]:
    """The functions and types of public headers, with the lines that declare them."""
    found = defaultdict(list)
    for path, lines in headers.items():
        for number, line in enumerate(lines, 1):
            names = {*TYPE.findall(line), *FUNCTION.findall(line)}
            for name in names:
                found[name].append((path, number))
    return found


def cpp_unused(headers: dict[str, list[str]], sources: dict[str, list[str]]) -> Iterator[
        tuple[Place, str]]:
    """`sources`: lines of code by file. Text in a file's first column defines a function."""
    declared = cpp_declared(headers)
    lines_of = defaultdict(list)
    for path, lines in (*headers.items(), *sources.items()):
        for number, line in enumerate(lines, 1):
            for word in set(WORD.findall(line)):
                lines_of[word.lstrip(".->: \t")].append((path, number, line, word))
    for name, places in sorted(declared.items()):
        is_type = any(name in TYPE.findall(headers[path][number - 1]) for path, number in places)
        is_member = not is_type and all(headers[path][number - 1].startswith(" ")
                                        for path, number in places)
        definition = re.compile(rf"^\S.*\b{name}\s*\(")
        used = False
        for path, number, line, word in lines_of[name]:
            if (path, number) in places or (path in sources and definition.match(line)):
                continue
            if is_type and (path in headers and re.search(rf"friend|[~(]{name}\b|{name}\(", line)):
                continue
            used = used or not is_member or word != name or f"{name}(" in line
        if not used:
            yield places[0], name


def python_declared(path: str, tree: ast.Module) -> Iterator[tuple[str, Place]]:
    """Public functions and classes, and public methods of public classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        yield node.name, (path, node.lineno)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, kinds) and not member.name.startswith("_"):
                yield member.name, (path, member.lineno)


def python_names(tree: ast.Module) -> Iterator[str]:
    """The names that code reads, calls or overrides by assignment; an import alone uses nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and \
                node.value.isidentifier():
            yield node.value  # getattr(), entry points, __all__


def python_unused(package: dict[str, ast.Module], others: Iterable[ast.Module]) -> Iterator[
        tuple[Place, str]]:
    used = {name for tree in (*package.values(), *others) for name in python_names(tree)}
    for path, tree in package.items():
        for name, place in python_declared(path, tree):
            if name not in used and name.removesuffix("_async") not in used:
                yield place, name


def check_the_check() -> None:
    """Planted names are found, and used ones are not."""
    headers = {"a.hpp": ["struct Used {", "    int called() const;", "    int dead();", "};",
                         "int free_one(Used);", "int dead_one();"]}
    sources = {"a.cpp": ["int Used::dead() {", "int dead_one() {", "    return x.called();", "}",
                         "int free_one(Used u) {", "    free_one(u);"]}
    found = [name for _, name in cpp_unused(headers, sources)]
    assert found == ["dead", "dead_one"], found
    module = ast.parse("class A:\n def f(self): pass\n async def f_async(self): pass\n"
                       " def g(self): pass\ndef h(): A().f()\n")
    found = [name for _, name in python_unused({"a.py": module}, [])]
    assert found == ["g", "h"], found


def parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:  # a block with `await` at its top, a shell's, or no Python at all
        words = re.findall(r"\b[A-Za-z_]\w*\b", text)
        return ast.Module([ast.Expr(ast.Name(word)) for word in words], [])


def findings(listed: list[str]) -> Iterator[tuple[str, Place, str]]:
    """(folder, place, name)"""
    blocks = list(pages.blocks())
    own = [path for path in listed if not path.startswith("tests/")]
    code = {path: tidy.code_lines((tidy.ROOT / path).read_text(encoding="utf-8"))
            for path in own if tidy.matches(path, tidy.CPP)}
    headers = {path: lines for path, lines in code.items() if path.startswith(tidy.PUBLIC)}
    sources = {path: lines for path, lines in code.items() if path not in headers}
    sources |= {str(block): ["", *tidy.code_lines(block.text)] for block in blocks
                if block.language == "cpp"}
    yield from ((tidy.PUBLIC, *found) for found in cpp_unused(headers, sources))
    trees = {path: parsed((tidy.ROOT / path).read_text(encoding="utf-8"))
             for path in own if path.endswith(".py")}
    package = {path: tree for path, tree in trees.items() if path.startswith("python/rollring/")}
    others = [tree for path, tree in trees.items() if path not in package]
    others += [parsed(block.text) for block in blocks if block.language in ("python", "sh")]
    # Its entry points.
    others.append(parsed((tidy.ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    yield from (("python/rollring", *found) for found in python_unused(package, others))


def main() -> int:
    check_the_check()
    breaches, met = 0, set()
    for folder, (path, line), name in findings(tidy.listed_files()):
        rows = [row for row in UNCALLED[folder] if fnmatch(name, row)]
        met.update((folder, row) for row in rows)
        if not rows:
            print(f"{path}:{line}: only tests call {name}: delete it, or say in UNCALLED of "
                  "tests/unused_names.py why it stays")
            breaches += 1
    for folder, rows in UNCALLED.items():
        for row in rows:
            if (folder, row) not in met:
                print(f"tests/unused_names.py: {row} of {folder} is called or gone: delete its row")
                breaches += 1
    print(f"unused_names: breaches: {breaches}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
