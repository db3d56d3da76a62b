"""A trainer's requests to the workers of its ring: one for each prompt, and a group for each."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ... import RollringError, Stash, create
from ...errors import InvalidArgumentError, TimedOutError
from ...extras import RequestBoard

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ... import Batch, Member
    from ...extras import Codec
    from ...options import RingOptions

    Key = tuple[str, int]

_log = logging.getLogger("rollring")

LOOK_SECONDS = 1.0  # between looks at requests that failed
IDLE_SECONDS = 30.0  # after which a trainer without workers says so


class RolloutRequests:
    """The one end of a ring that asks `answer_prompts` for completions. It makes the ring where
    there is none.
    """

    def __init__(
        self,
        ring: str,
        *,
        timeout: float | None,
        attempts: int,
        codec: Codec | None,
        **ring_options: Unpack[RingOptions],
    ) -> None:
        create(ring, exist_ok=True, **ring_options)
        self.ring = ring
        self._timeout = timeout
        self._stash = Stash(
            ring, batch_groups=1, order="freshest", advantages="none", deadline=timeout, min_size=1
        )
        self._board = RequestBoard(ring, "TRL's trainer", attempts=attempts, codec=codec)
        self._board.open()
        self._visit = time.time_ns()  # the same prompt returns, also in the next run

    def members(self, prompts: Sequence[Any], count: int) -> Iterator[Member]:
        """A completion of each prompt, in their order; ``count`` times in a row is one request."""
        for batch, wanted in self._collect(self._ask(prompts, count)):
            group = batch.groups[0]
            members = sorted(group.members, key=lambda member: member.repetition_id)
            if len(members) != wanted or any(len(m.sequences) != 1 for m in members):
                raise RollringError(
                    f"group {group.key[0]!r} of ring {self.ring} has {len(members)} members, or "
                    f"several sequences in one, where {wanted} completions were asked for",
                    "missing",
                )
            yield from members

    def close(self) -> None:
        """Withdraw open requests, and leave the ring. Idempotent."""
        self._board.close()
        self._stash.close()

    def _ask(self, prompts: Sequence[Any], count: int) -> dict[Key, dict[str, Any]]:
        """A request for each run of the same prompt, by the key of its group."""
        asked = {}
        for start in range(0, len(prompts), count):
            same = prompts[start : start + count]
            if any(each != same[0] for each in same):
                raise InvalidArgumentError(
                    f"prompts {start} to {start + len(same) - 1} differ: TRL gives each prompt "
                    f"{count} times in a row"
                )
            self._visit += 1
            item = {"prompt": same[0], "count": len(same), "visit": self._visit}
            item["instance_id"] = f"trl/{start // count}"
            item["number"] = self._board.post(item, timeout=self._timeout)
            asked[item["instance_id"], self._visit] = item
        return asked

    def _collect(self, asked: dict[Key, dict[str, Any]]) -> Iterator[tuple[Batch, int]]:
        """The group of each request, in their order, and acknowledged once the next is taken."""
        begun = time.monotonic()
        ends = begun + (math.inf if self._timeout is None else self._timeout)
        idle = begun + IDLE_SECONDS
        came: dict[Key, Batch] = {}
        try:
            while missing := [key for key in asked if key not in came]:
                self._raise_failed(asked)
                try:
                    batch = self._stash.next(LOOK_SECONDS)
                except TimedOutError:
                    if time.monotonic() >= ends:
                        raise self._timed_out(asked[missing[0]], len(missing)) from None
                    if time.monotonic() >= idle:
                        self._tell_idle()
                        idle += IDLE_SECONDS
                    continue
                key = batch.groups[0].key
                if key in asked:
                    came[key] = batch
                else:
                    batch.ack()  # of a call that failed, or of an earlier trainer
            for key, item in asked.items():
                yield came[key], item["count"]
                came.pop(key).ack()
        finally:
            for item in asked.values():
                if not self._board.closed:
                    self._board.withdraw(item["number"])

    def _raise_failed(self, asked: dict[Key, dict[str, Any]]) -> None:
        failed = set(self._board.given_up())
        for item in asked.values():
            if item["number"] in failed:
                raise RollringError(
                    f"workers failed at the rollouts of prompt {item['prompt']!r}: their logs say "
                    "why",
                    "missing",
                )

    def _timed_out(self, item: dict[str, Any], missing: int) -> TimedOutError:
        return TimedOutError(
            f"{missing} groups were not complete within {self._timeout} s, the first for prompt "
            f"{item['prompt']!r}; `rollring groups {self.ring}` shows the missing members",
            "timed_out",
        )

    def _tell_idle(self) -> None:
        if not self._board.counts()["workers"]:
            _log.warning(
                "ring %s: rollouts are asked for, and no worker is there: start some with "
                "rollring.integrations.trl.answer_prompts(%r, ...)",
                self.ring,
                self.ring,
            )
