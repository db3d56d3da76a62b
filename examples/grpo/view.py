"""What a run looks like while it runs."""

from __future__ import annotations

import argparse
import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from run import Run


def make_view(options: argparse.Namespace) -> PlainView:
    return PlainView()


class PlainView:
    """A line every few seconds."""

    EVERY = 5.0

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, run: Run) -> None:
        now = time.monotonic()
        if now < self._next or not run.steps.rows:
            return
        self._next = now + self.EVERY
        rows = run.steps.rows[-20:]
        seconds = rows[-1]["at"] - rows[0]["at"]
        rate = sum(row["tokens"] for row in rows[1:]) / seconds if seconds else 0.0
        print(
            f"{now - run.began:6.1f} s  step {rows[-1]['step']:5}  "
            f"reward {fmean(row['reward'] for row in rows):.3f}  {rate:9,.0f} tokens/s  "
            f"lag {fmean(row['lag'] for row in rows):.1f}  deaths "
            f"{sum(run.kills.values())}",
            flush=True,
        )

    def tell(self, result: dict[str, Any]) -> None:
        shown = {name: value for name, value in result.items() if name != "curve"}
        for name, value in shown.items():
            print(f"  {name:<18} {value}")
