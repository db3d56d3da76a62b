"""The trainer's end of AReaL's colocated updates."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ... import WeightPublisher, create, remove
from ...adapters import TimeLeft
from ...errors import PeerGoneError, RollringError, UnsupportedError
from ._adapter import Adapter
from ._channel import ATTEMPTS, Pair, channel_version
from ._ranks import Ranks
from ._settings import Settings

ATTACHED_S = 5.0  # for engines that were attached before to be there still
RANKS_WAIT = 3.0  # times deadline_s, which is that of one rank's own waits in a step


class Weights:
    """A trainer's parameters by the names of Hugging Face, as AReaL's own adapter gives them; each
    whole, gathered one after the other by all ranks together.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def described(self) -> list[Any]:
        """Name, dtype and shape of each."""
        found = []
        for one in self._theirs.get_weight_metadata():
            shape = tuple(one.global_shape)
            found.append(SimpleNamespace(name=one.name, dtype=one.dtype, shape=shape))
        return found

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        if hasattr(self._theirs, "_iter_hf_params"):  # Megatron's, which gathers by itself
            yield from self._theirs._iter_hf_params()
            return
        # FSDP's: the names of its own adapter, whose tensors are shards.
        wanted = {one.name for one in self.described()}
        for raw, parameter in self._theirs._engine.model.named_parameters():
            name = self._theirs._to_hf_name(raw)
            if name not in wanted:
                continue
            tensor = parameter.data
            yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class TrainingAdapter(Adapter):
    """AReaL's `AwexTrainingAdapter`, for one rank of a trainer.

    Colocated updates go through a weight channel. Updates between separate GPUs, and all else,
    remain those of AReaL's adapter.

    Args:
        theirs: AReaL's adapter of the engine, `AwexFSDPAdapter` or `AwexMegatronAdapter`.
        settings: Default: of ``ROLLRING_AREAL``.
    """

    TAGS = ("optimizer", "weights")
    RANK_HAS = "the whole model on each rank of a trainer"

    def __init__(self, theirs: Any, settings: Settings | None = None) -> None:
        super().__init__(theirs, settings)
        self._weights = Weights(theirs)
        self._ranks = Ranks(RANKS_WAIT * self._settings.deadline_s)
        self._pair: Pair | None = None  # whose channel is open, on all ranks
        self._is_connected = False  # and whose engines were there
        self._rank = -1
        self._publisher: WeightPublisher | None = None
        # Since AReaL's gateway has begun an update:
        self._before = -1  # the version of the channel that was committed when it did
        self._done: int | None = None  # AReaL's version that all ranks know to be committed

    def release_memory(self, tags: list[str] | None = None) -> None:
        if "optimizer" in (tags or self.TAGS):  # its first call for an update
            with self._lock:
                self._before, self._done = self._committed, None
        super().release_memory(tags)

    @property
    def _committed(self) -> int:
        return -1 if self._publisher is None else self._publisher.committed_version

    def init_colocate_weight_update(self, *, transfer_rank: int, **told: Any) -> None:
        """Open the channel, and wait for its engines. It fails on all ranks or on none.

        Raises:
            UnsupportedError: A rank has no whole model (pipeline stages, expert parallelism).
            TimedOutError: The engines did not attach in time.
            RollringError: Another rank failed.
        """
        pair = Pair.of(told)
        with self._lock:
            if pair == self._pair and self._is_connected:
                return  # asked again, although it was done
            if pair != self._pair:
                self._leave()
                self._rank = transfer_rank - told["infer_world_size"]
                self._open(pair)
            # Asked again, it waits at the same ring: engines that have attached are not asked.
            self._ranks.together(lambda: self._wait_engines(pair, self._settings.deadline_s))
            self._is_connected = True

    def _open(self, pair: Pair) -> None:
        described: list[Any] = []

        def prepare() -> None:
            self._refuse_parts()
            with self._turns.resident("weights"):
                described.extend(self._weights.described())  # by all ranks: Megatron's gathers
            if self._rank == 0:
                pair.remove_old()

        def attach() -> None:
            if self._rank < pair.publishers:
                self._publisher = self._attach(pair, described)

        self._pair = pair
        try:
            self._ranks.together(prepare)
            self._ranks.together(attach)
        except BaseException:
            self._leave()
            raise

    def _attach(self, pair: Pair, described: list[Any]) -> WeightPublisher:
        torch: Any = importlib.import_module("torch")
        create(pair.ring, lanes=1, lane_bytes="1MiB", exist_ok=True)
        cast = {
            one.name: self._settings.publish_as
            for one in described
            if one.dtype == torch.float32 and self._settings.publish_as
        }
        return WeightPublisher(
            pair.ring,
            {one.name: torch.empty(one.shape, dtype=one.dtype, device="meta") for one in described},
            name=f"trainer-{self._rank}",
            device=_device_of(self._theirs),
            publish_as=cast,
            rank=self._rank,
            ranks=pair.publishers,
        )

    def _wait_engines(self, pair: Pair, timeout: float) -> None:
        if self._publisher is not None:
            self._publisher.wait_subscribers(pair.engines // pair.publishers, timeout)

    def execute_colocate_weight_update(self, version: int) -> None:
        """Send the weights as they are now. Engines serve them when this returns.

        Asked again within one update of AReaL's gateway, because an answer was lost or another
        worker failed, it sends nothing again; a later update may send the same version again.

        Raises:
            RollringError: An engine could not take them, or is gone: engines keep the version
                before.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if version == self._done:
                return  # other ranks may not have been asked
            failed: BaseException | None = None
            least = 0
            try:
                self._refuse_unconnected()
                stack.enter_context(self._turns.resident("weights"))
                if self._publisher is not None:
                    least = self._publisher.next_version
            except BaseException as error:
                failed = error
            told = self._ranks.meet((least, self._has_committed(version)), failed)
            if not any(is_committed for _, is_committed in told):
                # One rank may have begun a version that failed on another one before.
                least = max(least for least, _ in told)
                self._send(self._publisher, channel_version(version, least))
            self._done = version

    def _has_committed(self, version: int) -> bool:
        """In this update, of which a step after the commit failed."""
        committed = self._committed
        return committed > self._before and committed // ATTEMPTS == version

    def _refuse_unconnected(self) -> None:
        if not self._is_connected:
            raise UnsupportedError(
                "this trainer is connected to no engines: connect with colocate=True",
                "unsupported",
            )

    def _send(self, publisher: WeightPublisher | None, version: int) -> None:
        whole = iter(self._weights)

        def publish() -> None:
            try:
                if publisher is not None:
                    self._publish(publisher, version, whole)
            finally:
                for _ in whole:  # other ranks wait in its collectives
                    pass

        self._ranks.together(publish)

    def _publish(
        self, publisher: WeightPublisher, version: int, whole: Iterator[tuple[str, Any]]
    ) -> None:
        assert self._pair is not None
        left = TimeLeft(self._settings.deadline_s)
        self._wait_engines(self._pair, ATTACHED_S)
        with publisher.begin(version) as transaction:
            for name, tensor in whole:
                transaction.put(name, tensor.detach().contiguous(), timeout=left())
            transaction.wait_staged(left())
            self._refuse_fewer(self._pair)
            transaction.commit(left())

    def _refuse_fewer(self, pair: Pair) -> None:
        """An engine that died meanwhile: AReaL's gateway will report the version as failed, so no
        other engine may serve it.
        """
        try:
            self._wait_engines(pair, 0.0)
        except RollringError as error:
            raise PeerGoneError(f"an engine died while it took the version: {error}") from error

    def _leave(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        if self._pair is not None and self._rank == 0:
            remove(self._pair.ring, force=True, missing_ok=True)
        self._pair = None
        self._is_connected = False
        self._before, self._done = -1, None


def _device_of(theirs: Any) -> Any:
    """Where gathered tensors lie."""
    device = getattr(theirs._engine, "device", None)
    return "cpu" if device is None else device
