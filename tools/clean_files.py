"""clang-tidy over files with their compile commands, less those known to be clean.

A file found clean leaves a stamp: the command, the configuration, and a hash of each file that it
includes. It is checked again when one of these has changed. The stamps of a run that is ended
early serve the next one.
"""
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error): ", re.MULTILINE)
EXTRA = "-Wno-unknown-warning-option"  # the flags are gcc's


@dataclass
class CleanFiles:
    clang: str  # its version's number
    folder: Path  # of compile_commands.json, and of the stamps
    configuration: list[Path]  # files, of which a change makes every file unchecked
    hashes: dict[str, str] = field(default_factory=dict)

    def hash_of(self, path: str) -> str:
        """Each file is read once a run, unless it changes meanwhile."""
        try:
            state = os.stat(path)
        except OSError:
            return "none"
        key = f"{path} {state.st_mtime_ns} {state.st_size}"
        if key not in self.hashes:
            self.hashes[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return self.hashes[key]

    def stamp_file(self, entry: dict) -> Path:
        name = hashlib.sha256(entry["file"].encode()).hexdigest()[:24]
        return self.folder / "clean" / f"{name}.json"

    def stamp(self, entry: dict, included: list[str]) -> dict:
        program = os.path.realpath(shutil.which(f"clang-tidy-{self.clang}") or "")
        return {"command": entry, "program": [program, self.hash_of(program)],
                "configuration": [self.hash_of(str(path)) for path in self.configuration],
                "included": {path: self.hash_of(path) for path in included}}

    def known(self, entry: dict) -> bool:
        try:
            stamp = json.loads(self.stamp_file(entry).read_text(encoding="utf-8"))
            return stamp == self.stamp(entry, list(stamp["included"]))
        except (OSError, ValueError, KeyError):
            return False

    def included(self, entry: dict) -> list[str]:
        """The file and all that it includes; none when it does not compile."""
        # Before the flags stands the compiler, perhaps after a ccache.
        rest = itertools.dropwhile(lambda word: not word.startswith("-"), entry["arguments"])
        flags = [EXTRA]
        for word in rest:
            if word in ("-o", "-MF", "-MQ", "-MT"):
                next(rest, None)
            elif word not in ("-c", "-MD", "-MMD"):
                flags.append(word)
        done = subprocess.run([f"clang++-{self.clang}", *flags, "-w", "-M", "-MT", "x"], text=True,
                              cwd=entry["directory"], capture_output=True, check=False)
        if done.returncode != 0:
            return []
        words = shlex.split(done.stdout.removeprefix("x:").replace("\\\n", " "))
        return [os.path.normpath(Path(entry["directory"], word)) for word in words]

    def check(self, entry: dict) -> str:
        """clang-tidy's findings; empty for a clean file."""
        included = self.included(entry)
        before = self.stamp(entry, included)
        done = subprocess.run(
            [f"clang-tidy-{self.clang}", "-p", self.folder, "-quiet", f"-extra-arg={EXTRA}",
             entry["file"]], text=True, cwd=entry["directory"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False)
        found = "\n".join(line for line in done.stdout.splitlines()
                          if line and not line.endswith((" generated.", " generated")))
        if done.returncode == 0 and not FINDING.search(found):
            if included and before == self.stamp(entry, included):
                self.stamp_file(entry).write_text(json.dumps(before), encoding="utf-8")
            return ""
        return found or f"{entry['file']}: clang-tidy ended with {done.returncode}"

    def findings(self, entries: list[dict], say: Callable[[str], None]) -> Iterator[str]:
        """The findings of each unclean file as soon as it is checked, those of headers once."""
        (self.folder / "clean").mkdir(parents=True, exist_ok=True)
        unknown = [entry for entry in entries if not self.known(entry)]
        say(f"{len(entries) - len(unknown)} of {len(entries)} files are unchanged since they were "
            "found clean")
        seen: set[str] = set()
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            running = [threads.submit(self.check, entry) for entry in unknown]
            try:
                for number, done in enumerate(as_completed(running), 1):
                    if found := done.result():
                        new = [part for part in split(found) if part not in seen]
                        seen.update(new)
                        yield "".join(new)
                    if number % 50 == 0:
                        say(f"{number} of {len(unknown)} files checked")
            finally:
                threads.shutdown(cancel_futures=True)


def split(found: str) -> list[str]:
    """One text for each finding, with its notes."""
    starts = [match.start() for match in FINDING.finditer(found)]
    return [found[begin:end].rstrip() + "\n"
            for begin, end in zip([0, *starts], [*starts, None], strict=True) if found[begin:end]]
