"""A run's settings of rollring, beside AReaL's own configuration."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...adapters import check_choices, settings_of

SETTING = "ROLLRING_AREAL"
_CHOICES = {
    "rollouts": ("store", "theirs"),
    "weights": ("channel", "theirs"),
    "staging": ("out_of_place", "in_place"),
}


@dataclass(frozen=True)
class Settings:
    """The settings in `ROLLRING_AREAL`: the store's name, or JSON with these fields.

    Attributes:
        store: The store's name. Default: made of the names of the worker's experiment and trial.
        capacity: The maximum number of bytes in the store.
        lanes: The number of pieces of the capacity. Each process that puts tensors has one or more,
            and no tensor is larger than a piece. By default one has 256 MiB: the experts that 61
            layers chose for 131,072 tokens are 244 MiB (`routed_experts`).
        rollouts: "theirs": over AReaL's own HTTP.
        weights: "theirs": colocated updates over AReaL's own CUDA IPC.
        staging: "out_of_place": an engine keeps a version beside its weights until the version is
            committed; after a failure it continues to serve the old version. "in_place": the engine
            needs no memory for a second copy.
        publish_as: The dtype in which float32 goes out; "": as it is.
        deadline_s: Seconds to wait for the other side, in a connect and in a version. Ranks of a
            trainer wait three times as long for each other.
    """

    store: str = ""
    capacity: str = "8GiB"
    lanes: int = 32
    rollouts: str = "store"
    weights: str = "channel"
    staging: str = "out_of_place"
    publish_as: str = ""
    deadline_s: float = 100.0

    def __post_init__(self) -> None:
        check_choices(self, _CHOICES)

    @classmethod
    def of_environment(cls) -> Settings:
        """
        Raises:
            InvalidArgumentError: The setting is not JSON, or has an unknown field.
        """
        return cls(**settings_of(cls, SETTING, "store"))

    def store_name(self) -> str:
        """Empty, where nothing names one: then tensors are read, but none is put."""
        if self.store:
            return self.store
        names = [_argument(option) for option in ("--experiment-name", "--trial-name")]
        return as_name("areal", *names) if all(names) else ""


def as_name(*parts: object) -> str:
    """Of a ring: other characters than those of names become hyphens."""
    text = "-".join(map(str, parts))
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)


def _argument(option: str) -> str:
    """Of this process's command line."""
    for given, value in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        if given == option:
            return value
        if given.startswith(f"{option}="):
            return given.partition("=")[2]
    return ""
