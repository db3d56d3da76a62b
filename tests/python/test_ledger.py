"""A ring with a ledger, its end, and its records in a new ring."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollring as rr
from conftest import PATIENCE


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    name = f"test-{os.getpid()}-kept"
    rr.create(name, lanes=2, lane_bytes="1MiB", spill_bytes="1MiB", ledger=tmp_path / "ledger")
    yield name, tmp_path / "ledger"
    rr.remove(name, force=True, missing_ok=True)


def send(producer: rr.Producer, prompt: str, member: int) -> None:
    producer.push(
        prompt,
        token_ids=[member] * 5,
        reward=float(member),
        repetition_id=member,
        group_size=2,
    )


def train(stash: rr.Stash) -> list[str]:
    prompts = []
    while True:
        try:
            with stash.next(0) as batch:
                prompts += sorted({str(one.instance_id) for one in batch})
        except rr.TimedOutError:
            return prompts


def test_a_new_ring_goes_on_where_the_old_one_ended(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        for prompt in ("settled", "trained"):
            for member in range(2):
                send(producer, prompt, member)
        send(producer, "open", 0)
        assert train(stash) == ["settled", "trained"]
        stash.sync_ledger()
        assert producer.durable_records == 5
        assert stash.checkpointed(0) == 2
        (lane,) = rr.stat.stat_ring(name)["lanes"]
        assert lane["durable_records"] == 5
        stat = rr.extras.stat_ledger(directory)
        assert (stat.records, stat.acked, stat.groups, stat.ring) == (3, 2, 2, name)
        with pytest.raises(rr.BusyError):
            rr.extras.restore(directory, name)
    rr.remove(name, force=True)
    assert rr.extras.restore(directory, name).sent == 3
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        assert train(stash) == ["trained"]
        send(producer, "open", 1)
        with stash.next(PATIENCE) as batch:
            assert {str(one.instance_id) for one in batch} == {"open"}
        assert stash.checkpointed(2) == 4  # steps go on after the settled one
    assert rr.extras.stat_ledger(directory).records == 0


def test_the_program_restores_and_leaves_out_a_checkpoints_steps(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        for prompt in ("a", "b"):
            for member in range(2):
                send(producer, prompt, member)
        assert train(stash) == ["a", "b"]
    rr.remove(name, force=True)
    command = Path(sys.executable).with_name("rollring")
    report = json.loads(
        subprocess.run(
            [command, "restore", directory, name, "--step", "0", "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert (report["sent"], report["left_out"], report["damaged"]) == (2, 2, [])
    shown = json.loads(
        subprocess.run(
            [command, "ledger", directory, "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert (shown["records"], shown["failure"]) == (2, None)
    with rr.Stash(name, batch_groups=1) as stash:
        assert train(stash) == ["b"]


def test_a_ledger_that_failed_is_named(kept: tuple[str, Path], tmp_path: Path) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        send(producer, "open", 0)
        train(stash)
        stash.sync_ledger()
    (directory / "FAILED").write_text("the ledger has failed: fdatasync: Input/output error\n")
    with pytest.raises(rr.errors.LedgerFailedError, match="fdatasync"):
        rr.Stash(name)
    with rr.Stash(name, ledger=False):
        pass
    rr.remove(name, force=True)
    with pytest.raises(rr.errors.LedgerFailedError, match="fdatasync"):
        rr.extras.restore(directory, name)
    assert rr.extras.restore(directory, name, ledger=tmp_path / "other").sent == 1


def test_a_ring_that_is_there_has_the_ledger_that_is_asked_for(
    kept: tuple[str, Path], tmp_path: Path
) -> None:
    name, directory = kept
    rr.create(name, exist_ok=True, ledger=directory, durable="group")
    with pytest.raises(rr.RingExistsError, match="durable is group, and this call asks for none"):
        rr.create(name, exist_ok=True, durable="none")
    with pytest.raises(rr.RingExistsError, match="ledger is .*, and this call asks for"):
        rr.create(name, exist_ok=True, ledger=tmp_path)
    with pytest.raises(rr.InvalidArgumentError, match="ledger_bytes is 1 KiB"):
        rr.create(name + "-small", ledger=directory, ledger_bytes=1024)


SLOW_DISK = """
import sys, threading, time
import rollring as rr

name, call = sys.argv[1:]
done, steps = threading.Event(), 0

def work():
    global steps
    while not done.is_set():
        steps += 1
        time.sleep(0.001)

with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
    for member in range(2):
        producer.push("a", token_ids=[1], repetition_id=member, group_size=2)
    other = threading.Thread(target=work)
    batch = stash.next(60) if call != "rest" else None
    stash.sync_ledger()
    if call == "checkpointed":
        batch.ack()
    if call == "rest":
        producer.push("b", token_ids=[1], repetition_id=0, group_size=2)
        producer.push("b", token_ids=[1], repetition_id=1, group_size=2)
    if call == "sync_ledger":
        producer.push("b", token_ids=[1], repetition_id=0, group_size=2)
        try:
            stash.next(0)
        except rr.TimedOutError:
            pass
    other.start()
    before, began = steps, time.monotonic()
    {"ack": lambda: batch.ack(), "rest": stash.rest, "sync_ledger": stash.sync_ledger,
     "checkpointed": lambda: stash.checkpointed(0)}[call]()
    print(steps - before, time.monotonic() - began)
    done.set()
    other.join()
    batch = None
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace slows the disk")
@pytest.mark.parametrize("call", ["ack", "rest", "sync_ledger", "checkpointed"])
def test_other_threads_go_on_while_a_call_waits_for_the_disk(tmp_path: Path, call: str) -> None:
    name = f"test-{os.getpid()}-slow-disk"
    rr.create(name, lanes=2, lane_bytes="1MiB", ledger=tmp_path / "ledger", durable="record")
    delay = "inject=fdatasync:delay_enter=400000"  # us
    try:
        ran = subprocess.run(
            ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync", "-e", delay]
            + [sys.executable, "-c", SLOW_DISK, name, call],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        rr.remove(name, force=True, missing_ok=True)
    steps, seconds = map(float, ran.stdout.split())
    assert seconds > 0.3  # it waited for the disk
    assert steps > 20
