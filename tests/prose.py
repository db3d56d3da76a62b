#!/usr/bin/env python3
"""The pages, and the comments of the examples, are written in plain English: prints
`page:line: what` for each breach, exits 1.

A sentence has a noun as its subject. These constructions read as if they were translated:

 - a clause that begins with `who`, `whoever` or `what` and stands for a noun: `Who attaches waits`.
   A question is none of these, direct or indirect (`says what is missing`), and neither is a clause
   that belongs to people (`users who`).
 - `nobody` and `somebody` for processes, `is no X` for `is not an X`, `that is none`, and the
   phrases of `PHRASES`.

A heading that does not ask with a question mark, and a cell of a table's head, are noun phrases.
Code is not read. The README is short: its details are on the pages.
First sentences of both kinds are judged: a check that is blind to a construction, or blames plain
English, fails.
"""
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", ".github/*.md", "docs/*.md", "tests/README.md", "bench/README.md",
         "examples/**/*.py", "examples/*.cpp")
README_LINES = 160

# An indirect question follows one of these, with a few words for the person or thing asked.
ASKING = re.compile(
    r"\b(?:say(?:s|ing)?|said|tell(?:s|ing)?|told|kn[oe]ws?|knowing|known|"
    r"show(?:s|n|ing|ed)?|see[sn]?|explain(?:s|ed|ing)?|"
    r"decid(?:e[sd]?|ing)|list(?:s|ed|ing)?|learn(?:s|ed)?|ask(?:s|ed|ing)?|"
    r"print(?:s|ed|ing)?|report(?:s|ed|ing)?|determine[sd]?|defin(?:e[sd]?|ing)|"
    r"describ(?:e[sd]?|ing)|stat(?:e[sd]?|ing)|choos(?:es?|ing)|chosen?|record(?:s|ed|ing)?|"
    r"check(?:s|ed|ing)?|find(?:s|ing)? out|depend(?:s|ed|ing)? on|question of|"
    r"no matter|matters?|regardless of)(?: (?!that\b)[\w`']+){0,4}$|"
    r"\b(?:which|where|why|how|whether)\b[^.;:]{3,60}(?:\band|\bor|,)$")
PEOPLE = re.compile(r"\b(?:people|person|those|anyone|anybody|everyone|someone|users?|developers?|"
                    r"engineers?|newcomers?|visitors?|contributors?|"
                    r"maintainers?),?$")
CLAUSE = re.compile(r"\b(?:who|whoever|what)\b", re.IGNORECASE)
PHRASES = (
    (re.compile(r"\b(?:nobody|somebody)\b", re.IGNORECASE), "name the process or the person"),
    (re.compile(r"\b(?:that|which|it) (?:is|are|was|were) none\b(?! of)", re.IGNORECASE),
     "say what is invalid or missing"),
    (re.compile(r"(?<!there )(?<!that there )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|"
                r"fewer\b|matter\b|other than\b|(?:larg|small|long|short|high|low|lat|earli|slow|"
                r"fast|bett|furth|wid|deep|great|old|new)er\b)", re.IGNORECASE),
     "'is not a'"),
    (re.compile(r"\b(?:comes?|came|coming) again\b(?! and again)", re.IGNORECASE),
     "is delivered again, returns, is a duplicate"),
    (re.compile(r"\ball of it or\b.{0,20}\b(?:none|nothing)\b", re.IGNORECASE), "atomically"),
    (re.compile(r"\bsuch that (?:is|are|was|were|has|have)\b", re.IGNORECASE), "'those that'"),
    (re.compile(r"\bstands? (?:in|on|there|behind)\b(?! for\b)|\bas it stands\b", re.IGNORECASE),
     "'is in', 'lies in'"),
    (re.compile(r"\bto be had\b|\b(?:has|have) (?:its|their) like\b", re.IGNORECASE),
     "'is available', 'has a counterpart'"),
    (re.compile(r"\b(?:of|for|after|by|in|with|than|most|least|until|just) so (?:many|much|long)\b"
                r"(?! (?:as|that)\b)", re.IGNORECASE),
     "'that many', or name the quantity"),
    (re.compile(r"\bin the place of\b", re.IGNORECASE), "'in place of', 'instead of'"),
    (re.compile(r"\bof late\b", re.IGNORECASE), "'recently'"),
    (re.compile(r"\ball is well\b", re.IGNORECASE), "'passed', 'succeeded'"),
    (re.compile(r"\btwice is fine\b", re.IGNORECASE), "'idempotent'"),
    (re.compile(r"\boutlives? this(?=[.;,]|$)"), "'must outlive this object'"),
    (re.compile(r", for (?:it|they|we|he|this|these|others|each|all) (?:is|are|was|were|has|have|"
                r"had|may|can|must|would|will|does|do)\b"), "'because'"),
    (re.compile(r"^#+ which\b[^?]*$", re.IGNORECASE), "a noun, or a question mark"),
)

BAD = (
    "Who has records of several groups sends those first.",
    "What looks attaches read-only.",
    "It stays. Whoever attaches waits.",
    "It says so: what is gone is gone.",
    "A worker loads it, who then answers.",
    "It gives back what it was given.",
    "The report says that what is gone is gone.",
    "The socket is open to whoever holds the descriptor.",
    "If it dies, what it has sent arrives.",
    "- A list item.\n- Who comes late waits.",
    "| call | result |\n| --- | --- |\n| `ack` | what was held is free |",
    "It waits for\nwhat comes next.",
    "## What does not work\n\n - Several machines.",
    "## Which modules are written directly",
    "| feature | what was run |\n| --- | --- |\n| a | b |",
    "The page is written by nobody else.",
    "A wake-up is for somebody that sleeps.",
    "A number that is none is refused.",
    "The store is no server.",
    "Then the record comes again.",
    "It sends all of it or none.",
    "There are such that are closed.",
    "The options stand in a file.",
    "Such memory is to be had.",
    "There is no memory to be had.",
    "| column | meaning |\n| --- | --- |\n| `a` | at most so many groups are held |",
    "Each wait has its like for event loops.",
    "Bins of so many tokens are made.",
    "Use it in the place of another.",
    "The record of late is longer.",
    "Then all is well.",
    "Twice is fine.",
    "The map outlives this.",
    "It waits, for it has no room.",
)
GOOD = (
    "# Who writes the head?\nThe consumer.",
    "What does it cost? Nothing.",
    "The error says what is missing, and `stat` shows who waits.",
    "The report tells the trainer what was dropped.",
    "The size depends on what the machine has.",
    "For people who run it on one machine, and users who do not.",
    "| part | place |\n| --- | --- |\n| a | b |",
    "## Which folder holds what?\nThis one.",
    "```sh\n# what is there\nwhich sh\n```",
    "| option | effect |\n| --- | --- |\n| `a` | which groups ship first |",
    "```\nwhat comes again\n```\nRun `who` first.",
    "<!-- what is hidden -->\nThere is no ring, and it is no longer than that.",
    "A reader that stands in for a rank.",
    "It is true for so long as it runs; the member whose turn it is waits.",
    "It is none of these.",
    "The map must outlive this object.",
)


def blocks(text):
    """Yields (text, number of the first line) of paragraphs, items and cells, without code.

    Headings and cells of a table's head begin with "# ".
    """
    fenced, lines, start, indented = False, [], 0, False
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    every = [*text.split("\n"), ""]
    for number, line in enumerate(every, 1):
        fence = line.lstrip().startswith("```")
        row, heading = line.lstrip().startswith("|"), re.match(r"#+ ", line)
        item = re.match(r"\s*(?:[-*+]|\d+\.) ", line)
        indented = line.startswith("    ") and (indented or not lines) and not item
        if lines and (fence or fenced or row or heading or item or not line.strip()):
            yield "\n".join(lines), start
            lines = []
        if row and not fenced:
            mark = "# " if re.match(r"\s*\|[\s:|-]+$", every[number]) else ""
            yield from ((mark + cell.strip(), number) for cell in re.split(r"(?<!\\)\|", line))
        elif heading and not fenced:
            yield line, number
        elif line.strip() and not (fence or fenced or heading or indented):
            start = start if lines else number
            lines.append(line[item.end():] if item else line)
        fenced ^= fence


def plain(text):
    """Without code, targets of links and marks; line ends stay, so that lines can be counted."""
    text = re.sub(r"(`+)(.+?)\1", lambda found: "`x`" + "\n" * found[2].count("\n"), text,
                  flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "", text)
    return re.sub(r"[*\[\]]|!\[", "", text)


def comments(path, text, docstrings=True):
    """The comments and docstrings of a source, each on its line, and nothing else."""
    lines = [""] * (text.count("\n") + 2)
    if path.suffix != ".py":
        mark = r"(?<!:)//" if path.suffix in (".cpp", ".hpp", ".cu", ".cuh") else r"(?:^|\s)#(?!!)"
        found = ((text.count("\n", 0, one.start(1)), one[1])
                 for one in re.finditer(rf"{mark}(.*)", text))
    else:
        found = ((token.start[0] - 1, token.string.strip("#\""))
                 for token in tokenize.generate_tokens(io.StringIO(text).readline)
                 if token.type == tokenize.COMMENT
                 or (docstrings and token.string.startswith('"""')))
    for at, comment in found:
        for number, line in enumerate(comment.split("\n"), at):
            lines[number] = line.strip()
    return "\n".join(lines)


def is_question(text, at):
    end = re.compile(r"[.?!](?=[\s\")]|$)|\|").search(text, at)
    return end is not None and end[0] == "?"


def breaches(text):
    """Yields (line number, message)."""
    for block, start in blocks(text):
        body = plain(block)
        flat = re.sub(r"\s", " ", body)
        found = [(match, "name the subject") for match in CLAUSE.finditer(flat)
                 if not is_question(flat, match.start())
                 and not ASKING.search(flat[:match.start()].rstrip())
                 and not (match[0] == "who" and PEOPLE.search(flat[:match.start()].rstrip()))]
        found += [(match, say) for pattern, say in PHRASES for match in pattern.finditer(flat)]
        for match, say in sorted(found, key=lambda one: one[0].start()):
            near = flat[max(0, match.start() - 20):match.end() + 30].strip()
            yield start + body.count("\n", 0, match.start()), f"'{near}': {say}"


def check_the_check():
    blind = [text for text in BAD if not list(breaches(text))]
    strict = [text for text in GOOD if list(breaches(text))]
    if blind or strict:
        sys.exit(f"the check does not see {blind}, and blames {strict}")
    python = 'x = "what is"\n"""Doc\n\nWho comes waits.\n"""\n# what is\n# gone\n'
    cpp = 'auto url = "https://who";  // a link\nint x;  // what is gone\n'
    for name, text, wanted in (("a.py", python, [4, 6]), ("a.cpp", cpp, [2])):
        if [number for number, _ in breaches(comments(Path(name), text))] != wanted:
            sys.exit(f"the check does not read the comments of {name}")
    if [number for number, _ in breaches("a\n\nb\nc `d\ne`\n- f\n  who is g")] != [7]:
        sys.exit("the check does not count lines")


def main():
    check_the_check()
    pages = [Path(name).resolve() for name in sys.argv[1:]] or [
        path for glob in PAGES for path in sorted(ROOT.glob(glob))]
    count = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for number, what in breaches(text if page.suffix == ".md" else comments(page, text)):
            print(f"{page.relative_to(ROOT)}:{number}: {what}")
            count += 1
    length = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    if length > README_LINES:
        print(f"README.md: {length} lines, more than {README_LINES}: move the details to a page")
        count += 1
    print(f"prose: {len(pages)} pages, breaches: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
