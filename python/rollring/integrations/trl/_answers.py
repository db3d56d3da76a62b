"""The processes that make rollouts for TRL's synchronous trainer."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import Producer, RollringError, WeightSubscriber
from ...adapters import HeldVersion
from ...errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    PeerGoneError,
    RingNotFoundError,
    VersionAbortedError,
)
from ...extras import Request, RequestBoard

if TYPE_CHECKING:
    from ...extras import Codec

    Answer = Mapping[str, Any]

_log = logging.getLogger("rollring")


def answer_prompts(
    ring: str,
    rollout: Callable[[Any, int], Sequence[Answer]],
    into: Mapping[str, Any] | None = None,
    *,
    name: str = "worker",
    codec: Codec | None = None,
    timeout: float = 60.0,
) -> None:
    """Make rollouts for a trainer with `RingRollouts` until the ring is removed.

    Args:
        ring: Its name; it is waited for.
        rollout: Given a prompt and how many completions it needs, it returns a mapping for each:

            * ``prompt_ids``, ``completion_ids``: token IDs.
            * ``logprobs``: of the completion's tokens. May be left out.
            * ``loss_mask``: of the completion's tokens, 0 or 1. Default: 1.
            * ``reward``: a number, which TRL gives to reward functions as ``reward``. May be left
              out.

            An exception is logged, and another worker tries.
        into: The worker's parameters by name, ``dict(model.named_parameters())``: they take over
            each version of the trainer's weights, never during a rollout. None: the weights come
            in another way.
        name: Of this worker, unique.
        codec: As of the trainer.
        timeout: Seconds to wait for the ring to appear.
    """
    weights = None if into is None else _Weights(ring, into, name)
    with (
        RequestBoard(ring, name, codec=codec, timeout=timeout) as board,
        Producer(ring, name, timeout=timeout) as producer,
    ):
        for request in _requests(board, weights):
            item = request.item
            try:
                with request:
                    with contextlib.nullcontext() if weights is None else weights.lock:
                        answers = rollout(item["prompt"], item["count"])
                    producer.push_many(list(_records(answers, item, request.attempt)))
            except ClosedError:  # the ring was removed: so says the next request
                pass
            except RollringError:
                raise
            except Exception as error:
                _log.warning(
                    "rollouts of prompt %r failed, attempt %d: %s: %s",
                    item["prompt"],
                    request.attempt,
                    type(error).__name__,
                    error,
                )


def _requests(board: RequestBoard, weights: _Weights | None) -> Iterator[Request]:
    """Requests, each taken once the worker has the trainer's weights."""
    while True:
        if weights is not None:
            weights.await_held()
        try:
            request = board.take()
        except ForkedError:
            raise
        except ClosedError:
            return
        yield request


def _records(
    answers: Sequence[Answer], item: Mapping[str, Any], attempt: int
) -> Iterator[dict[str, Any]]:
    """Completions as the fields of `Producer.push`."""
    if len(answers) != item["count"]:
        raise InvalidArgumentError(
            f"{len(answers)} completions for {item['count']} that were asked for"
        )
    for member, answer in enumerate(answers):
        given = dict(answer)
        prompt, completion = list(given.pop("prompt_ids")), list(given.pop("completion_ids"))
        fields: dict[str, Any] = {
            "instance_id": item["instance_id"],
            "visit": item["visit"],
            "repetition_id": member,
            "group_size": item["count"],
            "attempt": attempt,
            "token_ids": [*prompt, *completion],
            "n_prompt": len(prompt),
        }
        columns = {name: given.pop(name, None) for name in ("logprobs", "loss_mask")}
        if (reward := given.pop("reward", None)) is not None:
            fields["reward"] = float(reward)
        if given:
            raise InvalidArgumentError(f"a completion has no field {', '.join(map(repr, given))}")
        for name, values in columns.items():
            if values is None:
                continue
            if len(values) != len(completion):
                raise InvalidArgumentError(
                    f"'{name}' has {len(values)} values for {len(completion)} tokens"
                )
            fields[name] = [*[0] * len(prompt), *values]
        yield fields


class _Weights:
    """Takes each version into a worker's parameters, in a thread of its own: the trainer commits a
    version before it asks for rollouts, and waits for every worker to have it, busy or idle.

    Attributes:
        lock: Held while a version is taken over, and by the worker while it makes rollouts.
    """

    def __init__(self, ring: str, into: Mapping[str, Any], name: str) -> None:
        self.lock = threading.Lock()
        self._held = threading.Event()  # the parameters are those that the trainer has committed
        self._error: RollringError | None = None
        self._ring, self._into, self._name = ring, into, name
        threading.Thread(target=self._follow, name="rollring weights", daemon=True).start()

    def await_held(self) -> None:
        """Until the parameters are those of a version of the trainer's.

        Raises:
            RollringError: They cannot be; the text names the tensor.
        """
        self._held.wait()
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        held = HeldVersion()
        while True:
            try:
                with WeightSubscriber(
                    self._ring,
                    self._into,
                    name=self._name,
                    held_version=held.of(self._ring),
                    timeout=None,
                ) as channel:
                    for update in channel:
                        with self.lock, update:
                            pass
                        held.take(self._ring, update.version)
                        self._held.set()
            except (PeerGoneError, VersionAbortedError) as error:
                self._held.clear()
                _log.warning("%s attaches to ring %s anew: %s", self._name, self._ring, error)
            except (RingNotFoundError, ClosedError):  # so says the next request, too
                break
            except RollringError as error:
                self._error = error
                break
        self._held.set()
