"""A trainer that goes on with a ring, or makes it again, to be killed.

usage: ray_again_trainer.py ADDRESS RING FOLDER NUMBER anew|on
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
from ray_again import log_of, make_ring, who_of  # noqa: E402
from ray_weight_trainer import publish, weights_log  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402


def main() -> None:
    address, ring, folder, number, how = sys.argv[1:]
    ray.init(address, logging_level="warning")
    if how == "anew":
        make_ring(ring)
    Fabric(ring, weights=True)
    log = log_of(Path(folder), who_of(ring))
    Path(folder, f"ready.{number}").touch()

    def versions() -> None:
        try:
            publish(ring, weights_log(log), int(number))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=versions, daemon=True).start()
    kill_oracle.train(ring, str(log), int(number))


if __name__ == "__main__":
    main()
