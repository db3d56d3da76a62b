"""The engine's end of AReaL's colocated updates."""

from __future__ import annotations

import importlib
import logging
import time
from typing import Any, NamedTuple

from ... import WeightSubscriber
from ...adapters import Attachment, TimeLeft, report_partial, warn_if_poisoned
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

_log = logging.getLogger("rollring")
_LOOK_S = 0.05


class Slices:
    """An engine's parameters by the names of Hugging Face, and the part that each is of the whole,
    as AReaL's own adapter describes them.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self.find()
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for one in theirs.get_weight_metadata():
            self._offsets[one.name] = tuple(one.shards[0].global_offset)
            self._shapes[one.name] = tuple(one.global_shape)

    def find(self) -> None:
        """Where the parameters lie now."""
        self.targets: dict[str, Any] = self._theirs.get_local_shard_parameters()

    def part(self, name: str, whole: Any) -> Any:
        """A view of the whole tensor that the engine takes; None: it has no such tensor.

        Raises:
            LayoutMismatchError: The shapes differ.
        """
        target = self.targets.get(name)
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
        if missing := sorted(set(self.targets) - taken):
            raise LayoutMismatchError(
                f"the trainer has not sent {len(missing)} tensors of the engine, "
                f"'{missing[0]}' among them"
            )

    def write(self, name: str, part: Any) -> None:
        torch: Any = importlib.import_module("torch")
        with torch.no_grad():
            self.targets[name].copy_(part)

    def settle(self) -> None:
        """Wait for the writes: the engine computes on another stream, and a copy on a GPU may fail
        after its call has returned.
        """
        torch: Any = importlib.import_module("torch")
        if any(target.is_cuda for target in self.targets.values()):
            torch.cuda.current_stream().synchronize()


class Unwritten(NamedTuple):
    """A committed version of AReaL's, and its parts that the engine has yet to write."""

    version: int
    slices: Slices
    parts: list[tuple[str, Any]]


class InferenceAdapter(Adapter):
    """AReaL's `AwexInferenceAdapter`, for one rank of an engine.

    Args:
        theirs: AReaL's adapter of the scheduler, `AwexSGLangAdapter`.
        settings: Default: of ``ROLLRING_AREAL``.
    """

    TAGS = ("weights", "kv_cache")
    # Stages have the same number among tensor parallel ranks, and experts that a rank holds have
    # the names of the first ones on each rank in AReaL's adapter.
    RANK_HAS = "a part of each tensor on each rank of an engine"

    def __init__(self, theirs: Any, settings: Settings | None = None) -> None:
        super().__init__(theirs, settings)
        self._pair: Pair | None = None
        self._rank = -1
        self._attachment = Attachment()
        self._adopted = -1  # the version of the channel that was committed last
        # Since AReaL's gateway has begun an update:
        self._done: int | None = None  # AReaL's version that is served whole
        self._unwritten: Unwritten | None = None

    def resume_memory(self, tags: list[str] | None = None) -> None:
        super().resume_memory(tags)
        if "weights" in (tags or self.TAGS):  # its first call for an update
            with self._lock:
                self._done = self._unwritten = None

    def init_colocate_weight_update(self, *, transfer_rank: int, **told: Any) -> None:
        """Attach to the trainer's channel.

        Raises:
            UnsupportedError: The engine has pipeline stages or expert parallelism.
            TimedOutError: The trainer did not open it in time.
        """
        self._refuse_parts()
        pair = Pair.of(told)
        of_engine = int(self.parallelism_strategy.get("world_size", 1))
        with self._lock:
            self._leave()
            # The gateway counts engines, and each of their ranks gets the same number.
            self._rank = transfer_rank * of_engine + self._rank_in_engine()
            self._pair = pair
            self._channel(pair)

    def _rank_in_engine(self) -> int:
        return int(getattr(getattr(self._theirs, "_scheduler", None), "tp_rank", 0))

    @property
    def _name(self) -> str:
        return f"engine-{self._rank}"

    def _channel(self, pair: Pair) -> WeightSubscriber:
        return self._attachment.to(pair.ring, lambda held: self._attach(pair, held))

    def _attach(self, pair: Pair, held: int) -> WeightSubscriber:
        left = TimeLeft(self._settings.deadline_s)
        first = next(iter(self.get_local_shard_parameters().values()))
        while True:
            try:
                return WeightSubscriber(
                    pair.ring,
                    device=first.device,
                    name=self._name,
                    rank=self._rank if pair.publishers > 1 else 0,
                    in_place=self._settings.staging == "in_place",
                    held_version=held,
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

        Asked again within one update of AReaL's gateway, it takes nothing again.

        Raises:
            RollringError: It was not taken: the engine serves the one before.
            Exception: It is committed, and could not be written whole: asked again for it, the
                engine writes it again. Until then, or until the next version, it serves a mixture.
        """
        with self._lock:
            pair = self._pair
            if pair is None:
                raise UnsupportedError(
                    "this engine is connected to no trainer: connect with colocate=True",
                    "unsupported",
                )
            if version == self._done:
                return  # asked again, although it was taken
            if self._unwritten is None or self._unwritten.version != version:
                self._take(self._channel(pair), version, TimeLeft(self._settings.deadline_s))
            self._write()
            self._done = version

    def _take(self, channel: WeightSubscriber, version: int, left: TimeLeft) -> None:
        """Hold the version once it is committed; in place it is written then."""
        self._unwritten = None
        in_place = self._settings.staging == "in_place"
        kept: list[tuple[str, Any]] = []
        try:
            with self._next(channel, left) as update:
                self._refuse_other(update, version)
                slices = Slices(self._theirs)
                channel.check_memory(slices.targets)
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
                slices.settle()
                channel.check_memory(slices.targets)  # it may have been released meanwhile
                update.finish(left())
        except BaseException:
            if warn_if_poisoned(_log, channel, version):
                self._done = None
            raise
        self._adopted, self._done = update.version, None
        self._unwritten = Unwritten(version, slices, kept)

    def _next(self, channel: WeightSubscriber, left: TimeLeft) -> WeightUpdate:
        update = channel.next(left())
        while update.version <= self._adopted:  # after it attached again
            update = channel.next(left())
        return update

    def _write(self) -> None:
        """Write the committed version: nothing can be refused any more."""
        assert self._unwritten is not None and self._pair is not None
        version, slices, parts = self._unwritten
        try:
            slices.find()
            for name, part in parts:
                slices.write(name, part)
            slices.settle()
        except BaseException as error:
            self._attachment.leave()
            report_partial(_log, self._pair.ring, self._name, version, error)
            raise
        self._unwritten = None

    @staticmethod
    def _refuse_other(update: WeightUpdate, version: int) -> None:
        if update.version // ATTEMPTS != version:
            raise InvalidArgumentError(
                f"AReaL asked for version {version}, but the trainer sent "
                f"{update.version // ATTEMPTS}",
                "invalid_argument",
            )

    def _leave(self) -> None:
        self._attachment.leave()
        self._pair = self._unwritten = self._done = None
        self._adopted = -1
