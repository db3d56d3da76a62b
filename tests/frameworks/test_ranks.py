"""torchrun, two ranks on the CPU, FSDP: each reads its own share of a ring's batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rollring as rr

JOB = Path(__file__).parent / "ranks_job.py"
STEPS = 3
GROUPS = 4  # in a batch
MEMBERS = 2
TOKENS = 250_000  # about a MiB
PATIENCE = 300.0


def tokens_of(group: int, member: int) -> Any:
    return (np.arange(TOKENS + 1000 * member, dtype=np.int32) * 7 + group) % 64


def test_each_rank_reads_its_share_only(tmp_path: Path) -> None:
    ring = f"ranks-{tmp_path.name}"
    rr.create(ring, lanes=2, lane_bytes="64MiB")
    try:
        with rr.Producer(ring) as producer:
            for group in range(STEPS * GROUPS):
                for member in range(MEMBERS):
                    producer.push(
                        f"p/{group}",
                        token_ids=tokens_of(group, member),
                        repetition_id=member,
                        group_size=MEMBERS,
                        reward=float(member),
                        timeout=PATIENCE,
                    )
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        job = [str(JOB), ring, f"--steps={STEPS}", f"--batch-groups={GROUPS}"]
        done = subprocess.run(
            [*run, "--nproc-per-node=2", *job],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        steps = [line for line in lines if "step" in line]
        assert len(steps) == 2 * STEPS
        seen_sum = 0
        for step in range(STEPS):
            ranks = sorted((x for x in steps if x["step"] == step), key=lambda x: int(x["rank"]))
            indices = ranks[0]["indices"] + ranks[1]["indices"]
            assert sorted(indices) == list(range(GROUPS * MEMBERS))
            assert abs(ranks[0]["tokens"] - ranks[1]["tokens"]) < TOKENS / 10
            seen_sum += sum(x["token_sum"] for x in ranks)
            assert all(np.isfinite(x["loss"]) for x in ranks)
        sent = sum(
            int(tokens_of(group, member).sum())
            for group in range(STEPS * GROUPS)
            for member in range(MEMBERS)
        )
        assert seen_sum == sent
        # Rank 1 has no stash: of each batch it has looked at its half, and the kernel maps some
        # pages around those read.
        (resident,) = (x["resident_bytes"] for x in lines if x.get("rank") == 1 and "step" not in x)
        whole = sum(4 * x["tokens"] for x in steps)
        assert 0 < resident < 0.7 * whole
        with rr.Stash(ring, batch_groups=1) as stash:
            assert stash.last_step == STEPS - 1 and stash.rest() is None
    finally:
        rr.remove(ring, force=True, missing_ok=True)
