"""An engine of the weight channel: titan_engine.py RING VERSIONS. A line for each version."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import rollring as rr

RING, LAST = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)


def total(tensor: Any) -> float:
    if not isinstance(tensor, torch.Tensor):  # bf16 comes as its bits
        tensor = torch.from_numpy(tensor.view("int16")).view(torch.bfloat16)
    return float(tensor.double().abs().sum())


channel = rr.WeightSubscriber(RING, name="engine", timeout=1800)
for update in channel:
    with update:
        sums = {name: total(tensor) for name, tensor in update.tensors()}
    served = {"version": channel.live_version, "names": sorted(sums), "sums": sums}
    print(json.dumps(served), flush=True)
    if channel.live_version >= LAST:
        break
