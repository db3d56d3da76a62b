"""The trainer: GRPO in plain torch, with a checkpoint from which its successor continues."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ledger import LEFT, Ledger, Mark
from model import Model
from plan import Plan
from transport import Batch, trainer_end


def train(plan: Plan) -> None:
    """The trainer, in its own process; restarted, it continues from the last checkpoint."""
    trainer = Trainer(plan)
    try:
        while trainer.step < plan.steps:
            trainer.take_step()
        trainer.finish()
    finally:
        trainer.close()


class Trainer:
    def __init__(self, plan: Plan) -> None:
        torch.set_num_threads(plan.threads)
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.model = Model(plan.shape).to(plan.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), plan.rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.weights = {name: p.detach() for name, p in self.model.named_parameters()}
        if plan.host_weights:
            self.weights = {name: weight.cpu() for name, weight in self.weights.items()}
        self.end = trainer_end(plan, self.weights)
        self.receipts: list[bytes] = []
        self.step = 0
        saved = self._load()
        self.ledger = Ledger(plan.path("ledger.txt"), Mark(**saved.get("ledger", {})))
        # Versions only grow, even if the dead trainer had published later ones.
        self.version = self.end.resume(saved.get("receipts", []), self.step)
        self.changes = Changes(self.model)
        self.log = plan.path("steps.jsonl").open("a", encoding="utf-8", buffering=1)
        self.publish()

    def take_step(self) -> None:
        began = time.monotonic()
        batch = self.end.take(timeout=0.1)
        while batch is None:
            batch = self.end.take(timeout=0.1)
        taken = time.monotonic()
        clipped = update(self.plan, self.model, self.optimizer, batch)
        self.step += 1
        self.ledger.add(self.step, batch.keys)
        self.receipts.append(batch.receipt)
        trained = time.monotonic()
        lag = lags(batch, self.version)
        if self.step % self.plan.checkpoint_steps == 0 or self.step == self.plan.steps:
            self.checkpoint()
        saved = time.monotonic()
        self.publish()
        ended = time.monotonic()
        self.log.write(json.dumps({
            "step": self.step,
            "version": self.version,
            "at": ended,
            "reward": float(batch.rewards.mean()),
            "groups": len(batch.keys),
            "tokens": int(batch.tokens.size),
            "waiting": taken - began,
            "training": trained - taken,
            "saving": saved - trained,
            "publishing": ended - saved,
            "publish_at": saved,
            "clipped": clipped,
            "changed": self.changes.share(),
            **lag,
        }) + "\n")

    def publish(self) -> None:
        if self.plan.host_weights:
            for name, p in self.model.named_parameters():
                self.weights[name].copy_(p.detach())
        self.version += 1
        self.end.publish(self.version)

    def checkpoint(self) -> None:
        """Atomically: the trained state, and the records that it was trained on. Then these are
        acknowledged. If the trainer is killed in between, the next one settles their receipts.
        """
        path = self.plan.path("checkpoint.pt")
        new = path.with_suffix(".new")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "receipts": self.receipts,
                "ledger": asdict(self.ledger.mark()),
            },
            new,
        )
        os.replace(new, path)
        self.end.done(self.step)
        self.receipts = []

    def _load(self) -> dict[str, Any]:
        path = self.plan.path("checkpoint.pt")
        if not path.exists():
            return {}
        saved: dict[str, Any] = torch.load(path, map_location=self.plan.device)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]
        return saved

    def finish(self) -> None:
        """Take the groups that workers still send, untrained, so that no worker waits for room."""
        self.plan.path("stop").touch()
        while True:
            over = self.plan.path("ended").exists()  # first: their records are readable then
            batch = self.end.take(timeout=0.2)
            if batch is None and over:
                batch = self.end.rest()
                if batch is None:
                    return
            if batch is not None:
                self.ledger.add(LEFT, batch.keys)
                self.receipts.append(batch.receipt)
                self.checkpoint()

    def close(self) -> None:
        self.log.close()
        self.ledger.close()
        self.end.close()


class Changes:
    """The elements that staging by difference would exchange, if the weights went out as bf16."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._before = self._rounded()

    def _rounded(self) -> list[Tensor]:
        return [p.detach().to(torch.bfloat16) for p in self._model.parameters()]

    def share(self) -> float:
        """The share of the elements that have changed since the call before."""
        now = self._rounded()
        changed = sum(int((a != b).sum()) for a, b in zip(now, self._before, strict=True))
        self._before = now
        return changed / sum(one.numel() for one in now)


def update(
    plan: Plan, model: Model, optimizer: torch.optim.Optimizer, batch: Batch
) -> float:
    """One step of the optimizer; the share of tokens whose ratio was clipped."""
    tokens = torch.from_numpy(batch.tokens).to(plan.device)
    behaviour = torch.from_numpy(batch.logprobs).to(plan.device)[:, 1:]
    mask = torch.from_numpy(batch.versions >= 0).to(plan.device)[:, 1:]
    advantages = torch.from_numpy(batch.advantages).to(plan.device, torch.float32)[:, None]
    logits, _ = model(tokens[:, :-1])
    logprobs = logits.float().log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    ratio = (logprobs - behaviour).exp()
    bounded = ratio.clamp(1 - plan.clip_low, 1 + plan.clip_high)
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    loss = -mean_of(gain, mask)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(mean_of((ratio != bounded).float(), mask))


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def lags(batch: Batch, version: int) -> dict[str, float]:
    behind = version - batch.versions[batch.versions >= 0]
    return {"lag": float(behind.mean()), "lag_most": int(behind.max())}
