"""TRL's weights into vLLM servers over a ring's channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...adapters import find_or_create
from ...errors import InvalidArgumentError
from ._ranks import first_rank
from ._shards import ShardedSync


class _Given:
    """A source for vLLM whose tensors the trainer gives anew for each version, one by one.

    The channel needs to know all tensors before the first one is sent: those of the first version
    are kept in host memory until it is sent.
    """

    def __init__(self, tensors: Iterable[tuple[str, Any]]) -> None:
        self._kept = [
            (name, one.device, one.detach().to("cpu", copy=True)) for name, one in tensors
        ]
        self._described = [(name, one.dtype, tuple(one.shape)) for name, _, one in self._kept]
        if not self._kept:
            raise InvalidArgumentError(
                "the trainer has no tensor to send: does any parameter need gradients?"
            )
        self.given: Iterable[tuple[str, Any]] = self._first()

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(*described) for described in self._described]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.given)

    def _first(self) -> Iterator[tuple[str, Any]]:
        kept, self._kept = self._kept, []
        for name, device, one in kept:
            yield name, one.to(device)


class VLLMWeightTransfer:
    """TRL's `WeightTransferProtocol` for vLLM servers that run with rollring's backend: each sync
    of the trainer is a version of the ring, which all servers serve when `send_weights` returns, or
    none.

        worker = RingRolloutWorker("run42", versions="publisher")
        trainer = AsyncGRPOTrainer(
            ..., rollout_worker=worker,
            weight_transfer=VLLMWeightTransfer("run42", ["http://localhost:8000"]),
        )

    On several ranks with FSDP2, `send_shards_of` has each of them publish its shards, so that
    nothing is gathered.

    One thread uses it.

    Args:
        ring: Its name. It is made if it is not there, and stays.
        servers: Their URLs; or a client, as `rollring.integrations.vllm.trainer` wants it.
        lanes: Producers at once. Default: 64 where the ring is made, and any where it is there.
        lane_bytes: Memory of each; chosen by the memory of the machine likewise.
        **info: Of its `RollringTrainerInitInfo`: staging, pause, publish_as, ...
    """

    def __init__(
        self,
        ring: str,
        servers: Any,
        *,
        lanes: int | None = None,
        lane_bytes: int | str | None = None,
        **info: Any,
    ) -> None:
        self.ring = ring
        self.report: dict[str, Any] | None = None
        self._servers = [servers] if isinstance(servers, str) else servers
        self._ring_options = {"lanes": lanes, "lane_bytes": lane_bytes}
        self._info = info
        self._source: _Given | None = None
        self._trainer: Any = None
        self._sync: ShardedSync | None = None

    def send_shards_of(self, trainer: Any) -> None:
        """Let each rank publish the shards that it has, instead of the tensors that the trainer
        gathers. On every rank, before ``train()``.

        The first sync decides, and its log says so: a model that is not divided by FSDP2, or whose
        shards a server refuses, goes out gathered.

        Args:
            trainer: An `AsyncGRPOTrainer` or `AsyncDistillationTrainer` with this transfer.

        Raises:
            UnsupportedError: Its iterator of weights is not that of TRL 1.16.
        """
        self._sync = ShardedSync(
            self.ring, trainer, lambda rank, named: self._made(named, rank, shards=True)
        )
        self._sync.take()

    # --- TRL's calls

    def init_weight_transfer(self) -> None:
        """Make the ring, where it is not there. The tensors are known with the first version."""
        with first_rank.call():
            find_or_create(self.ring, self._ring_options)

    def pause(self) -> None:
        """Nothing: ``pause`` of the options says whether generation stands still, and when."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Send all tensors; all servers serve them when this returns.

        Raises:
            RejectedError: A server could not take it; the text says which, and why.
            TimedOutError: A server, named in the text, has not answered in time.
            InvalidArgumentError: The tensors are not those of the first version.
            BusyError: Another process publishes weights on this ring, such as another trainer.
        """
        with first_rank.call(iterator):
            if self._sync is not None and self._sync.begin():
                self.report = self._sync.send().report
            else:
                self._publish(iterator)

    def resume(self) -> None:
        """Nothing, as in `pause`."""

    def destroy(self) -> None:
        """Leave the channel: servers keep their weights. Idempotent."""
        if self._trainer is not None:
            self._trainer.shutdown()
            self._trainer = None
        if self._sync is not None:
            self._sync.close()

    # --- inside

    def _publish(self, iterator: Iterator[tuple[str, Any]]) -> None:
        if self._source is None or self._trainer is None:
            self._source = _Given(iterator)
            self._trainer = self._made(self._source)
        else:
            self._source.given = iterator
        # TRL's count begins with 1, too.
        self._trainer.send_weights(max(1, self._trainer.next_version))
        self.report = self._trainer.report

    def _made(self, source: Any, rank: int = 0, **more: Any) -> Any:
        from ..vllm.trainer import (
            FleetClient,
            HTTPClient,
            RollringTrainer,
            RollringTrainerInitInfo,
        )

        client = self._servers
        if isinstance(client, (list, tuple)):
            client = FleetClient([HTTPClient(url) for url in client])
        info = RollringTrainerInitInfo(self.ring, rank=rank, **{**self._info, **more})
        return RollringTrainer.trainer_init(info, client=client, source=source)
