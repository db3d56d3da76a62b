"""Trains on a ring with several ranks: each reads its own share of every batch, in place.

    rollring create run42
    torchrun --nproc-per-node 2 examples/ranks/train.py run42 --steps 4

with pushing workers beside it. Rank 0 has the stash, and sends tickets; the model is sharded over
the ranks with FSDP, and is on their GPUs with --device cuda. Prints a line of JSON for each rank
and step.
"""

from __future__ import annotations

import argparse
import itertools
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import rollring as rr
from rollring.torch import ShareDataset, received_tickets


class TinyModel(nn.Module):
    """A bigram model: the logits of the next token."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def policy_loss(model: nn.Module, share: dict[str, torch.Tensor], world: int) -> torch.Tensor:
    """REINFORCE over this rank's tokens, so that the mean over ranks is that over the batch."""
    tokens = share["token_ids"].long()
    lengths = share["cu_seqlens"].diff().long()
    spread = share["advantages"].float().repeat_interleave(lengths)
    following = torch.ones_like(spread)
    following[share["cu_seqlens"][:-1].long()] = 0  # a sequence's first token has no predecessor
    logprobs = model(tokens[:-1]).log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    count = following.sum()
    dist.all_reduce(count)
    return -(logprobs * (spread * following)[1:]).sum() * world / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ring")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-groups", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()

    dist.init_process_group("gloo" if asked.device == "cpu" else "nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(asked.device, None if asked.device == "cpu" else rank)
    if asked.device == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = TinyModel(asked.vocabulary, 16).to(device)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh(asked.device, (world,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    stash = rr.Stash(asked.ring, batch_groups=asked.batch_groups) if rank == 0 else None
    batches = None if stash is None else itertools.islice(stash, asked.steps)
    shares = ShareDataset(asked.ring, received_tickets(batches), "token_ids")
    for step, share in enumerate(shares):
        loss = policy_loss(model, {name: each.to(device) for name, each in share.items()}, world)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        line = {
            "rank": rank,
            "step": step,
            "indices": share["indices"].tolist(),
            "tokens": share["token_ids"].numel(),
            "token_sum": int(share["token_ids"].sum()),
            "loss": round(float(loss.detach()), 4),
        }
        # One write, because ranks share a pipe.
        print(json.dumps(line) + "\n", end="", flush=True)
    if stash is not None:
        stash.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
