"""One gloo rank with Nous' own data handler: the batches that it would train on, by its REST client
from servers and by the ring. titan_ranks.py JSON, with the rank's variables set as torchrun does.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

GIVEN = json.loads(sys.argv[1])
sys.path.insert(0, GIVEN["fork"])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def settings() -> Any:
    space = SimpleNamespace
    return space(
        training=space(
            global_batch_size=GIVEN["batch"], local_batch_size=1, seq_len=GIVEN["seq_len"],
            steps=100,
        ),
        checkpoint=space(folder="checkpoint", interval=100),
        grpo=space(scale_adv_by_len=GIVEN["scale"], num_microbatches=GIVEN["parts"]),
    )  # fmt: skip


def digest(array: Any, dtype: Any = None) -> str:
    """Log-probabilities alone lose digits on their way: the ring has them in 32 bits."""
    laid = np.ascontiguousarray(array, dtype)
    return f"{laid.dtype}{laid.shape} {hashlib.sha256(laid.tobytes()).hexdigest()}"


def digests(batch: Any) -> list[str]:
    ids, labels, masks, logprobs, advantages = batch
    return [*map(digest, (ids, labels, masks)), digest(logprobs, np.float32), digest(advantages)]


def rows(batch: Any) -> list[str]:
    """Each sequence without its padding, for servers that hand them out in another order."""
    made = []
    for ids, labels, mask, logprobs, advantage in zip(*batch, strict=True):
        n = int((labels != -100).sum())
        parts = (ids[:n], labels[:n], mask[:n], logprobs[:n], [advantage])
        made.append(digest(np.concatenate(parts), np.float32))
    return made


def run(way: str, theirs: Any, rank: int, world: int) -> dict[str, Any]:
    """Steps by one way. The process that feeds it does so between two files."""
    handler = theirs.OnlineDataHandler(metrics_rank=0)
    handler.server_url = GIVEN["urls"][way]
    config = settings()
    handler.register_atropos(config, 0, GIVEN["batch"])
    folder = Path(GIVEN["folder"])
    if rank == 0:
        (folder / f"{way}.registered").touch()
    while not (folder / f"{way}.fed").exists():
        time.sleep(0.05)
    steps, seconds = [], []
    for step in range(GIVEN["steps"]):
        began = time.perf_counter()
        batches, longest, size, count, lengths, *_ = handler.data_handling(
            None, GIVEN["cp"], world // GIVEN["cp"], 0, torch.device("cpu"), config, step
        )
        part = rank // GIVEN["cp"]
        mine = batches[part * count : (part + 1) * count]  # as Trainer.grab_batch does
        seconds.append(time.perf_counter() - began)
        steps.append(
            {
                "arrays": [digests(one) for one in mine],
                "rows": [row for one in mine for row in rows(one)],
                "shape": [longest, size, count, *map(int, lengths)],
            }
        )
    return {"steps": steps, "seconds": seconds}


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    import torchtitan.grpo.data_handling as theirs
    import wandb

    wandb.run = SimpleNamespace(group="group", project="project")
    os.chdir(tempfile.mkdtemp(dir=GIVEN["folder"]))  # each writes a temp.json
    found = {}
    for way in GIVEN["urls"]:
        if way == "ring":  # as their trainer does with experimental.custom_import
            os.environ["ROLLRING_TORCHTITAN"] = json.dumps({"server": GIVEN["urls"][way]})
            __import__("rollring.integrations.torchtitan")
        found[way] = run(way, theirs, rank, world)
    Path(GIVEN["folder"], f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
