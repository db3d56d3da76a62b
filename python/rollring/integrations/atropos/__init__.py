"""Environments of Atropos that send their groups into a ring, and not as JSON.

    versions    atroposlib 0.4.0
    proven      real environments on a CPU, without a language model
    called by   Atropos' environments; `rollring serve-atropos` is their server

They go on talking to the server for everything else: `rollring serve-atropos` has both.

    class Mine(RollringSendMixin, GSM8kEnv):
        pass
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
import urllib.request
from typing import Any

from ... import Producer
from ...adapters import TaskTurns
from ...errors import TimedOutError
from ._fields import records

_ANSWER_TIMEOUT = 30.0  # seconds


def _ask_for_ring(server_url: str) -> str:
    with urllib.request.urlopen(f"{server_url}/rollring", timeout=_ANSWER_TIMEOUT) as answer:
        return str(json.load(answer)["ring"])


async def _send(producer: Producer, members: list[dict[str, Any]]) -> None:
    for record in members:
        await producer.push_async(record.pop("instance_id"), **record)


class RollringSendMixin:
    """Put before an environment's class: its groups go into the ring of the server.

    The ring's name is ``rollring_ring`` of the class, else ``$ROLLRING_RING``, else the answer of
    the server at ``rollout_server_url``. While the ring is full, sending waits and other tasks run.
    A group that cannot be sent raises an exception, and the environment reports it.
    """

    rollring_ring: str | None = None
    config: Any

    _rollring_producer: Producer | None = None
    _rollring_run = ""
    _rollring_visit = 0
    _rollring_waiting: set[asyncio.Future[None]]  # groups that wait for room

    async def _rollring_open(self) -> Producer:
        # One, whichever task is first; and of no event loop, for a test runs several.
        opening: TaskTurns = vars(self).setdefault("_rollring_opening", TaskTurns())
        async with opening.within(None):
            if self._rollring_producer is None:
                ring = self.rollring_ring or os.environ.get("ROLLRING_RING")
                if not ring:
                    url = self.config.rollout_server_url
                    ring = await asyncio.to_thread(_ask_for_ring, url)
                self._rollring_waiting = set()
                self._rollring_run = secrets.token_hex(8)
                name = f"{type(self).__name__} {getattr(self, 'env_id', '')}"[:39]
                self._rollring_producer = await asyncio.to_thread(Producer, ring, name)
        return self._rollring_producer

    async def _send_scored_data_to_api(self, scored_data: Any) -> None:
        producer = await self._rollring_open()
        groups = scored_data if isinstance(scored_data, list) else [scored_data]
        for group in groups:
            group["env_id"] = getattr(self, "env_id", None)
            now_ns = time.time_ns()
            self._rollring_visit = max(self._rollring_visit + 1, now_ns)
            instance_id = group.get("instance_id") or (
                f"atropos/{group['env_id'] or 0}/{self._rollring_run}/{self._rollring_visit}"
            )
            # All of it is checked before the first record is sent.
            members = list(records(group, instance_id, self._rollring_visit, now_ns))
            await self._rollring_send(producer, members)

    async def _rollring_send(self, producer: Producer, members: list[dict[str, Any]]) -> None:
        waiting_here = (not each.get_loop().is_closed() for each in self._rollring_waiting)
        if not any(waiting_here):  # else it would overtake, and wait for their turn
            try:
                producer.push_many(members, timeout=0)
                return
            except TimedOutError as full:
                del members[: full.sent]
        # A group that is begun is sent to its end, though the worker that made it be cancelled.
        waiting = asyncio.ensure_future(_send(producer, members))
        self._rollring_waiting.add(waiting)
        waiting.add_done_callback(self._rollring_waiting.discard)
        await asyncio.shield(waiting)


def with_rollring(environment: type) -> type:
    """The environment's class with `RollringSendMixin` before it, of the same name."""
    made: type = type(environment.__name__, (RollringSendMixin, environment), {})
    made.__module__ = environment.__module__
    return made
