"""The words that the repository uses, for tests/tidy.py: the glossary's, and names of files that
exist.

The table "Words that are not used" of docs/glossary.md is the rule: a word of its first column
stands nowhere in code, comments, messages and pages, or not in the files of its third column. A
word is found in any case and as a part of a longer name (`dead_word`, `DeadWord`), with the endings
of English; two words also with `_` or `-` between them.

A comment cites files of this tree only, by their path or its end. `tidy-ok: <reason>` on the line
lets both pass.
"""
import re
from fnmatch import fnmatch

GLOSSARY = "docs/glossary.md"
HEADING = "## Words that are not used"
# Of other systems that we follow, and files that a script is told to write.
STRANGE = {"atroposlib/envs/base.py", "ipc_engine.py", "cuda_ipc_strategy.py", "packed_tensor.py",
           "OUT.cpp"}
# Names in others' interfaces, where we take their place.
FOREIGN = re.compile(r"\b(?:(?:update_)?model_version|heartbeat_stale_after_s)\b")  # TRL's
ENDING = "(?:s|es|d|ed|ing)?"
CITED = re.compile(r"(?<![\w./<>*{}-])(?:[\w.-]+/)*\w[\w-]*\.(?:cpp|hpp|cuh?|py|md|sh|ini|pml)\b")
COMMENT = {
    (".cpp", ".hpp", ".cu", ".cuh"): re.compile(r"//[^\n]*"),
    (".py",): re.compile(r'^\s*#[^\n]*|  # [^\n]*|^\s*""".*?"""', re.DOTALL | re.MULTILINE),
    (".sh", ".build", "dev", ".ini"): re.compile(r"#[^\n]*"),
}


def banned(glossary):
    """Yields (first word, pattern, replacement, globs of files; none: all of them)."""
    table = glossary.split(HEADING, 1)[1].split("\n## ", 1)[0]
    for row in re.findall(r"^\| (.+) \|$", table, flags=re.MULTILINE)[2:]:
        words, instead, where = (cell.strip() for cell in row.split("|"))
        for word in words.split(","):
            parts = [part.strip() for part in word.split()]
            # Not the end of a longer word: `dig` occurs in `dig_out`, and not in `prodigy`.
            body = "[ _-]".join(re.escape(part) for part in parts)
            title = body.replace("[ _-]", "_?").title() if len(parts) == 1 else body
            yield (parts[0].lower(), re.compile(rf"(?<![a-zA-Z])(?i:{body}){ENDING}(?![a-z])|"
                              rf"(?<=[a-z]){title}{ENDING}(?![a-z])"),
                   f"no '{' '.join(parts)}': say {instead} ({GLOSSARY})",
                   tuple(re.findall("`([^`]*)`", where)))


def word_breaches(path, text, rules):
    """Yields (line number, rule)."""
    if path in (GLOSSARY, "CHANGELOG.md"):
        return
    text = FOREIGN.sub("", text)
    low = text.lower()  # most files have none of them, and that is soon seen
    mine = [(pattern, rule) for start, pattern, rule, globs in rules if start in low
            and (not globs or any(fnmatch(path, glob) for glob in globs))]
    for number, line in enumerate(text.split("\n") if mine else (), 1):
        yield from ((number, rule) for pattern, rule in mine if pattern.search(line))


def cited_breaches(path, text, ends):
    """Yields (line number, rule). `ends`: every end of the path of every file."""
    for kinds, comment in COMMENT.items():
        if not path.endswith(kinds):
            continue
        for found in comment.finditer(text):
            for name in CITED.finditer(re.sub(r"\w+://\S+", lambda url: " " * len(url[0]),
                                              found[0])):
                if re.sub(r"^(\.\.?/)+", "", name[0]) not in ends | STRANGE:
                    yield (text.count("\n", 0, found.start() + name.start()) + 1,
                           f"cites {name[0]}, which is not in the tree")


def ends_of(paths):
    return {"/".join(path.split("/")[at:]) for path in paths for at in range(path.count("/") + 1)}


def check_the_check():
    """A check that sees nothing would pass for ever."""
    rules = list(banned(f"{HEADING}\n\n| not | say | where |\n| --- | --- | --- |\n"
                        "| dead word, grue, model " "version | life | |\n"
                        "| here | there | `a/*` |\n"))
    text = ("dead_word\nDead words\nGrue\nsome_grues\nSomeGrueName\ngruesome\nhere\n"
            "agrue\nadhere\nself.model_version\nmodel " "versions\n")
    lines = {path: [number for number, _ in word_breaches(path, text, rules)]
             for path in ("a/b.cpp", "b/b.cpp")}
    assert lines == {"a/b.cpp": [1, 2, 3, 4, 5, 7, 11], "b/b.cpp": [1, 2, 3, 4, 5, 11]}, lines
    cites = list(cited_breaches("a.cpp", "// b.cpp, a/b.hpp\nint x; // gone.md\n",
                                ends_of(["lib/a/b.hpp", "b.cpp"])))
    assert [number for number, _ in cites] == [2], cites
