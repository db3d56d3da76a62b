"""The trainer's end of the weight channel, as vLLM's trainer factory makes it.

    rr.create("run42", exist_ok=True)
    engine = WeightTransferTrainerFactory.trainer_init(
        RollringTrainerInitInfo("run42", rank=0),
        client=HTTPVLLMWeightSyncClient("http://localhost:8000"),
        source=ModuleSource(model),
    )
    engine.send_weights()          # once a step
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from .. import (
    RejectedError,
    RollringError,
    TimedOutError,
    WeightPublisher,
    WeightTransaction,
    describe_weights,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("rollring")


@dataclass
class RollringTrainerInitInfo(TrainerInitInfo):
    """How a trainer sends its weights.

    Attributes:
        ring: Its weight channel is used; the ring must exist (`rollring.create`).
        rank: Of this process among the trainer's; rank 0 speaks to the engines.
        publishers: How many ranks publish, each to the engines on its own GPU. 1: rank 0 alone.
        staging: Of `rollring.vllm.engine.RollringInitInfo`.
        publish_as: The dtype in which float32 goes out, such as "bfloat16".
        device: Where the source's tensors lie. "auto": on the current GPU if there is one.
        deadline_s: Seconds to wait for engines, at each step.
        slot_bytes: Of the channel's memory; 0: chosen.
        checksums: Of every tensor, checked by engines.
    """

    backend: ClassVar[str] = "rollring"
    ring: str
    publishers: int = 1
    staging: str = "auto"
    publish_as: str | None = None
    device: str = "auto"
    deadline_s: float = 300.0
    slot_bytes: int = 0
    checksums: bool = False


class RollringTrainer(TrainerWeightTransferEngine[RollringTrainerInitInfo]):
    """Sends versions of a `WeightSource` to all engines of a channel: all of them, or none.

    Made by `trainer_init`, on every rank of the trainer. One thread at a time.

    Attributes:
        version: The last one that was sent; -1: none yet.
        report: What `WeightPublisher.publish` says of it.
    """

    init_info_cls = RollringTrainerInitInfo

    def __init__(self, info: RollringTrainerInitInfo, *, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=info.rank == 0)
        self._info = info
        self._publisher: WeightPublisher | None = None
        self.report: dict[str, Any] | None = None
        if info.rank < info.publishers:
            self._publisher = _publisher(info, source)
        self.version = -1

    @classmethod
    def trainer_init(
        cls, init_info: RollringTrainerInitInfo, *, client: Any, source: Any = None
    ) -> Self:
        """Open the channel, and tell the engines of it. On every rank.

        Raises:
            RingNotFoundError: The ring has to be created first.
            BusyError: Another trainer lives, and publishes on this ring.
            RollringError: What `WeightPublisher` raises.
        """
        if source is None:
            raise ValueError("the backend 'rollring' sends whole models: give it a source")
        made = cls(init_info, client=client, source=source)
        if made.is_sender:
            try:
                client.init_weight_transfer_engine(
                    {
                        "ring": init_info.ring,
                        "staging": init_info.staging,
                        "deadline_s": init_info.deadline_s,
                    }
                )
            except BaseException:
                made.shutdown()
                raise
        return made

    def send_weights(self, version: int | None = None) -> None:
        """Send the source's weights as they are now; engines serve them when this returns.

        On every rank. If it raises, the version is given up, and engines serve the one before
        (those that load in place may be POISONED, which their log and the error say, until the
        next version).

        Args:
            version: Above all that the ring has had; None: one above. It is the label that vLLM
                gives tokens.

        Raises:
            RejectedError: An engine could not take it; the text says which, and why.
            TimedOutError: An engine, named in the text, has not answered in ``deadline_s``.
            VersionAbortedError: Another rank gave it up.
            Exception: What the client raises.
        """
        publisher = self._publisher
        if publisher is None:
            for _ in _tensors(self.source):  # what other ranks gather needs this one
                pass
            return
        version = publisher.next_version if version is None else version
        if not self.is_sender:
            with publisher.begin(version) as transaction:
                self._put(transaction, lambda: None)
            self._sent(transaction)
            return
        self._start()
        with ThreadPoolExecutor(1, "rollring-update") as pool:
            with publisher.begin(version) as transaction:
                told = pool.submit(self.client.update_weights, {"version": version})
                try:
                    self._put(transaction, lambda: _raise_if_failed(told))
                    told.result()
                except Exception as error:
                    raise _reason(self._info.ring, error) from error
                transaction.commit(self._info.deadline_s)
        self.client.finish_weight_update(str(version))
        self._sent(transaction)

    def shutdown(self) -> None:
        """Leave the channel. Engines go on with what they have."""
        if self._publisher is not None:
            self._publisher.close()

    def _sent(self, transaction: WeightTransaction) -> None:
        self.version = transaction.version
        self.report = transaction.report

    def _start(self) -> None:
        """Open a session, after one that a trainer before left open is ended."""
        try:
            self.client.start_weight_update()
            return
        except Exception as error:
            _log.warning("the engines take no update, and are asked to end the last one: %s", error)
        # The first may say what became of its version; the second has nothing to say.
        for _ in range(2):
            try:
                self.client.finish_weight_update()
            except Exception as error:
                _log.warning("ending the engines' last update: %s", error)
        self.client.start_weight_update()

    def _put(self, transaction: WeightTransaction, check: Callable[[], None]) -> None:
        """All tensors, as engines make room for them. `check` raises when they will not."""
        for name, tensor in _tensors(self.source):
            if tensor.stride() != torch.empty(tensor.shape, device="meta").stride():
                tensor = tensor.contiguous()
            until = time.monotonic() + self._info.deadline_s
            while True:
                try:
                    transaction.put(name, tensor.detach(), 0.5)
                    break
                except TimedOutError:
                    check()
                    if time.monotonic() > until:
                        raise


class FleetClient:
    """Several engines as one: each call goes to all at once, and ends when all have answered.

    Args:
        clients: Of each engine, such as `HTTPVLLMWeightSyncClient`.
    """

    def __init__(self, clients: Sequence[Any]) -> None:
        self.clients = list(clients)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._all(lambda client: client.init_weight_transfer_engine(init_info))

    def start_weight_update(self) -> None:
        self._all(lambda client: client.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._all(lambda client: client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda client: client.finish_weight_update(weight_version))

    def _all(self, call: Callable[[Any], None]) -> None:
        with ThreadPoolExecutor(len(self.clients), "rollring-fleet") as pool:
            futures = [pool.submit(call, client) for client in self.clients]
        for future in futures:
            future.result()


class InProcessClient:
    """An engine of this process: vLLM's ``LLM``."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


# --- sources: vLLM 0.28 to 0.32 say metadata() and iterate, 0.33 metadata and iter_full() ---------


def _metadata(source: Any) -> list[Any]:
    found = source.metadata
    return list(found() if callable(found) else found)


def _tensors(source: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(source.iter_full() if hasattr(source, "iter_full") else source)


def _publisher(info: RollringTrainerInitInfo, source: Any) -> WeightPublisher:
    described = {
        meta.name: torch.empty(tuple(meta.shape), dtype=meta.dtype, device="meta")
        for meta in _metadata(source)
    }
    device = info.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cast = {}
    if info.publish_as is not None:
        cast = {n: info.publish_as for n, t in described.items() if t.dtype == torch.float32}
    return WeightPublisher(
        info.ring,
        described,
        device=device,
        publish_as=cast,
        rank=info.rank,
        ranks=info.publishers,
        slot_bytes=info.slot_bytes,
        checksums=info.checksums,
    )


def _raise_if_failed(told: Future[None]) -> None:
    if told.done():
        told.result()


def _reason(ring: str, error: Exception) -> Exception:
    """What the engines told the channel, which says more than an HTTP status does."""
    try:
        engines = [engine for rank in describe_weights(ring) for engine in rank["engines"]]
    except RollringError:
        return error
    told = [f"{engine['name']}: {engine['problem']}" for engine in engines if engine["problem"]]
    return RejectedError("; ".join(told), "rejected") if told else error
