"""A run's settings of its ring, beside torchtitan's own configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ...adapters import check_choices, settings_of
from ...errors import InvalidArgumentError

SETTING = "ROLLRING_TORCHTITAN"
_CHOICES = {
    "rollouts": ("ring", "rest"),
    "logprobs": ("theirs", "aligned"),
    "acknowledge": ("step", "checkpoint"),
    "weights": ("theirs", "vllm", "channel", "shards"),
}
# Those of `rollring.integrations.vllm.trainer` that fit ranks which send together.
_VLLM = ("checksums", "deadline_s", "pause", "shards", "slot_bytes", "staging")
_OF_TRAINER = ("advantages", "batch_groups", "batch_sequences", "batch_tokens")


@dataclass(frozen=True)
class Settings:
    """Of `ROLLRING_TORCHTITAN`: the ring's name, or JSON with these fields.

    Attributes:
        ring: Its name. Default: ``ROLLRING_RING``, else the server's answer.
        server: The URL of ``rollring serve-atropos``, where it is not at port 8000 of the host that
            torchtitan's client looks at.
        rollouts: "rest": by torchtitan's own REST client.
        logprobs: "aligned": each label beside its own log-probability, and not beside that of the
            token before it, as torchtitan's client has it.
        acknowledge: "step": the groups of a step, when the next one begins; "checkpoint": when a
            checkpoint that contains them is written.
        weights: "theirs": through groups of NCCL with a patched vLLM; "vllm": to the vLLM servers
            of ``grpo.sglang_urls``, unpatched, which were started with the backend "rollring", as
            shards of all ranks where the model is divided, and the log says which;
            "channel": to engines that attach to the ring's weight channel by themselves;
            "shards": the same without a gather, to engines that attach with a layout.
        engines: With "channel" or "shards": how many are waited for before the first version.
        publish_as: The dtype in which float32 goes out; "": as it is.
        vllm: Fields of `rollring.integrations.vllm.trainer.RollringTrainerInitInfo`: "checksums",
            "deadline_s", "pause", "slot_bytes" and "staging"; and "shards": True: an error where
            there would be a gather; False: always a gather.
        stash: Options of `rollring.Stash`, such as {"max_lag": 4}.
    """

    ring: str = ""
    server: str = ""
    rollouts: str = "ring"
    logprobs: str = "theirs"
    acknowledge: str = "step"
    weights: str = "theirs"
    engines: int = 0
    publish_as: str = "bfloat16"
    vllm: dict[str, Any] = field(default_factory=dict)
    stash: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)
        if unknown := sorted(set(self.vllm) - set(_VLLM)):
            raise InvalidArgumentError(
                f"vllm has {', '.join(unknown)}: here its fields are {', '.join(_VLLM)}",
                "invalid_argument",
            )
        if self.vllm.get("shards") not in (None, True, False):
            raise InvalidArgumentError(
                f"shards of vllm is {self.vllm['shards']!r}: say true or false, or omit it",
                "invalid_argument",
            )
        if taken := sorted(set(self.stash) & set(_OF_TRAINER)):
            raise InvalidArgumentError(
                f"stash has {', '.join(taken)}: torchtitan's own configuration says that",
                "invalid_argument",
            )

    @classmethod
    def of_environment(cls) -> Settings:
        """
        Raises:
            InvalidArgumentError: The setting is not JSON, or has an unknown field.
        """
        given = settings_of(cls, SETTING, "ring")
        given.setdefault("ring", os.environ.get("ROLLRING_RING", ""))
        return cls(**given)
