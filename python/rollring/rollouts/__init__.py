"""Rollouts in files, as other programs write them.

    with rr.Producer("run42") as producer:
        producer.push_many(rr.rollouts.read_rollouts("rollouts.jsonl"))

`rollring formats` shows the formats. ``python -m rollring.rollouts FILE`` prints them as JSON lines
for `rollring produce`.
"""

from __future__ import annotations

from .._arrays import images_of
from ._files import holds_rollouts
from ._read import read_rollouts

__all__ = ["holds_rollouts", "images_of", "read_rollouts"]
