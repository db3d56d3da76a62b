"""Where the elements of tensors lie, over the ranks of a trainer or an engine; plans of copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _core
from ._blocks import shown
from ._weight_boxes import held_by_this_process, row_major
from ._weight_memory import name_dtype
from ._weights import refused


class WeightLayout:
    """Boxes of tensors in the memories of ranks, of a trainer or of an engine.

    Equal steps make equal layouts, with equal hashes. One thread at a time. A layout can be
    pickled.
    """

    def __init__(self) -> None:
        self._end = _core.WeightLayout()
        self._numbers: dict[
            str, tuple[int, int]
        ] = {}  # of each tensor, and of the one it is tied to

    @classmethod
    def of(cls, tensors: Mapping[str, Any], rank: int = 0) -> WeightLayout:
        """The parts of tensors that this process holds: a memory and a box for each, of that name.

        Args:
            tensors: By name. Of a torch ``DTensor`` (FSDP2, HSDP, tensor parallelism) the box that
                its mesh and placements give to this process; of any other tensor all.
            rank: Of this process.

        Raises:
            UnsupportedError: A tensor, by name, has partial sums, or a dtype without a name here.
        """
        made = cls()
        for name, tensor in tensors.items():
            held = held_by_this_process(name, tensor)
            if held is None:
                made.tensor(name, tuple(tensor.shape))
                continue
            dtype = name_dtype(name, tensor.dtype, False)
            memory = made.memory(name, rank=rank, dtype=dtype, elements=held.elements)
            made.box(name, held.shape, start=held.start, length=held.length, memory=memory)
        return made

    @classmethod
    def of_trainer(
        cls, ring: str, *, name: str = "engine", timeout: float | None = 10.0
    ) -> WeightLayout:
        """The layout of a trainer whose ranks publish their shards, of all its ranks. They count no
        engine for it.

        Args:
            ring: Of its weight channel.
            name: Of the engine that asks, for errors.
            timeout: Seconds to wait for its ranks; None: as long as it takes.

        Raises:
            RingNotFoundError: There is no such ring.
            TimedOutError: A rank did not come in time.
            LayoutMismatchError: A rank, named in the text, publishes whole tensors.
        """
        return cls.from_bytes(_core.published_layout(ring, {"name": name}, timeout))

    @classmethod
    def from_bytes(cls, table: bytes) -> WeightLayout:
        """The layout of `to_bytes`.

        Raises:
            NotOursError: The bytes are damaged, or from another program.
        """
        made = cls()
        made._end = _core.WeightLayout.from_bytes(table)
        made._count_tensors()
        return made

    def to_bytes(self) -> bytes:
        """As one table, for another process or a file."""
        return self._end.to_bytes()

    def tensor(self, name: str, shape: Sequence[int], tied_to: str | None = None) -> None:
        """Add a tensor. Not needed before `box`, except for ties.

        Args:
            name: That both sides know it by.
            shape: Of the whole tensor.
            tied_to: An earlier tensor that always has the same values: boxes of either then hold
                the values of both.

        Raises:
            LayoutMismatchError: It is known with another shape or tie.
            InvalidArgumentError: A tie that cannot be.
        """
        if tied_to is not None and tied_to not in self._numbers:
            raise refused(f"tensor '{name}' is tied to '{tied_to}', which is not in the layout")
        tie = -1 if tied_to is None else self._numbers[tied_to][0]
        self._numbers[name] = self._end.add_tensor(name, tuple(shape), tie), tie

    def memory(self, name: str, *, rank: int, dtype: str, elements: int) -> int:
        """Add memory of a rank, such as a shard or a parameter, and return its number for `box`.

        Args:
            name: Unique in its rank.
            rank: Of the process that has it.
            dtype: Of its elements: "bf16", "f32", ...
            elements: How many it has, padding included.

        Raises:
            InvalidArgumentError: The rank has a memory of that name, or the dtype is unknown.
        """
        return self._end.add_memory(rank, name, dtype, elements)

    def box(
        self,
        tensor: str,
        shape: Sequence[int],
        *,
        start: Sequence[int],
        length: Sequence[int],
        memory: int,
        offset: int = 0,
        strides: Sequence[int] | None = None,
    ) -> None:
        """Add a box of a tensor's elements, and their place in a memory.

        Args:
            tensor: Its name.
            shape: Of the whole tensor.
            start: The first index of each dimension.
            length: The number of indices of each dimension.
            memory: A number from `memory`.
            offset: The place of the box's first element in the memory, in elements.
            strides: Elements of the memory from one index to the next, for each dimension; None:
                row by row.

        Raises:
            InvalidArgumentError: The box exceeds its tensor or its memory.
        """
        _, tie = self._numbers.get(tensor, (-1, -1))
        number = self._end.add_tensor(tensor, tuple(shape), tie)
        self._numbers[tensor] = number, tie
        steps = row_major(length) if strides is None else strides
        self._end.add_box((number, memory, offset, tuple(start), tuple(length), tuple(steps)))

    def add(self, other: WeightLayout) -> None:
        """Add all of another layout, such as that of another rank."""
        self._end.add(other._end)
        self._count_tensors()

    def _count_tensors(self) -> None:
        tensors = enumerate(self._end.tensors())
        self._numbers = {name: (number, tie) for number, (name, _, tie) in tensors}

    def plan(
        self,
        engine: WeightLayout,
        *,
        devices: Sequence[int] = (),
        engine_devices: Sequence[int] = (),
    ) -> WeightPlan:
        """The copies from this layout, a trainer's, to an engine's: `WeightPlan.text` prints them.

        Args:
            engine: Its layout.
            devices: For each rank of the trainer the number of its device; default: rank r is on
                device r.
            engine_devices: The same for the engine.

        Raises:
            LayoutMismatchError: An element of the engine would come from nowhere, or two of its
                boxes share memory; the text names the tensor and the box.
        """
        padding, copies, traffic, tensors = self._end.plan(
            engine._end, list(devices), list(engine_devices)
        )
        return WeightPlan(
            copies,
            padding,
            tuple(Traffic(*one) for one in traffic),
            tuple(TensorBytes(*one) for one in tensors),
        )

    @property
    def hash(self) -> str:
        """Of the table: 32 hexadecimal digits."""
        return self._end.hash()

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each."""
        return [(name, shape) for name, shape, _ in self._end.tensors()]

    def dtypes(self) -> dict[str, str]:
        """The dtype of each tensor, by name: that of its boxes, or of those of the tensor that it
        is tied to. A tensor without either is left out.
        """
        tensors, memories = self._end.tensors(), self._end.memories()
        owners = [number if tie < 0 else tie for number, (_, _, tie) in enumerate(tensors)]
        found: dict[int, str] = {}
        for box in self._end.boxes():
            found.setdefault(owners[box[0]], memories[box[1]][2])
        return {
            name: found[owner]
            for owner, (name, _, _) in zip(owners, tensors, strict=True)
            if owner in found
        }

    @property
    def memories(self) -> list[tuple[int, str, str, int]]:
        """Rank, name, dtype and number of elements of each."""
        return self._end.memories()

    @property
    def boxes(self) -> list[dict[str, Any]]:
        """Of each: "tensor", "memory" (a number), "offset", "start", "length" and "strides"."""
        names = [name for name, _ in self.tensors]
        keys = ("tensor", "memory", "offset", "start", "length", "strides")
        return [
            dict(zip(keys, (names[box[0]], *box[1:]), strict=True)) for box in self._end.boxes()
        ]

    def __reduce__(self) -> Any:
        return WeightLayout.from_bytes, (self.to_bytes(),)

    @shown
    def __repr__(self) -> str:
        tensors, boxes = len(self.tensors), len(self._end.boxes())
        return f"<WeightLayout of {tensors} tensors in {boxes} boxes>"


class Traffic(NamedTuple):
    """From a trainer's rank to an engine's."""

    rank: int
    engine_rank: int
    local: bool  # on one device
    nbytes: int
    copies: int


class TensorBytes(NamedTuple):
    """Of one tensor."""

    name: str
    local: int
    remote: int


@dataclass(frozen=True)
class WeightPlan:
    """The bytes that move when an engine's layout is filled from a trainer's.

    Attributes:
        copies: The number of strided copies.
        padding: Elements of the engine's memories that no copy writes.
        traffic: For each pair of ranks its bytes and copies.
        tensors: For each tensor its bytes on one device, and between devices.
    """

    copies: int
    padding: int
    traffic: tuple[Traffic, ...]
    tensors: tuple[TensorBytes, ...]

    @property
    def local_bytes(self) -> int:
        """Bytes that stay on a device."""
        return sum(one.local for one in self.tensors)

    @property
    def remote_bytes(self) -> int:
        """Bytes that go from one device to another."""
        return sum(one.remote for one in self.tensors)

    def text(self, tensors: int = 10) -> str:
        """As a report: all pairs of ranks, and the tensors with the most bytes between devices.

        Args:
            tensors: The most of them to name.
        """
        lines = [
            f"{self.copies} copies, {self.local_bytes:,} bytes local, {self.remote_bytes:,} bytes "
            f"remote, {self.padding:,} elements of padding"
        ]
        for pair in self.traffic:
            where = "local" if pair.local else "remote"
            lines.append(
                f"  rank {pair.rank} to engine rank {pair.engine_rank}: {pair.nbytes:,} bytes "
                f"{where}, {pair.copies} copies"
            )
        moved = sorted((one for one in self.tensors if one.remote), key=lambda one: -one.remote)
        lines += [f"  {one.name}: {one.remote:,} bytes remote" for one in moved[:tensors]]
        if len(moved) > tensors:
            lines.append(f"  and {len(moved) - tensors} tensors more")
        return "\n".join(lines)

    @shown
    def __repr__(self) -> str:
        return f"<WeightPlan of {self.copies} copies, {self.remote_bytes:,} bytes remote>"
