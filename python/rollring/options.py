"""Keywords of calls, with their types, for editors and type checkers, and for functions of your own
that pass them on: ``def send(**fields: Unpack[RecordFields])``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypedDict

__all__ = ["GroupOptions", "PublisherOptions", "RecordFields", "RingOptions", "StashOptions"]

# Numbers also of numpy and torch.
Whole = SupportsIndex
Real = SupportsFloat | SupportsIndex
Size = int | str  # bytes, or text such as "64MiB"


class RecordFields(TypedDict, total=False):
    """The fields of `Producer.push`, which describes them. The ring's own columns, whose names
    no type knows, come from a ``dict[str, Any]``: ``push(key, token_ids=ids, **columns)``.
    """

    token_ids: Any
    loss_mask: Any
    logprobs: Any
    reward: Real | None
    repetition_id: Whole | None
    group_size: Whole | None
    n_prompt: Whole | None
    status: Literal["completed", "truncated", "aborted", "failed", "timed_out", "filtered"] | None
    policy_version: Any
    advantages: Any
    ref_logprobs: Any
    token_rewards: Any
    routed_experts: Any
    topk_ids: Any
    topk_logprobs: Any
    labels: Any
    visit: Whole | None
    subsequence_index: Whole | None
    last_subsequence: bool | None
    attempt: Whole | None
    source: str | None
    source_id: Whole | None
    policy_version_min: Whole | None
    policy_version_max: Whole | None
    created_ns: Whole | None
    finished_ns: Whole | None
    origin: Whole | None
    user: bytes | str | None
    messages: Any
    generation_params: Any
    overrides: Any
    group_overrides: Any
    extra: Any
    images: Any


class StashOptions(TypedDict, total=False):
    """Policies of a `Stash` beside its first options, as StashOptions of the C++ library has them;
    time spans are in seconds.
    """

    min_size: int
    extra: int
    select: Literal["first", "uniform"]
    seed: int
    on_failed: Literal["shrink", "void_group", "hold"]
    bad_reward: Literal["fail", "void_group", "absent"]
    zero_variance: Literal["keep", "drop"]
    zero_variance_tolerance: float
    zero_variance_run: int
    stale: Literal["drop", "withhold"]
    order: Literal["windowed", "fifo", "freshest"]
    window_fraction: float
    source_weights: Mapping[int, float] | None
    max_open_groups: int
    max_open_bytes: int
    count_leased: bool
    tombstone: float
    tombstones: int
    no_progress: float
    ledger: bool


class GroupOptions(StashOptions, total=False):
    """Options of a `Stash` that concern groups, for functions that choose its batches."""

    group_size: int
    max_lag: int
    deviation: Literal["sample", "population"]
    deviation_epsilon: float
    deadline: float | None
    at_deadline: Literal["ship", "drop", "hold"] | None
    timeout: float


class RingOptions(TypedDict, total=False):
    """Options of `rollring.create`, which describes them."""

    lanes: int | None
    lane_bytes: Size | None
    columns: Mapping[str, object] | None
    spill_bytes: Size | None
    overflow_dir: str | None
    overflow_bytes: Size | None
    journal_records: int | None
    group_rows: int | None
    requests: int | None
    request_bytes: Size | None
    soft_bytes: Size | None
    ledger: str | os.PathLike[str] | None
    ledger_bytes: Size | None
    durable: Literal["none", "group", "record"] | None


class PublisherOptions(TypedDict, total=False):
    """Options of a `WeightPublisher`, which describes them, beside its tensors and its name."""

    rank: int
    ranks: int
    memory: Literal["automatic", "vmm", "legacy_ipc", "host", "direct"]
    allow_legacy_ipc: bool
    allow_direct: bool
    slots: int
    slot_bytes: int
    checksums: bool
    subscribers_max: int
    handed_on: bool
