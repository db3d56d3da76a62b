#!/usr/bin/env python3
"""A spill that goes on in a file: the run ends, with any process killed and any medium full
meanwhile.

usage: overflow_end_to_end.py PATH_OF_ROLLRING
"""
import json
import os
from pathlib import Path

from program import (
    PROGRAM,
    Lines,
    Ring,
    digest,
    finish,
    main,
    report,
    run,
    start,
    test,
    wait_until,
    with_shm_of,
)

GROUPS = 60
TIGHT = ("--lanes", 2, "--lane-bytes", "256KiB", "--spill-bytes", "512KiB")
END_ALL = "trap 'kill $(jobs -p) 2>/dev/null' EXIT"  # that a script has left running
ENOUGH = ("--overflow-bytes", "64MiB")


def opposed_members(folder, tokens=30000):
    """A file of first members and one of second members, in opposite order: the sender of the one
    waits for that of the other."""
    paths = []
    for repetition, order in ((0, range(GROUPS)), (1, reversed(range(GROUPS)))):
        paths.append(folder / f"members{repetition}.jsonl")
        paths[-1].write_text("".join(json.dumps(
            {"instance_id": f"q/{group}", "repetition_id": repetition, "group_size": 2,
             "tokens": [group] * tokens}) + "\n" for group in order), encoding="utf-8")
    return paths


def send(ring, paths):
    """From pipes: records that cannot be read again are sent in their order."""
    senders = []
    for path in paths:
        with open(path, encoding="utf-8") as records:
            senders.append(start("produce", ring, "--input", "-", "--json", stdin=records))
    return senders


def train(ring, batch_groups=1, producers=2):
    return start("consume", ring, "--group-size", "auto", "--batch-groups", batch_groups,
                 "--until-closed", "--producers", producers, "--json")


def check_all(got, sent):
    assert (got["groups"], got["groups_partial"], got["open_groups"]) == (GROUPS, 0, 0), got
    assert got["conserved"] and got["records_dropped"] == 0, got
    assert got["torn"] == 0 and got["quarantines"] == 0, got
    assert digest(got["digest"]) == sum(digest(one["digest"]) for one in sent) % 2**64, got


def check_followed(got, stat):
    """By several trainers, one group a step: none was lost, and none came twice."""
    assert got["open_groups"] == 0 and got["conserved"] and got["records_dropped"] == 0, got
    assert (got["torn"], got["quarantines"], got["groups_partial"]) == (0, 0, 0), got
    assert stat["last_acked_step"] == GROUPS - 1, stat


def disk_of(folder, name):
    disk = folder / name
    disk.mkdir()
    return disk


@test
def what_memory_cannot_hold_goes_on_in_a_file(folder, rollouts):
    disk = disk_of(folder, "disk")
    paths = opposed_members(folder)
    with Ring(*TIGHT) as ring:  # without it
        trainer = train(ring)
        told = Lines(trainer.stderr)
        senders = send(ring, paths)
        told.wait_for("no progress is possible.*--overflow")
        for process in (*senders, trainer):
            process.kill()
            process.wait()
    with Ring(*TIGHT, "--overflow", disk, *ENOUGH) as ring:
        trainer = train(ring)
        sent = [json.loads(finish(sender)[0]) for sender in send(ring, paths)]
        check_all(json.loads(finish(trainer)[0]), sent)
        stat = report("stat", ring)
        assert stat["overflow_bytes"] == 64 << 20 and stat["overflow_resident_bytes"] > 0, stat
        assert Path(stat["overflow_file"]).parent == disk, stat
        assert "overflow: " in run("stat", ring)[0]
        assert list(disk.iterdir()) == [Path(stat["overflow_file"])]
    assert not list(disk.iterdir())


@test
def a_trainer_killed_with_records_in_the_file_is_followed(folder, rollouts):
    disk = disk_of(folder, "killed")
    with Ring(*TIGHT, "--overflow", disk, *ENOUGH) as ring:
        senders = send(ring, opposed_members(folder))
        trainer = train(ring)
        for least in (8, 12, 16):  # memory has room for two
            wait_until(lambda least=least: report("groups", ring)["evacuated_records"] > least,
                       "evacuation")
            trainer.kill()
            trainer.wait()
            trainer = train(ring, producers=0)
        for sender in senders:
            finish(sender)
        check_followed(json.loads(finish(trainer)[0]), report("stat", ring))
    assert not list(disk.iterdir())


@test
def the_demo_overflows(folder, rollouts):
    disk = disk_of(folder, "demo")
    told = report("demo", "--synthetic", "groups=100,group-size=8,tokens=2000:4000", "--shuffle", 1,
                  "--lane-bytes", "64KiB", "--spill-bytes", "256KiB", "--overflow", disk, *ENOUGH)
    assert told["ok"] and told["groups"] == 100, told
    assert not list(disk.iterdir())


@test
def a_full_disk_is_told_and_nothing_is_lost(folder, rollouts):
    disk = disk_of(folder, "full")
    opposed_members(folder)
    done = with_shm_of("64M", f"""
        {END_ALL}
        mount -t tmpfs -o size=1M tmpfs {disk} || exit 98
        cd {folder}
        {PROGRAM} create r {" ".join(map(str, TIGHT))} --overflow {disk} --overflow-bytes 64MiB >&2
        for i in 0 1; do
            {PROGRAM} produce r --input - --json <members$i.jsonl >sent$i 2>/dev/null &
        done
        {PROGRAM} consume r --group-size auto --batch-groups 1 --until-closed --producers 2 \
            --json >got 2>told &
        trainer=$!
        until grep -q 'no progress is possible.*cannot grow.*No space left' told; do
            kill -0 $trainer || exit 97
            sleep 0.05
        done
        mount -o remount,size=64M {disk} || exit 96
        wait $trainer || exit 95
        wait
        cat got sent0 sent1
        {PROGRAM} rm r && [ -z "$(ls {disk})" ]""")
    if done is None:
        return
    got, *sent = (json.loads(line) for line in done.stdout.splitlines())
    check_all(got, sent)


@test
def where_shared_memory_has_no_more_the_file_has(folder, rollouts):
    """And a successor finds where it begins."""
    disk = disk_of(folder, "instead")
    opposed_members(folder)
    done = with_shm_of("4M", f"""
        {END_ALL}
        cd {folder}
        train="{PROGRAM} consume r --group-size auto --batch-groups 1 --until-closed --json"
        {PROGRAM} create r --lanes 2 --lane-bytes 256KiB --spill-bytes 64MiB --group-rows 256 \
            --journal-records 1024 --overflow {disk} >&2 || exit 98
        $train >/dev/null &
        trainer=$!
        for i in 0 1; do {PROGRAM} produce r --input - --json <members$i.jsonl >sent$i & done
        until {PROGRAM} stat r --json | grep -q '"overflow_resident_bytes":[1-9]' &&
              {PROGRAM} groups r --json | grep -qE '"evacuated_records":([4-9][0-9]|[0-9]{{3}})'; do
            kill -0 $trainer || exit 97
            sleep 0.05
        done
        kill -9 $trainer
        $train --producers 0 || exit 96
        {PROGRAM} stat r --json""")
    if done is None:
        return
    got, stat = (json.loads(line) for line in done.stdout.splitlines())
    check_followed(got, stat)
    assert stat["overflow_resident_bytes"] > 0, stat


@test
def wrong_directories_are_named(folder, rollouts):
    for directory, code, word in ((folder / "none", 1, "No such file"),
                                  ("/dev/null", 2, "not a directory"),
                                  ("/dev/shm", 2, "--spill-bytes")):
        _, err = run("create", "never", "--overflow", directory, code=code)
        assert str(directory) in err and "--overflow" in err and word in err, err
    _, err = run("create", "never", "--overflow-bytes", "1MiB", code=2)
    assert "--overflow" in err, err
    if os.getuid() == 0:
        print("skipped: root may write everywhere")
        return
    _, err = run("create", "never", "--overflow", "/", code=1)
    assert "permission_denied" in err and "belongs to root" in err, err


@test
def the_remedy_for_a_full_ring_is_that_of_its_shortage(folder, rollouts):
    full = ("--timeout", "1s", "--synthetic")
    with Ring("--lanes", 2, "--lane-bytes", "1MiB", "--spill-bytes", "1MiB") as ring:
        _, err = run("produce", ring, *full, "groups=1000,group-size=8,tokens=3000:3000", code=1)
        assert "no new group can open" in err and "more --spill-bytes" in err, err
        assert "Start a consumer that releases its records, or raise --timeout" in err, err
    with Ring("--lanes", 2, "--lane-bytes", "1MiB", "--spill-bytes", "64MiB") as ring:
        _, err = run("produce", ring, *full, "groups=1,group-size=200,tokens=3000:3000", code=1)
        assert "create the ring with larger lanes, or raise --timeout" in err, err


if __name__ == "__main__":
    raise SystemExit(main())
