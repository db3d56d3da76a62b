"""An engine of the weight channel: titan_engine.py RING VERSIONS NAME [DEVICE]. It says the SHA-256
of each tensor's bytes, a line for each version.
"""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import rollring as rr


def digests(named: dict[str, Any]) -> dict[str, str]:
    """Of the bytes, in row-major order; bf16 may come as numpy's bits of 16."""

    def digest(tensor: Any) -> str:
        if not isinstance(tensor, torch.Tensor):
            return hashlib.sha256(tensor.tobytes()).hexdigest()
        laid = tensor.detach().contiguous().cpu()
        return hashlib.sha256(laid.view(-1).view(torch.uint8).numpy()).hexdigest()

    with ThreadPoolExecutor(8 if torch.cuda.is_available() else 1) as pool:
        return dict(zip(named, pool.map(digest, named.values()), strict=True))


def main(ring: str, last: int, name: str, device: str = "") -> None:
    torch.set_num_threads(1)
    if device:
        torch.cuda.set_device(device)
    # On another GPU than the trainer's: the only publisher is that of rank 0.
    channel = rr.WeightSubscriber(ring, device=device or None, name=name, rank=0, timeout=1800)
    for update in channel:
        with update:
            taken = dict(update.tensors())
        served = {"version": channel.live_version, "digests": digests(taken)}
        del taken
        print(json.dumps(served), flush=True)
        if channel.live_version >= last:
            break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
