#!/usr/bin/env python3
"""Builds the site: pages, sources that they link to, and the API from the public headers and the
Python package.

    site_pages.py PYTHON      into build/site, by the mkdocs of that interpreter

Pages keep their places, so that links between them hold here as they do in a checkout. A linked
source is shown as a page, a linked folder as a page that lists it. Comments of the headers are made
into Doxygen's.
"""
import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/site-pages"
HEADERS = ROOT / "build/site-headers"
GLOBS = ("*.md", "docs/*.md", "tests/README.md", "bench/README.md")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s:]+)?(#[^)\s]*)?\)")
FENCED = re.compile(r"^( *)(```+).*?^\1\2$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
# The sidebar; a page that no group names comes last.
GROUPS = {
    "Guide": ("using", "python", "formats", "store", "recording",
              "watching", "view", "memory", "containers", "grpo"),
    "Integrations": ("integrations", "atropos", "torchtitan", "trl", "verl", "skyrl",
                     "transfer_queue", "verifiers", "slime", "areal", "vllm", "sglang",
                     "checkpoint_engine", "ray"),
    "How it works": ("design", "stash", "weights", "shards", "progress", "shared-memory",
                     "glossary"),
    "Measurements": ("benchmarks", "scale", "experiments"),
    "Working on rollring": ("finding-your-way", "testing"),
}
OF_FOLDERS = {"Measurements": ("bench/README.md",),
              "Working on rollring": ("CONTRIBUTING.md", "tests/README.md", "SECURITY.md",
                                      "CODE_OF_CONDUCT.md")}
# Files that are shown as pages of their own, in the colours of their language.
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".cu": "cuda", ".cuh": "cuda", ".py": "python",
             ".sh": "bash", ".ini": "ini", ".build": "meson", ".toml": "toml", ".json": "json",
             ".pml": "text", "": "text", ".txt": "text", ".yml": "yaml", ".yaml": "yaml",
             ".bash": "bash"}
SOURCES = (".hpp", ".cpp", ".cu", ".cuh", ".py")


def plain(heading):
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip()


def headings(page):
    return HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


def title(page):
    return plain(headings(page)[0])


def heading(page, anchor):
    """The heading of a page that an anchor leads to."""
    for found in headings(page):
        if re.sub(r"[^\w\- ]", "", plain(found).lower()).replace(" ", "-") == anchor:
            return plain(found)
    return title(page)


def is_shown(path):
    return path.is_file() and path.suffix in LANGUAGES and path.suffix != ".md"


def tracked(folder):
    """The files in it that git knows, its folders' included: programs may have been built there."""
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=folder,
                            check=True, text=True, stdout=subprocess.PIPE).stdout
    return [folder / path for path in listed.split("\0") if path]


def listing(folder):
    """A page for a folder that is linked."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(tracked(folder)):
        hidden = path.name.startswith(".")  # MkDocs leaves such pages out
        if path.parent == folder and is_shown(path) and not hidden:
            put(path)
            lines.append(f" - [{path.name}]({path.name}.md)")
    # A README is the folder's index already.
    name = "files.md" if (folder / "README.md").exists() else "index.md"
    made = PAGES / folder.relative_to(ROOT) / name
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def put(path):
    """A file that a page links to: sources as a page, others as they are."""
    made = PAGES / path.relative_to(ROOT)
    if is_shown(path):
        made = made.with_name(made.name + ".md")
    if made.exists():
        return
    made.parent.mkdir(parents=True, exist_ok=True)
    if is_shown(path):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        made.write_text(f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n"
                        f"~~~~~~ {{.{LANGUAGES[path.suffix]} linenums=1}}\n{text}\n~~~~~~\n",
                        encoding="utf-8")
    else:
        shutil.copy(path, made)


def follow(page, text, path, anchor):
    """A link of a page, as the site has it: a file's name as its text becomes a title."""
    target = (page.parent / path).resolve() if path else page
    if target.is_dir() and (target / "README.md").exists():
        path, target = f"{path.rstrip('/')}/README.md", target / "README.md"
    elif target.is_dir():
        path = f"{path.rstrip('/')}/{listing(target)}"
    elif path and is_shown(target):
        put(target)
        path += ".md"
    elif path and target.suffix != ".md":
        put(target)
    if target.suffix == ".md" and text.strip("`").endswith(target.name):
        text = heading(target, anchor[1:]) if anchor else title(target)
    return f"[{text}]({path}{anchor})"


def put_page(page):
    """As it is but for its links; its last line leads to its source."""
    parts, at, text = [], 0, page.read_text(encoding="utf-8")
    for code in [*FENCED.finditer(text), None]:
        prose = text[at:code.start() if code else len(text)]
        parts.append(LINK.sub(lambda found: follow(page, found[1], found[2] or "", found[3] or ""),
                              prose))
        if code:
            parts.append(code[0])
            at = code.end()
    source = f"{page.name}.txt"
    made = PAGES / page.relative_to(ROOT)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("".join(parts) + f"\n[Source of this page]({source}){{ .source }}\n",
                    encoding="utf-8")
    shutil.copy(page, made.with_name(source))


def put_header(header):
    """Doxygen reads `///`; a comment behind a declaration is `///<`; the first block is the file's.
    Specialisations have no anchor there, and their template says what they do."""
    lines, first = [], True
    name = header.relative_to(ROOT / "include/rollring")
    text = re.sub(r"^template <>\n.*?^\}\n", "", header.read_text(encoding="utf-8"),
                  flags=re.MULTILINE | re.DOTALL)
    for line in text.split("\n"):
        if re.match(r"\s*//", line):
            line = re.sub(r"//", "///", line, count=1)
            if first:
                lines.append(f"/// \\file {name}")
                first = False
        elif line.strip() and not line.startswith("#"):
            first = False
            line = re.sub(r"([;,{}(]) +// ", r"\1  ///< ", line)
        lines.append(line)
    (HEADERS / name).parent.mkdir(exist_ok=True)
    (HEADERS / name).write_text("\n".join(lines), encoding="utf-8")


PYTHON_MODULES = ("", "errors", "stat", "batches", "weights", "options", "extras", "rollouts",
                  "torch", "adapters", "relay")


def public_names(module):
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError("a public module has no __all__")


def put_python_api():
    """A page of all that `rollring` and its public modules give, by their `__all__`. Nothing is
    imported: docstrings and signatures are read."""
    package = ROOT / "python/rollring"
    lines = ["# API for Python", ""]
    shown = set()  # under the first module that has it
    for name in PYTHON_MODULES:
        places = (package / f"{name}.py", package / name / "__init__.py")
        module = ast.parse(next(one for one in places if one.exists()).read_text(encoding="utf-8"))
        whole = f"rollring.{name}".rstrip(".")
        lines += [f"## {whole}", "", ast.get_docstring(module).split("\n\n")[0], ""]
        names = [one for one in public_names(module) if one not in shown]
        shown.update(names)
        lines += [f"::: {whole}.{one}\n" for one in names]
    (PAGES / "api-python.md").write_text("\n".join(lines), encoding="utf-8")


def entry(path):
    return {title(ROOT / path): path}


def sidebar():
    """The pages by their groups."""
    known = {page.stem for page in (ROOT / "docs").glob("*.md")}
    named = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "More": tuple(sorted(known - named))}
    nav = ["README.md"]
    for group, names in groups.items():
        pages = [f"docs/{name}.md" for name in names if name in known]
        entries = [entry(path) for path in (*pages, *OF_FOLDERS.get(group, ()))]
        if entries:
            nav.append({group: entries})
    nav.append({"Reference": [{"API for Python": "api-python.md"},
                              {"API for C++, by class": "api/annotated.md"},
                              {"API for C++, by file": "api/files.md"},
                              {"Sources": "sources.md"}, {"Changes": "CHANGELOG.md"}]})
    return nav


def put_sources():
    """A page of the folders, each with its files."""
    lines = ["# Sources", ""]
    folders = {str(path.parent.relative_to(ROOT)) for path in tracked(ROOT)
               if path.suffix in SOURCES}
    for folder in sorted(folders - {"."}):
        lines.append(f" - [{folder}]({folder}/{listing(ROOT / folder)})")
    (PAGES / "sources.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def configuration(nav):
    """mkdocs.yml with the sidebar, which as JSON is YAML whatever titles hold."""
    text = (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("../build/", f"{ROOT}/build/").replace(
        "src-dirs: build/", f"src-dirs: {ROOT}/build/").replace(
        "paths: [python]", f"paths: [{ROOT}/python]")
    return f"{text}nav: {json.dumps(nav)}\n"


def build(python, made):
    # Not --quiet: messages that are not logged do not count for --strict.
    done = subprocess.run([python, "-m", "mkdocs", "build", "--strict", "--config-file", made],
                          cwd=ROOT, check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print(re.sub(r"^INFO .*\n", "", done.stdout, flags=re.MULTILINE), file=sys.stderr)
        print("docs/site_pages.py: mkdocs could not build the site, see above", file=sys.stderr)
    return done.returncode


def main():
    for folder in (PAGES, HEADERS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for header in sorted((ROOT / "include/rollring").rglob("*.hpp")):
        if "\n// A former name" not in header.read_text(encoding="utf-8"):
            put_header(header)
    for glob in GLOBS:
        for page in sorted(ROOT.glob(glob)):
            put_page(page)
    put_python_api()
    put_sources()
    shutil.copy(ROOT / "docs/site.css", PAGES / "site.css")
    made = ROOT / "build/mkdocs.yml"
    made.write_text(configuration(sidebar()), encoding="utf-8")
    return build(sys.argv[1], made)


if __name__ == "__main__":
    sys.exit(main())
