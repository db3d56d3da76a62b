"""Nous' torchtitan for test_torchtitan*.py: ranks as threads, and stand-ins with its fields."""

from __future__ import annotations

import math
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import rollring as rr
from rollring.integrations import torchtitan
from rollring.integrations.atropos._fields import records
from rollring.integrations.torchtitan import Settings, _handler

PATIENCE = 60.0
MASKED = -100


class Group:
    """Ranks that meet, and their values, pickled."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self._barrier = threading.Barrier(len(self.ranks))
        self._slots: dict[int, bytes] = {}
        self._calls: dict[int, str] = {}

    def meet(self, rank: int, call: str, value: Any) -> list[bytes]:
        """Ranks in different collectives would wait for ever."""
        self._slots[rank], self._calls[rank] = pickle.dumps(value), call
        self._barrier.wait(PATIENCE)
        found = [self._slots[one] for one in self.ranks]
        calls = set(self._calls.values())
        self._barrier.wait(PATIENCE)
        assert calls == {call}, f"the ranks are in {calls}"
        return found


class World:
    """torch.distributed, of threads: their messages to each other are pickled."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._all = Group(range(ranks))
        self._here = threading.local()
        self._sent: dict[tuple[int, int], queue.Queue[bytes]] = {
            (source, target): queue.Queue() for source in range(ranks) for target in range(ranks)
        }

    def get_rank(self) -> int:
        return int(self._here.rank)

    def get_world_size(self) -> int:
        return self.ranks

    def get_process_group_ranks(self, group: Group) -> list[int]:
        return group.ranks

    def meet(self, call: str, value: Any = None, group: Group | None = None) -> list[bytes]:
        """The value of each rank, pickled."""
        return (group or self._all).meet(self.get_rank(), call, value)

    def send(self, tensor: Any, target: int, group: Group) -> None:
        self._sent[self.get_rank(), target].put(pickle.dumps(tensor))

    def recv(self, tensor: Any, source: int, group: Group) -> None:
        tensor.copy_(pickle.loads(self._sent[source, self.get_rank()].get(timeout=PATIENCE)))

    def barrier(self) -> None:
        self.meet("barrier")

    def broadcast_object_list(self, values: list[Any], source: int) -> None:
        values[:] = pickle.loads(self.meet("broadcast_object_list", values)[source])

    def all_gather_object(self, into: list[Any], value: Any, group: Group | None = None) -> None:
        into[:] = map(pickle.loads, self.meet("all_gather_object", value, group))

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Its result on each rank; a rank that fails gives its error."""

        def one(rank: int) -> Any:
            self._here.rank = rank
            try:
                return work(rank)
            except Exception as error:
                return error

        with ThreadPoolExecutor(self.ranks) as threads:
            return list(threads.map(one, range(self.ranks)))


def rows_of_step(tokens: int, local: int, accumulated: int, seq_len: int, parts: int) -> Any:
    """Rows of a batch and batches of a rank: as many rows, a power of two, as there is room for."""
    rows = min(local * seq_len // tokens, local * accumulated // parts) // local
    rows = 2 ** int(math.log2(rows)) * local
    return rows, local * accumulated // rows


class OnlineDataHandler:
    """The fields that are read, and the method that stays."""

    def __init__(self, metrics_rank: int = 0) -> None:
        self.metrics_rank = metrics_rank
        self.server_url = "http://localhost:8000"
        self.registered: list[tuple[str, int, int]] = []

    def register_atropos(self, job_config: Any, step: int, global_batch_size: int) -> None:
        self.registered.append((self.server_url, step, global_batch_size))

    def data_handling(self, *_: Any) -> None:
        raise AssertionError("its own REST client was called")


def stand_in(patch: pytest.MonkeyPatch, world: World, waits: list[Any]) -> Any:
    """torchtitan.grpo.data_handling, and torch.distributed. Their classes are new each time."""
    theirs: Any = ModuleType("torchtitan.grpo.data_handling")
    theirs.OnlineDataHandler = type("OnlineDataHandler", (), dict(vars(OnlineDataHandler)))
    theirs.get_dynamic_batch_gas = lambda local, accumulated, seq_len, tokens, parts: rows_of_step(
        tokens, local, accumulated, seq_len, parts
    )
    theirs.send_wait = lambda group, device: waits.append(group)
    requests: Any = ModuleType("requests")
    requests.ConnectionError = type("ConnectionError", (OSError,), {})
    for name, module in {
        "torchtitan": ModuleType("torchtitan"),
        "torchtitan.grpo": ModuleType("torchtitan.grpo"),
        "torchtitan.grpo.data_handling": theirs,
        "torch.distributed": world,
        "requests": requests,
    }.items():
        patch.setitem(sys.modules, name, module)
    return theirs


def config(
    batch: int, *, seq_len: int = 256, local: int = 1, parts: int = 1, scale: bool = False
) -> Any:
    return SimpleNamespace(
        training=SimpleNamespace(
            global_batch_size=batch, local_batch_size=local, seq_len=seq_len, steps=100
        ),
        checkpoint=SimpleNamespace(enable=True, load_only=False, folder="checkpoint", interval=1),
        grpo=SimpleNamespace(scale_adv_by_len=scale, num_microbatches=parts),
    )


# --- groups as environments of Atropos make them, and as its own client converts them


def group_of(seed: int, size: int = 4, longest: int = 150, logprobs: bool = True) -> Any:
    chance = np.random.default_rng(seed)
    lengths = chance.integers(20, longest, size)
    tokens = [chance.integers(1, 2000, n).tolist() for n in lengths]
    made: dict[str, Any] = {
        "tokens": tokens,
        "masks": [[MASKED] * 5 + ids[5:] for ids in tokens],
        "scores": chance.integers(0, 3, size).astype(float).tolist(),
        "inference_logprobs": None,
        "overrides": None,
    }
    if logprobs:
        made["inference_logprobs"] = [
            [1.0] * 5 + (-chance.random(n - 5).astype(np.float32)).astype(float).tolist()
            for n in lengths
        ]
    return made


def push(producer: rr.Producer, group: Any, number: int) -> None:
    for record in records(group, f"g/{number}", 0):
        producer.push(record.pop("instance_id"), timeout=PATIENCE, **record)


def advantages_of(group: Any, scale: bool) -> list[float]:
    trained = [sum(each != MASKED for each in mask) for mask in group["masks"]]
    scores = np.array(group["scores"])
    if scale:
        scores = scores * np.array(trained, float)
    if len(scores) > 1:
        scores = scores - scores.mean()
        scores = scores / max(scores.std(), 1e-8)
    zeroed = group["overrides"] or [{}] * len(scores)
    return [
        0.0 if each.get("set_advantage_to_zero") else float(score)
        for score, each in zip(scores, zeroed, strict=True)
    ]


def rounded(tokens: int, cp: int) -> int:
    return math.ceil((tokens - 1) / (64 * cp)) * 64 * cp


def expected(
    groups: Sequence[Any], cp: int, buckets: int, *, scale: bool = False, aligned: bool = False
) -> tuple[list[Any], int, list[int]]:
    """Each row of a step in its order, the tokens of a row, and the rows' own rounded lengths."""
    sequences = []
    for group in groups:
        for member, score in enumerate(advantages_of(group, scale)):
            logprobs = group["inference_logprobs"]
            sequences.append(
                (
                    group["tokens"][member],
                    group["masks"][member],
                    None if logprobs is None else logprobs[member],
                    score,
                )
            )
    longest = max(rounded(len(one[0]), cp) for one in sequences)
    by_length = sorted(sequences, key=lambda one: rounded(len(one[0]), cp), reverse=True)
    in_order = [one for bucket in range(buckets) for one in by_length[bucket::buckets]]
    rows = []
    for tokens, mask, logprobs, score in in_order:
        rest = longest + 1 - len(tokens)
        labels = [*tokens, *[MASKED] * rest][1:]
        trained = [int(each != MASKED) for each in [*mask, *[MASKED] * rest]][1:]
        if logprobs is None:
            inferred = [1.0] * (longest + 1)
        else:
            inferred = [*logprobs, *[0.0] * rest]
            inferred = inferred[1:] if aligned else inferred[:-1]
        rows.append(([*tokens, *[0] * rest][:-1], labels, trained, inferred, score))
    return rows, longest, [rounded(len(one[0]), cp) for one in in_order]


class Place(NamedTuple):
    """A rank's part of each step, and the replica of the model that it belongs to."""

    part: int
    replica: int = 0


def taken(
    handler: Any, place: Place, dp: int, settings: Any, step: int, group: Any = None, cp: int = 1
) -> Any:
    """A rank's part of a step, as its trainer slices it; each batch as five lists of rows."""
    rank = place.part
    batches, longest, rows, count, lengths, *_ = handler.data_handling(
        group, cp, dp, place.replica, None, settings, step
    )
    mine = batches[rank * count : (rank + 1) * count]
    assert all(array.shape[0] == rows for batch in mine for array in batch)
    found = [row for batch in mine for row in zip(*(a.tolist() for a in batch), strict=True)]
    return found, longest, lengths


class Trial:
    """A torchtitan of some ranks over a ring; each has a part of its own unless `places` says."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        ring: str,
        ranks: int,
        *,
        places: Sequence[Place] = (),
        metrics_rank: int = 0,
        **settings: Any,
    ) -> None:
        self.world, self.waits = World(ranks), list[Any]()
        self.places = places or [Place(rank) for rank in range(ranks)]
        self.theirs = stand_in(patch, self.world, self.waits)
        self.settings = Settings(ring=ring, **settings)
        torchtitan.install(self.settings)
        self.handlers = [self.theirs.OnlineDataHandler(metrics_rank) for _ in range(ranks)]

    def rollouts(self, rank: int) -> Any:
        return _handler.rollouts_of(self.handlers[rank], self.settings)

    def step(self, step: int, settings: Any, *, cp: int = 1, group: Any = None) -> list[Any]:
        """The batch that each rank trains on: rows, tokens of a row, lengths of all rows; or its
        error."""
        parts = len({place.part for place in self.places})

        def one(rank: int) -> Any:
            return taken(self.handlers[rank], self.places[rank], parts, settings, step, group, cp)

        return self.world.run(one)

    def rows(self, step: int, settings: Any, **given: Any) -> list[Any]:
        return [row for rows, _, _ in self.step(step, settings, **given) for row in rows]

    def die(self) -> None:
        """Nothing is acknowledged."""
        for handler in self.handlers:
            _handler.rollouts_of(handler, self.settings).close()


@contextmanager
def trials(patch: pytest.MonkeyPatch, ring: str) -> Iterator[Callable[..., Trial]]:
    """Makes them; each is dead at the end."""
    made: list[Trial] = []

    def make(ranks: int = 2, **settings: Any) -> Trial:
        made.append(Trial(patch, ring, ranks, **settings))
        return made[-1]

    yield make
    for one in made:
        one.die()


def send(producer: rr.Producer, count: int, first: int = 0, **given: Any) -> list[Any]:
    groups = [group_of(first + number, **given) for number in range(count)]
    for number, group in enumerate(groups):
        push(producer, group, first + number)
    return groups
