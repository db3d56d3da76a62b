"""Weights of torchtitan's trainer without a gather: each rank publishes the shards that it has."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from ... import WeightPublisher
from ...errors import UnsupportedError
from ...weights import WeightLayout
from ._parameters import Parameters
from ._pipeline import Pipeline
from ._ranks import distributed, failing_together, failing_with_any, told
from ._rollouts import ring_of
from ._settings import Settings

_SHORT = {"bfloat16": "bf16", "float16": "f16"}  # layouts know dtypes by these names


class Tensor(NamedTuple):
    """Of Hugging Face, with the values of one parameter.

    Attributes:
        name: Its own.
        shape: Of the whole tensor, which is also that of the parameter.
        order: For each of its rows that of the parameter with the same values; None: the same row.
    """

    name: str
    shape: tuple[int, ...]
    order: list[int] | None


class Rows(NamedTuple):
    """Rows of a tensor that lie at equal distances in a shard of the parameter."""

    first: int
    number: int
    place: int  # of the first one in the shard
    step: int


def tensor_of(parameters: Parameters, name: str, shape: Sequence[int]) -> Tensor | None:
    """The tensor that a parameter becomes; None: engines do not know it (a tied one). Only a call
    of torchtitan's adapter shows that: rows of the parameter are numbered, and found again.

    Raises:
        UnsupportedError: It becomes several tensors (experts), or is more than ordered by rows.
    """
    torch: Any = importlib.import_module("torch")
    described = torch.empty(tuple(shape), device="meta")
    named = parameters.named(name, described)
    if not named:
        return None
    refusal = UnsupportedError(
        f"parameter '{name}' becomes {', '.join(sorted(named))} for engines, by more than an "
        "order of its rows",
        "unsupported",
    )
    if len(named) != 1:
        raise refusal
    ((theirs, made),) = named.items()
    if made is described:
        return Tensor(theirs, tuple(shape), None)
    if tuple(made.shape) != tuple(shape):
        raise refusal
    numbers = torch.arange(math.prod(shape)).view(tuple(shape))
    found = parameters.named(name, numbers)[theirs].reshape(shape[0], -1)
    order = found[:, :1] // found.shape[1]
    if not torch.equal(found, order * found.shape[1] + torch.arange(found.shape[1])):
        raise refusal
    return Tensor(theirs, tuple(shape), order.view(-1).tolist())


def rows_between(order: Sequence[int], start: int, stop: int) -> list[Rows]:
    """Rows of a tensor whose values are in the parameter's rows from start to stop."""
    made: list[Rows] = []
    for row, source in enumerate(order):
        if not start <= source < stop:
            continue
        place, last = source - start, made[-1] if made else None
        if last is not None and last.first + last.number == row:
            step = place - last.place if last.number == 1 else last.step
            if step > 0 and place == last.place + last.number * step:
                made[-1] = last._replace(number=last.number + 1, step=step)
                continue
        made.append(Rows(row, 1, place, 1))
    return made


class Places:
    """Where the values of one rank's shards are in the tensors that engines know.

    Attributes:
        layout: All tensors of its stages, and its boxes.
        names: The parameters of which it publishes a shard.
    """

    def __init__(self, parameters: Parameters, rank: int, publish_as: str) -> None:
        self.layout = WeightLayout()
        self.names: list[str] = []
        self._rank, self._publish_as = rank, publish_as
        for turn, (name, parameter) in enumerate(parameters.own()):
            tensor = tensor_of(parameters, name, parameter.shape)
            if tensor is None:
                continue
            self.layout.tensor(tensor.name, tensor.shape)
            if is_its_turn(parameter, turn):
                self._add(name, parameter, tensor)

    def _add(self, name: str, parameter: Any, tensor: Tensor) -> None:
        held = WeightLayout.of({name: parameter}, self._rank)
        if not held.boxes:  # more ranks than rows
            return
        (box,), ((_, _, dtype, elements),) = held.boxes, held.memories
        if dtype == "f32" and self._publish_as:
            dtype = _SHORT.get(self._publish_as, self._publish_as)
        memory = self.layout.memory(name, rank=self._rank, dtype=dtype, elements=elements)
        self.names.append(name)
        start, length, strides = box["start"], box["length"], box["strides"]
        if tensor.order is None:
            self.layout.box(tensor.name, tensor.shape, start=start, length=length, memory=memory)
            return
        for rows in rows_between(tensor.order, start[0], start[0] + length[0]):
            self.layout.box(
                tensor.name,
                tensor.shape,
                start=(rows.first, *start[1:]),
                length=(rows.number, *length[1:]),
                memory=memory,
                offset=rows.place * strides[0],
                strides=(rows.step * strides[0], *strides[1:]),
            )


def is_its_turn(parameter: Any, turn: int) -> bool:
    """Whether this rank publishes its part: ranks that have the same one take turns. A parameter
    without a mesh goes out from each rank that has it.
    """
    if not hasattr(parameter, "placements"):
        return True
    mesh, mine, replicas = parameter.device_mesh, 0, 1
    for dim, placement in enumerate(parameter.placements):
        if placement.is_replicate():
            mine = mine * mesh.size(dim) + mesh.get_coordinate()[dim]
            replicas *= mesh.size(dim)
    return turn % replicas == mine


class Shards:
    """This rank's shards, as vLLM's trainer takes them (its `ShardSource`).

    Attributes:
        layout: Of `Places`.

    Raises:
        UnsupportedError: As `tensor_of`.
    """

    def __init__(self, trainer: Any, publish_as: str) -> None:
        self._parameters = Parameters(trainer)
        # Of two stages with a parameter of one name, engines would take either.
        Pipeline(trainer).collect(self._parameters.own())
        places = Places(self._parameters, distributed().get_rank(), publish_as)
        self.layout, self._names = places.layout, set(places.names)

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each."""
        return [
            SimpleNamespace(name=name, dtype=local.dtype, shape=tuple(local.shape))
            for name, local in self
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """As they are now: the trainer may have put them elsewhere."""
        for name, parameter in self._parameters.own():
            if name in self._names:
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                yield name, local.detach().contiguous()


def ring_on_all(trainer: Any, settings: Settings) -> str:
    """The ring, of which one rank knows. Every rank calls it."""
    ring = ""
    with failing_together(trainer.metrics_rank):
        if distributed().get_rank() == trainer.metrics_rank:
            url = settings.server.rstrip("/") or trainer.data_handler.server_url
            ring = ring_of(settings, url)
    return str(told(ring, trainer.metrics_rank))


class ShardSender:
    """One rank's side: all of them publish, and a version is committed on all or on none."""

    def __init__(self, trainer: Any, settings: Settings, deadline_s: float) -> None:
        self._first, self._deadline_s = trainer.metrics_rank, deadline_s
        ring = ring_on_all(trainer, settings)
        with failing_with_any():
            self._shards = self._made(trainer, settings.publish_as)
            self._publisher = self._published(ring, settings.publish_as, trainer.device.type)
            self._publisher.wait_subscribers(settings.engines, timeout=deadline_s)

    def _made(self, trainer: Any, publish_as: str) -> Shards:
        try:
            return Shards(trainer, publish_as)
        except UnsupportedError as error:
            raise UnsupportedError(
                f'{error}: say {{"weights": "channel"}}, which gathers', error.code
            ) from error

    def _published(self, ring: str, publish_as: str, device: str) -> WeightPublisher:
        torch: Any = importlib.import_module("torch")
        described = {
            one.name: torch.empty(one.shape, dtype=one.dtype, device="meta")
            for one in self._shards.metadata()
        }
        cast = {
            name: publish_as
            for name, local in described.items()
            if local.dtype == torch.float32 and publish_as
        }
        here = distributed().get_rank()
        return WeightPublisher(
            ring,
            described,
            name=f"torchtitan-{here}",
            rank=here,
            ranks=distributed().get_world_size(),
            layout=self._shards.layout,
            device=device,
            publish_as=cast,
        )

    def send(self, step: int) -> None:
        """The weights as they are now. On every rank; all engines have agreed to serve them when
        this returns, and copy them from the slots.

        Raises:
            RollringError: An engine could not take them, or a rank has failed.
        """
        number = told(max(step, self._publisher.next_version), self._first)
        with failing_with_any(), self._publisher.begin(number) as version:
            for name, local in self._shards:
                version.put(name, local, timeout=self._deadline_s)
            version.commit(timeout=self._deadline_s)
