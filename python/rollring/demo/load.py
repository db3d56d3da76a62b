"""The records that a demo sends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollring.errors import BadRecordError
from rollring.rollouts import read_rollouts
from rollring.rollouts._read import Rollouts

_POOL = 65536  # columns are slices of a pool, which begin within so much of it
_VOCABULARY = 151936


@dataclass(frozen=True)
class Load:
    """The records of a file (`read_rollouts`) or, without one, some that are made up."""

    path: str = ""
    groups: int = 2000
    group_size: int = 8
    tokens: tuple[int, int] = (256, 4096)
    seed: int = 1
    repeat: int = 1
    tokenizer: str | None = None
    asked_size: int | None = None  # of groups in a file that does not say it

    def total(self) -> int:
        """Of all shares together. An error says that there is no such file, or none of records."""
        if not self.path:
            return self.repeat * self.groups * self.group_size
        return self.repeat * self._rollouts().count()

    def remarks(self) -> list[str]:
        """Sentences about the groups of the file, and about the keys of its first record."""
        if not self.path:
            return []
        rollouts = self._rollouts()
        sizes = [rollouts.remark] if rollouts.remark else []
        with contextlib.suppress(BadRecordError):  # a producer says it
            next(iter(rollouts), None)
        return [*sizes, *(text for _, text in rollouts.remarks())]

    def first_bad(self) -> str:
        """The first bad record of the file and the reason; empty if there is none."""
        try:
            for _ in self._rollouts():
                pass
        except BadRecordError as error:
            return str(error)
        return ""

    def _rollouts(self) -> Rollouts:
        return Rollouts(self.path, self.tokenizer, group_size=self.asked_size)

    def records(self, share: int, shares: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """A share of them, each as instance_id and the fields of `Producer.push`."""
        source = self._read if self.path else self._make
        for visit in range(self.repeat):
            for instance_id, fields in source(share, shares):
                fields["visit"] = fields.get("visit", 0) + visit
                yield instance_id, fields

    def _read(self, share: int, shares: int) -> Iterator[tuple[str, dict[str, Any]]]:
        for fields in read_rollouts(
            self.path, self.tokenizer, group_size=self.asked_size, shard=(share, shares)
        ):
            yield fields.pop("instance_id"), fields

    def _make(self, share: int, shares: int) -> Iterator[tuple[str, dict[str, Any]]]:
        total = self.groups * self.group_size
        low, high = self.tokens
        random = np.random.default_rng(self.seed)  # the same numbers in every process
        lengths = random.integers(low, high, total, endpoint=True)
        prompts = random.integers(0, lengths)
        rewards = random.integers(0, 2, total)
        begins = random.integers(0, _POOL, total)
        token_ids = random.integers(0, _VOCABULARY, high + _POOL, np.int32)
        logprobs = -random.exponential(0.5, high + _POOL).astype(np.float32)
        loss_mask = (np.arange(2 * high) >= high).astype(np.uint8)  # zeros, then ones
        for i in range(share, total, shares):
            begin, length, prompt = int(begins[i]), int(lengths[i]), int(prompts[i])
            yield (
                f"synthetic/{self.seed}/{i // self.group_size}",
                {
                    "repetition_id": i % self.group_size,
                    "group_size": self.group_size,
                    "n_prompt": prompt,
                    "reward": float(rewards[i]),
                    "token_ids": token_ids[begin : begin + length],
                    "logprobs": logprobs[begin : begin + length],
                    "loss_mask": loss_mask[high - prompt : high - prompt + length],
                },
            )


SYNTHETIC = "groups=2000,group-size=8,tokens=256:4096,seed=1"


def parse_synthetic(text: str) -> Load:
    """A `Load` as of ``--synthetic``; a ValueError says what is wrong."""
    found: dict[str, tuple[int, int]] = {}
    for part in f"{SYNTHETIC},{text}".split(","):
        name, _, value = part.partition("=")
        low, colon, high = value.partition(":")
        high = high if colon else low
        good = name in {"groups", "group-size", "seed"} and not colon or name == "tokens"
        if not (good and low.isdecimal() and high.isdecimal()):
            raise ValueError(f"'{part}' is not a part of a synthetic load: {SYNTHETIC}")
        found[name] = int(low), int(high)
    tokens, group_size = found["tokens"], found["group-size"][0]
    if not 1 <= tokens[0] <= tokens[1] < 1 << 27:
        raise ValueError(f"tokens={tokens[0]}:{tokens[1]} is not a range within 1 to 134217727")
    if not 1 <= group_size <= 4096 or found["groups"][0] > 1 << 24:
        raise ValueError("at most 16777216 groups of 1 to 4096 records each are possible")
    return Load("", found["groups"][0], group_size, tokens, found["seed"][0])
