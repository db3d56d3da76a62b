"""An engine of two tensor parallel ranks, for shards of a model of Nous' trainer:
titan_cut_engine.py RING VERSIONS NAME [MODEL/FLAVOR]. Each rank has a GPU of its own, if there are
GPUs. It says what titan_engine.py says, of whole tensors; ROLLRING_TORCHTITAN is that of the
trainer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import titan_saved
from titan_engine import digests

sys.path.append(str(Path(__file__).parents[1]))

from python.cut_engines import CutEngines


def main(ring: str, last: int, name: str, model: str = "") -> None:
    torch.set_num_threads(1)
    sent_as = json.loads(os.environ["ROLLRING_TORCHTITAN"]).get("publish_as", "bfloat16")
    shapes = titan_saved.shapes(*filter(None, model.split("/")))
    dtype = {"bfloat16": "bf16", "": "f32"}[sent_as]
    engines = CutEngines(ring, shapes, dtype, 1800, gpus=torch.cuda.is_available())
    version = 0
    while version < last:
        version = engines.take()
        print(json.dumps({"version": version, "digests": digests(engines.whole())}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
