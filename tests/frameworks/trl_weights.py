"""Rollout workers that hold the trainer's model: they take versions over a ring's weight channel,
sample with them, and note their values. The trainer's side notes its own.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import trl_tiny  # noqa: F401  torch without a GPU

import torch
from transformers import Qwen2ForCausalLM

import rollring as rr
from trl_load import PATIENCE

SIZE = 4


def digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors):
        found.update(name.encode())
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def note(log: Path, version: int, what: str) -> None:
    """One write: it is there whole, or not at all, when the process is killed."""
    with log.open("ab", buffering=0) as out:
        out.write(f"{version} {what}\n".encode())


def noted(log: Path) -> list[tuple[int, str]]:
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [(int(version), what) for version, what in map(str.split, lines)]


def _push(producer: rr.Producer, model: Any, name: str, group: str, version: int) -> None:
    """A group that the model has sampled, with its own log-probabilities."""
    prompt = [5 + version % 50, 7, 8]
    for member in range(SIZE):
        tokens = list(prompt)
        logprobs = [0.0] * len(prompt)
        for _ in range(6):
            with torch.no_grad():
                scores = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(torch.multinomial(scores.exp(), 1)))
            logprobs.append(float(scores[tokens[-1]]))
        producer.push(
            group,
            repetition_id=member,
            group_size=SIZE,
            token_ids=tokens,
            logprobs=logprobs,
            n_prompt=len(prompt),
            reward=float(sum(tokens) % 7),
            policy_version=version,
            extra={"worker": name},
            timeout=PATIENCE,
        )


def roll(ring: str, folder: str, name: str, log: str, last: int, dies_at: int = -1) -> None:
    """Holds each version and sends a group with it (two of the first), until the last one.

    Args:
        dies_at: The version in the middle of which it is killed.
    """
    model = Qwen2ForCausalLM.from_pretrained(folder)
    into = dict(model.named_parameters())
    held, sent = -1, 0
    with rr.Producer(ring, name=name, timeout=PATIENCE) as producer:
        while held < last:
            with rr.WeightSubscriber(
                ring, device="cpu", name=name, held_version=held, timeout=PATIENCE
            ) as channel:
                try:
                    for update in channel:
                        with update:
                            whole = dict(update.tensors(PATIENCE))
                            if update.version == dies_at:
                                os.kill(os.getpid(), signal.SIGKILL)
                        with torch.no_grad():
                            for each, tensor in whole.items():
                                into[each].copy_(tensor)
                        held = update.version
                        note(Path(log), held, digest(into.items()))
                        for _ in range(2 if sent == 0 else 1):
                            _push(producer, model, name, f"{name}/{sent}", held)
                            sent += 1
                        if held >= last:
                            break
                except (rr.PeerGoneError, rr.VersionAbortedError):
                    continue
