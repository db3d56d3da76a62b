"""Episodes of verifiers as records: each trace a member of its group, each branch a subsequence.

    versions    verifiers 0.4.0
    proven      a real environment and client on a CPU
    called by   a rollout worker of your own

    producer.push_many(records(episode, group_size=8, repetition_id=3, policy_version=7))

Nothing of verifiers is imported: the result of an environment (Episode) and that of a client of its
servers (WireEpisode) have the same attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from .record_fields import push_fields

_Columns = Mapping[str, Callable[[Any], Any]]


def _status(trace: Any, train_on_timeouts: bool) -> str:
    """The outcome of a trace. Its errors may be of attempts before the one that succeeded."""
    if not trace.ok:
        return "timed_out" if trace.is_timeout and not trace.errors else "failed"
    if trace.is_timeout:
        return "truncated" if train_on_timeouts else "timed_out"
    return "truncated" if trace.is_truncated else "completed"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def _of_trace(trace: Any) -> dict[str, Any]:
    """The fields that all records of a member have, and its notes, which become ``extra``."""
    scores = {name: one for name, one in trace.rewards.items() if one is not None}
    notes: dict[str, Any] = {"trace": trace.id, "agent": trace.agent.name}
    if trace.stop_condition is not None:
        notes["stop_condition"] = trace.stop_condition
    if scores:
        notes["rewards"] = {name: one.score for name, one in scores.items()}
    if metrics := {name: one for name, one in trace.metrics.items() if one is not None}:
        notes["metrics"] = metrics
    if trace.errors:
        notes["error"] = f"{trace.errors[-1].type}: {trace.errors[-1].message}"
    timing = trace.timing
    fields: dict[str, Any] = {
        "created_ns": _nanoseconds(timing.start),
        "finished_ns": _nanoseconds(max(timing.agent.end, timing.scoring.end)),
        "extra": notes,
    }
    if scores:
        fields["reward"] = float(trace.reward)
    return fields


def _of_branch(branch: Any, ids: list[int], mask: Any, columns: _Columns) -> dict[str, Any]:
    """The columns of one sample, without those that no node of the branch has."""
    sampled = [node for node in branch.nodes if any(node.mask)]
    has_logprobs = any(node.logprobs for node in sampled)
    made = push_fields(ids, mask, branch.logprobs if has_logprobs else None)
    for column, values in (
        ("advantages", branch.advantages),
        ("ref_logprobs", branch.reference_logprobs),
    ):
        if values is not None:
            made[column] = np.asarray(values, np.float32)
    if (experts := branch.routed_experts) is not None:
        made["routed_experts"] = experts
    for column, read in columns.items():
        if (value := read(branch)) is not None:
            made[column] = value
    return made


def _untrained(branch: Any, mask: Any, trained: set[int]) -> Any:
    """The mask without the tokens of nodes that an earlier branch trains already.

    Branches share their nodes up to the fork. Trained in each branch, those tokens would weigh in
    the loss once per branch, more the more often the agent forks, and not because they are better.
    """
    made = mask.copy()
    at = 0
    for node in branch.nodes:
        end = at + len(node.token_ids)
        if id(node) in trained:
            made[at:end] = 0
        at = end
    return made


def _samples(trace: Any, columns: _Columns) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The branches that there is something to train on, and their columns."""
    trained: set[int] = set()  # nodes of the branches so far
    for branch in trace.branches:
        if not branch.trainable:
            continue
        ids, mask = branch.token_ids, np.asarray(branch.sampled_mask, np.uint8)
        if len(ids) != mask.size:
            raise InvalidArgumentError(
                f"branch {branch.index} of trace {trace.id} has {len(ids)} tokens, but a mask "
                f"of {mask.size}"
            )
        fresh = _untrained(branch, mask, trained)
        if fresh.any():
            trained.update(map(id, branch.nodes))
            yield branch, _of_branch(branch, ids, fresh, columns)
        elif not mask.any() and any(node.sampled and not node.token_ids for node in branch.nodes):
            raise InvalidArgumentError(
                f"branch {branch.index} of trace {trace.id} has messages of the model without "
                "token ids: only the train client of verifiers requests them"
            )


def _member(trace: Any, status: str, messages: bool, columns: _Columns) -> list[dict[str, Any]]:
    """The records of one trace, without the fields of their group."""
    common = _of_trace(trace)
    notes = common.pop("extra")
    made = []
    if status in {"completed", "truncated"}:
        for branch, fields in _samples(trace, columns):
            if messages:
                fields["messages"] = [
                    message.model_dump(mode="json", exclude_none=True)
                    for message in branch.messages
                ]
            fields["extra"] = _text({**notes, "branch": branch.index})
            made.append({**common, "status": status, **fields})
        if not made:
            notes.setdefault("error", "the model sampled no token")
    if not made:
        common.pop("reward", None)
        mark = "timed_out" if status == "timed_out" else "failed"
        made = [{**common, "status": mark, "extra": _text(notes)}]
    for index, fields in enumerate(made):
        fields["subsequence_index"] = index
        fields["last_subsequence"] = index == len(made) - 1
    return made


def _mark(episode: Any) -> dict[str, Any]:
    """Of a member whose trace the episode should have, and has not."""
    notes: dict[str, Any] = {"error": "the episode has no trace for this member"}
    if episode.errors:
        notes["error"] = f"{episode.errors[-1].type}: {episode.errors[-1].message}"
    return {"status": "timed_out" if episode.is_timeout else "failed", "extra": _text(notes)}


def _unjudged(episode: Any) -> bool:
    """Whether run() or finalize() of its environment failed: its rewards do not count."""
    return not episode.ok and all(trace.ok for trace in episode.traces)


def _versions(episode: Any, given: int | tuple[int, int] | None) -> dict[str, int]:
    """Oldest and newest policy version that sampled."""
    if given is None:
        span = getattr(getattr(episode.run, "work", None), "policy", None)
        if span is None:
            return {}
        given = (span.start, span.end)
    elif isinstance(given, int):
        given = (given, given)
    return {"policy_version_min": given[0], "policy_version_max": given[1]}


def _key(episode: Any, group: str | None) -> str:
    key = group or (episode.group.id if episode.group is not None else episode.task.key)
    if not key:
        raise InvalidArgumentError(
            f"episode {episode.id} has neither a group nor a task key: pass group="
        )
    return str(key)


def records(
    episode: Any,
    *,
    group: str | None = None,
    visit: int = 0,
    repetition_id: int = 0,
    group_size: int = 0,
    members: int | None = None,
    agent: str | None = None,
    policy_version: int | tuple[int, int] | None = None,
    source_id: int | None = None,
    train_on_timeouts: bool = False,
    messages: bool = False,
    columns: _Columns | None = None,
) -> list[dict[str, Any]]:
    """The records of an episode that is over, as `Producer.push_many` takes them.

    Each trace of an agent that is trained is a member. Each of its branches that is trained, and in
    which a token was sampled, is a subsequence: ``token_ids``, ``loss_mask`` (the sampled ones;
    tokens that branches share, in the first of them only), ``logprobs``, and ``advantages``,
    ``ref_logprobs`` and ``routed_experts`` where a node has them. A trace that failed or timed out
    becomes a mark without tokens, so that its group does not wait for it; and so do all members of
    an episode that failed though its traces did not. ``extra`` has
    ids, the stop condition, scores, metrics and the last error.

    Args:
        episode: Of verifiers 0.4: an Episode or a WireEpisode.
        group: The instance ID of the group. Default: that of the episode's group, else its task's
            key.
        visit: Which pass over that task; another one is another group.
        repetition_id: Of the first member; the others follow.
        group_size: Members of the whole group, over all episodes; 0: as the stash has it.
        members: How many members this episode is to have: for those that are missing there are
            marks. Default: as many as there are traces, and one at least.
        agent: Take the traces of this agent alone. Default: of all that are trained.
        policy_version: That sampled the tokens, or the oldest and the newest. Default: the
            policy span that the episode's run names.
        source_id: Number of the environment.
        train_on_timeouts: A trace whose time was up is scored all the same: send it as truncated.
        messages: Send each branch's messages, too.
        columns: Columns of the ring's own, by name: a function that makes each from a Branch, or
            None.

    Raises:
        InvalidArgumentError: The episode has more traces than ``members``, no key, or messages of
            the model without tokens. The text names it.
    """
    traces = [
        trace
        for trace in episode.traces
        if trace.agent.trainable and agent in (None, trace.agent.name)
    ]
    wanted = max(1, len(traces)) if members is None else members
    if len(traces) > wanted:
        raise InvalidArgumentError(
            f"episode {episode.id} has {len(traces)} traces instead of {wanted}"
        )
    common: dict[str, Any] = {
        "instance_id": _key(episode, group),
        "visit": visit,
        "group_size": group_size,
        "source_id": source_id,
        "source": episode.env.name or episode.env.id or None,
        **_versions(episode, policy_version),
    }
    if _unjudged(episode):
        made = [[_mark(episode)] for _ in range(wanted)]
    else:
        made = [
            _member(trace, _status(trace, train_on_timeouts), messages, columns or {})
            for trace in traces
        ]
        made += [[_mark(episode)] for _ in range(wanted - len(traces))]
    return [
        {**common, "repetition_id": repetition_id + index, **fields}
        for index, member in enumerate(made)
        for fields in member
    ]
