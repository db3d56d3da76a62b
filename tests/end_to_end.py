#!/usr/bin/env python3
"""The program from end to end: create, produce, consume, inspect, demo, and errors.

usage: end_to_end.py PATH_OF_ROLLRING PATH_OF_SCRIBBLE
"""
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from program import (
    PREFIX,
    ROLLOUTS,
    Ring,
    digest,
    finish,
    main,
    multiset,
    report,
    run,
    start,
    test,
    wait_until,
)

# Knows where words of a ring lie, as the library it was built with does.
SCRIBBLE = sys.argv[2]


def send_and_check(source, options=(), consume=(), producers=4, output=None, lanes=("--lanes", 8)):
    """Sends the source through a ring; returns the consumer's report, checked."""
    with Ring(*lanes) as ring:
        more = ["--output", output] if output else []
        trainer = start("consume", ring, "--until-closed", "--producers", producers, "--json",
                        *more, *consume)
        senders = [start("produce", ring, *source, "--shard", f"{i}/{producers}", "--json",
                         *options) for i in range(producers)]
        sent = [json.loads(finish(sender)[0]) for sender in senders]
        got = json.loads(finish(trainer)[0])
        for key in ("lost", "duplicates", "torn", "redelivered", "producers_died"):
            assert got[key] == 0, got
        assert got["reason"] == "closed", got
        for key in ("records", "tokens"):
            assert got[key] == sum(one[key] for one in sent), (key, got, sent)
        total = sum(digest(one["digest"]) for one in sent) % 2**64
        assert digest(got["digest"]) == total, (got, sent)
        return got


@test
def rollouts_arrive_whole_and_are_written_back(folder, rollouts):
    output = folder / "out.jsonl"
    got = send_and_check(["--input", rollouts], ["--shuffle", 1], output=output)
    assert multiset(output) == multiset(rollouts)
    told = report("produce", "--input", rollouts, "--digest")
    assert (told["records"], told["tokens"], told["digest"]) == (
        got["records"], got["tokens"], got["digest"]), (told, got)
    if rollouts in ROLLOUTS:
        assert (got["records"], got["tokens"]) == (5276, 848754), got


@test
def held_records_leave_out_of_order(folder, rollouts):
    plain = report("produce", "--input", rollouts, "--digest", "--repeat", 2)
    got = send_and_check(["--input", rollouts],
                         ["--repeat", 2, "--batch", 16, "--checksum", "xxh3"],
                         consume=["--hold", 200, "--hold-seed", 7],
                         lanes=("--lanes", 4, "--lane-bytes", "2MiB"))
    assert got["digest"] == plain["digest"]
    assert got["released"] == got["records"], got


@test
def wide_synthetic_records(folder, rollouts):
    spec = "groups=20,group-size=4,tokens=1:3000,routed-experts=6x4,experts=300,seed=5"
    got = send_and_check(["--synthetic", spec], producers=3, lanes=("--lane-bytes", "1MiB"))
    assert got["records"] == 80


@test
def all_atropos_fields_come_back(folder, rollouts):
    groups = [{
        "tokens": [[1, 2, 3], [4, 5, 6]], "masks": [[-100, 2, 3], [-100, -100, 6]],
        "scores": [1.0, float("nan")], "advantages": [[0.5] * 3, [-0.5] * 3],
        "ref_logprobs": [[-1.5, -2.5, -3.5], [0.0, -0.25, -1e-8]],
        "messages": [[{"role": "user", "content": "ü🙂\n"}], []],
        "generation_params": {"temperature": 0.7}, "inference_logprobs": [[1.0, -0.5, -2.0]] * 2,
        "overrides": [{"set_advantage_to_zero": True}, {}], "group_overrides": {"group_size": 2},
        "images": [None, ["aGk="]], "env_id": line,
        "distill_token_ids": [[[1, 2]] * 3, [[3, 4]] * 3],
        "distill_logprobs": [[[-1.0, -2.0]] * 3, [[-3.0, -4.0]] * 3],
    } for line in range(50)]
    groups += [{"tokens": [[7]], "masks": [[9]], "scores": [0], "advantages": None, "env": "x"}]
    path, output = folder / "groups.jsonl", folder / "groups.out"
    path.write_text("".join(json.dumps(group) + "\n" for group in groups), encoding="utf-8")

    got = send_and_check(["--input", path, "--format", "atropos"], output=output)
    assert got["records"] == 101 and got["incomplete_groups"] == 0, got
    assert multiset(output) == multiset(path)


@test
def a_bad_line_is_named(folder, rollouts):
    path = folder / "bad.jsonl"
    good = '{"instance_id":"é/%d","repetition_id":0,"reward":NaN,"tokens":[1,2]}\n'
    path.write_text(good % 1 + "\n" + '{"instance_id":"x","repetition_id":0,"tokens":[1,"a"]}\n' +
                    good % 2, encoding="utf-8")
    with Ring() as ring:
        out, err = run("produce", ring, "--input", path, "--json", code=1)
        assert f"{path}:3: 'tokens' must be an integer" in err, err
        assert "1 record sent before it" in err, err
        assert json.loads(out)["records"] == 1
        sent = report("produce", ring, "--input", path, "--skip-bad")
        assert (sent["records"], sent["skipped_bad"]) == (2, 1), sent
        got = report("consume", ring, "--records", 3)
        assert got["records"] == 3 and got["reason"] == "records", got
        output = folder / "nan.jsonl"
        run("produce", ring, "--input", "-", stdin_text=good % 1)
        run("consume", ring, "--records", 1, "--output", output)
        assert json.loads(output.read_text(encoding="utf-8"))["reward"] == "NaN"


def strict_json(path):
    """Its lines, read as JSON that knows no NaN."""
    def refuse(literal):
        raise AssertionError(f"{literal} is not JSON")
    return [json.loads(line, parse_constant=refuse)
            for line in Path(path).read_text(encoding="utf-8").splitlines()]


@test
def what_nests_too_deep_is_named_and_passed_over(folder, rollouts):
    """80,000 levels ended produce and, from a record that had them, consume by SIGSEGV."""
    deep = "[" * 80_000 + "]" * 80_000
    good = '{"instance_id":"q","repetition_id":%d,"tokens":[1]}\n'
    path, output = folder / "deep.jsonl", folder / "deep.out"
    path.write_text(good % 0 + deep + "\n" + '{"instance_id":"x","repetition_id":0,"tokens":[1],'
                    f'"messages":{deep}}}\n' + '{"a":' * 80_000 + "1" + "}" * 80_000 + "\n" +
                    good % 1, encoding="utf-8")
    with Ring() as ring:
        _, err = run("produce", ring, "--input", path, code=1)
        assert f"{path}:2: not JSON: column 257: nested deeper than 256 levels" in err, err
        out, err = run("produce", ring, "--input", path, "--skip-bad", "--json")
        assert (json.loads(out)["records"], json.loads(out)["skipped_bad"]) == (2, 3), out
        for line in (2, 3, 4):
            assert f"skipped {path}:{line}: not JSON" in err, err
        assert report("consume", ring, "--records", 3, "--output", output)["records"] == 3
        assert len(strict_json(output)) == 3
        for form in ("rollring", "atropos"):
            _, err = run("produce", "--digest", "--input", path, "--format", form, code=1)
            assert f"{path}:" in err, err


@test
def a_line_that_is_too_long_is_named(folder, rollouts):
    good = '{"instance_id":"q","repetition_id":%d,"tokens":[1]}\n'
    path = folder / "long.jsonl"
    path.write_text(good % 0 + good.strip() % 1 + " " * 2_000_000 + "\n" + good % 2,
                    encoding="utf-8")
    assert report("produce", "--digest", "--input", path)["records"] == 3
    out, err = run("produce", "--digest", "--input", path, "--max-line", "1MiB", "--skip-bad",
                   "--json")
    assert json.loads(out)["records"] == 2, out
    assert f"skipped {path}:2: longer than 1 MiB: raise --max-line" in err, err


@test
def a_long_line_costs_a_small_multiple_of_itself(folder, rollouts):
    """Both a list of short numbers, which is the most columns a byte, and text."""
    megabytes = 40
    path = folder / "wide.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.write('{"instance_id":"q","repetition_id":0,"tokens":[1')
        file.write(",1234" * (megabytes * 100_000))
        file.write('],"messages":"' + "x" * (megabytes * 500_000) + '"}\n')
    sender = start("produce", "--digest", "--input", path, "--json")
    sender.stdout.read()
    _, status, usage = os.wait4(sender.pid, 0)
    sender.returncode = os.waitstatus_to_exitcode(status)
    assert sender.returncode == 0, sender.stderr.read()
    assert usage.ru_maxrss / 1024 < 4 * megabytes, usage.ru_maxrss


@test
def custom_columns_are_read_and_written_by_name(folder, rollouts):
    schema, path, output = (folder / name for name in ("schema.json", "c.jsonl", "c.out"))
    schema.write_text(json.dumps([
        {"name": "values", "dtype": "f32", "required": True},
        {"name": "grid", "dtype": "u16", "dims": [2]},
        {"name": "tags", "dtype": "i64", "per": "record"}]), encoding="utf-8")
    records = [{"instance_id": f"q{i}", "repetition_id": 0, "tokens": [1, 2], "values": [0.5, i],
                "grid": [[1, 2], [3, 65535]], "tags": [i, -i], "other": [1]} for i in range(5)]
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    with Ring("--schema", schema) as ring:
        sent = report("produce", ring, "--input", path)
        got = report("consume", ring, "--records", 5, "--output", output)
        assert got["digest"] == sent["digest"] and multiset(output) == multiset(path)
        for change, reason in (({"values": None}, "'values' is missing: the ring's schema"),
                               ({"values": [1]}, "'values' has 1 entries for 2 tokens"),
                               ({"grid": [[1, 2], [3, 65536]]}, "'grid' is 65536, outside"),
                               ({"grid": [[1], [2]]}, "'grid' has the shape [2, 1]"),
                               ({"tags": "x"}, "'tags' must be lists")):
            path.write_text(json.dumps({**records[0], **change}) + "\n", encoding="utf-8")
            _, err = run("produce", ring, "--input", path, code=1)
            assert f"{path}:1: {reason}" in err, err


@test
def wrong_use_and_failures_have_their_codes(folder, rollouts):
    for arguments in ((), ("nothing",), ("create",), ("create", "x", "--lane-bytes", "64MB"),
                      ("create", "a/b"), ("produce", "x"), ("produce", "x", "--synthetic", "a=1"),
                      ("produce", "x", "--synthetic", "tokens=1", "--shard", "4/4"),
                      ("produce", "--digest", "--synthetic", "tokens=1", "--max-line", "4GiB"),
                      ("consume",), ("demo", "--producers", "0")):
        _, err = run(*arguments, code=2)
        assert err, arguments
    for command in ("create", "size", "rm", "ls", "stat", "doctor", "produce", "consume", "groups",
                    "demo"):
        assert "Examples:" in run(command, "--help")[0], command
    for command in ("stat", "rm"):
        _, err = run(command, PREFIX + "nowhere", code=1)
        assert err.startswith(f"rollring: not_found: ring {PREFIX}nowhere not found; "), err
        assert "rollring ls" in err, err
    _, err = run("produce", "x", "--input", folder / "nowhere", code=1)
    assert err.startswith("rollring: not_found: "), err
    with Ring() as ring:
        _, err = run("create", ring, code=1)
        assert err.startswith("rollring: already_exists: "), err
        _, err = run("consume", ring, "--records", 5, "--idle-timeout", "300ms", code=1)
        assert "5 of 5 records are missing" in err and "no producer is alive" in err, err
        assert report("consume", ring, "--idle-timeout", "200ms")["reason"] == "idle"


@test
def a_full_lane_without_consumer_times_out(folder, rollouts):
    with Ring("--lane-bytes", "64KiB") as ring:
        out, err = run("produce", ring, "--synthetic", "tokens=1000", "--timeout", "300ms", code=1)
        assert "KiB in lane 0" in err and "no consumer is attached" in err, err
        assert out.startswith("failed after sending ") and "\nsent " not in out, out
        out, _ = run("produce", ring, "--synthetic", "tokens=1000", "--timeout", "300ms", "--json",
                     code=1)
        assert json.loads(out)["failed"], out
        _, err = run("produce", ring, "--synthetic", "tokens=20000", code=1)
        assert err, err


@test
def no_free_lane_tells_the_whole_wait(folder, rollouts):
    with Ring("--lanes", 1) as ring:
        assert not report("produce", ring, "--synthetic", "groups=1,tokens=10")["failed"]
        _, err = run("produce", ring, "--synthetic", "tokens=10", "--timeout", "700ms", code=1)
        last = err.splitlines()[-1]
        assert last.startswith("rollring: no_free_lane: ") and "waited 0.70 s" in last, err


@test
def dropped_bytes_show_in_the_table(folder, rollouts):
    with Ring("--lanes", 1) as ring:
        run("produce", ring, "--synthetic", "groups=1,tokens=10")
        subprocess.run([SCRIBBLE, ring, "dropped_bytes", str(3 << 10)], check=True)
        assert report("stat", ring)["lanes"][0]["dropped_bytes"] == 3 << 10
        assert "0 + 3 KiB" in run("stat", ring)[0]


@test
def an_interrupt_ends_cleanly(folder, rollouts):
    with Ring() as ring:
        sender = start("produce", ring, "--synthetic", "groups=1000000,tokens=100", "--rate", 5000,
                       "--json")
        trainer = start("consume", ring, "--json")
        wait_until(lambda: any(lane["delivered_records"] > 3
                               for lane in report("stat", ring)["lanes"]), "records to move")
        sender.send_signal(signal.SIGINT)
        sent = json.loads(finish(sender, 130)[0])
        wait_until(lambda: report("stat", ring)["lanes"][0]["delivered_records"] == sent["records"],
                   "the last record")
        trainer.send_signal(signal.SIGTERM)
        got = json.loads(finish(trainer, 143)[0])
        assert got["reason"] == "interrupted" and sent["interrupted"]
        assert (got["records"], got["digest"]) == (sent["records"], sent["digest"]), (got, sent)


@test
def a_consumer_whose_ring_is_removed_ends(folder, rollouts):
    for mode in ([], ["--group-size", 4]):
        name = f"{PREFIX}removed{len(mode)}"
        run("create", name)
        trainer = start("consume", name, "--json", *mode)
        wait_until(lambda ring=name: report("stat", ring)["consumer_alive"],
                   "the consumer to attach")
        run("rm", name, "--force")
        out, err = finish(trainer, 1)
        assert json.loads(out)["reason"] == "removed", out
        assert "was removed while in use" in err, err


@test
def a_killed_producer_is_reported(folder, rollouts):
    with Ring() as ring:
        sender = start("produce", ring, "--synthetic", "groups=1000000,tokens=100", "--rate", 5000)
        trainer = start("consume", ring, "--json", "--until-closed")
        wait_until(lambda: any(lane["delivered_records"] > 3
                               for lane in report("stat", ring)["lanes"]), "records to move")
        sender.kill()
        sender.communicate()
        out, err = finish(trainer)
        got = json.loads(out)
        assert (got["producers_died"], got["lost"], got["torn"]) == (1, 0, 0), got
        assert "producer_died" in err, err


@test
def inspection(folder, rollouts):
    with Ring("--lanes", 3) as ring:
        assert any(entry["ring"] == ring for entry in report("ls"))
        sender = start("produce", ring, "--synthetic", "groups=1000000,tokens=100", "--rate", 5000,
                       "--name", "me")
        wait_until(lambda: any(lane["committed_records"] > 3
                               for lane in report("stat", ring)["lanes"]), "records")
        stat = report("stat", ring)
        lane = stat["lanes"][0]
        assert stat["lane_count"] == 3 and not stat["consumer_alive"], stat
        assert lane["producer"] == "me" and lane["alive"] and lane["pid"] == sender.pid, lane
        assert lane["depth_records"] > 3 and lane["depth_bytes"] > 0 and lane["oldest_age_s"] >= 0
        watch = start("stat", ring, "--watch", "0.1", "--json")
        lines = [json.loads(watch.stdout.readline()) for _ in range(3)]
        assert lines[-1]["lanes"][0]["tokens_per_s"] > 0, lines[-1]
        watch.send_signal(signal.SIGINT)
        finish(watch, 130)
        watch = start("stat", ring, "--watch", ".1", "--json")
        assert json.loads(watch.stdout.readline())["ring"] == ring
        watch.send_signal(signal.SIGINT)
        finish(watch, 130)
        assert "me" in run("stat", ring)[0]
        _, err = run("rm", ring, code=1)
        assert err.startswith("rollring: busy: "), err
        sender.terminate()
        finish(sender, 143)
        doctor = json.loads(start("doctor", "--json").communicate()[0])
        verdicts = {entry["ring"]: entry["verdict"] for entry in doctor["rings"]}
        assert verdicts[ring] == "kept", doctor
        report("consume", ring, "--until-closed")
        doctor = json.loads(start("doctor", "--json").communicate()[0])
        verdicts = {entry["ring"]: entry["verdict"] for entry in doctor["rings"]}
        assert verdicts[ring] == "healthy", doctor  # between two runs, perhaps
        (line,) = [line for line in run_doctor().splitlines() if line.startswith(f"{ring}:")]
        assert line == f"{ring}: healthy (ok): idle: empty, no process is attached", line


@test
def what_lies_beside_a_ring_that_is_gone_is_reported_and_goes_with_its_name(folder, rollouts):
    ring = f"{PREFIX}gone"
    left = Path(f"/dev/shm/rollring.{os.getuid()}.{ring}~0123456789abcdef.requests")
    left.touch(0o600)
    told, _ = finish(start("doctor", "--json"), 1)
    assert f"/{left.name}" in json.loads(told)["leftovers"], told
    assert f"/dev/shm/{left.name}: leftover: " in run_doctor()
    assert all("~" not in entry["ring"] for entry in report("ls"))
    run("rm", ring)
    assert not left.exists()
    run("rm", ring, code=1)


def run_doctor():
    return start("doctor").communicate()[0]


@test
def the_ring_of_a_killed_demo_is_an_orphan_and_the_next_demo_removes_it(folder, rollouts):
    killed = start("demo", "--synthetic", "groups=100000,tokens=2000:4000")

    def rings():
        return [entry["ring"] for entry in report("ls")
                if entry["ring"].startswith(f"demo-{killed.pid}-")]

    wait_until(lambda: any(entry["ring"] in rings() and entry.get("producers_alive", 0) > 0
                           for entry in report("ls")), "the demo to run")
    (ring,) = rings()
    assert f"{ring}: healthy (ok): in use" in run_doctor()
    killed.kill()
    killed.communicate()

    def is_used():  # objects that another program's sweep has taken are not
        told = json.loads(start("doctor", "--json").communicate()[0])
        return any(entry["ring"] == ring and entry["in_use"] for entry in told["rings"])

    wait_until(lambda: not is_used(), "its processes to end with it")
    report("demo", "--synthetic", "groups=2,tokens=10:100")
    assert not rings(), rings()


@test
def an_interrupted_demo_compares_nothing(folder, rollouts):
    stopped = start("demo", "--synthetic", "groups=100000,tokens=2000:4000")
    wait_until(lambda: any(entry["ring"].startswith(f"demo-{stopped.pid}-")
                           and entry.get("producers_alive", 0) > 0 for entry in report("ls")),
               "the demo to run")
    stopped.send_signal(signal.SIGINT)
    out, err = finish(stopped, 130)
    assert re.search(r"digest +not compared: interrupted\n", out), out
    assert out.endswith("Interrupted before the end.\n") and "MISMATCH" not in out, out
    assert "group_size" not in out, out  # incomplete, because it was stopped
    assert "the rest not counted (interrupted)" in out and "left in the" not in err, (out, err)


@test
def a_demo_does_not_report_ordinary_back_pressure(folder, rollouts):
    # 131,072 tokens a record, and lanes that hold two of them: each producer waits again and again.
    process = start("demo", "--producers", 4, "--lane-bytes", "4MiB",
                    "--synthetic", "groups=40,group-size=4,tokens=131072:131072")
    out, err = finish(process)
    waits = int(re.search(r"waits +([0-9,]+)", out)[1].replace(",", ""))
    assert waits > 8 and "waiting" not in err, (out, err)
    took, arriving = re.search(r"time +([0-9.]+) s; records arrived over ([0-9.]+) s", out).groups()
    assert float(took) >= float(arriving) > 0, out


@test
def the_demo_proves_itself_and_cleans_up(folder, rollouts):
    told = report("demo", "--input", rollouts, "--producers", 4, "--shuffle", 3)
    assert told["ok"] and told["digest_equal"] and told["records"] == told["sent"], told
    told = report("demo", "--synthetic", "groups=50,tokens=10:100", "--records", 5,
                  "--producers", 7)
    assert told["ok"] and told["records"] == 5, told
    assert "exactly once and intact" in run("demo", "--synthetic", "groups=50,tokens=10:100")[0]
    stopped = start("demo", "--synthetic", "groups=100000,tokens=2000:4000", "--json")
    wait_until(lambda: any(entry["ring"].startswith(f"demo-{stopped.pid}-")
                           and entry.get("producers_alive", 0) > 0 for entry in report("ls")),
               "the demo to run")
    stopped.terminate()
    told = json.loads(finish(stopped, 143)[0])
    assert told["interrupted"] and not told["ok"], told
    bad = folder / "bad.jsonl"
    bad.write_text("{}\n", encoding="utf-8")
    out, err = run("demo", "--input", bad, "--json", code=1)
    assert "bad.jsonl:1: 'instance_id', 'token_ids' are missing" in err, err
    assert not json.loads(out)["ok"], err
    bad.write_text('{"instance_id": "a", "tokens": [1]}\n' * 8 + "{}\n", encoding="utf-8")
    out, err = run("demo", "--input", bad, "--producers", 1, "--group-size", 8, code=1)
    assert re.fullmatch(r"FAILED after \d+ records?\n", out), out  # no table, no other advice
    assert err.count("\n") == 1 and "bad.jsonl:9: " in err, err
    assert not [entry for entry in report("ls") if entry["ring"].startswith(f"demo-{stopped.pid}")]


if __name__ == "__main__":
    sys.exit(main())
