"""The trainer's end of AReaL's colocated updates."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ... import WeightPublisher, create, remove
from ...adapters import TimeLeft
from ...errors import PeerGoneError, RollringError, UnsupportedError
from ._adapter import Adapter
from ._channel import Pair, channel_version
from ._settings import Settings

ATTACHED_S = 5.0  # for engines that were attached before to be there still


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

    def __init__(self, theirs: Any, settings: Settings | None = None) -> None:
        super().__init__(theirs, settings)
        self._weights = Weights(theirs)
        self._pair: Pair | None = None
        self._rank = -1
        self._publisher: WeightPublisher | None = None

    def init_colocate_weight_update(self, *, transfer_rank: int, **told: Any) -> None:
        """Open the channel, and wait for its engines.

        Raises:
            UnsupportedError: A rank has no whole model (pipeline stages, expert parallelism).
            TimedOutError: The engines did not attach in time.
        """
        parallel = self.parallelism_strategy
        for what in ("pp_size", "ep_size"):
            if parallel.get(what, 1) > 1:
                raise UnsupportedError(
                    f"colocated updates of rollring need the whole model on each rank, and "
                    f'{what} is {parallel[what]}: say {{"weights": "theirs"}}',
                    "unsupported",
                )
        with self._lock:
            self._leave()
            pair = Pair.of(told)
            self._rank = transfer_rank - told["infer_world_size"]
            described = self._weights.described()  # by all ranks: Megatron's gathers for it
            self._pair = pair
            self._remove_old(pair)
            if self._rank < pair.publishers:
                self._publisher = self._attach(pair, described)

    def _remove_old(self, pair: Pair) -> None:
        """The ring of a trainer that was killed, before any rank opens one of that name."""
        try:
            if self._rank == 0:
                remove(pair.ring, force=True, missing_ok=True)
        finally:
            _of_all_ranks(None)

    def _attach(self, pair: Pair, described: list[Any]) -> WeightPublisher:
        torch: Any = importlib.import_module("torch")
        create(pair.ring, lanes=1, lane_bytes="1MiB", exist_ok=True)
        cast = {
            one.name: self._settings.publish_as
            for one in described
            if one.dtype == torch.float32 and self._settings.publish_as
        }
        made = WeightPublisher(
            pair.ring,
            {one.name: torch.empty(one.shape, dtype=one.dtype, device="meta") for one in described},
            name=f"trainer-{self._rank}",
            device=_device_of(self._theirs),
            publish_as=cast,
            rank=self._rank,
            ranks=pair.publishers,
        )
        made.wait_subscribers(self._engines(pair), self._settings.deadline_s)
        return made

    @staticmethod
    def _engines(pair: Pair) -> int:
        """That attach to one publisher."""
        return pair.engines // pair.publishers

    def execute_colocate_weight_update(self, version: int) -> None:
        """Send the weights as they are now. Engines serve them when this returns.

        Raises:
            RollringError: An engine could not take them, or is gone: engines keep the version
                before.
        """
        with self._lock:
            if self._pair is None:
                raise UnsupportedError(
                    "this trainer is connected to no engines: connect with colocate=True",
                    "unsupported",
                )
            released = self._turns.is_released("weights")
            if released:
                self._turns.resume(["weights"])
            try:
                self._send(self._pair, version)
            finally:
                if released:
                    self._turns.release(["weights"])

    def _send(self, pair: Pair, version: int) -> None:
        failed: BaseException | None = None
        publisher = self._publisher
        # One rank may have begun a version that failed on another one before.
        least = max(_of_all_ranks(0 if publisher is None else publisher.next_version))
        whole = iter(self._weights)
        try:
            if publisher is not None:
                self._publish(publisher, pair, channel_version(version, least), whole)
        except BaseException as error:
            failed = error
        for _ in whole:  # other ranks wait in its collectives
            pass
        _agree(failed)

    def _publish(
        self, publisher: WeightPublisher, pair: Pair, version: int, whole: Iterator[tuple[str, Any]]
    ) -> None:
        left = TimeLeft(self._settings.deadline_s)
        publisher.wait_subscribers(self._engines(pair), ATTACHED_S)
        with publisher.begin(version) as transaction:
            for name, tensor in whole:
                transaction.put(name, tensor.detach().contiguous(), timeout=left())
            transaction.wait_staged(left())
            self._refuse_fewer(publisher, pair)
            transaction.commit(left())

    def _refuse_fewer(self, publisher: WeightPublisher, pair: Pair) -> None:
        """An engine that died meanwhile: AReaL's gateway will report the version as failed, so no
        other engine may serve it.
        """
        try:
            publisher.wait_subscribers(self._engines(pair), 0.0)
        except RollringError as error:
            raise PeerGoneError(f"an engine died while it took the version: {error}") from error

    def _leave(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        if self._pair is not None and self._rank == 0:
            remove(self._pair.ring, force=True, missing_ok=True)
        self._pair = None


def _device_of(theirs: Any) -> Any:
    """Where gathered tensors lie."""
    device = getattr(theirs._engine, "device", None)
    return "cpu" if device is None else device


def _of_all_ranks(value: Any) -> list[Any]:
    distributed: Any = importlib.import_module("torch.distributed")
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def _agree(failed: BaseException | None) -> None:
    """On every rank: a rank that failed alone would be asked again alone, and wait for the others.

    Raises:
        BaseException: The rank's own failure.
        RollringError: That of another rank.
    """
    texts = _of_all_ranks(None if failed is None else f"{type(failed).__name__}: {failed}")
    if failed is not None:
        raise failed
    for rank, text in enumerate(texts):
        if text is not None:
            raise RollringError(f"rank {rank} of the trainer: {text}", "peer_gone")
