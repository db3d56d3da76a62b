"""verl's checkpoint engine "rollring": weights of a trainer through the weight channel of a ring.

    versions    verl 0.9.1, torch 2.13.0
    proven      its own manager, workers and actor on Ray, on a CPU, without an inference engine
    called by   verl's checkpoint engine manager and workers

    actor_rollout_ref.rollout.checkpoint_engine.backend=rollring
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=rollring.integrations.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.rollring.ring=run42

verl imports this module in its workers and in its driver; each sync it calls, on all of them,

    prepare, init_process_group      nothing is made anew: the processes and their parts are known
    send_weights, receive_weights    tensors go through the channel's slots as they are gathered
    finalize                         the version is committed, once all have loaded it

docs/verl.md describes failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from .. import RollringError, WeightSubscriber
from ..adapters import TimeLeft, WeightStream, find_or_create
from ..errors import InvalidArgumentError, NotFoundError, TimedOutError
from ..stat import stat_weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .. import WeightPublisher
    from ..options import PublisherOptions
    from ..weights import WeightTransaction, WeightUpdate

__all__ = ["RollringCheckpointEngine"]


@CheckpointEngineRegistry.register("rollring")
class RollringCheckpointEngine(CheckpointEngine):
    """Made by verl, one in each worker of trainer and rollout; called by one thread.

    Args:
        bucket_size: Of verl's; the channel has slots of its own.
        is_master: This one sends: the trainer's rank 0.
        ring: Its weight channel is used. It is made if it is not there, and stays.
        timeout: Seconds to wait for the others, at each step.
        device: torch's, where the rollout's tensors lie; None: on the current GPU if there is one.
        publish_as: The dtype in which float32 goes out, such as "bfloat16".
        lanes: Producers at once. Default: 64 where the ring is made, and any where it is there.
        lane_bytes: Memory of each; chosen by the memory of the machine likewise.
        **options: Of the `WeightPublisher`: memory, slot_bytes, checksums, ...
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        ring: str,
        timeout: float = 300.0,
        device: str | None = None,
        publish_as: str | None = None,
        lanes: int | None = None,
        lane_bytes: int | str | None = None,
        **options: Unpack[PublisherOptions],
    ) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self._ring = ring
        self._timeout = timeout
        self._given_device = device
        self._stream: WeightStream | None = None
        self._sent: WeightTransaction | None = None
        self._engines: list[str] = []
        if is_master:
            given = {"lanes": lanes, "lane_bytes": lane_bytes}
            find_or_create(ring, given)
            self._stream = WeightStream(
                ring, timeout=timeout, publish_as=publish_as, name="verl", **options
            )
        self._channel: WeightSubscriber | None = None
        self._received: WeightUpdate | None = None
        self._name = ""
        self._held = -1

    # --- verl's calls, in this order --------------------------------------------------------------

    def prepare(self) -> dict[str, Any]:
        """Abandon the rest of a failed sync, and describe this worker to the others."""
        self._drop("another sync has begun")
        if self._stream is not None:
            publisher = self._stream.publisher
            return {
                "place": _place(),
                "committed": -1 if publisher is None else publisher.committed_version,
            }
        if self._channel is not None and self._is_cut_off(self._channel):
            self._channel.close()
            self._channel = None
        if self._channel is None:
            self._name = f"verl.{os.getpid()}.{uuid.uuid4().hex[:12]}"
        return {"place": _place(), "name": self._name}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The participants of this sync.

        Raises:
            InvalidArgumentError: They share no memory.
        """
        engines = metadata[actor_wg_world_size:]
        elsewhere = sum(each["place"] != metadata[0]["place"] for each in engines)
        if elsewhere:
            raise InvalidArgumentError(
                f"{elsewhere} of {len(engines)} rollout workers do not share /dev/shm with the "
                "trainer's rank 0: the backend 'rollring' works on one machine"
            )
        names = [each["name"] for each in engines]
        return (
            {
                "rank": list(range(actor_wg_world_size)),
                "engines": [names] * actor_wg_world_size,
            },
            {
                "rank": [-1] * rollout_world_size,
                "held": [metadata[0]["committed"]] * rollout_world_size,
            },
        )

    def init_process_group(
        self, rank: int, engines: list[str] | None = None, held: int = -1
    ) -> None:
        """Nothing is set up: the channel stays between syncs."""
        self._engines = engines or []
        self._held = held

    async def send_weights(
        self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Send all tensors; they are committed by `finalize`.

        Args:
            weights: Taken whole by every rank: gathering a tensor needs all of them.
            global_steps: The version's number, if the ring has had none as high.

        Returns:
            For verl's log.

        Raises:
            TimedOutError: A rollout worker, named in the text, did not come, or keeps memory.
            InvalidArgumentError: The tensors are not those of the first sync.
        """
        if self._stream is None:
            for _ in weights:
                pass
            return {}
        self._sent = self._stream.send(weights, global_steps, ready=self._gather)
        assert self._stream.publisher is not None
        return {
            "rollring/version": float(self._sent.version),
            "rollring/bytes": float(self._stream.publisher.payload_bytes),
        }

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, Any]]:
        """Each tensor as it comes, the caller's own.

        Raises:
            PeerGoneError: The trainer is gone.
            VersionAbortedError: The trainer gave the version up.
        """
        channel = await self._attached()
        update = await channel.next_async(self._timeout)
        try:
            async for name, tensor in update.tensors_async(self._timeout):
                yield name, tensor
            await update.stage_async(self._timeout)
        except BaseException as error:
            update.reject(f"{type(error).__name__}: {error}")
            raise
        self._received = update

    def finalize(self) -> None:
        """All have loaded the version: commit it, here the sender and there the others."""
        sent, self._sent = self._sent, None
        received, self._received = self._received, None
        if sent is not None:
            with sent:
                sent.commit(self._timeout)
        if received is not None:
            received.adopt(self._timeout)

    # --- inside -----------------------------------------------------------------------------------

    def _drop(self, why: str) -> None:
        if self._sent is not None:
            self._sent.abort(why)
        if self._received is not None:
            with contextlib.suppress(RollringError):
                self._received.reject(why)
        self._sent = self._received = None

    def _is_cut_off(self, channel: WeightSubscriber) -> bool:
        """The trainer went on without this worker, or is gone, or there is another one."""
        if channel.closed or channel.state in {"closed", "expelled"}:
            return True
        return self._name not in _attached_to(self._ring)

    async def _attached(self) -> WeightSubscriber:
        if self._channel is None:
            # A version that was committed before this worker came is not sent to it once more.
            self._channel = await asyncio.to_thread(
                WeightSubscriber,
                self._ring,
                device=self._device(),
                name=self._name,
                held_version=self._held,
                timeout=self._timeout,
            )
        return self._channel

    def _device(self) -> Any:
        torch: Any = sys.modules.get("torch")  # verl has imported it
        if torch is None:
            return None
        if self._given_device is not None:
            return torch.device(self._given_device)
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _gather(self, publisher: WeightPublisher) -> None:
        """Wait until just those that take part are attached."""
        left = TimeLeft(self._timeout)
        while True:
            attached = _attached_to(self._ring)
            for name in attached.difference(self._engines):
                with contextlib.suppress(NotFoundError):
                    publisher.expel(name)
            missing = set(self._engines) - attached
            if not missing:
                return
            if left() == 0:
                raise TimedOutError(
                    f"rollout workers did not attach to ring {self._ring} within "
                    f"{self._timeout} s: {', '.join(sorted(missing))}",
                    "timed_out",
                )
            with contextlib.suppress(TimedOutError):
                publisher.wait_subscribers(len(attached) + 1, 0.1)


def _attached_to(ring: str) -> set[str]:
    return {
        each["name"]
        for rank in stat_weights(ring)
        for each in rank["engines"]
        if each["alive"] and each["state"] != "expelled"
    }


def _place() -> str:
    """Where shared memory is the same."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/dev/shm').st_dev}"
