"""How near `Batch.packed` is to a memcpy of the same sequences, one after the other, into the same
memory; and the interpreter's cost of a batch of short ones.

Run it with the Python that has rollring: .cache/python/bin/python bench/peers/packed.py --help
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import rollring as rr


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(tokens: int, sequences: int, rounds: int) -> dict[str, float]:
    """The rounds alternate, so that other load of the machine meets both."""
    ring = f"packed-{os.getpid()}"
    bytes_needed = sequences * (tokens * 4 + 1024) * 2
    rr.create(ring, lanes=1, lane_bytes=max(1 << 20, 1 << bytes_needed.bit_length()))
    try:
        with (
            rr.Producer(ring) as producer,
            rr.Stash(ring, batch_sequences=sequences, group_size=1, min_size=1,
                     advantages="none") as stash,
        ):
            ids = np.arange(tokens, dtype=np.int32)
            for number in range(sequences):
                producer.push(f"p/{number}", token_ids=ids + number)
            with stash.next(60) as batch:
                return compare(batch, rounds)
    finally:
        rr.remove(ring, force=True)


def compare(batch: rr.Batch, rounds: int) -> dict[str, float]:
    target = np.empty(batch.n_tokens, np.int32)
    start = target.ctypes.data
    pieces = []
    views = [one.token_ids for one in batch.sequences]
    for view in views:
        pieces.append((start, view.ctypes.data, view.nbytes))
        start += view.nbytes
    memmove = ctypes.memmove

    def copies() -> None:
        for to, of, size in pieces:
            memmove(to, of, size)

    ours, theirs = [], []
    for _ in range(rounds + 1):  # the first touches the pages
        theirs.append(seconds_of(copies))
        ours.append(seconds_of(lambda: batch.packed("token_ids", out=target)))
    same = bool((target == np.concatenate(views)).all())
    del views
    if not same:
        sys.exit("packed: the tokens differ from those that were sent")
    ratios = sorted(b / a for a, b in zip(ours[1:], theirs[1:], strict=True))
    return {
        "packed_us": statistics.median(ours[1:]) * 1e6,
        "memcpy_us": statistics.median(theirs[1:]) * 1e6,
        "of_memcpy": statistics.median(ratios),
        "of_memcpy_min": ratios[0],
        "of_memcpy_max": ratios[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--tokens", default="1,2048,16384", help="of a sequence; a list")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for tokens in map(int, options.tokens.split(",")):
        rows.append({"tokens": tokens, "sequences": options.sequences,
                     **measure(tokens, options.sequences, options.rounds)})
        if not options.json:
            row = rows[-1]
            print(f"{options.sequences} x {tokens} tokens: packed {row['packed_us']:.0f} us, "
                  f"memcpy {row['memcpy_us']:.0f} us, {row['of_memcpy']:.2f} of it "
                  f"({row['of_memcpy_min']:.2f} to {row['of_memcpy_max']:.2f})", flush=True)
    if options.json:
        print(json.dumps({"question": "packed", "rows": rows}))


if __name__ == "__main__":
    main()
