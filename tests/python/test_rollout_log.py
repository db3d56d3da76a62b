"""rr.log with a function as its destination; tests/frameworks/test_loggers.py has the others."""
import logging
from types import SimpleNamespace

import numpy as np
import pytest

import rollring as rr
from rollring import _stash, _waits


def push(ring, groups, version=-1, flat=()):
    with rr.Producer(ring) as producer:
        for group in groups:
            for member in range(4):
                producer.push(f"q{group}", token_ids=np.arange(member + 1, dtype=np.int32),
                              group_size=4, repetition_id=member, policy_version=version,
                              reward=1.0 if group in flat else float(member))


def test_numbers_of_each_batch(ring):
    told = []
    push(ring, range(4), flat=(3,))
    with rr.Stash(ring, batch_groups=2) as stash:
        rr.log(stash, lambda values, step: told.append((step, values)))
        for _ in range(2):
            with stash.next(timeout=10):
                pass
    assert [step for step, _ in told] == [0, 1]
    first, second = (values for _, values in told)
    assert first["rollring/groups"] == 2 and first["rollring/sequences"] == 8
    assert first["rollring/tokens"] == 20 and first["rollring/tokens_per_second"] > 0
    assert first["rollring/reward/mean"] == 1.5 and first["rollring/reward/max"] == 3
    assert first["rollring/reward/std"] == pytest.approx(np.std([0, 1, 2, 3]))
    assert first["rollring/length/mean"] == 2.5 and first["rollring/length/max"] == 4
    assert first["rollring/flat_groups"] == 0 and second["rollring/flat_groups"] == 0.5
    assert "rollring/staleness/mean" not in first  # no version is committed
    assert 0 <= first["rollring/wait_share"] <= 1 and "rollring/open_groups" in first


def test_several_batches_a_report_and_the_rest_at_the_end(ring):
    told = []
    push(ring, range(3))
    with rr.Stash(ring, batch_groups=1) as stash:
        log = rr.log(stash, [lambda values, step: told.append((step, values))], every=2, prefix="")
        for _ in range(3):
            with stash.next(timeout=10):
                pass
        assert [(step, values["batches"]) for step, values in told] == [(1, 2)]
        log.flush()
        log.flush()
    assert [(step, values["batches"]) for step, values in told] == [(1, 2), (2, 1)]


def test_drops_are_counted_since_the_last_report(ring):
    told = []
    with rr.Stash(ring, batch_groups=1, zero_variance="drop") as stash:
        rr.log(stash, lambda values, step: told.append(values))
        for groups in (range(3), range(3, 5)):
            push(ring, groups, flat=(0, 1, 3))
            with stash.next(timeout=10):
                pass
    assert [values["rollring/dropped/zero_variance"] for values in told] == [8, 4]


def test_versions_behind_the_committed_one(ring):
    told = []
    weights = {"w": np.zeros(4, np.float32)}
    with rr.WeightPublisher(ring, weights) as publisher, rr.Stash(ring, batch_groups=2) as stash:
        rr.log(stash, lambda values, step: told.append(values))
        publisher.publish(5)
        push(ring, [0], version=2)
        push(ring, [1], version=5)
        with stash.next(timeout=10):
            pass
    assert told[0]["rollring/staleness/mean"] == 1.5 and told[0]["rollring/staleness/max"] == 3
    assert told[0]["rollring/policy_version"] == 5


def test_steps_go_on_after_a_restart(ring):
    told = []
    push(ring, range(3))
    for batches in (2, 1):
        with rr.Stash(ring, batch_groups=1) as stash:
            rr.log(stash, lambda values, step: told.append(step))
            for _ in range(batches):
                with stash.next(timeout=10):
                    pass
    assert told == [0, 1, 2]


def test_a_destination_that_fails_ends_no_training(ring, caplog):
    def broken(values, step):
        raise OSError("the network is down")

    push(ring, range(3))
    with caplog.at_level(logging.WARNING, "rollring"), rr.Stash(ring, batch_groups=1) as stash:
        told = []
        rr.log(stash, [broken, lambda values, step: told.append(step)])
        for _ in range(3):
            with stash.next(timeout=10):
                pass
    warnings = [one for one in caplog.records if "not logged" in one.getMessage()]
    assert told == [0, 1, 2]
    assert len(warnings) == 1 and "the network is down" in warnings[0].getMessage()


def test_a_watcher_that_raises_leaves_the_batch_to_the_next_call(ring):
    push(ring, [0])
    with rr.Stash(ring, batch_groups=1) as stash:
        calls = []

        def once(batch, waited):
            calls.append(len(batch))
            if len(calls) == 1:
                raise ValueError("a fault of the watcher")

        stash.on_batch(once)
        try:
            stash.next(timeout=10)
        except ValueError:  # with the traceback of the watcher alive
            with stash.next(timeout=10) as batch:
                assert len(batch) == 1
    assert calls == [1, 1]


def test_waited_is_the_time_within_next(ring, monkeypatch):
    now, waits = [100.0], []
    for module in (_stash, _waits):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with rr.Stash(ring, batch_groups=1) as stash:
        stash.on_batch(lambda batch, waited: waits.append(waited))
        now[0] += 50  # a model is loaded
        with pytest.raises(rr.errors.TimedOutError):
            stash.next(timeout=0)
        now[0] += 50  # an evaluation
        push(ring, [0, 1])
        real, core = stash._core.next, stash._core

        def late(timeout):
            now[0] += 3
            return real(timeout)

        monkeypatch.setattr(stash, "_core", SimpleNamespace(next=late, news=core.news))
        monkeypatch.setattr(stash._log, "look", lambda core: None)
        for _ in range(2):
            with stash.next(timeout=10):
                pass
        monkeypatch.setattr(stash, "_core", core)
        monkeypatch.undo()
    assert waits == [3, 3]


def test_a_ring_that_is_removed_ends_neither_batches_nor_reports(ring):
    told = []
    push(ring, range(3))
    with rr.Stash(ring, batch_groups=1) as stash:
        log = rr.log(stash, lambda values, step: told.append(values), every=2)
        with stash.next(timeout=10):
            pass
        rr.remove(ring, force=True)
        for batch in stash:
            with batch:
                pass
        log.flush()
    assert [values["rollring/batches"] for values in told] == [2, 1]
    assert all("rollring/reward/mean" in values for values in told)


def test_a_tokenizer_that_fails_ends_no_training(ring, caplog):
    class Broken:
        tables = True

        def decode(self, ids):
            raise OverflowError("can't convert negative int to unsigned")

    class Writer:
        def __init__(self):
            self.numbers, self.texts = [], []

        def add_scalar(self, name, value, step):
            self.numbers.append(step)

        def add_text(self, name, text, step):
            self.texts.append(text)

    push(ring, range(2))
    writer = Writer()
    with caplog.at_level(logging.WARNING, "rollring"), rr.Stash(ring, batch_groups=1) as stash:
        rr.log(stash, writer, tokenizer=Broken(), samples_every=1)
        for _ in range(2):
            with stash.next(timeout=10):
                pass
    assert set(writer.numbers) == {0, 1} and writer.texts == []
    warnings = [one.getMessage() for one in caplog.records if "not logged" in one.getMessage()]
    assert len(warnings) == 1 and "negative int" in warnings[0]


@pytest.mark.parametrize(("to", "told"), [(None, "start it first"), (3, "cannot log to 3")])
def test_what_cannot_be_logged_to_is_named(ring, to, told):
    with rr.Stash(ring) as stash:
        with pytest.raises(TypeError, match=told):
            rr.log(stash, to)
        with pytest.raises(ValueError, match="at least 1"):
            rr.log(stash, print, every=0)
