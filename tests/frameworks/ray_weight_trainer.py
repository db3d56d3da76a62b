"""A trainer of a cluster on this machine that publishes version after version, to be killed.

usage: ray_weight_trainer.py ADDRESS RING LOG NUMBER

The log has a line before each version, with the value of its tensors, and one after its commit. No
two trainers say the same of a version; the one that has it last is the one that has committed it.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from killing import lines, note, opened  # noqa: E402
from ray_engines import TIED, fill, model  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402

TRAINERS = 64


def said(log: Path) -> dict[int, int]:
    """The value of each version's tensors."""
    begun = (line.split() for line in lines(log) if line.startswith("begin "))
    return {int(version): int(value) for _, version, value in begun}


def weights_log(log: Path) -> Path:
    """Of a trainer that has another one for rollouts."""
    return log.with_name(f"{log.name}.weights")


def publish(ring: str, log: Path, number: int) -> None:
    """Until it is killed."""
    to, tensors = opened(str(log)), model()
    version = rr.describe(ring)["policy_version"]
    with rr.WeightPublisher(ring, tensors, slots=2, slot_bytes=1 << 20, tied=TIED) as trainer:
        if version >= 0:
            fill(tensors, said(log)[version])
            trainer.resume(version)
        while True:
            if trainer.behind:
                with contextlib.suppress(rr.TimedOutError):
                    trainer.resend(1)
            version += 1
            value = version * TRAINERS + number % TRAINERS
            fill(tensors, value)
            note(to, f"begin {version} {value}")
            trainer.publish(version, ray_world.PATIENCE)
            note(to, f"done {version}")


def main() -> None:
    address, ring, log, number = sys.argv[1:]
    ray.init(address, logging_level="warning")
    Fabric(ring, weights=True)
    publish(ring, Path(log), int(number))


if __name__ == "__main__":
    main()
