#!/usr/bin/env python3
"""The table of docs/integrations.md for a terminal: the traffic of each system that rollring
carries, the versions and the way of its proof, and the figure beside the system's own path.
"""
import re
import textwrap
from pathlib import Path

from console import ROOT, ended

PAGE = ROOT / "docs/integrations.md"
SHOWN = ("rollring carries", "tested with", "proven how and where",
         "compared with its own transport")
WIDTH = 100


def rows(page: str) -> list[dict[str, str]]:
    """Rows of the table by the names of its columns, without links and code marks."""
    lines = [line for line in page.split("\n") if line.startswith("| ")]
    names, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(names, map(plain, cells), strict=True)) for cells in found]


def plain(cell: str) -> str:
    cell = cell.replace("`", "")
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r" \(\[data\]\([^)]*\)\)", "", cell))


def text(page: Path = PAGE) -> str:
    made = [f"Proofs and figures by system ({page.name} has the links):"]
    for row in rows(page.read_text(encoding="utf-8")):
        made.append(row["system"])
        made += [textwrap.fill(f"{name}: {row[name]}", WIDTH, initial_indent="  ",
                               subsequent_indent="    ") for name in SHOWN]
    return "\n".join(made)


def main(_: list[str]) -> int:
    print(text())
    return 0


if __name__ == "__main__":
    ended(main)
