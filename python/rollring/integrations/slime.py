"""slime's rollout function over a ring: prompts out to rollout workers, whole groups back.

    versions    stand-ins with its fields: it is on no index
    proven      stand-ins, on a CPU
    called by   slime's rollout manager (`generate_rollout`)

    --rollout-function-path rollring.integrations.slime.generate_rollout

docs/slime.md has the other side, and describes deaths of processes.
"""

from __future__ import annotations

import copy
import importlib
import os
import time
from collections import deque
from typing import Any

from .. import Batch, Group, Stash
from ..errors import InvalidArgumentError, TimedOutError
from ..extras import RingQueue
from .record_fields import field, oldest_version, tokens

ASKED_AHEAD = 2  # rollout batches of prompts that are out at once
SILENT_SECONDS = 5400.0  # without a record, before `NoProgressError`, where no patience is given

_Key = tuple[str, int]


def _fill(sample: Any, record: Any) -> Any:
    """The generated record, in the fields of slime's Sample."""
    columns = tokens(record)
    response = columns.response
    sample.tokens = columns.token_ids.tolist()
    sample.response_length = len(response.token_ids)
    sample.loss_mask = response.loss_mask.tolist()
    sample.rollout_log_probs = response.logprobs.tolist()
    sample.reward = field(record, "reward")
    sample.status = type(sample).Status(record.status)
    if (version := oldest_version(record)) >= 0:
        newest = max(version, int(record.policy_version_max))
        sample.weight_versions = [str(each) for each in dict.fromkeys((version, newest))]
    return sample


def _samples(asked: list[Any], group: Group) -> list[Any]:
    """A Sample a member; or, where a member has several sequences, a list of them a member."""
    made = []
    for sample, member in zip(asked, group, strict=True):
        siblings = [_fill(copy.copy(sample), record) for record in member.sequences]
        for each in siblings:
            each.rollout_id = sample.index  # they count as one rollout
        made.append(siblings)
    return [one for (one,) in made] if all(len(each) == 1 for each in made) else made


class _Run:
    """The state that lasts from one call to the next."""

    def __init__(self, args: Any) -> None:
        ring = os.environ["ROLLRING_RING"]
        self.size = int(args.n_samples_per_prompt)
        self.calls_ahead = int(os.environ.get("ROLLRING_CALLS_AHEAD", "0"))
        patience = os.environ.get("ROLLRING_PATIENCE")
        self.patience = None if patience is None else float(patience)
        self.stash = Stash(
            ring,
            batch_groups=1,
            group_size=self.size,
            deadline=self.patience,
            advantages="none",
        )
        self.prompts = RingQueue(name=f"{ring}-prompts")
        self.asked: dict[_Key, tuple[float, list[Any]]] = {}  # and when
        self.visit = time.time_ns()  # rises from one process to the next
        self.trained: deque[list[Batch]] = deque()  # a list a call

    def acknowledge(self) -> None:
        """The batches that slime is done with, now that it asks for more."""
        while len(self.trained) > self.calls_ahead:
            for batch in self.trained.popleft():
                batch.ack()

    def ask(self, groups: int, data_source: Any) -> None:
        """Keep so many prompts out."""
        while len(self.asked) < groups:
            (samples,) = data_source.get_samples(1)
            self.visit += 1
            first = samples[0]
            key = (f"slime/{first.group_index}", self.visit)
            wish = {"prompt": first.prompt, "label": first.label, "group_size": len(samples)}
            self.prompts.put({"instance_id": key[0], "visit": key[1], **wish})
            self.asked[key] = (time.monotonic(), samples)

    def next(self, data_source: Any) -> Batch | None:
        """A group, if there is one; if not, late ones go back to the data source."""
        try:
            return self.stash.next(timeout=1.0)
        except TimedOutError:
            silent = SILENT_SECONDS if self.patience is None else 3 * self.patience
            self.stash.check(stale_after=silent)
        if self.patience is None:
            return None
        # Only now: while slime trains, punctual groups wait in the ring.
        due = time.monotonic() - self.patience
        for key in [key for key, (since, _) in self.asked.items() if since < due]:
            data_source.add_samples([self.asked.pop(key)[1]])
        return None

    def of(self, group: Group, sample_type: Any) -> list[Any]:
        """The samples that it was asked for with; by a process before this one, if it was that."""
        if group.key in self.asked:
            return self.asked.pop(group.key)[1]
        index = int(group.instance_id.rpartition("/")[2])
        return [
            sample_type(group_index=index, index=index * self.size + member)
            for member in range(self.size)
        ]


_run: _Run | None = None


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """``rollout_batch_size`` whole groups, as slime's RolloutFnTrainOutput.

    Of the environment: ``ROLLRING_RING``, the ring's name; ``ROLLRING_CALLS_AHEAD``, 1 where slime
    calls for the next batch before it trains on the last one; ``ROLLRING_PATIENCE``, the seconds
    that a group may take before it is asked for again. Without it a group may take any time.

    Raises:
        NoProgressError: Nothing came for three times that long; for 90 minutes without it.
        ProducerDiedError: Of a worker that died a group has waited as long.
    """
    global _run
    if evaluation:
        raise InvalidArgumentError("rollring has no evaluation: pass --eval-function-path to slime")
    sample_type = importlib.import_module("slime.utils.types").Sample
    output_type = importlib.import_module("slime.rollout.base_types").RolloutFnTrainOutput
    run = _run = _run or _Run(args)
    run.acknowledge()
    made: list[list[Any]] = []
    leased: list[Batch] = []
    incomplete = 0
    while len(made) < args.rollout_batch_size:
        run.ask(ASKED_AHEAD * args.rollout_batch_size, data_source)
        if (batch := run.next(data_source)) is None:
            continue
        (group,) = batch.groups
        asked = run.of(group, sample_type)
        if len(group) == len(asked):
            made.append(_samples(asked, group))
            leased.append(batch)
        else:  # a member failed, or did not come: all of it is asked for again
            incomplete += 1
            data_source.add_samples([asked])
            batch.ack()
    run.trained.append(leased)
    return output_type(samples=made, metrics={"rollring/incomplete_groups": incomplete})
