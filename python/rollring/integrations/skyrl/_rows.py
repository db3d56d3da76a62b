"""SkyRL's prompts as requests, and the answers as its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from .. import record_fields

if TYPE_CHECKING:
    from ... import Member

STOP_ERROR = "rollout_error"


def requests_of(given: Mapping[str, Any], visit: int) -> list[dict[str, Any]]:
    """A request for each row of a ``GeneratorInput``."""
    prompts = given["prompts"]
    names = given.get("trajectory_ids")
    if names is None:  # each prompt is a group of its own
        keys = [(str(row), 0) for row in range(len(prompts))]
    else:
        keys = [(str(name.instance_id), int(name.repetition_id)) for name in names]
    if len(keys) != len(prompts):
        raise InvalidArgumentError(f"{len(keys)} trajectory_ids for {len(prompts)} prompts")
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise InvalidArgumentError(f"rollout {twice[0][0]!r} #{twice[0][1]} is requested twice")
    sizes = Counter(instance_id for instance_id, _ in keys)
    about = given.get("batch_metadata")
    common = {
        "sampling_params": given.get("sampling_params"),
        "global_step": getattr(about, "global_step", None),
        "training_phase": getattr(about, "training_phase", None),
    }
    return [
        {
            "instance_id": instance_id,
            "repetition_id": repetition_id,
            "visit": visit,
            "group_size": sizes[instance_id],
            "prompt": prompts[row],
            "env_class": _of_row(given.get("env_classes"), row),
            "env_extras": _of_row(given.get("env_extras"), row),
            **common,
        }
        for row, (instance_id, repetition_id) in enumerate(keys)
    ]


def _of_row(column: Any, row: int) -> Any:
    return None if column is None else column[row]


def why_failed(member: Member) -> str:
    extra = member.extra if len(member.sequences) == 1 else None
    return str(extra.get("error", "")) if isinstance(extra, dict) else ""


def row_of(member: Member | None, pad_token_id: int, logprobs: bool) -> dict[str, Any]:
    """One row of a ``GeneratorOutput``; a masked one for a member without tokens."""
    if member is None or why_failed(member):
        return {
            "prompt_token_ids": [pad_token_id],
            "response_ids": [pad_token_id],
            "rewards": 0.0,
            "loss_masks": [0],
            "stop_reasons": STOP_ERROR,
            "rollout_logprobs": [0.0],
            "trajectory_generation_times": 0.0,
        }
    if len(member.sequences) != 1:
        raise InvalidArgumentError(
            f"rollout {record_fields.name(member.sequences[0])} has {len(member.sequences)} "
            "sequences: SkyRL's rows have one"
        )
    record = member.sequences[0]
    if logprobs and record.logprobs is None:
        raise InvalidArgumentError(
            f"rollout {record_fields.name(record)} has no logprobs: send them, or make the "
            "generator with logprobs=False"
        )
    made = record_fields.tokens(record).response
    rewards: Any = record_fields.reward(record)
    if record.token_rewards is not None:
        rewards = record.token_rewards[len(made.prompt_ids) :].tolist()
    extra = record.extra if isinstance(record.extra, dict) else {}
    row = {
        "prompt_token_ids": made.prompt_ids.tolist(),
        "response_ids": made.token_ids.tolist(),
        "rewards": rewards,
        "loss_masks": made.loss_mask.tolist(),
        "stop_reasons": extra.get("stop_reason", "stop"),
        "rollout_logprobs": made.logprobs.tolist(),
        "trajectory_generation_times": extra.get("seconds", 0.0),
    }
    if not row["response_ids"]:  # SkyRL has no empty response
        row.update(response_ids=[pad_token_id], loss_masks=[0], rollout_logprobs=[0.0])
        row["rewards"] = [0.0] if isinstance(rewards, list) else rewards
    return row


def key_of(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in ("instance_id", "visit", "repetition_id", "group_size")}


def failed_record(item: Mapping[str, Any], why: str, pad_token_id: int) -> dict[str, Any]:
    """The row of a member that has none: one token that is not trained on."""
    return {
        **key_of(item),
        "token_ids": [pad_token_id],
        "n_prompt": 0,
        "loss_mask": [0],
        "logprobs": [0.0],
        "reward": 0.0,
        "extra": {"stop_reason": STOP_ERROR, "error": why},
    }
