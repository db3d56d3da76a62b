#!/usr/bin/env python3
"""The inputs of a fuzzer, which lie in one archive.

    seeds.py unpack ARCHIVE FOLDER STAMP    FOLDER has them and nothing else; then STAMP is written
    seeds.py pack FOLDER ARCHIVE            the same inputs give the same bytes
"""
import gzip
import io
import shutil
import sys
import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path, stamp: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        for member in packed:
            content = packed.extractfile(member)
            if content is None or "/" in member.name:
                sys.exit(f"{archive}: {member.name} is no plain file")
            (folder / member.name).write_bytes(content.read())
    stamp.touch()


def pack(folder: Path, archive: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for path in sorted(folder.iterdir()):
            about = tarfile.TarInfo(path.name)
            content = path.read_bytes()
            about.size = len(content)
            packed.addfile(about, io.BytesIO(content))
    archive.write_bytes(gzip.compress(whole.getvalue(), 9, mtime=0))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["unpack", archive, folder, stamp]:
            unpack(Path(archive), Path(folder), Path(stamp))
        case ["pack", folder, archive]:
            pack(Path(folder), Path(archive))
        case _:
            sys.exit(__doc__)
