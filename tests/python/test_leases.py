"""Mistakes in Python code: each is told by name, loses nothing and reads no other record."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group, tokens_of
from rollring import _core


def test_ack_with_an_array_alive_is_refused_and_names_it(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 7)
        batch = stash.next(PATIENCE)
        tokens = batch.groups[0].members[1].token_ids
        part = tokens[3:5]
        del tokens
        with pytest.raises(BufferError, match=r"token_ids of 'p/7', repetition 1 is still in use"):
            batch.ack()
        assert batch.leased and part.tolist() == tokens_of(7, 1)[3:5].tolist()
        del part
        batch.ack()
        assert not batch.leased


def test_ack_later_waits_for_the_last_array(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        batch = stash.next(PATIENCE)
        tokens = batch.groups[0].members[0].token_ids
        batch.ack(4, later=True)
        assert not batch.leased and stash.last_step == -1
        assert tokens.tolist() == tokens_of(1, 0).tolist()
        with pytest.raises(rr.NotLeasedError):
            _ = batch.groups[0].members[0].token_ids
        del tokens
        assert stash.last_step == 4


def test_after_ack_nothing_can_be_read(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        batch = stash.next(PATIENCE)
        sequence, group = batch.sequences[0], batch.groups[0]
        batch.ack()
        for use in (
            lambda: sequence.token_ids,
            lambda: sequence.reward,
            lambda: group.members[0].token_ids,
            lambda: batch.packed("token_ids"),
            lambda: batch.rewards,
            lambda: batch.sequences,
            lambda: batch.receipt(),
            lambda: batch.ack(),
        ):
            with pytest.raises(rr.NotLeasedError):
                use()
        batch.nack()
        assert repr(batch) and repr(sequence)


def test_an_exception_gives_the_groups_back(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        with pytest.raises(ZeroDivisionError), stash.next(PATIENCE) as batch:
            kept = batch.sequences[0].token_ids
            _ = 1 / 0
        # The return is put off while an array is there, and loses nothing.
        assert not batch.leased and kept.tolist() == tokens_of(1, 0).tolist()
        with pytest.raises(rr.TimedOutError):
            stash.next(0)
        del kept
        with stash.next(PATIENCE) as again:
            assert again.groups[0].key == ("p/1", 0)


def test_closing_a_stash_with_arrays_alive(ring: str) -> None:
    with rr.Producer(ring) as producer:
        send_group(producer, 1)
        stash = rr.Stash(ring, batch_groups=1)
        batch = stash.next(PATIENCE)
        tokens = batch.sequences[0].token_ids
        with pytest.raises(BufferError, match="cannot close the stash"):
            stash.close()
        assert not stash.closed
        stash.close(later=True)
        assert stash.closed
        with pytest.raises(rr.ClosedError):
            stash.next(0)
        with pytest.raises(rr.BusyError):
            rr.Stash(ring, timeout=0)
        assert tokens.tolist() == tokens_of(1, 0).tolist()
        del tokens, batch
        with rr.Stash(ring, batch_groups=1, timeout=0) as other, other.next(PATIENCE) as again:
            assert again.groups[0].key == ("p/1", 0)


def test_collected_objects_in_any_order(ring: str) -> None:
    with rr.Producer(ring) as producer:
        send_group(producer, 1)
        stash = rr.Stash(ring, batch_groups=1)
        tokens = stash.next(PATIENCE).sequences[0].token_ids
        del stash
        gc.collect()
        assert tokens.tolist() == tokens_of(1, 0).tolist()
        with pytest.raises(rr.BusyError):
            rr.Stash(ring, timeout=0)
        del tokens
        rr.Stash(ring, timeout=0).close()


def test_what_is_put_off_is_not_undone_by_later_steps(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for prompt in range(2):
            send_group(producer, prompt)
        first, second = stash.next(PATIENCE), stash.next(PATIENCE)
        tokens = first.sequences[0].token_ids
        first.ack(5, later=True)
        second.ack(6)
        del tokens
        assert stash.last_step == 6
        with pytest.raises(rr.TimedOutError):
            stash.next(0)


def test_a_copy_under_way_puts_an_ack_off(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1, length=150_000)
        batch = stash.next(PATIENCE)
        begins = threading.Event()
        good: list[bool] = []

        def copy() -> None:
            expected = batch.packed("token_ids")
            begins.set()
            try:
                while True:
                    good.append(bool((batch.packed("token_ids") == expected).all()))
            except rr.NotLeasedError:
                pass

        thread = threading.Thread(target=copy)
        thread.start()
        assert begins.wait(PATIENCE)
        batch.ack(3, later=True)
        thread.join(PATIENCE)
        assert stash.last_step == 3 and all(good)


@pytest.mark.parametrize("wait", ["stash.next", "full"])
def test_a_daemon_thread_that_waits_does_not_abort_the_end(ring: str, wait: str) -> None:
    code = f"""
        import threading, rollring as rr
        stash = rr.Stash({ring!r})
        producer = rr.Producer({ring!r})
        def full():
            while True:
                producer.push("a", token_ids=[0] * 200_000, group_size=1)
        threading.Thread(target={wait}, daemon=True).start()
        while {wait == "full"} and producer.stats()["records"] < 2:
            pass
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_window_that_was_never_made_shows_nothing() -> None:
    window = _core.Window.__new__(_core.Window)
    with pytest.raises((BufferError, TypeError)):
        memoryview(window)


def test_bad_records_are_named_and_lose_nothing(ring: str) -> None:
    with rr.Producer(ring) as producer:
        cases = [
            (dict(token_ids=[1, 2], logprobs=[0.5]), "'logprobs': has 1 entries for 2 tokens"),
            (dict(token_ids=np.zeros(2, np.float32)), "token_ids.*f32"),
            (dict(token_ids=[1.5]), "token_ids.*element 0 is 1.5: give whole numbers"),
            (dict(token_ids=[1, 2**40]), "token_ids.*element 1 is .*out of range"),
            (dict(token_ids=[[1, 2], [3]]), r"element 0 is \[1, 2\]: give a flat list"),
            (dict(token_ids=np.ones((2, 2), np.int32)), "'token_ids': has 2 dimensions"),
            (dict(token_ids=[1, "a"]), "element 1 is 'a', which is not a number"),
            (dict(token_ids=np.array([2**40])), "out of range"),
            (dict(token_ids=[1], status="done"), "status"),
            (dict(token_ids=[1], repetition_id=-1), "repetition_id"),
            (dict(token_ids=[1], nonsense=1), "nonsense': declare the column"),
            (dict(tokens=[1]), "'tokens': did you mean token_ids"),
            (dict(token_ids=[1], groupsize=4), "'groupsize': did you mean group_size"),
            (dict(token_ids=np.array(["a"])), "token_ids"),
            (dict(token_ids=[1], n_prompt=5), "n_prompt"),
            (dict(token_ids=np.array([1, 2], ">i4"), logprobs=[0.5]), "1 entries for 2 tokens"),
            (dict(), "token_ids"),
        ]
        for fields, match in cases:
            with pytest.raises((rr.BadRecordError, TypeError), match=match):
                producer.push("a", **fields)
        hint = r"'rollring size --producers \d+ --group 4 --tokens 2097152 --token-bytes 5'"
        with pytest.raises(rr.TooLargeError, match=hint):
            producer.push("a", token_ids=np.zeros(2 << 20, np.int32), group_size=4)
        with pytest.raises(rr.BadRecordError, match="instance_id: 17 is not text"):
            producer.push(17, token_ids=[1])  # type: ignore[arg-type]
        assert producer.stats()["records"] == 0


def test_a_full_lane_times_out_and_ctrl_c_ends_the_wait(ring: str) -> None:
    with rr.Producer(ring) as producer:
        tokens = np.zeros(200_000, np.int32)
        with pytest.raises(TimeoutError, match="room|place"):
            for _ in range(10):
                producer.push("a", token_ids=tokens, timeout=0.0)
    code = f"""
        import rollring as rr
        stash = rr.Stash({ring!r})
        try:
            print("waits", flush=True)
            stash.next()
        except KeyboardInterrupt:
            print("ended", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "waits\n"
    while Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "S":
        pass  # it does not sleep in the wait yet
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "ended\n" and child.wait(PATIENCE) == 0


def test_threads_take_turns(ring: str) -> None:
    count = 200
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:

        def push(worker: int) -> None:
            for i in range(count):
                producer.push(
                    f"{worker}/{i}", token_ids=[worker, i], group_size=1, timeout=PATIENCE
                )

        seen: list[tuple[int, int]] = []

        def train() -> None:
            while len(seen) < 4 * count:
                try:
                    with stash.next(0.05) as batch:
                        seen.append(tuple(batch.packed("token_ids").tolist()))
                except (rr.TimedOutError, rr.InvalidArgumentError):
                    continue

        threads = [threading.Thread(target=push, args=(i,)) for i in range(4)]
        threads += [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(seen) == [(w, i) for w in range(4) for i in range(count)]


def test_a_forked_child_is_told_and_reads_zeros(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        batch = stash.next(PATIENCE)
        tokens = batch.sequences[0].token_ids
        draft = producer.reserve("x", 8)
        writable = draft.token_ids
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for use in (
                    lambda: producer.push("a", token_ids=[1]),
                    lambda: stash.next(0),
                    lambda: batch.ack(),
                    lambda: batch.sequences[0].token_ids,
                    lambda: draft.commit(),
                    lambda: draft.token_ids,
                ):
                    try:
                        use()
                    except rr.ForkedError:
                        continue
                    os._exit(2)
                if batch.leased or tokens.any():
                    os._exit(3)
                writable[:] = 99  # its own memory: the parent's lane stays as it is
                batch.nack()
                stash.close()
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tokens.tolist() == tokens_of(1, 0).tolist()
        assert not (writable == 99).any()
        del tokens, writable
        batch.ack()
        draft.abandon()


@pytest.mark.parametrize(
    "order", ["", "stash.close(later=True)", "producer.close()", "del stash, producer"]
)
def test_the_interpreter_ends_in_any_order(ring: str, order: str) -> None:
    code = f"""
        import sys, rollring as rr
        producer = rr.Producer({ring!r})
        for i in range(2):
            producer.push("a", token_ids=[1, 2], repetition_id=i, group_size=2)
        stash = rr.Stash({ring!r}, batch_groups=1)
        batch = stash.next(60)
        tokens = batch.sequences[0].token_ids
        sys.keep = [tokens, batch]
        loop = [tokens]; loop.append(loop)
        {order}
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""


def test_closing_ends_the_waits_of_other_threads(ring: str) -> None:
    producer = rr.Producer(ring)
    stash = rr.Stash(ring, batch_groups=1)
    ended: list[str] = []

    def wait() -> None:
        try:
            stash.next()
        except rr.ClosedError:
            ended.append("stash")

    def fill() -> None:
        try:
            while True:
                producer.push("a", token_ids=np.zeros(100_000, np.int32), group_size=64)
        except rr.ClosedError:
            ended.append("producer")

    threads = [threading.Thread(target=wait), threading.Thread(target=fill)]
    for thread in threads:
        thread.start()
    while producer.stats()["records"] < 5:
        pass  # not every thread is at work yet
    stash.close()
    producer.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ended) == ["producer", "stash"]


def test_collecting_a_batch_in_a_cycle_does_not_stop_its_stash(ring: str) -> None:
    """The collector may run in any call of the stash, and give a batch back there."""
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for prompt in range(20):
            send_group(producer, prompt)
        gc.collect()
        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(200):
                batch = stash.next(PATIENCE)
                cycle: list[object] = [batch]
                cycle.append(cycle)
                del cycle, batch
                stash.stats()
                producer.stats()
        finally:
            gc.set_threshold(*before)
