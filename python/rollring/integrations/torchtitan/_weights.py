"""Weights of torchtitan's GRPO trainer through the weight channel, instead of its groups of NCCL
with a patched vLLM.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ... import WeightPublisher
from ...errors import InvalidArgumentError, UnsupportedError
from ._parameters import Parameters
from ._pipeline import Pipeline
from ._ranks import distributed, failing_together
from ._rollouts import ring_of
from ._servers import shards_to_servers, trainer_end
from ._settings import Settings
from ._shards import ShardSender

_log = logging.getLogger("rollring")

# For engines, at each step of a version. The other ranks wait through two of them (the last tensor,
# the commit), and the fork ends a collective, and with it the reason, after ten minutes.
DEADLINE_S = 200.0
MARKER, MARK = "sglang_dtypes.json", "{}"


class Source:
    """The trainer's parameters under the names of Hugging Face, as vLLM's trainers take them: the
    ranks gather one after the other, together. Every rank makes it.
    """

    def __init__(self, trainer: Any) -> None:
        self._parameters = Parameters(trainer)
        self._pipeline = Pipeline(trainer)
        self._listed = self._pipeline.collect(self._parameters.own())
        self._left: Iterator[tuple[str, Any]] = iter(())

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each tensor; nothing is gathered."""
        torch: Any = importlib.import_module("torch")
        return [
            SimpleNamespace(name=key, dtype=one.dtype, shape=tuple(one.shape))
            for each in self._listed
            for key, one in self._parameters.named(
                each.name, torch.empty(each.shape, dtype=each.dtype, device="meta")
            ).items()
        ]

    def begin(self) -> None:
        """Of a version. On every rank, before anything that may fail on one alone: `drain` then
        gathers as many parameters there as on the others.
        """
        self._left = self._gathered()

    def iter_full(self) -> Iterator[tuple[str, Any]]:
        """The tensors of the begun version that are still to be gathered."""
        return self._left

    __iter__ = iter_full

    def _gathered(self) -> Iterator[tuple[str, Any]]:
        own = dict(self._parameters.own())
        for each in self._listed:
            whole = None
            if (parameter := own.get(each.name)) is not None:
                whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
                whole = whole.detach()
            whole = self._pipeline.bring(each, whole)
            if whole is not None:
                yield from self._parameters.named(each.name, whole).items()

    def drain(self) -> None:
        """Gather the rest, which other ranks wait for."""
        for _ in self._left:
            pass


class ToChannel:
    """To engines that attach to the channel by themselves."""

    def __init__(self, ring: str, source: Source, settings: Settings, device: str) -> None:
        torch: Any = importlib.import_module("torch")
        self._source = source
        described = {
            one.name: torch.empty(one.shape, dtype=one.dtype, device="meta")
            for one in source.metadata()
        }
        cast = {
            name: settings.publish_as
            for name, tensor in described.items()
            if tensor.dtype == torch.float32 and settings.publish_as
        }
        self._publisher = WeightPublisher(
            ring, described, name="torchtitan", device=device, publish_as=cast
        )
        self._publisher.wait_subscribers(settings.engines, timeout=DEADLINE_S)

    def send(self, step: int) -> None:
        with self._publisher.begin(max(step, self._publisher.next_version)) as version:
            for name, tensor in self._source.iter_full():
                version.put(name, tensor.contiguous(), timeout=DEADLINE_S)
            version.commit(timeout=DEADLINE_S)


class ToServers:
    """To the unpatched vLLM servers of ``grpo.sglang_urls``, on the rank that sends."""

    def __init__(self, ring: str, source: Source, settings: Settings, trainer: Any) -> None:
        self._engine = trainer_end(ring, source, settings, trainer, deadline_s=DEADLINE_S)

    def send(self, step: int) -> None:
        self._engine.send_weights(max(step, self._engine.next_version))


class Sender:
    """One rank's side: one of them publishes, and the others gather with it."""

    def __init__(self, trainer: Any, settings: Settings) -> None:
        self._source = Source(trainer)
        self._rank = trainer.metrics_rank
        self._is_sender = distributed().get_rank() == self._rank
        self._to: Any = None
        if self._is_sender:
            url = settings.server.rstrip("/") or trainer.data_handler.server_url
            ring = ring_of(settings, url)
            if settings.weights == "vllm":
                self._to = ToServers(ring, self._source, settings, trainer)
            else:
                self._to = ToChannel(ring, self._source, settings, trainer.device.type)

    def send(self, step: int) -> None:
        """The weights as they are now. On every rank; engines serve them when this returns.

        Raises:
            RollringError: An engine could not take them, or the rank that sends has failed.
        """
        with failing_together(self._rank):
            self._source.begin()
            try:
                if self._is_sender:
                    self._to.send(step)
            finally:
                self._source.drain()


def _sender(trainer: Any, settings: Settings) -> Any:
    if trainer.job_config.peft.enable_peft:
        raise UnsupportedError(
            'the weights of adapters (peft) are not sent: say {"weights": "theirs"}',
            "unsupported",
        )
    if settings.weights == "shards":
        return ShardSender(trainer, settings, DEADLINE_S)
    if settings.weights == "vllm":
        made = shards_to_servers(trainer, settings, DEADLINE_S)
        if made is not None:
            return made
    return Sender(trainer, settings)


def take_weights(module: Any, handling: Any, settings: Settings) -> None:
    """Replace `Trainer.send_weights` in the trainer's module, and the function that makes its
    groups."""
    marker = _mark()
    module.setup_group = lambda *_, **__: (None, None)
    module.new_group = lambda *_, **__: None
    # Of its own REST client, which engines of a group would wait with.
    handling.send_wait = lambda *_, **__: None
    senders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def send_weights(self: Any) -> None:
        sender = senders.get(self)
        if sender is None:
            if marker is not None:
                marker.unlink(missing_ok=True)
            with failing_together(self.metrics_rank):
                sender = senders[self] = _sender(self, settings)
        sender.send(self.step)

    module.Trainer.send_weights = send_weights


def _mark() -> Path | None:
    """The file of dtypes that its trainer waits for, which a patched vLLM would write."""
    marker = _marker()
    if marker is None:  # its trainer says so
        return None
    try:
        with contextlib.suppress(FileExistsError), marker.open("x", encoding="utf-8") as file:
            file.write(MARK)
            return marker
    except OSError as error:
        raise InvalidArgumentError(
            f"LOGDIR is {str(marker.parent)!r}, into which its trainer writes files, too: {error}",
            "invalid_argument",
        ) from error
    return marker if _is_ours(marker) else None


def remove_mark() -> None:
    """That of a run that died before its first version: engines of NCCL would not be waited for,
    and no dtype be known.
    """
    marker = _marker()
    if marker is not None and _is_ours(marker):
        marker.unlink(missing_ok=True)


def _marker() -> Path | None:
    folder = os.environ.get("LOGDIR")
    return Path(folder, MARKER) if folder else None


def _is_ours(marker: Path) -> bool:
    with contextlib.suppress(OSError):
        return marker.read_text(encoding="utf-8") == MARK
    return False
