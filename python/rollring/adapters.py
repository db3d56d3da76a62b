"""Helpers for code on rollring's classes: adapters of other frameworks, and extras.

An engine's adapter attaches when its trainer announces the first version: `Attachment`,
`published_tensors`, `published_shards`, `next_announced`, `HeldVersion`, `report_refusal`. One that
holds a mixture of versions says so: `report_partial`, `warn_if_poisoned`. A trainer's adapter sends
while the engines' answers are under way: `in_background`, `put_checked`, `refusals`,
`engine_versions`, `WeightStream`. Of tensors that its ranks have in parts: `is_divided`,
`RankShards`. Both may take their settings from one variable: `settings_of`, `check_choices`.

A class of its own takes `Closes`, `shown` and `unpicklable` for its conventions, `TaskTurns`,
`readable`, `in_thread` and `TimeLeft` for waits of event loops, `to_bytes`, `dtype_name` and
`columns_of` for the values that its callers give and get; `Views` shows records as batches do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

from . import _core
from ._arrays import NUMPY_DTYPES, columns_of, dtype_name, torch_dtype
from ._blocks import Closes, named, shown, unpicklable
from ._producer import refuse_options_of_open_group
from ._ring import declared, find_or_create, to_bytes
from ._turns import TaskTurns
from ._views import Views
from ._waits import in_thread, readable
from ._weight_layout import WeightLayout
from ._weight_parts import borrow_bytes
from ._weight_shards import RankShards
from ._weight_stream import WeightStream
from ._weight_subscriber import WeightSubscriber
from ._weight_update import WeightUpdate
from ._weights import TimeLeft, as_utf8, device_of
from .errors import (
    InvalidArgumentError,
    RollringError,
    TimedOutError,
    UnsupportedError,
    VersionAbortedError,
)
from .stat import stat_weights

__all__ = [
    "LOOK_S",
    "NUMPY_DTYPES",
    "Attachment",
    "Closes",
    "HeldVersion",
    "RankShards",
    "TaskTurns",
    "TimeLeft",
    "Views",
    "WeightStream",
    "borrow_bytes",
    "check_choices",
    "columns_of",
    "declared",
    "device_of",
    "dtype_name",
    "engine_versions",
    "find_or_create",
    "in_background",
    "in_thread",
    "is_divided",
    "named",
    "next_announced",
    "published_shards",
    "published_tensors",
    "put_checked",
    "raise_if_failed",
    "readable",
    "refusals",
    "refuse_options_of_open_group",
    "report_partial",
    "report_refusal",
    "settings_of",
    "shown",
    "to_bytes",
    "torch_dtype",
    "unpicklable",
    "warn_if_poisoned",
    "why_no_gpu",
]

LOOK_S = 0.2  # between looks at another party: whether it failed, or gave the version up


def settings_of(kind: Any, variable: str, first: str) -> dict[str, Any]:
    """Fields of a dataclass from a variable of the environment: JSON, or the text of the one that
    ``first`` names.

    Raises:
        InvalidArgumentError: It is not JSON, or has an unknown field.
    """
    text = os.environ.get(variable, "")
    given: dict[str, Any] = {}
    if text.startswith("{"):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{variable} is not JSON: {error}", "invalid_argument"
            ) from error
    elif text:
        given = {first: text}
    known = {one.name for one in fields(kind)}
    if unknown := sorted(set(given) - known):
        raise InvalidArgumentError(
            f"{variable} has {', '.join(unknown)}: its fields are {', '.join(sorted(known))}",
            "invalid_argument",
        )
    return given


def check_choices(settings: Any, choices: Mapping[str, tuple[str, ...]]) -> None:
    """Check the fields that take one of some texts.

    Raises:
        InvalidArgumentError: A field has another value.
    """
    for name, known in choices.items():
        if getattr(settings, name) not in known:
            raise InvalidArgumentError(
                f"{name} is {getattr(settings, name)!r}: use {' or '.join(map(repr, known))}",
                "invalid_argument",
            )


def why_no_gpu() -> str:
    """The reason that rollring finds no GPU on this machine; empty where there is one."""
    return _core.why_no_gpu()


def engine_versions(ring: str, rank: int) -> dict[str, int]:
    """The version that each engine of a publisher serves, by name."""
    return {
        engine["name"]: engine["live_version"]
        for publisher in stat_weights(ring)
        if publisher["rank"] == rank
        for engine in publisher["engines"]
        if engine["alive"]
    }


def published_tensors(
    ring: str, *, device: Any, name: str, timeout: float | None
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of each published tensor, of the publisher to which an engine of this
    device would attach. The publisher counts no engine for it.

    Raises:
        UnsupportedError: The trainer publishes shards: see `published_shards`.
        RollringError: As `WeightSubscriber`.
    """
    options = {"name": name, "gpu": device_of(device)[1]}
    found = _core.published_tensors(ring, options, timeout)
    return [(name, dtype, shape) for name, dtype, shape, _ in found]


def published_shards(ring: str, *, name: str, timeout: float | None) -> WeightLayout | None:
    """The layout of a trainer whose ranks publish their shards, of all its ranks; None: it
    publishes whole tensors. Its ranks count no engine for it.

    Raises:
        RollringError: As `WeightLayout.of_trainer`.
    """
    left = TimeLeft(timeout)
    try:
        _core.published_tensors(ring, {"name": name, "rank": 0}, left())
    except UnsupportedError:
        return WeightLayout.of_trainer(ring, name=name, timeout=left())
    return None


def report_refusal(
    channel: WeightSubscriber | None, ring: str, name: str, error: BaseException
) -> None:
    """Leave with the trainer why this engine, attached or not, takes no version."""
    why = f"{type(error).__name__}: {error}"
    with contextlib.suppress(RollringError):
        if channel is not None and not channel.closed:
            channel.refuse(why)
        else:
            _core.refuse_weights(ring, name, as_utf8(why))


def report_partial(
    log: logging.Logger, ring: str, name: str, version: int, error: BaseException
) -> None:
    """Tell the trainer and the log that an engine installed a committed version only in part.

    The engine has left the channel before, which would say that it serves the version.
    """
    report_refusal(None, ring, name, error)
    log.error(
        "POISONED: version %d was installed only in part. Send another version.",
        version,
        exc_info=error,
    )


def warn_if_poisoned(log: logging.Logger, channel: WeightSubscriber, version: int) -> bool:
    """Whether an engine that loads in place holds a part of a version that failed; the log says so.

    Args:
        version: As the log calls it.
    """
    if channel.state != "poisoned":
        return False
    log.error(
        "POISONED: the model holds parts of version %d, which was not committed. The next version "
        "repairs it. With staging='out_of_place' the engine would still serve the old version.",
        version,
    )
    return True


def refusals(ring: str, version: int | None = None) -> list[str]:
    """Why engines of a ring's channel take no version, or not this one: "engine: reason" of each,
    once, though it may have told several ranks of the trainer.

    Raises:
        RollringError: As `rollring.stat.stat_weights`.
    """
    found = []
    for publisher in stat_weights(ring):
        for engine in publisher["engines"]:
            problem = engine["problem"]
            other = problem.startswith("version ") and not problem.startswith(f"version {version}:")
            if problem and not (other and version is not None):
                found.append(f"{engine['name']}: {problem}")
    return list(dict.fromkeys(found))


def next_announced(channel: WeightSubscriber, version: int, timeout: float) -> WeightUpdate:
    """The next version, of a trainer that has told of one.

    Raises:
        VersionAbortedError: It was given up before this was called, and so would never come.
        RollringError: As `WeightSubscriber.next`.
    """
    left = TimeLeft(timeout)
    while True:
        rest = left() or 0.0
        try:
            return channel.next(min(LOOK_S, rest))
        except TimedOutError:
            if _is_given_up(channel, version):
                raise VersionAbortedError(
                    f"version {version} was aborted before this engine reached it", "aborted"
                ) from None
            if rest == 0.0:
                raise


def _is_given_up(channel: WeightSubscriber, version: int) -> bool:
    try:
        ranks = stat_weights(channel.ring)
    except RollringError:
        return False
    # A rank that gives a version up gives it up for all. Shards of the committed one are offered
    # again then; rank 0 begins a version before it tells engines of it.
    return any(
        (one["state"] == "aborted" and one["version"] >= version)
        or (one["rank"] == 0 and one["ranks"] > 1 and one["aborts"] and one["version"] < version)
        for one in ranks
    )


def is_divided(parameter: Any) -> bool:
    """Whether ranks have parts of a tensor of torch: a ``DTensor`` that is not the same on all."""
    return any(
        not placement.is_replicate() and parameter.device_mesh.size(dim) > 1
        for dim, placement in enumerate(getattr(parameter, "placements", ()))
    )


class HeldVersion:
    """The version that an engine serves, and the ring that it is of: a ring that was made again
    under its name counts from the beginning.
    """

    def __init__(self) -> None:
        self._version, self._ring_id = -1, ""

    def take(self, ring: str, version: int) -> None:
        self._version, self._ring_id = version, _ring_id(ring)

    def of(self, ring: str) -> int:
        """The version that the engine may claim to hold of this ring; -1: none."""
        return self._version if self._ring_id and _ring_id(ring) == self._ring_id else -1


def _ring_id(ring: str) -> str:
    try:
        return str(_core.ring_stat(ring)["ring_id"])
    except RollringError:
        return ""


class Attachment:
    """To the channel, for as long as one trainer sends; to the next trainer, anew."""

    def __init__(self) -> None:
        self._sender = ""
        self._ring_id = ""
        self._channel: WeightSubscriber | None = None

    def to(self, sender: str, attach: Callable[[int], WeightSubscriber]) -> WeightSubscriber:
        """The channel of this sender.

        Args:
            sender: Tells one from the next.
            attach: Gets the version that is held, or -1.
        """
        channel = self._channel
        if channel is None or channel.closed or sender != self._sender:
            held = -1
            attached = channel is not None and not channel.closed and channel.state == "ready"
            # Another ring of that name has not had it.
            if channel is not None and attached and _ring_id(channel.ring) == self._ring_id:
                held = channel.live_version
            self.leave()
            channel = self._channel = attach(held)
            self._sender, self._ring_id = sender, _ring_id(channel.ring)
        return channel

    def leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def in_background(name: str, call: Callable[[], None]) -> Future[None]:
    """Run the call in a daemon thread: the process does not wait for it at its end."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def raise_if_failed(done: Future[None]) -> None:
    if done.done():
        done.result()


def put_checked(put: Callable[[float], object], check: Callable[[], None], timeout: float) -> None:
    """Call ``put``, which takes a timeout, until it is done, and ``check`` in between, which raises
    when engines make no more room. The value that ``put`` returns is dropped.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            put(LOOK_S)
            return
        except TimedOutError:
            check()
            if time.monotonic() > until:
                raise
