"""The distance of the answers of two servers with the same weights, and beside it the noise: that
of one server's answers to the same questions, asked twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving import Answer

Seen = dict[str, Any]
# The answers that those of a server are compared with, by their names in the results.
PAIRS = {
    "again": "the same server's, asked again",
    "ipc": "those of a server that got the version by vLLM's own ipc",
    "ipc again": "that server's, asked again",
    "twin": "those of another server that got the version by ours",
    "version before": "the same server's of the version before",
}


def apart(one: Sequence[Answer], other: Sequence[Answer]) -> Seen:
    pairs = list(zip(one, other, strict=True))
    likely = [(a, b) for x, y in pairs for a, b in zip(x.logprobs, y.logprobs, strict=True)]
    return {
        "answers": len(pairs),
        "answers_equal": sum(x.tokens == y.tokens for x, y in pairs),
        "first_tokens_equal": sum(x.tokens[0] == y.tokens[0] for x, y in pairs),
        "logprobs": len(likely),
        "logprobs_equal": sum(a == b for a, b in likely),
        "logprobs_apart": max(abs(a - b) for a, b in likely),
    }


def summed(versions: Sequence[Seen], pair: str) -> Seen:
    """Over all versions that have such a pair."""
    each = [one[pair] for one in versions if pair in one]
    if not each:
        return {}
    counted = ("answers", "answers_equal", "first_tokens_equal", "logprobs", "logprobs_equal")
    found: Seen = {key: sum(one[key] for one in each) for key in counted}
    found["versions"] = len(each)
    found["tokens_equal"] = sum(one["answers"] == one["answers_equal"] for one in each)
    largest = [one["logprobs_apart"] for one in each]
    found["logprobs_apart"] = {"least": min(largest), "most": max(largest)}
    return found


def reductions(folder: Path, name: str) -> dict[str, int]:
    """The number of values that each reduction of a server takes at once, of those whose kernel
    Inductor chose by its time: by the rank and the kernel.
    """
    found = {}
    for path in sorted((folder / f"cache-{name}").rglob("*.best_config")):
        rank = re.search(r"rank_\d+", str(path))
        block = json.loads(path.read_text(encoding="utf-8")).get("R0_BLOCK")
        if block is not None:
            found[f"{rank.group() if rank else ''} {path.stem}"] = block
    return found


def chosen(folder: Path, names: Sequence[str]) -> Seen:
    """How many of the reductions that all these servers have were chosen alike."""
    each = [reductions(folder, name) for name in names]
    common = set(each[0]).intersection(*each[1:])
    differ = [key for key in sorted(common) if len({one[key] for one in each}) > 1]
    return {
        "chosen by time": [len(one) for one in each],
        "in common": len(common),
        "of these different": len(differ),
        "for example": {key: [one[key] for one in each] for key in differ[:4]},
    }
