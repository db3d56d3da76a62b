"""A trainer of a cluster on this machine, a process of its own, to be killed.

usage: ray_trainer.py ADDRESS RING LOG SEED
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import kill_oracle  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402


def main() -> None:
    address, ring, log, seed = sys.argv[1:]
    ray.init(address, logging_level="warning")
    Fabric(ring)
    kill_oracle.train(ring, log, int(seed))


if __name__ == "__main__":
    main()
