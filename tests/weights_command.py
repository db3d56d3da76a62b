#!/usr/bin/env python3
"""`rollring weights`, beside a trainer and an engine that `rollring-bench weights` holds still.

usage: weights_command.py PATH_OF_ROLLRING PATH_OF_ROLLRING_BENCH
"""
import json
import os
import re
import signal
import subprocess
import sys

from program import LIMIT_S, PROGRAM, Ring, examples, main, report, run, shell, start, test

BENCH = os.path.abspath(sys.argv[2])
LIST = ("--device", "host", "--scale", "small")


def bench(*arguments, code=0):
    done = subprocess.run([BENCH, "weights", *map(str, arguments)], text=True, timeout=LIMIT_S,
                          capture_output=True, check=False)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


class Session:
    """A trainer with one engine, at its first committed version until it is let go."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [BENCH, "weights", *LIST, "--repeat", "2", "--pause", "--json", *arguments],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return json.loads(line)["ring"]

    def __exit__(self, *_):
        out, err = self.process.communicate("\n", timeout=LIMIT_S)
        assert self.process.returncode == 0, (out, err)
        assert json.loads(out)["verified"], out


def check_publisher(got):
    assert got["publisher"] == "trainer" and (got["rank"], got["ranks"]) == (0, 1), got
    assert got["gpu"] == "host" and got["memory"] == "host" and got["tensors"] == 291, got
    assert 1 << 20 < got["payload_bytes"] <= 16 << 20, got
    assert got["slots"] == 4 and got["slot_bytes"] >= 1 << 20, got
    assert got["parts"] == -(-got["payload_bytes"] // (1 << 20)) or got["parts"] > 8, got
    assert got["state"] == "committed" and got["version"] == got["committed_version"] == 1, got
    assert got["syncs"] == 1 and got["aborts"] == 0 and got["handles_passed"] >= 4, got
    assert got["checksums"] and re.fullmatch("[0-9a-fx]{16,34}", got["layout_hash"]), got
    assert set(got["last_times_ms"]) == {"wait_slot", "put", "publish", "staged", "commit"}, got
    assert all(time >= 0 for time in got["last_times_ms"].values()), got


@test
def a_channel_from_outside(folder, rollouts):
    with Session("--slot-bytes", "1MiB", "--checksums") as ring:
        told = report("weights", ring)
        assert told["ring"] == ring and len(told["publishers"]) == 1, told
        publisher = told["publishers"][0]
        check_publisher(publisher)
        (engine,) = publisher["subscribers"]
        assert engine["name"] == "engine" and engine["alive"], engine
        assert engine["state"] == "ready" and engine["gpu"] == "host", engine
        assert engine["staged_version"] == engine["live_version"] == 1, engine
        assert engine["read_done_parts"] == publisher["parts"] and not engine["problem"], engine
        text, _ = run("weights", ring)
        for part in ("rank 0 of 1", "291 tensors", "committed 1", "1 sync,", "engine", "yes"):
            assert part in text, (part, text)
        again = report("weights", ring)
        for one in (*told["publishers"], *again["publishers"]):
            del one["handles_passed"]  # those of an observer are counted, too
        assert again == told


@test
def an_engine_that_stages_by_difference(folder, rollouts):
    with Session("--changed", "5") as ring:
        (engine,) = report("weights", ring)["publishers"][0]["subscribers"]
        delta = engine["delta"]
        assert delta["version"] == 1 and delta["way"] == "list", delta
        assert 0.03 < delta["changed"] / delta["elements"] < 0.07, delta
        assert delta["list_bytes"] >= 4 * delta["changed"], delta
        assert delta["compare"] > 0 and delta["swap"] > 0, delta
        text, _ = run("weights", ring)
        for part in ("engine: version 1 by difference (list)", "% of", "changed, list of"):
            assert part in " ".join(text.split()), (part, text)
        text, _ = run("metrics", ring, "--once")
        assert f'rollring_engine_last_delta_changed{{ring="{ring}"' in text, text


@test
def measured_by_difference(folder, rollouts):
    got = json.loads(bench("--changed", "20,1", *LIST, "--json").stdout)
    assert got["verified"], got
    many, few, in_place, beside = got["ways"]
    assert 0.18 < many["found"]["median"] < 0.22, many
    assert 0.008 < few["found"]["median"] < 0.012, few
    assert few["list_bytes"]["median"] < many["list_bytes"]["median"], got
    assert many["compare_ms"]["median"] > 0 and many["swap_ms"]["median"] > 0, many
    assert (in_place["way"], beside["way"]) == ("in_place", "beside"), got
    for way in got["ways"]:
        assert way["pause_ms"]["median"] > 0 and way["two_copies_ms"]["median"] > 0, way


@test
def the_examples_show_a_channel(folder, rollouts):
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/rollring").symlink_to(PROGRAM)
    with Session() as ring:
        for line in examples("weights"):
            if "--plan" in line or "--rollback" in line:  # test_weight{_plan,s_rollback}_program.py
                continue
            shown = shell(re.sub(r"\b(r|run42)\b", ring, line), folder)
            first = shown.stdout.readline()
            assert ring in first, (line, first, shown.communicate())
            watches = "--watch" in line
            if watches:
                os.killpg(shown.pid, signal.SIGINT)
            shown.communicate(timeout=LIMIT_S)
            assert shown.returncode in ((130, -signal.SIGINT) if watches else (0,)), line


@test
def a_watch_waits_for_a_publisher(folder, rollouts):
    with Session() as ring:
        watch = start("weights", ring, "--watch", "0.05")
        assert "1 publisher" in watch.stdout.readline()
    # The session ends with its ring; one whose publisher comes late is in the program's tests.
    _, err = watch.communicate(timeout=LIMIT_S)
    assert watch.returncode == 1 and "not found" in err, (watch.returncode, err)


@test
def no_ring_or_nobody_on_it(folder, rollouts):
    _, err = run("weights", "no-such-ring", code=1)
    assert "not_found" in err and "no-such-ring" in err, err
    with Ring() as ring:
        _, err = run("weights", ring, code=1)
        assert "no live weight publisher" in err and ring in err, err
        assert "Publisher::create, in Python with rollring.WeightPublisher" in err, err
        out, err = run("weights", ring, "--json", code=1)
        assert out == "" and "no live weight publisher" in err, (out, err)
    run("weights", code=2)
    assert "Examples" in run("weights", "--help")[0]


@test
def contents_arrive_whatever_the_list(folder, rollouts):
    for arguments in (("llama8b",), ("llama8b", "--cast"), ("qwen30b", "--checksums"),
                      ("tiny", "--slots", 3, "--slot-bytes", "256KiB"),
                      ("empty", "--repeat", 200)):
        got = json.loads(bench("--list", *arguments, *LIST, "--json").stdout)
        assert got["verified"] and got["memory"] == "host", got
        assert got["engine"]["handles_early"] == got["engine"]["handles_last"], got
        assert got["tensors"] == {"llama8b": 291, "qwen30b": 18867, "empty": 1}.get(
            arguments[0], got["tensors"]), got


@test
def nothing_grows(folder, rollouts):
    got = json.loads(bench("--list", "llama8b", *LIST, "--soak", 200, "--json").stdout)
    for side in (got["trainer"], got["engine"]):
        assert side["early"]["fds"] == side["last"]["fds"], got
        assert side["early"]["shm_objects"] == side["last"]["shm_objects"], got


@test
def lists_for_the_script(folder, rollouts):
    path = folder / "list.jsonl"
    bench("--list", "llama8b", "--scale", 1, "--print-list", path)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 291 and rows[0]["shape"] == [128256, 4096], rows[0]
    elements = sum(row["shape"][0] * (row["shape"] + [1])[1] for row in rows)
    assert elements == 8_030_261_248 and {row["dtype"] for row in rows} == {"bf16"}, elements


if __name__ == "__main__":
    sys.exit(main())
