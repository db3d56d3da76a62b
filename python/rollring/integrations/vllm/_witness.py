"""Whether an engine's weights are still those that a list of differences was made for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...errors import InvalidArgumentError

PARAMETERS = 16  # that are looked at, at least, as evenly spread as possible
ELEMENTS = 64  # of each


def _first(tensor: torch.Tensor) -> torch.Tensor:
    """Some elements, without a copy of a tensor that is not contiguous."""
    while tensor.dim() > 1:
        tensor = tensor[0]
    return tensor.reshape(-1)[:ELEMENTS].contiguous()


class Witness:
    """Some values of the weights. Exchanging values with weights that others have written since,
    or that sleep level 2 has dropped, would leave a mixture.

    Args:
        is_needed: Whether the engine stages by difference; otherwise both calls do nothing.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, is_needed: Callable[[], bool]
    ) -> None:
        self._model = model
        self._device = device
        self._is_needed = is_needed
        self._seen: torch.Tensor | None = None

    def _values(self) -> torch.Tensor:
        filled = [one.detach() for one in self._model.parameters() if one.numel() > 0]
        chosen = filled[:: max(1, len(filled) // PARAMETERS)]
        # Bytes: NaN differs from itself.
        return torch.cat([_first(one).view(torch.uint8) for one in chosen])

    def take(self) -> None:
        if self._is_needed():
            self._seen = self._values()

    def refuse_others(self, version: int) -> None:
        """Wait for all streams of the GPU, so that no forward pass reads the weights any more, and
        raise if the weights are no longer those of the last `take`.
        """
        if not self._is_needed():
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if self._seen is not None and torch.equal(self._seen, self._values()):
            return
        raise InvalidArgumentError(
            f"the weights of version {version} have changed since it was staged or put in place, "
            "by sleep level 2 or by other code, so the list of its differences is of no use: send "
            "another version",
            "invalid_argument",
        )
