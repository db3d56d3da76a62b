"""The processes that make rollouts for SkyRL's trainers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import Producer, RollringError
from ...errors import ClosedError, InvalidArgumentError
from ...extras import Request, RequestBoard
from ._rows import key_of

if TYPE_CHECKING:
    from ...extras import Codec

    Rollout = Mapping[str, Any]

_log = logging.getLogger("rollring")


def _record(item: Mapping[str, Any], rollout: Rollout, begun: float) -> dict[str, Any]:
    """A rollout as the fields of `Producer.push`.

    Args:
        item: The request.
        rollout: The worker's result.
        begun: When, by the monotonic clock.

    Raises:
        InvalidArgumentError: It has an unknown field, or one that is not as long as the response.
    """
    given = dict(rollout)
    prompt = list(given.pop("prompt_ids"))
    response = list(given.pop("response_ids"))
    mask, logprobs = given.pop("loss_mask", None), given.pop("logprobs", None)
    reward, stop_reason = given.pop("reward"), given.pop("stop_reason", "stop")
    if given:
        raise InvalidArgumentError(f"a rollout has no field {', '.join(map(repr, given))}")
    before = [0] * len(prompt)

    def column(name: str, values: Any) -> Any:
        if len(values) != len(response):
            raise InvalidArgumentError(
                f"'{name}' has {len(values)} entries for {len(response)} tokens"
            )
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
    return {**key_of(item), **fields}


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

            An error is logged, and another worker tries; after too many, the trainer has a row that
            is not trained on.
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
