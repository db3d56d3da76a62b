"""A trainer of a cluster on this machine that takes rollouts and publishes weights, to be killed.

usage: ray_whole_trainer.py ADDRESS RING LOG NUMBER
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import kill_oracle  # noqa: E402
from ray_weight_trainer import publish, weights_log  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402


def main() -> None:
    address, ring, log, number = sys.argv[1:]
    ray.init(address, logging_level="warning")
    Fabric(ring, weights=True)

    def versions() -> None:
        try:
            publish(ring, weights_log(Path(log)), int(number))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=versions, daemon=True).start()
    kill_oracle.train(ring, log, int(number))


if __name__ == "__main__":
    main()
