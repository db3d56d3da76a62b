"""A trainer's batches come back from a recording, bit for bit, to a loop that takes a stash."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group


def content(batch: Any) -> dict[str, Any]:
    return {
        "ids": batch.packed("token_ids").tobytes(),
        "logprobs": batch.packed("logprobs").tobytes(),
        "rewards": batch.rewards.tobytes(),
        "advantages": batch.advantages.tobytes(),
        "offsets": batch.group_offsets.tobytes(),
        "repetitions": batch.repetition_ids.tobytes(),
        "versions": batch.policy_versions.tobytes(),
        "keys": [one.instance_id for one in batch.sequences],
        "extra": [one.extra for one in batch.sequences],
        "groups": [(group.size, len(group)) for group in batch.groups],
    }


def send(producer: rr.Producer, number: int) -> None:
    for member in range(4):
        length = 5 + 3 * number + member
        producer.push(
            f"prompt/{number}",
            token_ids=np.arange(length) + number,
            logprobs=-np.arange(length) / (number + 1),
            reward=0.1 * member + number,
            repetition_id=member,
            group_size=4,
            policy_version=number,
            extra={"number": number},
        )


def run(ring: str, folder: Path, steps: int, **options: Any) -> list[dict[str, Any]]:
    seen = []
    with (
        rr.Stash(ring, batch_groups=2) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, folder, **options) as recorder,
    ):
        for step in range(steps):
            send(producer, 2 * step)
            send(producer, 2 * step + 1)
            with stash.next(PATIENCE) as batch:
                seen.append(content(batch))
        assert recorder.problem == ""
        recorder.sync()
    return seen


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


def test_explicit_steps_and_batches_without_one(ring: str, tmp_path: Path) -> None:
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path),
    ):
        for number in range(5):
            send(producer, number)
        stash.next(PATIENCE).ack(10)
        stash.next(PATIENCE).nack()
        stash.next(PATIENCE).ack(later=True)
        held = stash.next(PATIENCE)
        array = held.sequences[0].token_ids
        held.ack(later=True)
        stash.next(PATIENCE).discard("stale")
        assert array is not None
        del array
    steps = [info.step for info in rr.open_recording(tmp_path).batches]
    assert steps == [10, None, 11, 12, None]


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
    seen = run(ring, tmp_path, 30, file_bytes="8KiB", max_bytes="40KiB")
    recording = rr.open_recording(tmp_path)
    first = recording.batches[0].number
    assert 0 < first < 29
    assert [content(batch) for batch in recording] == seen[first:]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 60 << 10


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


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("rollring")
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)


def taken(ring: str, batches: int) -> list[dict[str, Any]]:
    seen = []
    with rr.Stash(ring, batch_groups=2) as stash:
        for _ in range(batches):
            with stash.next(PATIENCE) as batch:
                seen.append(content(batch))
    return seen


@pytest.fixture
def again() -> Iterator[str]:
    name = f"test-{os.getpid()}-again"
    rr.create(name, lanes=4, lane_bytes="1MiB")
    yield name
    rr.remove(name, force=True, missing_ok=True)


def test_replay_makes_the_same_batches_of_a_ring(ring: str, again: str, tmp_path: Path) -> None:
    with (
        rr.Stash(ring, batch_groups=2) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path),
    ):
        for number in range(6):
            if number == 3:  # its group is shipped without a member
                producer.push("prompt/3", status="failed", repetition_id=2, group_size=4)
            for member in range(4):
                if (number, member) != (3, 2):
                    producer.push(
                        f"prompt/{number}",
                        token_ids=np.arange(9 + member),
                        logprobs=-np.ones(9 + member),
                        reward=None if (number, member) == (4, 1) else number / (member + 1),
                        repetition_id=member,
                        group_size=4,
                        policy_version=number,
                        extra={"number": number},
                    )
        seen = []
        for step in (10, 11, 12):
            batch = stash.next(PATIENCE)
            seen.append(content(batch))
            batch.ack(step)
    assert seen[1]["groups"] == [(4, 4), (4, 3)]
    sent = program("replay", tmp_path, again, "--json")
    assert sent.returncode == 0, sent.stderr
    report = json.loads(sent.stdout)
    assert (report["batches"], report["groups"], report["records"], report["marks"]) == (
        3,
        6,
        23,
        1,
    )
    assert taken(again, 3) == seen
    rr.remove(again)
    rr.create(again, lanes=4, lane_bytes="1MiB")
    assert program("replay", tmp_path, again, "--step", 11, "--speed", 1).returncode == 0
    assert taken(again, 1) == seen[1:2]


def test_replay_lists_refuses_and_stops(ring: str, again: str, tmp_path: Path) -> None:
    run(ring, tmp_path / "run", 3)
    listed = json.loads(program("replay", tmp_path / "run", "--list", "--json").stdout)
    assert [one["step"] for one in listed["batches"]] == [0, 1, 2]
    assert [one["groups"] for one in listed["batches"]] == [2, 2, 2]
    few = program("replay", tmp_path / "run", "--list", "--from-step", 1, "--to-step", 1).stdout
    assert few == "batch 1, step 1: 2 groups, 8 sequences, 112 tokens\n"
    for arguments, code, text in (
        ((tmp_path / "none", again), 1, "cannot open"),
        ((tmp_path / "run", again, "--step", 7), 1, "no such batch"),
        ((tmp_path / "run",), 2, "needs the RING"),
    ):
        refused = program("replay", *arguments)
        assert (refused.returncode, refused.stdout) == (code, "")
        assert text in refused.stderr
    rr.remove(again)
    rr.create(again, lanes=2, lane_bytes="1MiB", columns={"more": rr.Column("f32")})
    refused = program("replay", tmp_path / "run", again)
    assert refused.returncode == 1 and "other columns" in refused.stderr


def test_replay_waits_for_room_and_ends_at_ctrl_c(again: str, ring: str, tmp_path: Path) -> None:
    run(ring, tmp_path, 4)
    rr.remove(again)
    rr.create(again, lanes=1, lane_bytes="4KiB")
    command = Path(sys.executable).with_name("rollring")
    with subprocess.Popen(
        [command, "replay", tmp_path, again, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stderr is not None and child.stdout is not None
        assert "waiting" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        report = json.loads(child.stdout.read())
    assert child.returncode == 130
    assert report["interrupted"] and report["records"] > 0


def test_record_keeps_the_groups_that_pass(ring: str, again: str, tmp_path: Path) -> None:
    """From outside: the trainer's own recording has the same groups."""
    command = Path(sys.executable).with_name("rollring")
    with (
        rr.Stash(ring, batch_groups=1, order="fifo") as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path / "inside"),
        subprocess.Popen(
            [command, "record", ring, "--output", tmp_path / "outside", "--groups", "5", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child,
    ):
        for number in range(5):
            if number == 2:
                producer.push("prompt/2", status="failed", repetition_id=4, group_size=5)
            for member in reversed(range(4)):
                producer.push(
                    f"prompt/{number}",
                    token_ids=np.arange(7 + member),
                    logprobs=-np.arange(7 + member) / 4,
                    reward=number / (member + 1),
                    repetition_id=member,
                    group_size=5 if number == 2 else 4,
                    extra={"number": number},
                )
        said, wrong = child.communicate(timeout=PATIENCE)  # the records are in memory until then
        assert child.returncode == 0, wrong
        for _ in range(5):
            with stash.next(PATIENCE):
                pass
    report = json.loads(said)
    assert (report["groups"], report["records"], report["missed"]) == (5, 20, 0)
    inside, outside = (rr.open_recording(tmp_path / name) for name in ("inside", "outside"))
    by_key = {batch.sequences[0].instance_id: content(batch) for batch in inside}
    assert {batch.sequences[0].instance_id: content(batch) for batch in outside} == by_key
    assert {info.step for info in outside.batches} == {None}


def test_record_ends_with_its_ring(again: str, tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("rollring")
    with (
        subprocess.Popen(
            [command, "record", again, "-o", tmp_path], stdout=subprocess.PIPE, text=True
        ) as child,
        rr.Producer(again) as producer,
    ):
        send(producer, 1)
        producer.push("half", token_ids=[1], group_size=2, repetition_id=0)
        while not list(tmp_path.glob("*.rollouts")) or not len(rr.open_recording(tmp_path)):
            assert child.poll() is None
            time.sleep(0.01)
        rr.remove(again, force=True)
        assert child.stdout is not None
        said = child.stdout.read()
    assert child.returncode == 0
    assert "recorded 1 group, 4 records" in said and "left out 1 group" in said
