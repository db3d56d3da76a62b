"""The weights of TRL's asynchronous trainers, through the weight channel of a ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ... import WeightPublisher
from ...adapters import WeightStream, find_or_create
from ._ranks import first_rank

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...options import PublisherOptions


class RingWeightTransfer:
    """TRL's `WeightTransferProtocol`: each sync of the trainer is a version that engines take with
    a `WeightSubscriber`, all of them or none.

        worker = RingRolloutWorker("run42", versions="publisher")
        trainer = AsyncGRPOTrainer(
            ..., rollout_worker=worker, weight_transfer=RingWeightTransfer("run42")
        )

    A version is committed before `send_weights` returns: from then on producers of the ring stamp
    it. If `send_weights` fails, the version is given up, engines serve the one before, and the
    trainer ends. On several ranks all of them raise, where they have the worker's callback.

    One thread uses it.

    Args:
        ring: Its name. It is made if it is not there, and stays.
        engines: So many have to be attached before the first version is sent.
        timeout: Seconds that a version waits for engines, at each step.
        publish_as: The dtype in which float32 goes out, such as "bfloat16".
        lanes: Producers at once. Default: 64 where the ring is made, and any where it is there.
        lane_bytes: Memory of each; chosen by the memory of the machine likewise.
        **options: Of the `WeightPublisher`: memory, slot_bytes, checksums, ...
    """

    def __init__(
        self,
        ring: str,
        *,
        engines: int = 0,
        timeout: float = 300.0,
        publish_as: str | None = None,
        lanes: int | None = None,
        lane_bytes: int | str | None = None,
        **options: Unpack[PublisherOptions],
    ) -> None:
        self.ring = ring
        self.report: dict[str, Any] | None = None
        self._engines = engines
        self._ring_options = {"lanes": lanes, "lane_bytes": lane_bytes}
        self._stream = WeightStream(
            ring, timeout=timeout, publish_as=publish_as, name="TRL", **options
        )

    # --- TRL's calls

    def init_weight_transfer(self) -> None:
        """Make the ring, where it is not there. The tensors are known with the first version."""
        with first_rank.call():
            find_or_create(self.ring, self._ring_options)

    def pause(self) -> None:
        """Nothing: engines serve the old version until they adopt the new one."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Send all tensors, and commit them once every engine has staged them.

        Raises:
            TimedOutError: An engine, named in the text, has not staged it in time.
            RejectedError: An engine could not take it; the text says which, and why.
            InvalidArgumentError: The tensors are not those of the first version.
            BusyError: Another process publishes weights on this ring, such as another trainer.
        """
        with first_rank.call(iterator):
            self.publish(iterator)

    def resume(self) -> None:
        """Nothing: engines that have adopted the version serve it."""

    def destroy(self) -> None:
        """Leave the channel: engines keep their weights. Idempotent."""
        self._stream.close()

    # --- inside

    def publish(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """As `send_weights`, but an error is raised at once."""
        # TRL's count begins with 1, too.
        with self._stream.send(iterator, 1, ready=self._ready) as version:
            self.report = version.commit(self._stream.timeout)

    def _ready(self, publisher: WeightPublisher) -> None:
        publisher.wait_subscribers(self._engines, self._stream.timeout)
        self._engines = 0  # engines that come and go later are not waited for
