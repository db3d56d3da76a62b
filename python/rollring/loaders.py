"""The copies that a model's own loaders would make of published tensors: recorded, not done.

    layout = layout_of(model, rr.weights.WeightLayout.of_trainer("run42"), rank=tp_rank)

`layout_of` makes an engine's layout of them. Sources are tensors on torch's meta device, and so may
the model's parameters be while it is recorded (vLLM's layerwise reload puts them there). Loaders
take views of both and copy from one to the other; views know their offset and strides, which is all
that a plan needs. torch is needed, and imported with this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ._arrays import torch_dtype
from ._weight_boxes import row_major
from ._weight_layout import WeightLayout
from ._weight_memory import name_dtype
from .errors import UnsupportedError

__all__ = ["Copy", "Place", "Record", "View", "layout_of", "record"]


class View(NamedTuple):
    """A part of a tensor, in elements of its memory."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        return cls(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))

    def on(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same part of a tensor that lies as the recorded one did."""
        return tensor.as_strided(
            self.shape, self.strides, int(tensor.storage_offset()) + self.offset
        )


class Place(NamedTuple):
    """A parameter or buffer of a model."""

    module: str
    tensor: str


class Copy(NamedTuple):
    """A loader copies ``taken`` of the published tensor ``name`` to ``into`` of ``place``."""

    name: str
    taken: View
    place: Place
    into: View


def box_of(view: View, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The place where a view begins and ends in each dimension of its tensor; None if it is not
    such a box."""
    start = []
    rest = view.offset
    for extent, stride in zip(shape, strides, strict=True):
        at = rest // stride if stride and extent > 1 else 0
        start.append(at)
        rest -= at * stride
    if rest:
        return None
    end = [at + 1 for at in start]
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent == 1:
            continue
        dims = [d for d in range(len(shape)) if strides[d] == stride and shape[d] > 1]
        if len(dims) != 1 or end[dims[0]] != start[dims[0]] + 1:
            return None
        end[dims[0]] = start[dims[0]] + extent
        if end[dims[0]] > shape[dims[0]]:
            return None
    return tuple(start), tuple(end)


def disjoint(boxes: list[Any]) -> bool:
    """Whether no element is in two of them."""
    boxes = sorted(boxes)
    open_ones: list[Any] = []
    for start, end in boxes:
        open_ones = [one for one in open_ones if not start or one[1][0] > start[0]]
        for other_start, other_end in open_ones:
            if all(
                a < other and b > mine
                for a, other, b, mine in zip(start, other_end, end, other_start, strict=True)
            ):
                return False
        open_ones.append((start, end))
    return True


class Record:
    """The result of a recording.

    Attributes:
        copies: In the order in which they were made.
        spoiled: Modules, each with an operation of its loader that copies of views cannot express.
        unloaded: Published names that the loaders could not be given, each with the reason.
        zeroed: Parts that the loaders set to zero, none of which they had copied to before.
        failure: Of the loaders over all names at once; empty if they took them.
    """

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.spoiled: dict[str, str] = {}
        self.unloaded: dict[str, str] = {}
        self.zeroed: list[tuple[Place, View]] = []
        self.failure = ""

    def settle(self, shapes: Mapping[Place, tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        """Spoil modules of which elements are written twice, or not box by box."""
        boxes: dict[Place, list[Any]] = {}
        for copy in self.copies:
            box = box_of(copy.into, *shapes[copy.place])
            if box is None:
                self.spoiled.setdefault(copy.place.module, f"{copy.place.tensor}: not by boxes")
            else:
                boxes.setdefault(copy.place, []).append(box)
        for place, of_it in boxes.items():
            if not disjoint(of_it):
                self.spoiled.setdefault(place.module, f"{place.tensor}: written twice")


class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Sees every operation on tensors, and keeps those that write to a model from happening."""

    def __init__(self, model: torch.nn.Module, sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.record = Record()
        self._sources = {_memory(tensor): (name, tensor) for name, tensor in sources.items()}
        self._places: dict[int, tuple[Place, torch.Tensor]] = {}
        self._kept: list[Any] = []  # or the address of their memory would be reused
        for module_name, module in model.named_modules():
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None:
                    self._kept.append(tensor.untyped_storage())
                    self._places.setdefault(_memory(tensor), (Place(module_name, name), tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            target = args[index] if index < len(args) else kwargs.get(argument.name)
            if isinstance(target, torch.Tensor):
                if _memory(target) in self._places:
                    self._written(func, target, args)
                    return target
            elif self._spoil_listed(func, target):
                return None
        return func(*args, **kwargs)

    def _spoil_listed(self, func: Any, targets: Any) -> bool:
        """Spoil the modules that an operation on lists of tensors writes to."""
        found = False
        for one in targets if isinstance(targets, (list, tuple)) else ():
            if isinstance(one, torch.Tensor) and _memory(one) in self._places:
                place, _ = self._places[_memory(one)]
                self.record.spoiled.setdefault(place.module, f"{place.tensor}: {func}")
                found = True
        return found

    def _written(self, func: Any, target: torch.Tensor, args: Any) -> None:
        place, whole = self._places[_memory(target)]
        if func is torch.ops.aten.copy_.default:
            source = args[1]
            name, published = self._sources.get(_memory(source), ("", source))
            if not name:
                self.record.spoiled.setdefault(
                    place.module, f"{place.tensor}: loaded together with values derived from it"
                )
            elif (
                source.dtype != target.dtype
                or source.shape != target.shape
                or source.dtype != published.dtype
                or target.dtype != whole.dtype
            ):
                self.record.spoiled.setdefault(
                    place.module,
                    f"{place.tensor}: {name} is {source.dtype} of shape {tuple(source.shape)}, "
                    f"and its place {target.dtype} of {tuple(target.shape)}",
                )
            else:
                self.record.copies.append(Copy(name, View.of(source), place, View.of(target)))
        elif func is torch.ops.aten.zero_.default or (
            func is torch.ops.aten.fill_.Scalar and args[1] == 0
        ):
            view = View.of(target)
            if any(
                one.place == place and _meet(one.into, view, whole) for one in self.record.copies
            ):
                self.record.spoiled.setdefault(
                    place.module, f"{place.tensor}: set to zero where it was loaded"
                )
            self.record.zeroed.append((place, view))
        else:
            self.record.spoiled.setdefault(place.module, f"{place.tensor}: {func}")


def _meet(one: View, other: View, whole: torch.Tensor) -> bool:
    """Whether two parts of a tensor may share elements."""
    first = int(whole.storage_offset())
    boxes = [
        box_of(view._replace(offset=view.offset - first), tuple(whole.shape), whole.stride())
        for view in (one, other)
    ]
    return None in boxes or not disjoint(boxes)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def record(model: Any, sources: Iterable[tuple[str, torch.dtype, tuple[int, ...]]]) -> Record:
    """Run ``model.load_weights`` over tensors on the meta device, all at once or one by one.

    The model's parameters must lie on the meta device, too, or hold still: nothing is written.
    """
    described = list(sources)
    tensors = {
        name: torch.empty_strided(shape, row_major(shape), dtype=dtype, device="meta")
        for name, dtype, shape in described
    }
    recorder = Recorder(model, tensors)
    try:
        with recorder, torch.no_grad():
            model.load_weights(iter(tensors.items()))
        return recorder.record
    except Exception as error:  # one of them cannot be shown: which?
        recorder = Recorder(model, tensors)
        recorder.record.failure = f"{type(error).__name__}: {error}"
    with recorder, torch.no_grad():
        for name, tensor in tensors.items():
            try:
                model.load_weights(iter([(name, tensor)]))
            except Exception as error:
                recorder.record.unloaded[name] = f"{type(error).__name__}: {error}"
    return recorder.record


# --- an engine's layout -------------------------------------------------------------------------


def layout_of(
    model: Any, trainer: WeightLayout, rank: int = 0, *, kept: Collection[str] = ()
) -> WeightLayout:
    """The boxes of a trainer's tensors that the loaders of this engine rank take: a memory for each
    parameter or buffer that they write, of its name in the model.

    Runs ``model.load_weights``, which takes pairs of names and tensors, over tensors without
    memory; nothing is written to the model. A tensor that no loader takes has no box.

    Args:
        model: A torch module whose parameters have the form in which it is served: steps after
            loading are not recorded.
        trainer: Of all its ranks, as `WeightLayout.of_trainer` has it.
        rank: Of this engine rank.
        kept: Parameters that no loader takes, and that keep their values, by their names in the
            model.

    Raises:
        UnsupportedError: A loader does more than copy boxes of tensors, or cannot run over tensors
            without memory; it sets elements to zero that are not zero now, or puts another
            parameter into the model; a parameter is not contiguous, or no loader takes it. The
            text has the name and the reason.
    """
    shapes = dict(trainer.tensors)
    sources = [(name, torch_dtype(dtype), shapes[name]) for name, dtype in trainer.dtypes().items()]
    with _Held(model) as held:
        found = record(model, sources)
    for name in held.replaced:
        raise _unsupported(f"a loader replaces '{name}' by another tensor", "no copy")
    for name, why in found.unloaded.items():
        raise _unsupported(f"the loader of tensor '{name}' needs its values", why)
    for name, why in found.spoiled.items():
        raise _unsupported(f"module '{name}' does not load by copies alone", why)
    if found.failure:
        raise _unsupported("the loaders need values of the tensors", found.failure)
    _check_zeroed(model, found)
    taken_places = {copy.place for copy in found.copies}
    for place, into in held.parameters.items():
        if place not in taken_places and into not in kept:
            raise _unsupported(f"no loader takes parameter '{into}'", "name it in `kept`")
    made = WeightLayout()
    memories: dict[Place, int] = {}
    for copy in found.copies:
        module = model.get_submodule(copy.place.module)
        target = getattr(module, copy.place.tensor)
        into = name_of(copy.place)
        if not target.is_contiguous():
            raise _unsupported(f"parameter '{into}' is not contiguous", "no layout has it")
        taken = taken_box(copy, shapes[copy.name])
        if taken is None:
            raise _unsupported(
                f"the loader of '{into}' takes elements of '{copy.name}' beyond boxes",
                f"{copy.taken}",
            )
        if copy.place not in memories:
            memories[copy.place] = made.memory(
                into,
                rank=rank,
                dtype=name_dtype(into, target.dtype, False),
                elements=target.numel(),
            )
        start, length, strides = taken
        made.box(
            copy.name,
            shapes[copy.name],
            start=start,
            length=length,
            memory=memories[copy.place],
            offset=copy.into.offset - int(target.storage_offset()),
            strides=strides,
        )
    return made


class _Held:
    """Keeps the tensors of a model, and puts back those that were replaced within the block."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._names: list[str] = []
        self.replaced: list[str] = []
        self.parameters: dict[Place, str] = {}
        memories = set()
        for module_name, module in model.named_modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is None:
                        continue
                    place = Place(module_name, name)
                    self._tensors.append((tensors, name, tensor, tensor.data))
                    self._names.append(name_of(place))
                    if tensors is module._parameters and _memory(tensor) not in memories:
                        self.parameters[place] = name_of(place)
                    memories.add(_memory(tensor))

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        for (tensors, name, tensor, data), full in zip(self._tensors, self._names, strict=True):
            now = tensors.get(name)
            if now is tensor and _memory(now) == _memory(data):
                continue
            self.replaced.append(full)
            tensors[name] = tensor
            tensor.data = data


def _check_zeroed(model: Any, found: Record) -> None:
    """No version writes the elements that the loaders set to zero: they must be zero already."""
    for place in {place for place, _ in found.zeroed}:
        tensor = getattr(model.get_submodule(place.module), place.tensor).detach()
        zeroed = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.bool).fill_(False)
        first = int(tensor.storage_offset())
        for view, value in [
            *((view, True) for at, view in found.zeroed if at == place),
            *((copy.into, False) for copy in found.copies if copy.place == place),
        ]:
            zeroed.as_strided(view.shape, view.strides, view.offset - first).fill_(value)
        if tensor.is_meta or bool((tensor.cpu()[zeroed] != 0).any()):
            raise _unsupported(
                f"a loader sets elements of '{name_of(place)}' to zero that are not zero now",
                "set them to zero before",
            )


def name_of(place: Place) -> str:
    """The name that a model has for it."""
    return f"{place.module}.{place.tensor}".lstrip(".")


def taken_box(copy: Copy, shape: tuple[int, ...]) -> Any:
    """The start and the length of a copy in each dimension of its tensor, and the strides in the
    memory that it is copied to; None if it takes more than a box."""
    rows = row_major(shape)
    box = box_of(copy.taken, shape, rows)
    if box is None:
        return None
    start, end = box
    length = tuple(b - a for a, b in zip(start, end, strict=True))
    into = {
        step: stride
        for step, stride, extent in zip(
            copy.taken.strides, copy.into.strides, copy.taken.shape, strict=True
        )
        if extent > 1
    }
    strides = tuple(
        into[step] if extent > 1 else 0 for step, extent in zip(rows, length, strict=True)
    )
    return start, length, strides


def _unsupported(what: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} ({why}): give a layout that is written by hand, or take whole tensors",
        "unsupported",
    )
