#!/usr/bin/env python3
"""Every code block of the pages is run by a test, or says why not: prints `page:line: what`.

 - C++ is examples/, shown: tests/install/outside.py compares, builds and runs it.
 - `sh` and `python` without a mark are run by tests/python/test_pages.py.
 - A mark names the runner of the block, which in turn asks for it or names the programs in it.
 - `text` is a drawing or an output. A block in another language has a mark, too.
 - Python blocks parse, and use no name that a reader lacks: page_names.py.
"""
import importlib.util
import re
import subprocess
import sys

import page_names
import pages

STEPS = pages.ROOT / "tests/fresh/__main__.py"
RUN = ("sh", "python")
OF_THE_TREE = re.compile(r"^(?:\./dev|(?:python3? |\./)?(?:examples|bench|build|docker)/|docker |"
                         r"kubectl )", re.MULTILINE)  # or of a machine that a test has not
# pip hides the output of the build, which takes minutes.
SILENT = re.compile(r"pip install (?!-v )(?:[\"']?\.(?:\[|[\"']|\s|$)|\S+\.tar\.gz)", re.MULTILINE)
ASKED = ("pages.", "page_lines()")  # a test that looks for its blocks


def breaches(block, source_of):
    """The faults of the mark. `source_of`: the text of a runner, None if there is none."""
    if block.stray:
        yield f"'{block.stray}' is no mark: `run by` names a test, `not run` the reason"
    if SILENT.search(block.text):
        yield "pip shows no progress while it builds the package: pip install -v"
    if block.language in ("cpp", "text"):
        if block.runners or block.reason:
            yield f"a block in `{block.language}` needs no mark"
        return
    if block.reason:
        if len(block.reason.split()) < 3:
            yield f"'{block.reason}' does not say why nothing runs it"
    elif not block.runners and OF_THE_TREE.search(block.text):
        yield "it starts a program of the tree: mark it with the test that runs it"
    elif block.language not in RUN and not block.runners:
        yield (f"no test runs a block in '{block.language}': say `text` for a drawing or an "
               "output, or mark it <!-- not run: why -->")
    for runner, name in block.runners:
        source = source_of(runner)
        if source is None:
            yield f"there is no {runner}"
        elif not asks_for(block, name, source):
            yield f"{runner} does not ask for '{name}'"


def asks_for(block, name, source):
    """Whether a test looks for the block, or names all the programs that it starts."""
    programs = re.findall(r"[\w-]+\.(?:py|sh)\b", block.text)
    return f'"{name}"' in source if name else (
        any(asked in source for asked in ASKED) or
        bool(programs) and all(program in source for program in programs))


def source_of(runner):
    path = STEPS if runner == "./dev fresh" else pages.ROOT / runner
    return path.read_text(encoding="utf-8") if path.is_file() else None


def check_the_check():
    page = ("```python\nrun()\n```\n<!-- not run: needs a GPU -->\n```sh\nx\n```\n"
            "<!-- run by test.py (one) -->\n\n```sh\nx\n```\n```\nlost\n```\n"
            "<!-- not run: no -->\n```sh\nx\n```\n<!-- run by gone.py -->\n```sh\nx\n```\n"
            "<!-- run by test.py (two) -->\n```sh\nx\n```\n```yaml\na: b\n```\n```text\n->\n```\n"
            "```sh\npython examples/a.py\n```\n<!-- pasted -->\n```sh\nx\n```\n"
            "```sh\npip install .  # a clone\n```\n```sh\npip install '.[top]'\n```\n"
            "```sh\npip install -v .\npip install ./a.whl .x\n```\n"
            "```sh\nbin/pip install dist/a-*.tar.gz\n```\n")
    found = [block.line for block in pages.parse("a.md", page)
             if list(breaches(block, {"test.py": 'pages.named("one")'}.get))]
    if found != [13, 17, 21, 25, 28, 34, 38, 41, 44, 51]:
        sys.exit(f"the check is blind: it blames the lines {found}")


def missing_steps():
    """The blocks that a step of ./dev fresh does not find in the pages."""
    spec = importlib.util.spec_from_file_location("fresh", STEPS)
    fresh = sys.modules["fresh"] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(STEPS.parent))
    spec.loader.exec_module(fresh)
    try:
        quick, whole = list(fresh.steps(quick=True)), list(fresh.steps(quick=False))
    except (LookupError, ValueError) as error:
        return [str(error)]
    titles = [step.title for step in quick]
    if titles[:2] != ["./dev demo", "./dev test --quick"] or len(whole) <= len(quick):
        return [f"the quick steps of ./dev fresh are {titles}"]
    return []


def unignored():
    """Folders that blocks make in the clone, and that tidy would take for ours."""
    for block in pages.blocks():
        for folder in re.findall(r"-m venv ([\w.][\w./-]*)", block.text):
            done = subprocess.run(["git", "-c", "safe.directory=*", "check-ignore", "-q",
                                   f"{folder}/"], cwd=pages.ROOT, check=False)
            if done.returncode == 1:
                yield f"{block}: .gitignore lacks {folder}"


def main():
    check_the_check()
    count = 0
    blocks = list(pages.blocks())
    for block in blocks:
        for what in breaches(block, source_of):
            print(f"{block}: {what}")
            count += 1
    for block, what in page_names.all_breaches():
        print(f"{block}: {what}")
        count += 1
    for what in (*missing_steps(), *unignored()):
        print(what)
        count += 1
    print(f"page_marks: {len(blocks)} blocks, breaches: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
