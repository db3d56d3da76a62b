"""The same groups through the API server of Atropos, in the way of its environments and trainers:
JSON, with gzip, over HTTP. Weights are files, like those that its example trainer saves.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from typing import Any

import numpy as np
import requests

from plan import Plan
from queues import arrays, load
from transport import Batch, Group, Tensors, batch_of

PATIENCE = 60.0
ASK_EVERY = 0.05  # seconds between two queries of the waiting groups


def register(plan: Plan) -> None:
    """Like a trainer, before environments send."""
    requests.post(f"{plan.url}/register", timeout=PATIENCE, json={
        "wandb_group": "", "wandb_project": "",
        "batch_size": plan.batch_groups * plan.members,
        "max_token_len": 2 * plan.length + 1,
        "checkpoint_dir": plan.folder, "save_checkpoint_interval": 0,
        "starting_step": 0, "num_steps": plan.steps,
    }).raise_for_status()


def as_json(group: Group) -> dict[str, Any]:
    """Atropos' fields; the overrides carry the versions of tokens, which have no field."""
    masks = np.where(group.versions >= 0, group.tokens, -100)
    return {
        "tokens": group.tokens.tolist(),
        "masks": masks.tolist(),
        "scores": group.rewards.tolist(),
        "inference_logprobs": group.logprobs.tolist(),
        "env_id": None,
        "group_overrides": {"key": group.key, "versions": group.versions[0].tolist()},
    }


def from_json(found: dict[str, Any]) -> Group:
    tokens = np.array(found["tokens"], np.int32)
    versions = np.array(found["group_overrides"]["versions"], np.int32)
    return Group(
        key=found["group_overrides"]["key"],
        tokens=tokens,
        logprobs=np.array(found["inference_logprobs"], np.float32),
        versions=np.broadcast_to(versions, tokens.shape),
        rewards=np.array(found["scores"], np.float64),
        n_prompt=int((versions < 0).sum()),
    )


class AtroposWorker:
    def __init__(self, plan: Plan, number: int, tensors: Tensors) -> None:
        self.version = -1
        self._plan = plan
        self._session = requests.Session()
        self._live = tensors
        self._path = plan.path("weights.npz")
        self._seen = 0
        self._ask_at = 0.0
        self._taken = plan.path(f"worker-{number}.version")

    def send(self, group: Group) -> None:
        while self._full():
            self.refresh()
            time.sleep(0.005)
            if self._plan.path("ended").exists():
                return
        body = gzip.compress(json.dumps(as_json(group)).encode())
        self._session.post(
            f"{self._plan.url}/scored_data", data=body, timeout=PATIENCE,
            headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
        ).raise_for_status()

    def _full(self) -> bool:
        """Environments limit themselves: the server accepts everything."""
        now = time.monotonic()
        if now < self._ask_at:
            return False
        found = self._session.get(f"{self._plan.url}/status", timeout=PATIENCE).json()
        full: bool = found["queue_size"] * self._plan.members >= self._plan.waiting_records
        self._ask_at = now if full else now + ASK_EVERY
        return full

    def refresh(self) -> int:
        try:
            changed = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return self.version
        if changed != self._seen:
            self._seen = changed
            with np.load(io.BytesIO(self._path.read_bytes())) as found:
                version = int(found["version"])
                load(self._live, {name: found[name] for name in self._live})
            self.version = version
            self._taken.write_text(str(version))
        return self.version

    def close(self) -> None:
        self._session.close()


class AtroposTrainer:
    def __init__(self, plan: Plan, tensors: Tensors) -> None:
        self._plan = plan
        self._session = requests.Session()
        self._tensors = tensors
        self._version = -1

    def resume(self, receipts: list[bytes], step: int) -> int:
        return self._version

    def take(self, timeout: float) -> Batch | None:
        end = time.monotonic() + timeout
        while True:
            found = self._session.get(f"{self._plan.url}/batch", timeout=PATIENCE).json()["batch"]
            if found:
                return batch_of([from_json(group) for group in found])
            if time.monotonic() >= end:
                return None
            time.sleep(0.002)

    def rest(self) -> Batch | None:
        return None  # the server returns whole batches only

    def done(self, step: int) -> None:
        pass

    def publish(self, version: int) -> None:
        """Returns once every worker has it, like the ring's publication."""
        self._version = version
        new = self._plan.path("weights.new.npz")
        np.savez(new, version=version, **arrays(self._tensors))
        os.replace(new, self._plan.path("weights.npz"))
        waiting = [self._plan.path(f"worker-{i}.version") for i in range(self._plan.workers)]
        while waiting and not self._plan.path("ended").exists():
            waiting = [path for path in waiting
                       if not path.exists() or path.read_text() != str(version)]
            time.sleep(0.0005)

    def close(self) -> None:
        self._session.close()
