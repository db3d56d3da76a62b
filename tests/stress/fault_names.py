#!/usr/bin/env python3
"""Every FAULT_POINT of the library's sources, with its file, as a C++ table.

fault_names.py SOURCE_ROOT OUTPUT DEPFILE

The library knows its points only where they are passed; a table kept by hand would miss new ones.
The depfile names folders too, so that a new file is seen.
"""
import re
import sys
from pathlib import Path

CALL = re.compile(r'FAULT_POINT\("([a-z_.]+)"\);')
FOLDERS = ("lib", "producer", "consumer", "stash")


def main() -> None:
    root, output, depfile = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), Path(sys.argv[3])
    seen, points = [], []
    for folder in FOLDERS:
        top = root / folder
        seen += [top, *(path for path in top.rglob("*") if path.is_dir())]
        for path in sorted(top.rglob("*.[ch]pp")):
            seen.append(path)
            names = CALL.findall(path.read_text(encoding="utf-8"))
            points += [(name, path.relative_to(root)) for name in dict.fromkeys(names)]
    assert points, "no FAULT_POINT in the sources"
    rows = "".join(f'    {{"{name}", "{path}"}},\n' for name, path in points)
    output.write_text(f"// By fault_names.py.\n{rows}", encoding="utf-8")
    files = " ".join(str(path).replace(" ", "\\ ") for path in seen)
    depfile.write_text(f"{output}: {files}\n", encoding="utf-8")


main()
