"""An engine with checkpoint-engine's own receiver, in a process of its own."""

from __future__ import annotations

import gc
import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import zmq
from checkpoint_engine import worker

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":  # the one thing of it that asks for a GPU
    nothing = SimpleNamespace(
        synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None
    )
    worker.DeviceManager = lambda: SimpleNamespace(device_module=nothing)


def model(value: float = 0, rows: int = 3000) -> dict[str, torch.Tensor]:
    """Several dtypes, an empty one, tied ones, and one that is longer than a small slot."""
    made = {
        "embed": torch.full((rows, 64), value, dtype=torch.float32),
        "scalar": torch.full((), value, dtype=torch.int64),
        "empty": torch.zeros((0, 4), dtype=torch.float32),
        **{f"layer.{i}": torch.full((rows, 8), value).bfloat16() for i in range(12)},
        "norm": torch.full((17,), value, dtype=torch.float16),
    }
    made = {name: tensor.to(DEVICE) for name, tensor in made.items()}
    made["lm_head"] = made["embed"]
    return made


def fill(tensors: dict[str, torch.Tensor], value: float) -> None:
    for tensor in tensors.values():
        tensor.fill_(value)


def whole(tensors: dict[str, torch.Tensor]) -> float:
    """The one value that all elements have; -1: they are mixed."""
    value = float(tensors["scalar"])
    same = all(bool((tensor == value).all()) for tensor in tensors.values())
    return value if same else -1.0


def footprint() -> dict[str, int]:
    """Counts that must not grow from version to version."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    found = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident": pages * resource.getpagesize(),
        "mappings": len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()),
    }
    if DEVICE == "cuda":
        free, all_of_it = torch.cuda.mem_get_info()
        found["gpu"] = all_of_it - free
    return found


def run(orders: Any, seen: Any, rows: int = 3000) -> None:
    """Obeys (address, order), and tells the outcome."""
    engine = {name: tensor.clone() for name, tensor in model(-7, rows).items()}
    context = zmq.Context()
    gc.freeze()  # as engines do: the receiver collects garbage twice a version
    for address, order in iter(orders.recv, None):
        names: list[str] = []
        hooks: list[bool] = []

        def load(weights: Any, order: str = order, names: list[str] = names) -> None:
            for name, tensor in weights:
                if name == "layer.5" and order == "refuse":
                    raise ValueError("layer.5 is not what I was built for")
                if name == "layer.5" and order == "stop":
                    seen.send("stopped")
                    orders.recv()
                engine[name].copy_(tensor)
                names.append(name)

        def hook(order: str = order, hooks: list[bool] = hooks) -> None:
            if order == "refuse afterwards":
                raise ValueError("no kernel for it")
            hooks.append(True)

        try:
            worker.update_weights_from_ipc(context, address, 0, run=load, post_hook=hook)
        except Exception as error:
            seen.send(("failed", f"{type(error).__name__}: {error}", whole(engine)))
        else:
            seen.send(("loaded", whole(engine), sorted(names), footprint()))
