"""The weight channel: versions whole in every engine, and errors that name the process and the
cause."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from typing import Any

import numpy as np
import pytest

import rollring as rr
import weights_children
from conftest import PATIENCE, Children, send_group
from weights_children import fill, model, publish_beside

SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.parametrize("options", [{}, {"in_place": False}])
def test_every_engine_holds_each_version_whole(
    ring: str, children: Children, options: dict[str, Any]
) -> None:
    last = 50
    tensors = model()
    # Smaller than a version: it streams through them.
    with rr.WeightPublisher(ring, tensors, slots=2, slot_bytes=1 << 20, checksums=True) as trainer:
        for name in ("engine-0", "engine-1"):
            children.start(weights_children.serve, ring, name, last, options, children.seen)
        trainer.wait_subscribers(2, PATIENCE)
        for version in range(1, last + 1):
            fill(tensors, version)
            report = trainer.publish(version, PATIENCE)
            assert report["version"] == version and report["subscribers"] == 2
            assert report["payload_bytes"] >= trainer.payload_bytes > 4 << 20
            assert trainer.committed_version == version
        found: dict[str, list[int]] = {}
        for _ in range(2 * last):
            name, version, held = children.next()
            assert held == version
            found.setdefault(name, []).append(version)
    assert found == dict.fromkeys(("engine-0", "engine-1"), list(range(1, last + 1)))


def test_a_version_is_stamped_on_what_is_pushed_after_it(ring: str) -> None:
    with (
        rr.WeightPublisher(ring, {"w": np.zeros(4, np.float32)}) as trainer,
        rr.Producer(ring) as producer,
        rr.Stash(ring, batch_groups=1) as stash,
    ):
        for version in (3, 7):
            assert trainer.publish(version)["subscribers"] == 0
            send_group(producer, version)
            with stash.next(PATIENCE) as batch:
                assert batch.policy_versions.tolist() == [version] * 2
        with pytest.raises(rr.StaleVersionError):
            trainer.publish(7)
        assert trainer.committed_version == 7


def test_rounded_on_the_way(ring: str) -> None:
    sent = np.array([1.0, 1 + 2**-12, 3.14159], np.float32)
    engines = np.zeros(3, np.float16)
    with (
        rr.WeightPublisher(ring, {"w": sent}, publish_as={"w": np.float16}) as trainer,
        rr.WeightSubscriber(ring, {"w": engines}) as engine,
    ):
        assert engine.tensors == [("w", "f16", (3,))]
        publish_beside(trainer, engine, 1)
    assert engines.tolist() == sent.astype(np.float16).tolist()


def test_what_differs_is_named(ring: str) -> None:
    with rr.WeightPublisher(ring, model()) as trainer:
        for name, other in (
            ("bias", np.zeros(18, np.float16)),
            ("bias", np.zeros(17, np.float32)),
            ("nowhere", np.zeros(1, np.float32)),
        ):
            with pytest.raises(rr.LayoutMismatchError, match=name):
                rr.WeightSubscriber(ring, {**model(), name: other})
        with pytest.raises(rr.LayoutMismatchError, match="embed"):
            rr.WeightSubscriber(ring, {"bias": np.zeros(17, np.float16)})
        with rr.WeightSubscriber(ring, {"bias": np.zeros(17, np.float16)}, partial=True) as engine:
            assert [name for name, _, _ in engine.tensors] == list(model())
            with pytest.raises(rr.BusyError):
                rr.WeightSubscriber(ring, model())  # the same name
            with pytest.raises(rr.BusyError):
                rr.WeightPublisher(ring, model())
        assert trainer.committed_version == -1 and trainer.behind == 0


def test_an_engine_refuses_and_the_trainer_is_told_why(ring: str, children: Children) -> None:
    tensors = model(5)
    with rr.WeightPublisher(ring, tensors) as trainer:
        children.start(weights_children.refuse_once, ring, children.seen)
        trainer.wait_subscribers(1, PATIENCE)
        with pytest.raises(rr.RejectedError, match=r"picky.*ValueError: rope_theta") as caught:
            trainer.publish(5, PATIENCE)
        assert isinstance(caught.value, rr.VersionError)
        assert pickle.loads(pickle.dumps(caught.value)).code == "rejected"
        assert children.next() == ("picky", -1, "ready")
        fill(tensors, 6)
        assert trainer.publish(6, PATIENCE)["subscribers"] == 1
        assert children.next() == ("picky", 6, 6)


def test_a_killed_engine_is_not_waited_for(ring: str, children: Children) -> None:
    tensors = model()
    with rr.WeightPublisher(ring, tensors) as trainer:
        dies = children.start(weights_children.stop_while_it_reads, ring, children.seen)
        trainer.wait_subscribers(1, PATIENCE)
        children.start(weights_children.serve, ring, "lives", 3, {}, children.seen)
        trainer.wait_subscribers(2, PATIENCE)
        fill(tensors, 1)
        with pytest.raises(rr.TimedOutError, match="stuck"):
            trainer.publish(1, 1.0)
        dies.kill()
        dies.join()
        fill(tensors, 3)
        assert trainer.publish(3, PATIENCE)["subscribers"] == 1
        found = [children.next() for _ in range(2)]
    assert sorted(found) == [("lives", 3, 3), ("stuck", 1, 1)]


def test_a_stuck_engine_can_be_left_behind(ring: str, children: Children) -> None:
    tensors = model()
    with rr.WeightPublisher(ring, tensors) as trainer:
        stuck = children.start(weights_children.stop_while_it_reads, ring, children.seen)
        trainer.wait_subscribers(1, PATIENCE)
        fill(tensors, 1)
        with pytest.raises(TimeoutError, match="stuck"):
            trainer.publish(1, 0.5)
        trainer.expel("stuck")
        with pytest.raises(KeyError):
            trainer.expel("stuck")
        assert trainer.publish(2, PATIENCE)["subscribers"] == 0
        assert children.next() == ("stuck", 1, 1)
        os.kill(stuck.pid, signal.SIGCONT)
        assert children.next() == ("stuck", "VersionAbortedError", 0)
        assert children.next() == ("stuck", "ExpelledError", 0)


def test_engines_hear_that_the_trainer_is_gone(ring: str, children: Children) -> None:
    for name in ("a", "b"):
        children.start(weights_children.serve_until_gone, ring, name, children.seen)
    dies = children.start(weights_children.publish_and_die, ring)
    dies.join(PATIENCE)
    assert dies.exitcode == -signal.SIGKILL
    ends = {}
    while len(ends) < 2:
        name, what, held = children.next()
        if what == "PeerGoneError":
            ends[name] = held
        else:
            assert what == held == 1
    assert 1 in ends.values() and set(ends.values()) <= {1, -1}


@pytest.mark.parametrize("end", ["engine comes", "version comes", "trainer comes"])
def test_ctrl_c_ends_a_wait(ring: str, children: Children, end: str) -> None:
    ready = SPAWN.Event()
    with rr.WeightPublisher(ring, model()) if end == "version comes" else _nothing():
        child = children.start(weights_children.wait_for_ctrl_c, ring, end, ready)
        assert ready.wait(PATIENCE)
        os.kill(child.pid, signal.SIGINT)
        child.join(PATIENCE)
    assert child.exitcode == 42


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *why: object) -> None: ...


def test_what_cannot_be_sent_or_written_is_refused(ring: str) -> None:
    good = np.zeros(4, np.float32)
    for tensors, kind, match in (
        ({"w": [1.0]}, TypeError, "'w' is list"),
        ({"w": good.astype(">f4")}, rr.InvalidArgumentError, "byte order of tensor 'w'"),
        ({"w": np.zeros(2, "f4,i1")["f0"]}, rr.InvalidArgumentError, "'w'.*strides"),
        ({"w": np.zeros(2, complex)}, rr.UnsupportedError, "complex"),
        ({}, rr.InvalidArgumentError, "no tensors"),
        ({"": good}, rr.InvalidArgumentError, "a name must have 1 to"),
        ({3: good}, TypeError, "names must be text"),
    ):
        with pytest.raises(kind, match=match):
            rr.WeightPublisher(ring, tensors)
    with pytest.raises(rr.InvalidArgumentError, match="publish_as.*'v'"):
        rr.WeightPublisher(ring, {"w": good}, publish_as={"v": "bf16"})
    with pytest.raises(rr.UnsupportedError, match="w"):
        rr.WeightPublisher(ring, {"w": np.zeros(3, np.int32)}, publish_as={"w": "bf16"})
    with pytest.raises(rr.InvalidArgumentError, match="slots"):
        rr.WeightPublisher(ring, {"w": good}, slots="two")
    with pytest.raises(rr.InvalidArgumentError, match="memory.*automatic"):
        rr.WeightPublisher(ring, {"w": good}, memory="gpu")
    with pytest.raises(rr.RingNotFoundError):
        rr.WeightPublisher(ring + "-none", {"w": good})
    with pytest.raises(KeyError):
        rr.WeightSubscriber(ring + "-none", {"w": good}, timeout=0.01)
    with pytest.raises(TimeoutError):
        rr.WeightSubscriber(ring, {"w": good}, timeout=0.01)
    good.flags.writeable = False
    with (
        rr.WeightPublisher(ring, {"w": good}),
        pytest.raises(rr.InvalidArgumentError, match="'w' is read-only"),
    ):
        rr.WeightSubscriber(ring, {"w": good})


def test_ends_close_once_and_do_not_travel(ring: str) -> None:
    tensors = model()
    trainer = rr.WeightPublisher(ring, tensors)
    engine = rr.WeightSubscriber(ring, model())
    for end in (trainer, engine):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(end)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for use in (lambda: trainer.publish(1), lambda: engine.next(0)):
                with pytest.raises(rr.ForkedError):
                    use()
            trainer.close()
            engine.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    publish_beside(trainer, engine, 1)  # the child's end was not theirs
    for end in (engine, trainer):
        end.close()
        end.close()
        assert end.closed and "closed" in repr(end)
    for use in (lambda: trainer.publish(2), lambda: engine.next(0), lambda: engine.live_version):
        with pytest.raises(rr.ClosedError):
            use()


def test_an_update_is_over_once_another_is_asked_for(ring: str) -> None:
    tensors = model(1)
    with (
        rr.WeightPublisher(ring, tensors) as trainer,
        rr.WeightSubscriber(ring, model(-7)) as engine,
    ):
        outcome: queue.Queue[Any] = queue.Queue()

        def send(version: int) -> threading.Thread:
            def run() -> None:
                try:
                    outcome.put(trainer.publish(version, PATIENCE))
                except rr.RollringError as error:
                    outcome.put(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        thread = send(1)
        first = engine.next(PATIENCE)
        first.load()
        first.reject("not now", "bias")
        thread.join()
        error = outcome.get()
        assert isinstance(error, rr.RejectedError)
        assert "not now" in str(error) and "bias" in str(error)
        thread = send(2)
        second = engine.next(PATIENCE)
        with pytest.raises(rr.VersionAbortedError):
            first.load()
        second.finish(PATIENCE)
        second.reject("too late")  # it is over
        thread.join()
        assert outcome.get()["version"] == engine.live_version == 2


@pytest.mark.parametrize("stays", [0, 1])
def test_a_rejection_outlives_the_engine_that_made_it(ring: str, stays: int) -> None:
    """Whether others have the version or not: all engines serve it, or none."""
    with rr.WeightPublisher(ring, model(1)) as trainer:
        others = [rr.WeightSubscriber(ring, model(-7), name=f"other{n}") for n in range(stays)]
        engine = rr.WeightSubscriber(ring, model(-7), name="first")
        with pytest.raises(rr.RejectedError, match="'first'.*not now"), trainer.begin(1) as version:
            version.put_rest(PATIENCE)
            update = engine.next(PATIENCE)
            update.load(PATIENCE)
            update.reject("not now")
            engine.close()
            engine = rr.WeightSubscriber(ring, model(-7), name="first")  # where it was
            version.commit(PATIENCE)
        assert trainer.committed_version == -1
        for one in (engine, *others):
            one.close()
        assert trainer.publish(2, PATIENCE)["subscribers"] == 0  # it was of one version alone


def test_what_is_dropped_is_over(ring: str) -> None:
    with (
        rr.WeightPublisher(ring, model(1)) as trainer,
        rr.WeightSubscriber(ring, model(-7)) as engine,
    ):
        outcome: queue.Queue[Any] = queue.Queue()

        def send() -> None:
            try:
                outcome.put(trainer.publish(1, PATIENCE))
            except rr.RollringError as error:
                outcome.put(error)

        thread = threading.Thread(target=send)
        thread.start()
        update = engine.next(PATIENCE)
        assert update.version == 1
        del update
        assert isinstance(outcome.get(timeout=PATIENCE), rr.RejectedError)
        thread.join()
        dropped = trainer.begin(2)
        with pytest.raises(rr.BusyError):
            trainer.begin(3)
        del dropped
        publish_beside(trainer, engine, 3)


def test_a_version_counts_once_it_is_decided(ring: str) -> None:
    values = {"w": np.arange(6, dtype=np.float32)}
    with rr.WeightPublisher(ring, values) as publisher:
        with publisher.begin(1) as transaction:
            assert transaction.decide(timeout=PATIENCE)["version"] == 1
            assert publisher.committed_version == 1
            with pytest.raises(rr.errors.BusyError):
                publisher.begin(2)
        with publisher.begin(2) as transaction:
            asyncio.run(transaction.decide_async(PATIENCE))
            assert transaction.commit()["version"] == publisher.committed_version == 2


def test_the_next_version_is_above_all_that_the_ring_has_had(ring: str) -> None:
    with rr.WeightPublisher(ring, model(1)) as trainer:
        assert trainer.next_version == 0
        trainer.publish(6)
        assert trainer.next_version == 7
        with pytest.raises(ZeroDivisionError), trainer.begin(9):
            raise ZeroDivisionError
        assert trainer.next_version == 10
        with pytest.raises(rr.StaleVersionError):
            trainer.begin(9)
    with rr.WeightPublisher(ring, model(1)) as successor:
        assert (successor.committed_version, successor.next_version) == (-1, 7)
        successor.publish(successor.next_version)


def test_without_a_gpu_a_memory_domain_says_why() -> None:
    if not (why := rr._core.why_no_gpu()):
        pytest.skip("there is one")
    with pytest.raises(rr.NoGpuError) as told:
        rr.MemoryDomain(0)
    assert why in str(told.value)


def test_a_version_that_one_engine_never_looked_at_is_over_for_it(ring: str) -> None:
    """It was given up with all slots full. The next one wants them before that engine comes."""

    def tensors() -> dict[str, Any]:
        return {"wide": np.zeros(1 << 20, np.float32)}

    def take(engine: rr.WeightSubscriber) -> None:
        with engine.next(PATIENCE):
            pass

    with (
        rr.WeightPublisher(ring, tensors(), slot_bytes=1 << 18) as trainer,
        rr.WeightSubscriber(ring, tensors(), name="first") as first,
        rr.WeightSubscriber(ring, tensors(), name="second") as second,
    ):
        given_up = trainer.begin(1)
        with pytest.raises(rr.TimedOutError, match="freed a slot"):
            given_up.put("wide", timeout=0)
        given_up.give_up()
        with trainer.begin(2) as transaction:
            with pytest.raises(rr.TimedOutError, match="freed a slot"):
                transaction.put("wide", timeout=0)
            threads = [threading.Thread(target=take, args=(one,)) for one in (first, second)]
            for thread in threads:
                thread.start()
            transaction.commit(PATIENCE)
        for thread in threads:
            thread.join()
        assert first.live_version == second.live_version == 2
