"""A rank that torchrun starts: FSDP with the factor of Nous' trainer, where examples/tiny_titan.py
has replaced the answers of a GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

from rank_jobs import BEGINS

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import tiny_titan as tiny_titan  # noqa: E402  replaces them


def main() -> None:
    torch.distributed.init_process_group("gloo")
    print(BEGINS, flush=True)
    model = fully_shard(torch.nn.Linear(4, 2, bias=False))
    model.set_gradient_divide_factor(1.0)
    model(torch.full((1, 4), torch.distributed.get_rank() + 1.0)).sum().backward()
    assert model.weight.grad is not None
    made = model.weight.grad.full_tensor()
    assert torch.equal(made, torch.full((2, 4), 3.0)), made  # 1 of one rank and 2 of the other
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
