"""Batches as torch tensors. torch is imported when one of these is called, never before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import TORCH_ALONE, torch_dtype

if TYPE_CHECKING:
    from ._views import Views

# Dtypes that torch lacked for long, each with a numpy dtype that holds its values.
_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}


def _tensor(array: Any, dtype: str, pin_memory: bool) -> Any:
    import torch

    if dtype not in TORCH_ALONE and array.dtype.name in _WIDER:
        array = array.astype(_WIDER[array.dtype.name])
    tensor = torch.from_numpy(array if dtype != "bf16" else array.view(np.int16))
    if dtype in TORCH_ALONE:
        tensor = tensor.view(torch_dtype(dtype))
    return tensor.pin_memory() if pin_memory else tensor


def _packed(batch: Views, column: str, pin_memory: bool) -> Any:
    return _tensor(batch.packed(column), batch.dtype_of(column), pin_memory)


def tensors(batch: Views, columns: tuple[str, ...], pin_memory: bool) -> dict[str, Any]:
    made = batch.as_dict(*columns)
    names = columns or batch.common_columns()
    dtypes = {column: batch.dtype_of(column) for column in names}
    return {name: _tensor(array, dtypes.get(name, ""), pin_memory) for name, array in made.items()}


def nested(batch: Views, column: str, pin_memory: bool) -> Any:
    import torch

    offsets = torch.from_numpy(batch.cu_seqlens.astype(np.int64))
    values = _packed(batch, column, pin_memory)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def tensordict(batch: Views, columns: tuple[str, ...], pin_memory: bool) -> Any:
    from tensordict import TensorDict

    columns = columns or batch.common_columns()
    made = {column: nested(batch, column, pin_memory) for column in columns}
    for name in ("rewards", "advantages", "repetition_ids"):
        made[name] = _tensor(getattr(batch, name), "", pin_memory)
    return TensorDict(made, batch_size=[len(batch.rewards)])
