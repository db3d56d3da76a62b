"""Whether a reader of a page has all that its Python blocks use.

A name is bound in the block or in an earlier one of its page, or the paragraph directly above the
first block that uses it has it in backticks: there the page says that it is the reader's own.
"""
import builtins
import re
import symtable
import sys

import pages

OF_PYTHON = {*dir(builtins), "__name__", "__file__"}
TOLD = re.compile(r"`([A-Za-z_]\w*)(?:\([^`]*\))?`")


def tables(table):
    yield table
    for child in table.get_children():
        yield from tables(child)


def names(text):
    """Those that the code binds for later code, and those that it takes from outside."""
    whole = symtable.symtable(text, "block", "exec")
    bound, used = set(), set()
    for table in tables(whole):
        for symbol in table.get_symbols():
            made = symbol.is_assigned() or symbol.is_imported()
            if made and (table is whole or symbol.is_declared_global()):
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (table is whole or symbol.is_global()):
                used.add(symbol.get_name())
    return bound, used - bound - OF_PYTHON


def told(text, line):
    """Names that the paragraph above the block's fence has in backticks."""
    above = "\n".join(text.splitlines()[:line - 1])
    above = re.sub(r"<!--(?:(?!-->).)*-->\s*$", "", above, flags=re.DOTALL).rstrip()
    return set(TOLD.findall(re.split(r"\n\s*\n", above)[-1]))


def breaches(page, text):
    """Python blocks that do not parse, or use a name that no reader has, each with a message."""
    bound = set()
    for block in pages.parse(page, text):
        if block.language != "python":
            continue
        try:
            here, used = names(block.text)
        except SyntaxError as error:
            yield block, f"it does not parse: {error.msg}, line {error.lineno}"
            continue
        given = used & told(text, block.line)
        if missing := sorted(used - bound - given):
            yield block, (f"{', '.join(missing)}: no block so far binds it; import or assign it, "
                          "or name it in backticks in the paragraph above")
        bound |= here | given


def check_the_check():
    page = ("```python\nimport a\ndef run(b):\n    return a.c(b, d)\n```\n"  # d, of a function
            "With `e`, and `run(x)` of yours:\n\n<!-- run by\ntest.py -->\n"
            "```python\nrun(e, *(f for f in e))\nprint(a)\n```\n\n"
            "Of `g`.\n\nAs above:\n\n```python\nprint(e, g)\n```\n"
            "```python\n    run(a),\n```\n```python\nclass G:\n    h = a\n    i = h\nG.i\n```\n"
            "```python\nwith open('x') as j:\n    k = [l for l in j]\nl\n```\n")
    found = [block.line for block, _ in breaches("a.md", page)]
    if found != [1, 19, 22, 31]:
        sys.exit(f"the check of names is blind: it blames the lines {found}")


def all_breaches():
    check_the_check()
    for page in sorted({block.page for block in pages.blocks()}):
        yield from breaches(page, (pages.ROOT / page).read_text(encoding="utf-8"))
