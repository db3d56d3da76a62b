"""The engine's end of AReaL's colocated updates."""

from __future__ import annotations

import importlib
import time
from typing import Any

from ... import WeightSubscriber
from ...adapters import TimeLeft
from ...errors import (
    BusyError,
    InvalidArgumentError,
    LayoutMismatchError,
    NotFoundError,
    RingNotFoundError,
    TimedOutError,
    UnsupportedError,
)
from ...weights import WeightUpdate
from ._adapter import Adapter
from ._channel import ATTEMPTS, Pair
from ._settings import Settings

_LOOK_S = 0.05


class Slices:
    """An engine's parameters by the names of Hugging Face, and the part that each is of the whole,
    as AReaL's own adapter describes them.
    """

    def __init__(self, theirs: Any) -> None:
        self._targets = theirs.get_local_shard_parameters()
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for one in theirs.get_weight_metadata():
            self._offsets[one.name] = tuple(one.shards[0].global_offset)
            self._shapes[one.name] = tuple(one.global_shape)

    def part(self, name: str, whole: Any) -> Any:
        """A view of the whole tensor that the engine takes; None: it has no such tensor.

        Raises:
            LayoutMismatchError: The shapes differ.
        """
        target = self._targets.get(name)
        if target is None:
            return None
        if tuple(whole.shape) != self._shapes[name]:
            raise LayoutMismatchError(
                f"tensor '{name}' has shape {tuple(whole.shape)} in the trainer, and "
                f"{self._shapes[name]} in the engine"
            )
        for dim, (start, size) in enumerate(zip(self._offsets[name], target.shape, strict=True)):
            whole = whole.narrow(dim, start, size)
        return whole

    def refuse_missing(self, taken: set[str]) -> None:
        """
        Raises:
            LayoutMismatchError: The engine has a tensor that the trainer did not send.
        """
        if missing := sorted(set(self._targets) - taken):
            raise LayoutMismatchError(
                f"the trainer has not sent {len(missing)} tensors of the engine, "
                f"'{missing[0]}' among them"
            )

    def write(self, name: str, part: Any) -> None:
        torch: Any = importlib.import_module("torch")
        with torch.no_grad():
            self._targets[name].copy_(part)


class InferenceAdapter(Adapter):
    """AReaL's `AwexInferenceAdapter`, for one rank of an engine.

    Args:
        theirs: AReaL's adapter of the scheduler, `AwexSGLangAdapter`.
        settings: Default: of ``ROLLRING_AREAL``.
    """

    TAGS = ("weights", "kv_cache")

    def __init__(self, theirs: Any, settings: Settings | None = None) -> None:
        super().__init__(theirs, settings)
        self._channel: WeightSubscriber | None = None

    def init_colocate_weight_update(self, *, transfer_rank: int, **told: Any) -> None:
        """Attach to the trainer's channel.

        Raises:
            TimedOutError: The trainer did not open it in time.
        """
        pair = Pair.of(told)
        parallel = self.parallelism_strategy
        of_engine = int(parallel.get("world_size", 1))
        # The gateway counts engines, and each of their ranks gets the same number.
        rank = transfer_rank * of_engine + self._rank_in_engine()
        with self._lock:
            self._leave()
            self._channel = self._attach(pair, rank)

    def _rank_in_engine(self) -> int:
        return int(getattr(getattr(self._theirs, "_scheduler", None), "tp_rank", 0))

    def _attach(self, pair: Pair, rank: int) -> WeightSubscriber:
        left = TimeLeft(self._settings.deadline_s)
        first = next(iter(self.get_local_shard_parameters().values()))
        while True:
            try:
                return WeightSubscriber(
                    pair.ring,
                    device=first.device,
                    name=f"engine-{rank}",
                    rank=rank if pair.publishers > 1 else 0,
                    in_place=self._settings.staging == "in_place",
                    timeout=_LOOK_S,
                )
            except (RingNotFoundError, NotFoundError, TimedOutError, BusyError) as error:
                # The trainer makes the ring while this one waits for it; there is nothing to wait
                # on before.
                if left() == 0.0:
                    raise TimedOutError(
                        f"the trainer opened no channel in ring {pair.ring} within "
                        f"{self._settings.deadline_s:g} s: {error}",
                        "timed_out",
                    ) from error
                time.sleep(_LOOK_S)

    def execute_colocate_weight_update(self, version: int) -> None:
        """Take the version that the trainer sends, and serve it.

        Raises:
            RollringError: It was not taken: the engine serves the one before.
        """
        with self._lock:
            channel = self._channel
            if channel is None:
                raise UnsupportedError(
                    "this engine is connected to no trainer: connect with colocate=True",
                    "unsupported",
                )
            if channel.live_version // ATTEMPTS == version and channel.live_version >= 0:
                return  # asked again, although it was taken
            self._take(channel, version, TimeLeft(self._settings.deadline_s))

    def _take(self, channel: WeightSubscriber, version: int, left: TimeLeft) -> None:
        in_place = self._settings.staging == "in_place"
        kept: list[tuple[str, Any]] = []
        slices = None
        with channel.next(left()) as update:
            self._refuse_other(update, version)
            slices = Slices(self._theirs)
            taken = set()
            for name, whole in update.tensors(left()):
                part = slices.part(name, whole)
                if part is None:
                    continue
                taken.add(name)
                if in_place:
                    slices.write(name, part)
                else:
                    kept.append((name, part if part.shape == whole.shape else part.clone()))
            slices.refuse_missing(taken)
            update.finish(left())
        for name, part in kept:
            slices.write(name, part)

    @staticmethod
    def _refuse_other(update: WeightUpdate, version: int) -> None:
        if update.version // ATTEMPTS != version:
            raise InvalidArgumentError(
                f"AReaL asked for version {version}, but the trainer sent "
                f"{update.version // ATTEMPTS}",
                "invalid_argument",
            )

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
