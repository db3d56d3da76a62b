"""Parameters on the stages of a pipeline, for the rank that sends them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...errors import UnsupportedError
from ._ranks import distributed


class Listed(NamedTuple):
    """A parameter of the whole model, and the stage that has it."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    stage: int


class Pipeline:
    """The ranks that have one another's stages, this rank among them; this rank alone where the
    model has no stages.
    """

    def __init__(self, trainer: Any) -> None:
        self._here = distributed().get_rank()
        self._sender, self._device = trainer.metrics_rank, trainer.device
        self._group: Any = None
        self._ranks = [self._here]  # by stage
        if trainer.parallel_dims.pp_enabled:
            self._group = trainer.parallel_dims.get_mesh("pp").get_group()
            self._ranks = distributed().get_process_group_ranks(self._group)

    def collect(self, own: Iterable[tuple[str, Any]]) -> list[Listed]:
        """The parameters of all stages, in one order on all ranks.

        Raises:
            UnsupportedError: Two stages have one of the same name.
        """
        stage = self._ranks.index(self._here)
        mine = [Listed(name, tuple(one.shape), one.dtype, stage) for name, one in own]
        if self._group is None:
            return mine
        found: list[Any] = [None] * len(self._ranks)
        distributed().all_gather_object(found, mine, group=self._group)
        listed = [each for of_stage in found for each in of_stage]
        names = {each.name for each in listed}
        if len(names) < len(listed):
            raise UnsupportedError(
                "stages of the pipeline have parameters of the same name, and which of them is "
                'which is not known: say {"weights": "theirs"}',
                "unsupported",
            )
        return listed

    def bring(self, listed: Listed, whole: Any) -> Any:
        """Hand a gathered parameter to the rank that sends, whose own stages lack it.

        Args:
            listed: One of `collect`, the same on all ranks.
            whole: On the ranks of its stage.

        Returns:
            The tensor, on the rank that sends; the ranks of its stage may have it, too.
        """
        owner = self._ranks[listed.stage]
        if owner == self._sender or self._sender not in self._ranks:
            return whole
        if self._here == owner:
            distributed().send(whole.contiguous(), self._sender, group=self._group)
        elif self._here == self._sender:
            torch: Any = importlib.import_module("torch")
            whole = torch.empty(listed.shape, dtype=listed.dtype, device=self._device)
            distributed().recv(whole, owner, group=self._group)
        return whole
