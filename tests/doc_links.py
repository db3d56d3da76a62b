#!/usr/bin/env python3
"""The pages of the repository lead somewhere: prints `page:line: what` for each breach, exits 1.

 - A relative link is to a file or folder that is there, and its anchor to a heading of that page.
 - A file that a page names is in the tree, by its whole path or by the end of it.
 - A name in code with `::` in it is in the C++ sources, each part of it.
 - A name that a page says to be in a file (`name` in [file](file), `name` ([file](file))) is in it.
 - Each promise of docs/design.md names a test.

Code blocks are not read: other tests compile or run them. First a page with one breach of each kind
is judged: a check that no longer sees them fails.
"""
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", ".github/*.md", "docs/*.md", "tests/README.md", "bench/README.md")
SKIPPED = 77  # Meson's exit status for a skipped test
SOURCES = (".hpp", ".cpp", ".cu", ".cuh")
# A file of our kinds, alone or behind folders.
FILE = re.compile(r"(?<![\w./-])(?:[\w.-]+/)*[\w-]+\.(?:cpp|hpp|cuh?|py|md|sh|svg|ini|pml|build)\b")
# All files of one name: `lib/weights/session.*`.
STEM = re.compile(r"`((?:[\w-]+/)*[\w-]+\.)\*`")
# Files that are not ours, or that a reader is to write.
STRANGE = {"mine.cpp"}
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
NAME = re.compile(r"`~?([A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
HOME = re.compile(r"`([\w:~]+)(?:\([^`]*\))?`\s+(?:in\s+)?\(?\[[^\]]*\]\(([^)#\s]+\.[chp]pp)\)")
STD = {"std", "CMake", "rollring"}


def prose(text):
    """The lines with code blocks and HTML comments emptied."""
    fenced, lines = False, []
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append("" if fenced or fence or line.startswith("    ") else line)
        fenced ^= fence
    return lines


def anchors(text):
    """As GitHub makes them of headings."""
    found = set()
    for line in prose(text):
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading[1]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            number = sum(re.fullmatch(re.escape(slug) + r"(-\d+)?", one) is not None
                         for one in found)
            found.add(f"{slug}-{number}" if number else slug)
    return found


def whole(page, target):
    """The path from the root that a link of a page means; None if it leaves the tree."""
    parts = []
    for part in (PurePosixPath(page).parent / target).parts:
        if part != "..":
            parts.append(part)
        elif not parts:
            return None
        else:
            parts.pop()
    return "/".join(parts)


class Tree:
    """The names that pages may use: `texts` are the pages by path, `files` all paths, `words` of
    sources."""

    def __init__(self, texts, files, words):
        self.texts, self.files, self.words = texts, set(files), words
        self.folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
        self.ends = {"/".join(path.split("/")[at:]) for path in files
                     for at in range(path.count("/") + 1)}

    def breaches(self, page):
        for number, line in enumerate(prose(self.texts[page]), 1):
            for target in LINK.findall(line):
                yield from ((number, what) for what in self.of_link(page, target))
            for name in FILE.findall(re.sub(r"\w+://\S+", "", line)):
                named = re.sub(r"^(\.\.?/)+", "", name)
                if named not in self.ends and named not in STRANGE:
                    yield number, f"there is no file {name}"
            for stem in STEM.findall(line):
                if not any(one.startswith(stem) for one in self.ends):
                    yield number, f"there is no file {stem}*"
            for name in NAME.findall(line):
                missing = [part for part in re.split("::~?", name)
                           if part not in self.words and part not in STD]
                if missing and not name.startswith("std::"):
                    yield number, f"no source has {missing[0]} (of {name})"

    def of_link(self, page, target):
        if re.match(r"\w+:", target):
            return
        path, _, anchor = target.partition("#")
        home = whole(page, path) if path else page
        if home is None or (home not in self.files and home not in self.folders):
            yield f"broken link: {target}"
        elif anchor and anchor not in anchors(self.texts.get(home, "")):
            yield f"no such heading: {target}"


def homeless(page, text, source_of):
    """Yields (line number, message) of names that are not in the file that is named."""
    for found in HOME.finditer(text):
        name, path = found[1].split("::")[-1], whole(page, found[2])
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source_of(path)):
            yield text.count("\n", 0, found.start()) + 1, f"{name} is not in {path}"


def promises(design):
    """Yields (line number, message) of those without a test."""
    found = list(re.finditer(r"^- \*\*(P\d+)\*\*.*?(?=\n- |\n\n)", design,
                             re.DOTALL | re.MULTILINE))
    for item in found:
        if not re.search(r"\]\(\.\./tests/[^)]+\)", item[0]):
            yield design.count("\n", 0, item.start()) + 1, f"{item[1]} names no test"
    if [item[1] for item in found] != [f"P{number}" for number in range(1, 11)]:
        yield 1, "the promises are not P1 to P10"


def check_the_check():
    bare = "- **P1** good\n  [t](../tests/t)\n- **P2** [bad](x.md)\n\n"
    if [number for number, _ in promises(bare)] != [3, 1]:
        sys.exit("the check is blind to promises without a test")
    told = list(homeless("a.md", "`A::b` in\n[x](x.cpp), `c` ([x](x.cpp))", lambda path: "b"))
    if [number for number, _ in told] != [2]:
        sys.exit("the check is blind to names that are not where they are said to be")
    page = ("# A page\n[good](b.md#two-words) [good](#a-page) `docs/b.md`, `b.md`, `A::b()`\n"
            "[broken](c.md)\n[broken](b.md#three)\n[broken](../../x.md)\n`lib/gone.cpp`\n"
            "`A::gone`\n`b.*` `lib/gone.*`\n```\n[code](nowhere.md)\n```\n")
    tree = Tree({"docs/a.md": page, "docs/b.md": "## Two `words`\n"}, ["docs/a.md", "docs/b.md"],
                {"A", "b"})
    found = sorted(number for number, _ in tree.breaches("docs/a.md"))
    # A broken link names a file that is not there, too.
    if found != [3, 3, 4, 5, 5, 6, 7, 8]:
        sys.exit(f"the check is blind: of the lines 3 to 8 it blames {found}")


def main():
    check_the_check()
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        out = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: not a git checkout ({error})")
        return SKIPPED
    files = [path for path in out.decode().split("\0") if path and (ROOT / path).is_file()]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
             for glob in PAGES for path in sorted(ROOT.glob(glob))}
    words = set()
    for path in files:
        if path.endswith(SOURCES):
            words.update(re.findall(r"\w+", (ROOT / path).read_text(encoding="utf-8")))
    tree, count = Tree(texts, files, words), 0

    def source(path):
        return (ROOT / path).read_text(encoding="utf-8") if path in tree.files else ""

    for page in texts:
        more = promises(texts[page]) if page == "docs/design.md" else ()
        told = homeless(page, texts[page], source)
        for number, what in (*tree.breaches(page), *told, *more):
            print(f"{page}:{number}: {what}")
            count += 1
    print(f"doc_links: {len(texts)} pages, breaches: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
