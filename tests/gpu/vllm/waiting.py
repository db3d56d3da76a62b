"""Requests whose tokens come one by one, from a process of their own: how long each token took.

python waiting.py URL: prints each token's time, until its input ends.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import requests

STREAMS = 8
LENGTH = 200
ROUNDS = 5


class Streams:
    """Eight requests at any time to a server, while the block lasts."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, __file__, url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._times: list[list[tuple[int, float]]] = [[] for _ in range(STREAMS)]
        self.failed: list[str] = []
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, rest = line.partition(" ")
            if kind == "token":
                number, place, at = rest.split()
                self._times[int(number)].append((int(place), float(at)))
            else:
                self.failed.append(rest.strip())

    def __enter__(self) -> Streams:
        self._reader.start()
        self._until(20)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(60)
        self._process.kill()

    def _until(self, more: int) -> None:
        """Each stream has got so many tokens more."""
        wanted = [len(one) + more for one in self._times]
        until = time.monotonic() + 60
        while any(len(one) < n for one, n in zip(self._times, wanted, strict=True)):
            if time.monotonic() > until or self._process.poll() is not None:
                raise TimeoutError(f"the streams do not go on: {self.failed}")
            time.sleep(0.01)

    def during(self, update: Callable[[], None]) -> dict[str, Any]:
        """The longest time between two tokens while an update ran, and the usual one."""
        longest, usual, took = [], [], []
        for _ in range(ROUNDS):
            before = time.monotonic()
            self._until(20)
            begun = time.monotonic()
            update()
            ended = time.monotonic()
            self._until(20)
            took.append(1e3 * (ended - begun))
            gaps, quiet = [], []
            for times in self._times:
                # Of one request: the first token waits for its prompt, too.
                each = zip(times[:-1], times[1:], strict=True)
                pairs = [(a, b) for (_, a), (place, b) in each if place]
                gaps += [b - a for a, b in pairs if b > begun and a < ended]
                quiet += [b - a for a, b in pairs if a > before and b < begun]
            longest.append(1e3 * max(gaps))
            usual.append(1e3 * statistics.median(quiet))
        return {
            "longest_wait_ms": round(statistics.median(longest), 1),
            "of": [round(one, 1) for one in longest],
            "usual_ms": round(statistics.median(usual), 2),
            "update_ms": round(statistics.median(took), 1),
        }


TELLING = threading.Lock()


def tell(line: str) -> None:
    with TELLING, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def ask(url: str, number: int, ends: threading.Event) -> None:
    """One request after the other. Their tokens' times go to the output."""
    body = {
        "model": requests.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"],
        "prompt": [5 + number, 17, 99 + 7 * number, 400, 7 + number],
        "max_tokens": LENGTH,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    while not ends.is_set():
        try:
            with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=120) as got:
                got.raise_for_status()
                place = 0
                for line in got.iter_lines(chunk_size=1):
                    if line.startswith(b"data: {") and b'"error"' not in line:
                        tell(f"token {number} {place} {time.monotonic()}")
                        place += 1
                    elif b'"error"' in line:
                        tell(f"failed {line!r}")
                    if ends.is_set():
                        return
        except Exception as error:
            tell(f"failed {json.dumps(f'{type(error).__name__}: {error}')}")
            return


def main(url: str) -> None:
    ends = threading.Event()
    threads = [threading.Thread(target=ask, args=(url, one, ends)) for one in range(STREAMS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ends.set()
    for thread in threads:
        thread.join(10)


if __name__ == "__main__":
    main(sys.argv[1])
