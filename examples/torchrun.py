"""FSDP, each rank on its own share of a batch: torchrun --nproc-per-node 2 examples/torchrun.py"""
import itertools
import multiprocessing
import sys
import rollring as rr
import torch
import torch.distributed as dist
from rollring.torch import ShareDataset, received_tickets
from torch.distributed.fsdp import fully_shard

RING, STEPS = (sys.argv[1:] or ["run42"])[0], 20

def work():  # one of any number of rollout workers: it rewards even tokens
    with rr.Producer(RING, name="env-0") as producer:
        for i in itertools.count():
            for member, ids in enumerate(torch.randint(64, (8, 32), dtype=torch.int32).numpy()):
                producer.push(f"prompt/{i}", repetition_id=member, group_size=8, token_ids=ids,
                              reward=float((ids % 2 == 0).mean()), timeout=None)

if __name__ == "__main__":
    dist.init_process_group("gloo")  # "nccl" with GPUs
    model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer, batches = torch.optim.Adam(model.parameters(), lr=0.05), None
    if dist.get_rank() == 0:  # this rank leases batches, and sends each rank its ticket
        rr.create(RING)
        multiprocessing.get_context("spawn").Process(target=work, daemon=True).start()
        batches = itertools.islice(rr.Stash(RING, batch_groups=4), STEPS)
    for share in ShareDataset(RING, received_tickets(batches), "token_ids"):
        ids, ends = share["token_ids"].long(), share["cu_seqlens"].long()
        weight = share["advantages"].float().repeat_interleave(ends.diff())
        weight[ends[:-1]] = 0  # the first token of a sequence follows nothing
        logprobs = model(ids[:-1]).log_softmax(-1)
        optimizer.zero_grad()
        (-logprobs.gather(-1, ids[1:, None])[:, 0] * weight[1:]).mean().backward()
        optimizer.step()
        even = logprobs.exp()[:, ::2].sum(-1).mean().item()
        print(f"rank {dist.get_rank()}: {len(ids)} tokens, p(even) = {even:.2f}", flush=True)
    rr.remove(RING, force=True, missing_ok=True)
    dist.destroy_process_group()
