#!/usr/bin/env python3
"""Builds the site: pages, sources that they link to, and the API from the public headers and the
Python package.

    site.py PYTHON      into build/site, by the mkdocs of that interpreter

Pages keep their places, so that links between them hold here as they do in a checkout. A linked
folder gets a page that lists it. Comments of the headers are made into Doxygen's.
"""
import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/site-pages"
HEADERS = ROOT / "build/site-headers"
GLOBS = ("README.md", "CHANGELOG.md", "docs/*.md", "tests/README.md", "bench/README.md")
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
ORDER = ("using", "python", "store", "watching", "memory", "integrations", "atropos", "trl",
         "skyrl", "vllm", "verl", "transfer_queue", "ray", "scale", "checkpoint_engine", "sglang",
         "areal", "verifiers", "slime", "design", "shared-memory", "stash", "weights", "progress",
         "finding-your-way", "glossary", "experiments", "benchmarks")


def title(page):
    return re.search("^# (.*)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]


def listing(folder):
    """A page for a folder that is linked."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".hpp", ".cpp", ".cu", ".cuh", ".py", ".json"):
            put(path)
            lines.append(f" - [{path.name}]({path.name})")
    made = PAGES / folder.relative_to(ROOT) / "index.md"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("\n".join(lines) + "\n", encoding="utf-8")


def put(path):
    made = PAGES / path.relative_to(ROOT)
    made.parent.mkdir(parents=True, exist_ok=True)
    if not made.exists():
        shutil.copy(path, made)


def put_page(page):
    def follow(found):
        target = (page.parent / found[2]).resolve()
        if target.is_dir() and not (target / "README.md").exists():
            listing(target)
        elif target.is_file() and target.suffix != ".md":
            put(target)
        inner = "/README.md" if (target / "README.md").exists() else "/index.md"
        path = found[2].rstrip("/") + (inner if target.is_dir() else "")
        return found[1] + path + (found[3] or "") + found[4]

    made = PAGES / page.relative_to(ROOT)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(LINK.sub(follow, page.read_text(encoding="utf-8")), encoding="utf-8")


def put_header(header):
    """Doxygen reads `///`; what stands behind a declaration is `///<`; the first block is the
    file's. Specialisations have no anchor there, and their template says what they do."""
    lines, first = [], True
    text = re.sub(r"^template <>\n.*?^\}\n", "", header.read_text(encoding="utf-8"),
                  flags=re.MULTILINE | re.DOTALL)
    for line in text.split("\n"):
        if re.match(r"\s*//", line):
            line = re.sub(r"//", "///", line, count=1)
            if first:
                lines.append(f"/// \\file {header.name}")
                first = False
        elif line.strip() and not line.startswith("#"):
            first = False
            line = re.sub(r"([;,{}(]) +// ", r"\1  ///< ", line)
        lines.append(line)
    (HEADERS / header.name).write_text("\n".join(lines), encoding="utf-8")


def put_python_api():
    """A page of all that `import rollring` gives, by the modules that it comes from. Nothing is
    imported: docstrings and signatures are read."""
    package = ROOT / "python/rollring"
    lines = ["# API for Python", ""]
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom) or not node.level or not node.module:
            continue
        module = ast.parse((package / f"{node.module}.py").read_text(encoding="utf-8"))
        lines += [f"## {ast.get_docstring(module).splitlines()[0].rstrip('.')}", ""]
        lines += [f"::: rollring.{name.name}\n" for name in node.names]
    (PAGES / "api-python.md").write_text("\n".join(lines), encoding="utf-8")


def navigation():
    """mkdocs.yml with the pages in their order."""
    text = (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("../build/", f"{ROOT}/build/").replace(
        "src-dirs: build/", f"src-dirs: {ROOT}/build/").replace(
        "paths: [python]", f"paths: [{ROOT}/python]")
    known = {page.stem for page in (ROOT / "docs").glob("*.md")}
    pages = [name for name in ORDER if name in known] + sorted(known - set(ORDER))
    nav = ["nav:", "  - rollring: README.md"]
    nav += [f"  - {title(ROOT / 'docs' / (name + '.md'))}: docs/{name}.md" for name in pages]
    nav += ["  - API for Python: api-python.md",
            "  - API for C++:", "      - Classes: api/annotated.md", "      - Files: api/files.md",
            "  - Where tests are: tests/README.md", "  - How it is measured: bench/README.md",
            "  - Changes: CHANGELOG.md"]
    made = ROOT / "build/mkdocs.yml"
    made.write_text(text + "\n".join(nav) + "\n", encoding="utf-8")
    return made


def main():
    for folder in (PAGES, HEADERS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for header in sorted((ROOT / "include/rollring").glob("*.hpp")):
        put_header(header)
    for glob in GLOBS:
        for page in sorted(ROOT.glob(glob)):
            put_page(page)
    put_python_api()
    # Not --quiet: what is not logged does not count for --strict.
    done = subprocess.run([sys.argv[1], "-m", "mkdocs", "build", "--strict", "--config-file",
                           navigation()], cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print("\n".join(line for line in done.stdout.split("\n")
                        if line.startswith(("WARNING", "ERROR", "Aborted"))), file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
