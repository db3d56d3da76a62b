"""SkyRL: a generator whose rollouts are made by workers in processes of their own.

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
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ClosedError, RollringError, TimedOutError
from .._producer import Producer
from .._requests import Request, RequestBoard
from .._ring import create
from .._stash import Stash
from . import _fields

if TYPE_CHECKING:
    from .._codecs import Codec
    from .._sequence import Group, Member

    Rollout = Mapping[str, Any]

_log = logging.getLogger("rollring")

STOP_ERROR = "rollout_error"
IDLE_SECONDS = 30.0  # after which a trainer that nobody works for says so


# --- the workers' side ----------------------------------------------------------------------------


def _record(item: Mapping[str, Any], rollout: Rollout, begun: float) -> dict[str, Any]:
    """A rollout as the fields of `Producer.push`.

    Args:
        item: The request.
        rollout: What was made.
        begun: When, by the monotonic clock.

    Raises:
        ValueError: It has a field that is none, or one that is not as long as the response.
    """
    given = dict(rollout)
    prompt = list(given.pop("prompt_ids"))
    response = list(given.pop("response_ids"))
    mask, logprobs = given.pop("loss_mask", None), given.pop("logprobs", None)
    reward, stop_reason = given.pop("reward"), given.pop("stop_reason", "stop")
    if given:
        raise ValueError(f"a rollout has no field {', '.join(map(repr, given))}")
    before = [0] * len(prompt)

    def column(name: str, values: Any) -> Any:
        if len(values) != len(response):
            raise ValueError(f"'{name}' has {len(values)} entries for {len(response)} tokens")
        return [*before, *values]

    fields: dict[str, Any] = {
        "token_ids": [*prompt, *response],
        "n_prompt": len(prompt),
        "loss_mask": column("loss_mask", [1] * len(response) if mask is None else mask),
        "status": "truncated" if stop_reason == "length" else "completed",
        "extra": {"stop_reason": stop_reason, "seconds": time.monotonic() - begun},
    }
    if logprobs is not None:
        fields["logprobs"] = column("logprobs", logprobs)
    if np.ndim(reward):
        fields["token_rewards"] = column("reward", reward)
        fields["reward"] = float(np.sum(reward))
    else:
        fields["reward"] = float(reward)
    return {**_key(item), **fields}


def _key(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: item[name] for name in ("instance_id", "visit", "repetition_id", "group_size")
    }


def _failed(item: Mapping[str, Any], why: str, pad_token_id: int) -> dict[str, Any]:
    """The row of a member that has none: one token that is not trained on."""
    return {
        **_key(item),
        "token_ids": [pad_token_id],
        "n_prompt": 0,
        "loss_mask": [0],
        "logprobs": [0.0],
        "reward": 0.0,
        "extra": {"stop_reason": STOP_ERROR, "error": why},
    }


def serve(
    ring: str,
    rollout: Callable[[dict[str, Any]], Rollout],
    *,
    name: str = "",
    codec: Codec | None = None,
    timeout: float = 60.0,
) -> None:
    """Make rollouts until the ring is removed.

    Args:
        ring: Its name; it is waited for.
        rollout: Makes one: of a request with ``prompt`` (chat messages), ``env_class``,
            ``env_extras``, ``sampling_params``, ``global_step``, ``training_phase``,
            ``instance_id``, ``repetition_id``, a mapping with

            * ``prompt_ids``, ``response_ids``: token IDs.
            * ``reward``: a number, or one for each token of the response.
            * ``logprobs``: of the response's tokens, if the trainer asks for them.
            * ``loss_mask``: of the response's tokens, 0 or 1. Default: 1.
            * ``stop_reason``: "length" says that it was cut. Default: "stop".

            What it raises is logged, and another worker tries; after too many, the trainer has a
            row that is not trained on.
        name: Of this worker, shown to people.
        codec: As of the generator.
        timeout: Seconds to wait for the ring to appear.
    """
    with (
        RequestBoard(ring, name, codec=codec, timeout=timeout) as board,
        Producer(ring, name, timeout=timeout) as producer,
    ):
        for request in board:
            with _answering(request):
                begun = time.monotonic()
                record = _record(request.item, rollout(request.item), begun)
                producer.push(record.pop("instance_id"), attempt=request.attempt, **record)


async def serve_async(
    ring: str,
    rollout: Callable[[dict[str, Any]], Awaitable[Rollout]],
    *,
    concurrency: int = 64,
    name: str = "",
    codec: Codec | None = None,
    timeout: float = 60.0,
) -> None:
    """As `serve`, for asyncio: up to ``concurrency`` rollouts are under way at once."""
    with (
        RequestBoard(ring, name, codec=codec, timeout=timeout) as board,
        Producer(ring, name, timeout=timeout) as producer,
    ):

        async def one() -> None:
            async for request in board:
                with _answering(request):
                    begun = time.monotonic()
                    record = _record(request.item, await rollout(request.item), begun)
                    instance_id = record.pop("instance_id")
                    await producer.push_async(instance_id, attempt=request.attempt, **record)

        tasks = [asyncio.ensure_future(one()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@contextlib.contextmanager
def _answering(request: Request) -> Iterator[None]:
    """Answers it, or gives it back: with a line in the log where the rollout has failed."""
    try:
        with request:
            yield
    except ClosedError:  # the ring was removed: so says the next request
        pass
    except RollringError:
        raise
    except Exception as error:
        _log.warning(
            "rollout %r #%s failed, attempt %d: %s: %s",
            request.item["instance_id"],
            request.item["repetition_id"],
            request.attempt,
            type(error).__name__,
            error,
        )


# --- the trainer's side ---------------------------------------------------------------------------


class RollringGenerator:
    """SkyRL's `GeneratorInterface`: asks workers for rollouts, and waits for whole groups.

    It makes the ring if it is not there, and is its one trainer: it has the stash and the request
    board. What an earlier trainer has asked for is withdrawn; what comes of it is dropped. Many
    `generate` may be under way at once, in one event loop.

    Args:
        ring: Its name.
        pad_token_id: What stands in a row that has no token.
        timeout: Seconds that a group may take. Then ``on_missing`` decides.
        on_missing: "mask": a rollout that is missing or has failed too often is a row of one token
            that is not trained on, whose stop reason is "rollout_error". "raise": `generate` raises
            `RollringError`, which ends SkyRL's trainer.
        logprobs: Whether rollouts carry log-probabilities: SkyRL wants all of them, or none.
        attempts: Workers that may begin a rollout.
        codec: Of the requests. Default: `PlainCodec`, which carries what JSON can say, and arrays.
        **ring_options: As of `create`.
    """

    def __init__(
        self,
        ring: str,
        *,
        pad_token_id: int = 0,
        timeout: float = 3600.0,
        on_missing: str = "mask",
        logprobs: bool = True,
        attempts: int = 3,
        codec: Codec | None = None,
        **ring_options: Any,
    ) -> None:
        if on_missing not in {"mask", "raise"}:
            raise ValueError(f"on_missing is {on_missing!r}: use 'mask' or 'raise'")
        create(ring, exist_ok=True, **ring_options)
        self._pad = pad_token_id
        self._timeout = timeout
        self._on_missing = on_missing
        self._logprobs = logprobs
        # What is still incomplete then was asked for by nobody who lives.
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
        # A visit of each call: the same prompt comes again in each epoch, and in the next run.
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
            ValueError: The input names a rollout twice, or a worker's record has no row of SkyRL's.
        """
        self._visit += 1
        items = _requests(input_batch, self._visit)
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

    async def _group(
        self, items: list[dict[str, Any]]
    ) -> dict[tuple[str, int], dict[str, Any]]:
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
                    await self._push(_failed(item, f"not within {self._timeout} s", self._pad))
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
                    await self._push(_failed(item, "too many workers failed", self._pad))

    def _tell_idle(self) -> None:
        counts = self._board.counts()
        if counts["waiting"] and not counts["workers"]:
            _log.warning(
                "ring %s: %d rollouts are asked for, and no worker is there: start some with "
                "rollring.integrations.skyrl.serve(%r, ...)",
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
            why = "it is missing" if member is None else _why_failed(member)
            if why and self._on_missing == "raise":
                raise RollringError(
                    f"rollout {item['instance_id']!r} #{item['repetition_id']}: {why}", "missing"
                )
            key = item["instance_id"], item["repetition_id"]
            rows[key] = _row(member, self._pad, self._logprobs)
        return rows

    def _output(self, given: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        if any(isinstance(reward, list) for reward in made["rewards"]):  # of each token, in all
            made["rewards"] = [
                reward if isinstance(reward, list) else [0.0] * (len(ids) - 1) + [reward]
                for reward, ids in zip(made["rewards"], made["response_ids"])
            ]
        if not self._logprobs:
            made["rollout_logprobs"] = None
        made["trajectory_ids"] = given.get("trajectory_ids")
        failed = made["stop_reasons"].count(STOP_ERROR)
        made["rollout_metrics"] = {"rollring/failed_rollouts": failed}
        return made

    def close(self) -> None:
        """Withdraw what is asked for, and give the ring back. Twice is fine."""
        self._board.close()
        self._producer.close()
        self._stash.close()


def _theirs(module: str) -> Any:
    """Of skyrl, or of skyrl-train, which it was called before."""
    try:
        return importlib.import_module(f"skyrl.train.generators.{module}")
    except ImportError:
        return importlib.import_module(f"skyrl_train.generators.{module}")


def _requests(given: Mapping[str, Any], visit: int) -> list[dict[str, Any]]:
    """A request for each row of a ``GeneratorInput``."""
    prompts = given["prompts"]
    names = given.get("trajectory_ids")
    if names is None:  # each prompt is a group of its own
        keys = [(str(row), 0) for row in range(len(prompts))]
    else:
        keys = [(str(name.instance_id), int(name.repetition_id)) for name in names]
    if len(keys) != len(prompts):
        raise ValueError(f"{len(keys)} trajectory_ids for {len(prompts)} prompts")
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise ValueError(f"rollout {twice[0][0]!r} #{twice[0][1]} is asked for twice")
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


def _why_failed(member: Member) -> str:
    extra = member.extra if len(member.sequences) == 1 else None
    return str(extra.get("error", "")) if isinstance(extra, dict) else ""


def _row(member: Member | None, pad_token_id: int, logprobs: bool) -> dict[str, Any]:
    """One row of a ``GeneratorOutput``; a masked one for a member without tokens."""
    if member is None or _why_failed(member):
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
        raise ValueError(
            f"rollout {_fields.name(member.sequences[0])} has {len(member.sequences)} sequences: "
            f"SkyRL's rows are of one"
        )
    record = member.sequences[0]
    if logprobs and record.logprobs is None:
        raise ValueError(
            f"rollout {_fields.name(record)} has no logprobs: send them, or make the generator "
            f"with logprobs=False"
        )
    made = _fields.tokens(record).response
    rewards: Any = _fields.reward(record)
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
