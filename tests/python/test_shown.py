"""Every public class: `repr` never raises, and an object that cannot be pickled says what to send
instead."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group

CLASSES = [
    cls
    for module in (rr, rr.batches, rr.weights, rr.extras, rr.tap)
    for name in module.__all__
    if inspect.isclass(cls := getattr(module, name)) and not issubclass(cls, BaseException)
]


class World:
    """One object of every public class, in use; `end` gives all back."""

    def __init__(self, ring: str, folder: Path) -> None:
        self.stack = ExitStack()
        enter = self.stack.enter_context
        self.producer = producer = enter(rr.Producer(ring))
        stash = enter(rr.Stash(ring, batch_groups=1))
        tap = enter(rr.tap.Tap(ring))
        send_group(producer, 1)
        recorder = enter(rr.extras.record(stash, folder))
        tapped = tap.next()
        batch = stash.next(PATIENCE)
        recording = enter(rr.open_recording(folder))
        reader = enter(rr.Reader(ring))
        share = reader.open(batch.ticket(0, 1))
        self.draft = producer.reserve("draft", 4, group_size=1)
        board = enter(rr.RequestBoard(ring))
        worker = enter(rr.RequestBoard(ring))
        board.post({"prompt": 1})
        publisher = enter(rr.WeightPublisher(ring, {"w": np.zeros(4, np.float32)}))
        subscriber = enter(rr.WeightSubscriber(ring, {"w": np.ones(4, np.float32)}))
        publisher.wait_subscribers(1, PATIENCE)
        transaction = publisher.begin(1)
        transaction.put("w", timeout=PATIENCE)
        update = subscriber.next(PATIENCE)
        kept = f"{ring}-kept"
        rr.create(kept, lanes=1, lane_bytes="64KiB", ledger=folder / "ledger")
        self.stack.callback(rr.remove, kept, force=True)
        worker_of_kept = enter(rr.Producer(kept))
        worker_of_kept.park("parked", token_ids=[1])
        with rr.Stash(kept) as stash_of_kept:
            worker_of_kept.push("kept", token_ids=[1], repetition_id=0, group_size=2)
            with pytest.raises(rr.TimedOutError):
                stash_of_kept.next(0)
            stash_of_kept.sync_ledger()
        ledger = enter(rr.extras.open_ledger(folder / "ledger"))
        store = f"{ring}-store"
        self.stack.callback(rr.Store.remove, store, force=True)
        self.batch, self.share, self.update, self.transaction = batch, share, update, transaction
        self.request = worker.take(PATIENCE)
        made = [
            producer,
            stash,
            batch,
            batch.groups[0],
            batch.groups[0].members[0],
            batch.sequences[0],
            reader,
            share,
            share.sequences[0],
            self.draft,
            board,
            self.request,
            publisher,
            subscriber,
            transaction,
            update,
            enter(rr.RingQueue(lanes=2, lane_bytes="64KiB")),
            enter(rr.Store(store, capacity="1MiB", lanes=2)),
            rr.Column("f32"),
            rr.weights.WeightLayout(),
            rr.weights.WeightLayout().plan(rr.weights.WeightLayout()),
            rr.GatherColumn("token_ids"),
            rr.PlainCodec(),
            rr.PickleCodec(),
            rr.TrajectoryCodec(),
            rr.log(stash, print),
            recorder,
            recording,
            recording.read(0),
            recording.batches[0],
            tap,
            tapped,
            worker_of_kept.take_parked(),
            ledger,
            ledger[0],
        ]
        self.objects: list[Any] = made

    def end(self) -> None:
        self.draft.abandon()
        self.share.close()
        self.batch.ack()
        self.request.done()
        self.transaction.give_up("the test is over")
        self.stack.close()


@pytest.fixture
def world(ring: str, tmp_path: Path) -> Iterator[World]:
    made = World(ring, tmp_path)
    yield made
    made.stack.close()


# Made of a GPU, of others' memory, or by type checkers alone.
NOT_MADE_HERE = {
    rr.extras.LedgerStat,
    rr.extras.ParkedInfo,
    rr.extras.ParkedList,
    rr.extras.RestoreStat,
    rr.MemoryDomain,
    rr.WeightView,
    rr.Codec,
}


def test_every_public_class_is_tried(world: World) -> None:
    tried = {type(one) for one in world.objects}
    assert set(CLASSES) - NOT_MADE_HERE == tried
    world.end()


def test_repr_never_raises(world: World) -> None:
    for one in world.objects:
        assert type(one).__name__ in repr(one)
        assert "not in use" not in repr(one)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(repr(one) for one in world.objects) else 1)
    assert os.waitpid(child, 0)[1] == 0
    world.end()
    for one in world.objects:
        assert type(one).__name__ in repr(one)


@pytest.mark.filterwarnings("ignore:nanobind")  # which says so itself
@pytest.mark.parametrize(
    "cls",
    sorted(
        set(CLASSES)
        - {
            rr.Codec,
            rr.GatherColumn,
            rr.extras.KeptRecord,
            rr.extras.LedgerStat,
            rr.extras.ParkedInfo,
            rr.extras.ParkedList,
            rr.extras.RecordedInfo,
            rr.extras.RestoreStat,
        },
        key=str,
    ),
)
def test_repr_of_what_its_constructor_has_not_finished(cls: type) -> None:
    """pytest and debuggers show it where the constructor has raised: never so with a dataclass."""
    assert cls.__name__ in repr(cls.__new__(cls))


def test_what_cannot_be_pickled_says_what_to_send(world: World) -> None:
    for one in world.objects:
        try:
            data = pickle.dumps(one)
        except TypeError as refusal:
            what, _, remedy = str(refusal).partition(" cannot be pickled: ")
            assert what and remedy, f"{type(one).__name__}: {refusal}"
            with pytest.raises(TypeError, match="cannot be pickled: "):
                copy.copy(one)
            continue
        again = pickle.loads(data)
        assert type(again) is type(one)
        if hasattr(again, "close"):
            again.close()
    world.end()
