"""Versions of models whose tensors come one by one, from a trainer that gathers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import dtype_name
from ._weight_publisher import WeightPublisher
from ._weight_transaction import WeightTransaction
from ._weights import TimeLeft, refused

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import PublisherOptions

    Tensors = Iterable[tuple[str, Any]]


class WeightStream:
    """Publishes versions whose tensors come from generators of (name, tensor).

    The channel needs to know all tensors before the first one is sent. So those of the first
    version are kept in host memory, whole, until the last has come; from then on each goes out as
    it comes, and all versions have the same tensors in the same order. Tensors are torch's, or
    numpy arrays (whose first version stays in memory).

    Args:
        ring: Its weight channel is used; the ring must exist.
        timeout: Seconds that each step waits for engines.
        publish_as: The dtype in which float32 goes out, such as "bfloat16".
        name: For people.
        **options: Of the `WeightPublisher`: memory, slot_bytes, checksums, ...
    """

    def __init__(
        self,
        ring: str,
        *,
        timeout: float | None = 300.0,
        publish_as: str | None = None,
        name: str = "trainer",
        **options: Unpack[PublisherOptions],
    ) -> None:
        self.ring = ring
        self.timeout = timeout
        self._publish_as = publish_as
        self._name = name
        self._options = options
        self._device: Any = None
        self._described: dict[str, Any] = {}
        self.publisher: WeightPublisher | None = None

    def send(
        self,
        tensors: Tensors,
        version: int | None = None,
        ready: Callable[[WeightPublisher], object] = lambda publisher: None,
    ) -> WeightTransaction:
        """All tensors of a version, on their way out and not committed.

        Args:
            tensors: Taken one by one, and each only once the one before it was sent.
            version: None, or one that the ring has had: `WeightPublisher.next_version`.
            ready: Called before the first tensor is sent, with a channel that engines find.

        Raises:
            InvalidArgumentError: The tensors are not those of the first version.
            TimedOutError: An engine, named in the text, keeps memory of the channel.
        """
        publisher = self.publisher
        if publisher is None:
            tensors, publisher = self._first(tensors)
        ready(publisher)
        least = publisher.next_version
        transaction = publisher.begin(least if version is None else max(version, least))
        try:
            self._put(transaction, tensors)
        except BaseException as error:
            transaction.abort(f"{type(error).__name__}: {error}")
            raise
        return transaction

    def close(self) -> None:
        """Leave the channel: engines continue with their version. Idempotent."""
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None

    def _first(self, tensors: Tensors) -> tuple[Tensors, WeightPublisher]:
        kept: dict[str, Any] = {}
        for name, tensor in tensors:
            if name in kept:
                raise refused(f"the trainer put tensor '{name}' twice in one version")
            self._device = None if isinstance(tensor, np.ndarray) else tensor.device
            kept[name] = _copied(tensor)
        self._described = {name: _described(tensor) for name, tensor in kept.items()}
        cast = {}
        if self._publish_as is not None:
            floats = [name for name, tensor in kept.items() if dtype_name(tensor.dtype) == "f32"]
            cast = dict.fromkeys(floats, self._publish_as)
        self.publisher = WeightPublisher(
            self.ring,
            self._described,
            device=self._device,
            publish_as=cast,
            name=self._name,
            **self._options,
        )
        return kept.items(), self.publisher

    def _put(self, transaction: WeightTransaction, tensors: Tensors) -> None:
        left = TimeLeft(self.timeout)
        wanted = iter(self._described.items())
        for name, tensor in tensors:
            expected, described = next(wanted, ("", None))
            if described is None or name != expected:
                raise refused(
                    f"the trainer put tensor '{name}', but its first version had "
                    f"{expected or 'no more'} here: all versions must have the same tensors in "
                    "the same order"
                )
            transaction.put(name, _laid_out(tensor, self._device), left())
        if missing := next(wanted, None):
            raise refused(
                f"the trainer did not put tensor '{missing[0]}', which its first version had"
            )


def _copied(tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        return np.array(tensor, order="C")
    return tensor.detach().to("cpu", copy=True)


def _described(tensor: Any) -> Any:
    """An object that describes all of a tensor but its values; numpy's tensors have no such
    object."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _laid_out(tensor: Any, device: Any) -> Any:
    """On the publisher's device, in row-major order."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(tensor.shape)
    import torch

    ours = tensor.detach().to(device)
    if ours.stride() == torch.empty(ours.shape, device="meta").stride():
        return ours
    return ours.clone(memory_format=torch.contiguous_format)
