#!/usr/bin/env python3
"""Groups from end to end: interleaved rollouts in, whole groups out, with any process killed
meanwhile.

usage: groups_end_to_end.py PATH_OF_ROLLRING
"""
import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

from program import (
    ROLLOUTS,
    Ring,
    canonical,
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

NOTHING_WRONG = ("lost", "duplicates", "torn", "redelivered", "producers_died", "groups_partial",
                 "groups_dropped", "open_groups", "copied_bytes", "evacuated_records",
                 "records_dropped", "records_held", "size_conflicts")


def rewards_of(path):
    """{instance_id: {repetition_id: reward}} of a file of rollouts."""
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["instance_id"], {})[record["repetition_id"]] = record["reward"]
    return found


def batches_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def groups_of(path):
    return [group for batch in batches_of(path) for group in batch["groups"]]


def grpo(rewards):
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (deviation + 1e-4) for r in rewards]


def member(prompt, repetition, **more):
    return json.dumps({"instance_id": prompt, "repetition_id": repetition, "group_size": 4,
                       "reward": repetition % 2, "tokens": [1, 2, 3], **more}) + "\n"


def open_sender(ring, *arguments):
    return start("produce", ring, "--input", "-", *arguments, stdin=subprocess.PIPE)


def tell(sender, *lines):
    sender.stdin.write("".join(lines))
    sender.stdin.flush()


def delivered(ring):
    return sum(lane["delivered_records"] for lane in report("stat", ring)["lanes"])


@test
def interleaved_rollouts_become_whole_groups(folder, rollouts):
    output = folder / "groups.jsonl"
    with Ring() as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--until-closed", "--producers", 4,
                        "--batch-groups", 16, "--output", output, "--json")
        senders = [start("produce", ring, "--input", rollouts, "--shuffle", 11, "--shard", f"{i}/4",
                         "--json") for i in range(4)]
        sent = [json.loads(finish(sender)[0]) for sender in senders]
        got = json.loads(finish(trainer)[0])
    wanted = rewards_of(rollouts)
    if rollouts in ROLLOUTS:
        assert (len(wanted), got["records"], got["tokens"]) == (1319, 5276, 848754), got
    assert all(got[key] == 0 for key in NOTHING_WRONG), got
    assert got["conserved"] and got["reason"] == "closed", got
    assert got["groups"] == len(wanted) and got["records_shipped"] == got["records"], got
    assert got["records"] == sum(one["records"] for one in sent), got
    assert digest(got["digest"]) == sum(digest(one["digest"]) for one in sent) % 2**64, got
    batches = batches_of(output)
    assert [batch["step"] for batch in batches] == list(range(got["batches"])), got
    assert all(len(batch["groups"]) == 16 for batch in batches[:-1]), got
    groups = groups_of(output)
    assert sorted(group["instance_id"] for group in groups) == sorted(wanted)
    assert len({group["key"] for group in groups}) == len(groups)
    for group in groups:
        members = wanted[group["instance_id"]]
        assert group["size"] == 4 and group["repetition_ids"] == sorted(members), group
        assert group["rewards"] == [members[i] for i in sorted(members)], group
        expected = grpo(group["rewards"])
        assert all(math.isclose(a, b, abs_tol=1e-12)
                   for a, b in zip(group["advantages"], expected, strict=True)), (group, expected)


@test
def batches_by_sequences_and_tokens(folder, rollouts):
    for option, most in (("--batch-sequences", 10), ("--batch-tokens", 100)):
        output = folder / "batches.jsonl"
        with Ring() as ring:
            run("produce", ring, "--synthetic", "groups=40,group-size=4,tokens=5")
            got = report("consume", ring, "--group-size", "auto", option, most, "--until-closed",
                         "--advantages", "mean", "--output", output)
        assert got["groups"] == 40 and got["conserved"], got
        sizes = [len(batch["groups"]) for batch in batches_of(output)]
        assert len(sizes) > 5 and len(set(sizes[:-1])) == 1, sizes


@test
def a_producer_killed_in_a_group_does_not_stop_the_run(folder, rollouts):
    output = folder / "partial.jsonl"
    with Ring() as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--until-closed", "--producers", 2,
                        "--deadline", "1s", "--batch-groups", 4, "--output", output, "--json")
        victim = open_sender(ring, "--name", "victim")
        tell(victim, member("half", 0), member("half", 1), member("lone", 0))
        wait_until(lambda: delivered(ring) == 3, "the victim's records")
        victim.kill()
        victim.communicate()
        run("produce", ring, "--synthetic", "groups=30,group-size=4,tokens=9")
        got = json.loads(finish(trainer)[0])
    assert (got["groups"], got["groups_partial"], got["groups_dropped"]) == (31, 1, 1), got
    assert got["records_dropped"] == 1 and got["records_shipped"] == 122, got
    assert got["producers_died"] == 1 and got["conserved"] and got["open_groups"] == 0, got
    (half,) = [group for group in groups_of(output) if group["instance_id"] == "half"]
    assert half["repetition_ids"] == [0, 1] and half["rewards"] == [0, 1], half
    assert [round(a, 9) for a in half["advantages"]] == [round(a, 9) for a in grpo([0, 1])], half


@test
def without_a_deadline_no_group_ships_in_part(folder, rollouts):
    with Ring() as ring:
        sender = open_sender(ring, "--name", "victim")
        tell(sender, member("half", 0), member("half", 1), member("half", 1))
        wait_until(lambda: sum(lane["committed_records"]
                               for lane in report("stat", ring)["lanes"]) == 3, "the records")
        sender.kill()
        sender.communicate()
        out, err = run("consume", ring, "--group-size", "auto", "--idle-timeout", "1s", "--json")
        got = json.loads(out)
        assert (got["groups"], got["open_groups"], got["dropped"]["duplicate"]) == (0, 1, 1), got
        assert "warning: 1 record dropped as duplicate: 'half' #1 of victim" in err, err
        assert "it has pushed that repetition_id before" in err, err
        _, err = run("consume", ring, "--group-size", "auto", "--idle-timeout", "1s",
                     "--deadline", "100ms")
        assert "warning: the deadline of a group has passed, and it ships with 2 of 4" in err, err
        assert "half: ready" in err, err
        assert "missing: members 2-3; from victim (lane 0, died)" in err, err


@test
def a_death_is_shown_beside_a_living_trainer(folder, rollouts):
    """The trainer frees the lane at once; that its producer died stays to be seen."""
    with Ring() as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--idle-timeout", 0)
        sender = open_sender(ring, "--name", "victim")
        tell(sender, member("half", 0))
        wait_until(lambda: report("groups", ring)["groups"], "its group")
        sender.kill()
        sender.communicate()
        wait_until(lambda: report("stat", ring)["lanes"][0]["state"] == "free", "a free lane")
        assert re.search(r"victim +\d+ +free \(died\) ", run("stat", ring)[0]), run("stat", ring)
        assert "victim (lane 0, died)" in run("groups", ring)[0]
        trainer.send_signal(signal.SIGINT)
        finish(trainer, 130)


@test
def the_latest_batch_has_its_mean_reward_and_length(folder, rollouts):
    with Ring() as ring:
        assert report("groups", ring)["latest_batch"]["sequences"] == 0
        lines = [member("p", i, reward=i / 2, tokens=[1] * (2 + i)) for i in range(4)]
        run("produce", ring, "--input", "-", stdin_text="".join(lines))
        run("consume", ring, "--group-size", "auto", "--until-closed")
        assert report("groups", ring)["latest_batch"] == {
            "sequences": 4, "tokens": 14, "rewarded": 4, "mean_reward": 0.75}
        line = "latest batch: 4 sequences, mean length 4 tokens, mean reward 0.750\n"
        assert line in run("groups", ring)[0], run("groups", ring)


@test
def records_without_a_number_are_members_of_their_own(folder, rollouts):
    output = folder / "unnumbered.jsonl"
    line = json.dumps({"instance_id": "p", "group_size": 4, "tokens": [1, 2]}) + "\n"
    with Ring() as ring:
        run("produce", ring, "--input", "-", stdin_text=4 * line)
        got = report("consume", ring, "--group-size", "auto", "--until-closed", "--output", output,
                     "--output-format", "records")
        assert (got["groups"], got["records_dropped"], got["groups_partial"]) == (1, 0, 0), got
        lines = [json.loads(one) for one in output.read_text().splitlines()]
        assert len(lines) == 4 and all("repetition_id" not in one for one in lines), lines
        again = line.replace('"p"', '"q"')
        mixed = again.replace("}", ', "repetition_id": 0}')
        run("produce", ring, "--input", "-", stdin_text=again + mixed)
        _, err = run("consume", ring, "--group-size", "auto", "--idle-timeout", "1s")
        assert "dropped as mixed_numbers: 'q' #0" in err and "began with none" in err, err


@test
def groups_that_wait_are_shown(folder, rollouts):
    with Ring() as ring:
        assert "no trainer has opened a stash" in run("groups", ring)[0]
        assert not report("groups", ring)["used"]
        trainer = start("consume", ring, "--group-size", "auto", "--idle-timeout", 0,
                        "--no-progress", "200ms")
        sender = open_sender(ring, "--name", "slow one")
        tell(sender, member("waits\x1b[31m", 0), member("waits\x1b[31m", 2))
        assert report("groups", ring, "--stuck", "1h")["groups"] == []

        def stuck():
            process = start("groups", ring, "--stuck", "300ms", "--json")
            seen = json.loads(process.communicate()[0])
            assert process.returncode == (1 if seen["matching"] else 0), seen
            return seen if seen["matching"] else None
        wait_until(stuck, "a group to be stuck")
        seen = stuck()
        assert seen["open"] and seen["open_groups"] == 1 and seen["account"]["conserved"], seen
        (group,) = seen["groups"]
        assert group["missing"] == [1, 3] and group["producers"] == ["slow one (lane 0)"], group
        assert (group["complete"], group["size"], group["state"]) == (2, 4, "open"), group
        assert group["instance_id"] == "waits?[31m" and group["unchanged_s"] >= 0.3, group
        assert "1, 3" in run("groups", ring, "--stuck", "300ms", code=1)[0]
        trainer.send_signal(signal.SIGINT)
        _, err = finish(trainer, 130)
        assert "no_progress" in err and "; missing: members 1, 3;" in err, err
        assert "slow one (lane 0)" in err and "\x1b" not in err, err
        sender.communicate()
        seen = report("groups", ring)
        assert not seen["open"] and len(seen["groups"]) == 1, seen
        got = report("consume", ring, "--group-size", "auto", "--until-closed", "--deadline", "1ms")
        assert (got["groups_partial"], got["redelivered"], got["open_groups"]) == (1, 2, 0), got


def stop_in_training(ring, output, number):
    """A trainer that is stopped while it has a batch; `output` must stay empty."""
    trainer = start("consume", ring, "--group-size", "auto", "--train-ms", 600000, "--json",
                    "--output", output)
    # Not by its groups: those that are shown are the oldest, and many came in the same moment.
    wait_until(lambda: report("groups", ring)["account"]["records_leased"] > 0,
               "a batch to be leased")
    trainer.send_signal(number)
    if number == signal.SIGINT:
        got = json.loads(finish(trainer, 130)[0])
        assert got["batches"] == 0 and got["reason"] == "interrupted" and got["conserved"], got
    else:
        trainer.communicate()
    assert output.read_text(encoding="utf-8") == ""


@test
def a_batch_that_was_not_acknowledged_comes_again(folder, rollouts):
    first, none, last = (folder / f"{name}.jsonl" for name in ("first", "none", "last"))
    with Ring() as ring:
        run("produce", ring, "--input", rollouts, "--shuffle", 5)
        got = report("consume", ring, "--group-size", "auto", "--batches", 2, "--output", first)
        assert got["reason"] == "batches" and got["batches"] == 2 and got["last_step"] == 1, got
        stop_in_training(ring, none, signal.SIGINT)
        stop_in_training(ring, none, signal.SIGKILL)
        got = report("consume", ring, "--group-size", "auto", "--until-closed", "--output", last)
    assert got["conserved"] and got["open_groups"] == 0 and got["records_dropped"] == 0, got
    assert batches_of(last)[0]["step"] == 2, batches_of(last)[0]
    seen = [group["instance_id"] for path in (first, last) for group in groups_of(path)]
    assert sorted(seen) == sorted(rewards_of(rollouts)), (len(seen), got)


@test
def a_trainer_killed_with_a_full_spill_is_followed(folder, rollouts):
    load = ("--synthetic", "groups=2000,group-size=4,tokens=100", "--shuffle", 1)
    with Ring("--lane-bytes", "256KiB", "--spill-bytes", "16MiB") as ring:
        # However late we look, the run is not over: a member is held back until the last trainer is
        # there, and no batch comes without it, so that read records pile up.
        last = open_sender(ring)
        tell(last, *(member("held back", i) for i in range(3)))
        senders = [start("produce", ring, *load, "--shard", f"{i}/4") for i in range(4)]
        trainer = start("consume", ring, "--group-size", "auto", "--batch-groups", 2001)
        for least in (500, 1000):
            wait_until(lambda least=least: report("groups", ring)["evacuated_records"] > least,
                       "a spill")
            trainer.kill()
            trainer.communicate()
            trainer = start("consume", ring, "--group-size", "auto", "--batch-groups", 2001,
                            "--until-closed", "--producers", 0, "--json")
        tell(last, member("held back", 3))
        for sender in (last, *senders):
            finish(sender)
        got = json.loads(finish(trainer)[0])
    assert got["groups"] == 2001 and got["groups_partial"] == 0 and got["conserved"], got
    assert got["open_groups"] == 0 and got["records_dropped"] == 0, got
    assert got["redelivered"] > 1000, got


@test
def wrong_options_are_named(folder, rollouts):
    for arguments, words in (
            (("--batch-groups", 4), "--batch-groups"), (("--group-size", 0), "--group-size"),
            (("--group-size", "x"), "--group-size"),
            (("--group-size", 4, "--batch-groups", 4, "--batch-tokens", 9), "--batch-tokens must"),
            (("--group-size", 4, "--hold", 3), "--hold"),
            (("--group-size", 4, "--order", "lifo"), "--order"),
            (("--group-size", 4, "--deadline", 0), "--deadline must"),
            (("--group-size", 4, "--max-lag", -3), "--max-lag must"),
            (("--group-size", 4, "--min-size", 0), "--min-size must")):
        out, err = run("consume", "nowhere", *arguments, code=2)
        assert words in out + err, (arguments, out, err)
    with Ring("--group-rows", 8, "--spill-bytes", "1MiB") as ring:
        _, err = run("consume", ring, "--group-size", 4, "--batch-groups", 9, code=2)
        assert "--batch-groups is 9" in err, err
    run("create", "never", "--group-rows", 0, code=2)


@test
def the_demo_ships_whole_groups(folder, rollouts):
    told = report("demo", "--input", rollouts, "--shuffle", 3)
    assert told["ok"] and told["conserved"] and told["digest_equal"], told
    assert told["groups"] == len(rewards_of(rollouts)) and told["groups_partial"] == 0, told
    assert told["copied_bytes"] == 0 and told["records_shipped"] == told["sent"], told
    text = run("demo", "--synthetic", "groups=20,group-size=4,tokens=30")[0]
    assert "4/4" in text and "advantages" in text and "exactly once and intact" in text, text


def atropos_groups(env, count, **more):
    return "".join(json.dumps({
        "tokens": [[env, line, member] for member in range(4)],
        "masks": [[-100, line, member] for member in range(4)],
        "scores": [0.0, 1.0, 0.5, env], "env_id": env, **more}) + "\n" for line in range(count))


@test
def a_mean_is_of_the_rewards_that_are_there(folder, rollouts):
    path = folder / "rewards.jsonl"
    path.write_text("".join(json.dumps({
        "instance_id": "g", "repetition_id": member, "group_size": 2, "tokens": [1],
        **({"reward": 2.0} if member else {})}) + "\n" for member in range(2)), encoding="utf-8")
    with Ring() as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--until-closed")
        run("produce", ring, "--input", path)
        out, _ = finish(trainer)
    assert "2.000" in out and "nan" not in out, out


@test
def stock_atropos_groups_never_collide(folder, rollouts):
    """Without instance_id: two producers of the same lines, and a second run of the same file."""
    path = folder / "atropos.jsonl"
    path.write_text(atropos_groups(0, 30), encoding="utf-8")
    with Ring() as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--until-closed", "--producers", 4,
                        "--batch-groups", 8, "--strict", "--json")
        sent = []
        for _ in range(2):
            senders = [start("produce", ring, "--input", path, "--format", "atropos", "--json")
                       for _ in range(2)]
            sent += [json.loads(finish(sender)[0]) for sender in senders]
        got = json.loads(finish(trainer)[0])
        assert got["groups"] == 120 and got["records_dropped"] == 0, got
        assert got["producers_repeating"] == 0, got
        assert digest(got["digest"]) == sum(digest(one["digest"]) for one in sent) % 2**64, got
    # An ID makes a run repeatable: the same digest, and the same groups.
    told = [report("produce", "--input", path, "--format", "atropos", "--digest", "--run", run_id)
            for run_id in ("x", "x", "y")]
    assert told[0]["digest"] == told[1]["digest"] != told[2]["digest"], told


@test
def keys_that_collide_are_a_warning_with_the_reason(folder, rollouts):
    """Two environments that call their groups the same, here with ids of their own."""
    for strict in (False, True):
        with Ring() as ring:
            trainer = start("consume", ring, "--group-size", "auto", "--until-closed",
                            "--producers", 2, "--batch-groups", 8, "--json",
                            *(["--strict"] if strict else []))
            for env in range(2):
                path = folder / f"env{env}.jsonl"
                path.write_text("".join(
                    atropos_groups(env, 1, instance_id=f"q/{line}") for line in range(20)),
                    encoding="utf-8")
                run("produce", ring, "--input", path, "--format", "atropos", "--name", f"env {env}")
                wait_until(lambda least=80 * (env + 1): delivered(ring) >= least,
                           "the trainer to read")
            out, err = finish(trainer, 1 if strict else 0)
            got = json.loads(out)
            assert got["groups"] == 20 and got["producers_repeating"] == 1, got
            assert "80 of 80 records of producer 'env 1' (lane 1) were dropped" in err, err
            assert "instance_id" in err and ("--strict" in err) == strict, err


@test
def a_second_run_of_a_file_ships_with_a_visit_of_its_own(folder, rollouts):
    with Ring() as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--until-closed", "--producers", 4,
                        "--batch-groups", 1, "--json")
        for runs, visit in enumerate((0, 0, 1)):
            run("produce", ring, "--synthetic", "groups=5,tokens=10", "--visit", visit)
            wait_until(lambda least=40 * (runs + 1): delivered(ring) >= least,
                       "the trainer to read")
        run("produce", ring, "--synthetic", "groups=5,tokens=10", "--visit", 2, "--repeat", 2)
        out, err = finish(trainer)
        got = json.loads(out)
        assert (got["groups"], got["producers_repeating"]) == (20, 1), got
        assert "40 of 40 records" in err and "produce --visit" in err, err


@test
def what_atropos_sends_and_returns_is_taken(folder, rollouts):
    groups = [json.loads(line) for line in atropos_groups(1, 3).splitlines()]
    item = {"tokens": [1, 2], "masks": [-100, 2], "scores": 0.5, "advantages": None}
    path = folder / "batch.jsonl"
    path.write_text(json.dumps(groups) + "\n" + json.dumps({"batch": groups}) + "\n" +
                    json.dumps({"batch": None}) + "\n" + json.dumps(item) + "\n", encoding="utf-8")
    output = folder / "batch.out"
    with Ring() as ring:
        sent = report("produce", ring, "--input", path, "--format", "atropos")
        assert sent["records"] == 25, sent
        got = report("consume", ring, "--records", 25, "--output", output)
        assert got["digest"] == sent["digest"], (got, sent)
    wanted = sorted(canonical(json.dumps(one)) for one in groups + groups + [item])
    assert multiset(output) == wanted, output.read_text(encoding="utf-8")
    _, err = run("produce", "--input", path, "--digest", code=1)
    assert f"{path}:1: element 1 of the list: this looks like an Atropos" in err, err
    assert "--format atropos" in err, err
    mine = folder / "mine.jsonl"
    mine.write_text(member("q", 0), encoding="utf-8")
    _, err = run("produce", "--input", mine, "--format", "atropos", "--digest", code=1)
    assert f"{mine}:1: " in err and "--format rollring" in err, err


if __name__ == "__main__":
    sys.exit(main())
