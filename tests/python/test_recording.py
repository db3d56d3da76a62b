"""A trainer's batches come back from a recording, bit for bit, to a loop that takes a stash."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group
from recorded import content, run, send


def test_batches_come_back_by_step_and_in_order(ring: str, tmp_path: Path) -> None:
    seen = run(ring, tmp_path / "run", 5)
    rr.remove(ring, force=True)  # a recording needs no ring
    with rr.open_recording(tmp_path / "run") as recording:
        assert len(recording) == 5 and recording.problem == ""
        assert [info.step for info in recording.batches] == [0, 1, 2, 3, 4]
        assert {info.groups for info in recording.batches} == {2}
        with recording.step(3) as batch:
            assert content(batch) == seen[3]
        assert not batch.leased
        again = []
        for batch in recording:
            with batch:
                again.append(content(batch))
        assert again == seen
        recording.seek(2)
        assert content(recording.next()) == seen[2]
        with pytest.raises(rr.errors.NotFoundError, match="steps 0 to 4"):
            recording.step(5)
        recording.seek(4)
        assert content(recording.next()) == seen[4]
        with pytest.raises(rr.errors.TimedOutError):
            recording.next()
        with pytest.raises(IndexError):
            recording.read(5)


def test_a_loop_over_a_stash_takes_a_recording(ring: str, tmp_path: Path) -> None:
    """`nack` and an error in the block give the batch back, to be returned again."""
    seen = run(ring, tmp_path, 2)
    recording = rr.open_recording(tmp_path)
    with pytest.raises(ZeroDivisionError), recording.next(PATIENCE):
        raise ZeroDivisionError
    batch = recording.next(PATIENCE)
    assert content(batch) == seen[0]
    array = batch.sequences[0].token_ids
    kept = array.copy()
    batch.ack(7)
    with pytest.raises(rr.errors.NotLeasedError):
        batch.ack()
    with pytest.raises(rr.errors.NotLeasedError):
        _ = batch.rewards
    del batch
    assert np.array_equal(array, kept)  # its memory is its own
    assert content(recording.next()) == seen[1]


def test_steps_are_those_of_the_ring(ring: str, tmp_path: Path) -> None:
    """Also where acknowledgements wait for arrays, and end in another order."""
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path) as recorder,
    ):
        for number in range(7):
            send(producer, number)
        stash.next(PATIENCE).ack(10)
        stash.next(PATIENCE).nack()
        stash.next(PATIENCE).ack(later=True)
        held = stash.next(PATIENCE)
        array = held.sequences[0].token_ids
        held.ack(later=True)
        assert held.ack_waits and held.acked_step is None
        stash.next(PATIENCE).ack()
        assert stash.last_acked_step == 12
        del array
        assert held.acked_step == 13 and not held.ack_waits
        stash.next(PATIENCE).discard("stale")
        kept = stash.next(PATIENCE)
        array = kept.sequences[0].token_ids
        kept.ack(later=True)
        kept.nack()  # has no effect any more
        recorder.close()
        assert kept.ack_waits
        del array
        assert kept.acked_step == 14
        assert stash.next(PATIENCE).acked_step is None
    recording = rr.open_recording(tmp_path)
    assert [info.step for info in recording.batches] == [10, None, 11, 13, 12, None, None]


def test_a_forked_child_holds_no_directory(ring: str, tmp_path: Path) -> None:
    with rr.Stash(ring, batch_groups=1) as stash:
        recorder = rr.extras.record(stash, tmp_path)
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(ready, 1)
            os._exit(0)
        try:
            recorder.close()
            rr.extras.record(stash, tmp_path).close()
        finally:
            os.close(go)
            os.waitpid(pid, 0)
            os.close(ready)


def test_a_recording_that_is_written_can_be_followed(ring: str, tmp_path: Path) -> None:
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path),
    ):
        recording = rr.open_recording(tmp_path)
        assert len(recording) == 0
        send(producer, 1)
        with stash.next(PATIENCE) as batch:
            seen = content(batch)
        assert content(recording.next(PATIENCE)) == seen
        recording.refresh()
        assert recording.batches[0].step == 0
        with pytest.raises(rr.errors.BusyError, match="another process writes"):
            rr.extras.record(stash, tmp_path)


def test_bounded_recordings_keep_their_newest_batches(ring: str, tmp_path: Path) -> None:
    seen = run(ring, tmp_path, 30, max_bytes="200KiB")  # files of any size
    recording = rr.open_recording(tmp_path)
    first = recording.batches[0].number
    assert 0 < first < 25
    assert [content(batch) for batch in recording] == seen[first:]
    assert 150 << 10 < sum(path.stat().st_size for path in tmp_path.iterdir()) < 230 << 10
    oldest = min(tmp_path.glob("*.rollouts"))
    oldest.unlink()
    with pytest.raises(rr.errors.NotFoundError, match="was removed: the recording has a bound"):
        recording.read(0)


def test_a_recording_that_was_replaced_says_so(ring: str, again: str, tmp_path: Path) -> None:
    run(ring, tmp_path / "run", 2)
    recording = rr.open_recording(tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    with pytest.raises(rr.errors.ClosedError, match="removed or replaced"):
        recording.refresh()
    run(again, tmp_path / "run", 1)
    with pytest.raises(rr.errors.ClosedError, match="open the recording again"):
        recording.refresh()


def test_damage_stays_in_the_problem(ring: str, tmp_path: Path) -> None:
    run(ring, tmp_path, 3)
    (path,) = tmp_path.glob("*.rollouts")
    data = bytearray(path.read_bytes())
    data[64:96] = bytes(32)  # the header of the first record
    path.write_bytes(data)
    recording = rr.open_recording(tmp_path)
    problem = recording.problem
    assert "bytes 64 to" in problem
    recording.refresh()
    assert recording.problem == problem
    with pytest.raises(rr.RollringError, match="has no record at byte 64"):
        recording.read(0)
    assert len(recording.read(1)) == 2


def test_a_full_disk_ends_the_recording_and_not_the_training(
    ring: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path) as recorder,
        caplog.at_level(logging.ERROR),
    ):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
            for number in range(8):
                send(producer, number)
                with stash.next(PATIENCE) as batch:
                    assert len(batch) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert os.strerror(errno.EFBIG) in recorder.problem
        assert stash.last_acked_step == 7
    told = [record.message for record in caplog.records if "nothing more" in record.message]
    assert len(told) == 1
    assert 0 < len(rr.open_recording(tmp_path)) < 8
    assert rr.open_recording(tmp_path).problem == ""


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rr.errors.NotFoundError, match="nowhere"):
        rr.open_recording(tmp_path / "nowhere")
    with pytest.raises(rr.RollringError, match="no files of a recording"):
        rr.open_recording(tmp_path)
    (tmp_path / "text.jsonl").write_text("{}\n" * 100)
    with pytest.raises(rr.RollringError, match="not a file of a recording"):
        rr.open_recording(tmp_path / "text.jsonl")


def test_a_forked_child_opens_its_own(ring: str, tmp_path: Path) -> None:
    seen = run(ring, tmp_path, 1)
    recording = rr.open_recording(tmp_path)
    batch = recording.read(0)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in (lambda: recording.read(0), lambda: batch.rewards):
                with pytest.raises(rr.errors.ForkedError):
                    call()
            status = int(content(rr.open_recording(tmp_path).read(0)) != seen[0])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert content(batch) == seen[0]


CHILD = """
import sys
from collections.abc import Iterator
import rollring as rr
ring, folder = sys.argv[1:]
with rr.Stash(ring, batch_groups=1) as stash, rr.extras.record(stash, folder):
    for batch in stash:
        with batch:
            pass
        print(stash.last_acked_step, flush=True)
"""


def test_a_trainer_that_is_killed_leaves_its_batches(ring: str, tmp_path: Path) -> None:
    steps = 0
    with rr.Producer(ring) as producer:
        for life in range(3):
            with subprocess.Popen(
                [sys.executable, "-c", CHILD, ring, str(tmp_path)], stdout=subprocess.PIPE
            ) as trainer:
                assert trainer.stdout is not None
                for number in range(3):
                    send_group(producer, 10 * life + number)
                    steps = int(trainer.stdout.readline()) + 1
                trainer.kill()
    recording = rr.open_recording(tmp_path)
    assert steps == 9
    assert [info.step for info in recording.batches] == list(range(9))
    assert [info.number for info in recording.batches] == list(range(9))
    assert all(len(batch) == 1 for batch in recording)
