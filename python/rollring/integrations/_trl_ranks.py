"""What the ranks of a trainer do together, where one of them has the ring."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .._errors import RollringError

T = TypeVar("T")


def of_all_ranks(accelerator: Any, value: T) -> list[T]:
    """What each rank gives, in their order."""
    if accelerator.num_processes == 1:
        return [value]
    gathered: list[T] = _collectives().gather_object([value])
    return gathered


def on_first_rank(
    accelerator: Any, work: Callable[[], T], meanwhile: Callable[[], object] = lambda: None
) -> T:
    """What the first rank's ``work`` gives, on every rank; the others do something ``meanwhile``.

    Raises:
        RollringError: On the others, where the first rank fails; the text is that of its error.
    """
    if accelerator.num_processes == 1:
        return work()
    told: list[Any] = [None, None]
    failed = None
    try:
        if accelerator.is_main_process:
            told[0] = work()
        else:
            meanwhile()
    except Exception as error:
        failed = error
        text = f"the first rank of the trainer failed: {type(error).__name__}: {error}"
        told[1] = text, getattr(error, "code", "")
    _collectives().broadcast_object_list(told, from_process=0)
    if failed is not None:
        raise failed
    if told[1] is not None:
        raise RollringError(*told[1])
    made: T = told[0]
    return made


def whole_tensors(parameters: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Parameters as one process would have them: of FSDP2's, the ranks gather each together."""
    for name, tensor in parameters:
        # As ZeRO-3 and FSDP1 mark them.
        if hasattr(tensor, "ds_id") or hasattr(tensor, "_fsdp_flattened"):
            raise ValueError(
                f"parameter {name!r} is divided among the ranks by DeepSpeed ZeRO-3 or by FSDP1, "
                "whose weights are not sent: use FSDP2 or ZeRO up to 2, or say weights=False and "
                "give the workers the weights in another way"
            )
        yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _collectives() -> Any:
    return importlib.import_module("accelerate.utils")
