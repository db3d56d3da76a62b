"""The commands for recordings: `rollring replay` and `rollring record`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import rollring as rr
from conftest import PATIENCE
from recorded import content, run, send


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


def test_replay_sends_a_group_that_was_given_back_once(
    ring: str, again: str, tmp_path: Path
) -> None:
    with (
        rr.Stash(ring, batch_groups=2, extra=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path),
    ):
        for number in range(2):
            for member in range(5):
                producer.push(
                    f"prompt/{number}",
                    token_ids=np.arange(9 + member),
                    logprobs=-np.ones(9 + member),
                    reward=member / 7,
                    repetition_id=member,
                    group_size=4,
                )
        stash.next(PATIENCE).nack()
        with stash.next(PATIENCE) as batch:
            seen = content(batch)
    assert len(rr.open_recording(tmp_path)) == 2
    for arguments, batches in (((), 1), (("--all",), 2)):
        sent = program("replay", tmp_path, again, "--extra", 1, "--json", *arguments)
        assert json.loads(sent.stdout)["batches"] == batches, sent.stderr
    with rr.Stash(again, batch_groups=2, extra=1) as stash, stash.next(PATIENCE) as batch:
        assert content(batch) == seen
        assert stash.stats()["rollring/stash/account/dropped/late/records"] >= 0


def test_replay_keeps_the_pace(ring: str, again: str, tmp_path: Path) -> None:
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path),
    ):
        for number in range(2):
            send(producer, number)
            with stash.next(PATIENCE):
                pass
            time.sleep(0.2)  # which is the pace
    first, last = (info.time for info in rr.open_recording(tmp_path).batches)
    report = json.loads(program("replay", tmp_path, again, "--speed", 0.5, "--json").stdout)
    assert report["seconds"] >= 2 * (last - first).total_seconds() - 0.01


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
