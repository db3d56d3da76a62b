#!/usr/bin/env python3
"""The program tells the truth: on its waits, on files that it could not write, on sizes that fit.

usage: truth_end_to_end.py PATH_OF_ROLLRING
"""
import fcntl
import itertools
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

from program import (
    LIMIT_S,
    PREFIX,
    PROGRAM,
    Lines,
    Ring,
    ended,
    finish,
    main,
    multiset,
    report,
    run,
    start,
    test,
    wait_until,
    with_shm_of,
)

COMMANDS = ("create", "size", "rm", "ls", "stat", "doctor", "produce", "consume", "groups",
            "weights", "demo")


@test
def a_ring_that_is_not_there_is_waited_for_aloud(folder, rollouts):
    for command in (("consume", "--records", 8), ("consume", "--group-size", 4, "--batches", 1),
                    ("produce", "--synthetic", "groups=2,group-size=4,tokens=5")):
        name = f"{PREFIX}late{len(command)}{command[0]}"
        process = start(command[0], name, *command[1:])
        told = Lines(process.stderr)
        told.wait_for(f"waiting .* at most.*: ring {name} not found")
        run("create", name)
        told.wait_for("continuing after")
        if command[0] == "consume":
            told.wait_for("no producer has joined ring .* yet")
            run("produce", name, "--synthetic", "groups=32,group-size=4,tokens=5")
        ended(process)
        run("rm", name, "--force")


@test
def a_lane_and_a_seat_are_waited_for_aloud(folder, rollouts):
    with Ring("--lanes", 1) as ring:
        first = start("produce", ring, "--input", "-", stdin=subprocess.PIPE)
        wait_until(lambda: report("stat", ring)["lanes"], "a producer")
        second = start("produce", ring, "--synthetic", "groups=1,tokens=5")
        told = Lines(second.stderr)
        told.wait_for("waiting .*: no lane of .* is free: of 1 lanes, 1 belong to live producers "
                      f".the first is .*, pid {first.pid}.; ")
        first.stdin.close()
        ended(first, 1)  # an input without records is an error
        trainer = start("consume", ring, "--idle-timeout", 0, "--quiet")
        told.wait_for("continuing after")
        ended(second)
        other = start("consume", ring, "--idle-timeout", "100ms")
        told = Lines(other.stderr)
        told.wait_for(f"waiting .* ring {ring} already has a live consumer .pid {trainer.pid}.")
        trainer.terminate()
        finish(trainer, 143)
        told.wait_for("continuing after")
        ended(other)


@test
def a_full_lane_is_told_at_once_and_again_when_it_changes(folder, rollouts):
    with Ring("--lane-bytes", "64KiB") as ring:
        sender = start("produce", ring, "--synthetic", "groups=20,group-size=4,tokens=1000")
        told = Lines(sender.stderr)
        nobody = "waiting .*: no room for .* in lane 0 .*: no consumer is attached"
        told.wait_for(nobody)
        before = len(told.lines)
        trainer = start("consume", ring, "--hold", 1000, "--quiet")
        told.wait_for("waiting .*: no room for .*: the consumer is alive and holds")
        assert len(told.lines) - before <= 2, told.lines  # not with every look
        trainer.kill()
        trainer.communicate()
        wait_until(lambda: sum(bool(re.search(nobody, line)) for line in list(told.lines)) == 2,
                   "its death to be told")
        trainer = start("consume", ring, "--until-closed")
        told.wait_for("continuing after")
        ended(sender)
        assert "80 records" in finish(trainer)[0]


def code_with_stdout(path, *arguments):
    with open(path, "w", encoding="utf-8") as out:
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=out,
                                   stderr=subprocess.PIPE, text=True)
        err = process.communicate(timeout=LIMIT_S)[1]
        return process.returncode, err


@test
def what_could_not_be_written_is_a_failure(folder, rollouts):
    with Ring() as ring:
        spec = ("--synthetic", "groups=2,group-size=4,tokens=5")
        cases = [("--help",), ("--version",), ("ls",), ("ls", "--json"), ("stat", ring),
                 ("stat", ring, "--json"), ("groups", ring), ("groups", ring, "--json"),
                 ("produce", ring, *spec), ("produce", ring, *spec, "--json"),
                 ("produce", *spec, "--digest"), ("consume", ring, "--until-closed"),
                 ("produce", ring, *spec), ("consume", ring, "--until-closed", "--json"),
                 ("produce", ring, *spec),
                 ("consume", ring, "--until-closed", "--group-size", 4, "--json"),
                 ("demo", *spec), ("demo", *spec, "--json"),
                 ("stat", ring, "--watch", "0.02"), ("stat", ring, "--watch", "0.02", "--json")]
        cases += [(command, "--help") for command in COMMANDS]
        for case in cases:
            code, err = code_with_stdout("/dev/full", *case)
            assert code == 1 and "cannot write" in err, (case, code, err)
        code, err = code_with_stdout("/dev/full", "doctor")
        assert code == 1 and "cannot write" in err, (code, err)
        code, err = code_with_stdout("/dev/full", "create", f"{PREFIX}full")
        assert code == 1 and "cannot write" in err, (code, err)
        assert f"{PREFIX}full" not in run("ls")[0]  # so that a caller can retry
        code, err = code_with_stdout("/dev/full", "create", ring)
        assert code == 1 and "already_exists" in err, (code, err)
        assert ring in run("ls")[0]  # that is another's
        for closed in ("ls >&-", "--help >&-", f"stat {ring} --json >&-"):
            done = subprocess.run(["sh", "-c", f"{PROGRAM} {closed}"], text=True, timeout=LIMIT_S,
                                  stderr=subprocess.PIPE, check=False)
            assert done.returncode == 1 and "cannot write" in done.stderr, (closed, done)
        # Without stdout the first file that is opened must not become it.
        done = subprocess.run(["sh", "-c", f"{PROGRAM} produce {ring} --synthetic "
                               "groups=1,tokens=5 --json >&- <&-"], text=True, timeout=LIMIT_S,
                              stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1, done
        assert report("consume", ring, "--until-closed")["torn"] == 0
        run("produce", ring, *spec)
        code, err = code_with_stdout("/dev/full", "consume", ring, "--until-closed", "--output",
                                     "-")
        assert code == 1 and "stay in the ring" in err, (code, err)
        assert report("consume", ring, "--until-closed")["redelivered"] == 8


def code_without_reader(*arguments):
    """Its exit code, standard output being a pipe without a reader."""
    ends = os.pipe()
    os.close(ends[0])
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=ends[1],
                               stderr=subprocess.PIPE, text=True)
    os.close(ends[1])
    err = process.communicate(timeout=LIMIT_S)[1]
    return process.returncode, err, process.pid


@test
def a_closed_pipe_is_quiet_and_nothing_is_left(folder, rollouts):
    spec = ("--synthetic", "groups=20,group-size=4,tokens=10:100")
    for more in ((), ("--json",)):
        code, err, pid = code_without_reader("demo", *spec, *more)
        assert code == 141 and err == "", (code, err)
        assert f"demo-{pid}-" not in run("ls")[0]
    with Ring() as ring:
        for case in (("stat", ring, "--watch", "0.02"), ("ls",), ("--help",), ("stat", "--help"),
                     ("groups", ring, "--watch", "0.02", "--json")):
            code, err, _ = code_without_reader(*case)
            assert code == 141 and err == "", (case, code, err)
        run("produce", ring, *spec)
        code, err, _ = code_without_reader("consume", ring, "--until-closed", "--output", "-")
        assert code == 141 and "stay in the ring" in err, (code, err)
        assert report("consume", ring, "--until-closed")["records"] == 80


@test
def the_end_of_the_terminal_cleans_up(folder, rollouts):
    # The parent of this test may have been started by nohup, and we are not told either.
    demo = start("demo", "--synthetic", "groups=100000,tokens=2000:4000", "--json",
                 preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    wait_until(lambda: f"demo-{demo.pid}-" in run("ls")[0], "the demo to run")
    demo.send_signal(signal.SIGHUP)
    finish(demo, 129)
    assert f"demo-{demo.pid}-" not in run("ls")[0]
    with Ring() as ring:
        trainer = start("consume", ring, "--idle-timeout", 0, "--json",
                        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        wait_until(lambda: report("stat", ring)["consumer_alive"], "the consumer")
        trainer.send_signal(signal.SIGHUP)  # as under nohup
        run("produce", ring, "--synthetic", "groups=1,group-size=4,tokens=5")
        wait_until(lambda: report("stat", ring)["lanes"][0]["delivered_records"] == 4, "records")
        trainer.send_signal(signal.SIGINT)
        assert json.loads(finish(trainer, 130)[0])["records"] == 4


def atropos_group(line):
    return json.dumps({"tokens": [[1, 2, line], [4, 5, 6]], "masks": [[-100, 2, 3]] * 2,
                       "scores": [1.0, 0.0], "advantages": None, "env_id": line}) + "\n"


@test
def whole_groups_are_written_with_their_columns(folder, rollouts):
    output = folder / "groups.jsonl"
    with Ring() as ring:
        run("produce", ring, "--input", rollouts, "--shuffle", 3)
        got = report("consume", ring, "--group-size", "auto", "--until-closed", "--output", output,
                     "--output-format", "records")
        assert got["conserved"] and got["incomplete_groups"] == 0, got
        assert multiset(output) == multiset(rollouts)
        seen = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        keys = [(one["instance_id"], one.get("visit", 0)) for one in seen]
        changes = sum(a != b for a, b in itertools.pairwise(keys))
        assert changes + 1 == len(set(keys)) == got["groups"], "a group's members stand together"
        assert all("tokens" in one for one in seen)
        # Its output can be sent again.
        again = report("produce", "--input", output, "--digest")
        assert again["digest"] == got["digest"], (again, got)
        path = folder / "atropos.jsonl"
        path.write_text("".join(atropos_group(i) for i in range(9)), encoding="utf-8")
        run("produce", ring, "--input", path, "--format", "atropos")
        got = report("consume", ring, "--group-size", 2, "--batch-groups", 4, "--until-closed",
                     "--output", output, "--output-format", "records")
        assert got["groups"] == 9 and multiset(output) == multiset(path), got
        for wrong in (("--group-size", 4, "--output-format", "records"),
                      ("--output", output, "--output-format", "records")):
            _, err = run("consume", ring, *wrong, code=2)
            assert "--output" in err, err


def on_terminal(columns, *arguments):
    """The output of a command on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=theirs, stdout=theirs,
                               stderr=theirs, close_fds=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break  # the other end is closed
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(LIMIT_S) == 0, (arguments, shown)
    return shown.decode().replace("\r\n", "\n")


@test
def tables_fit_the_terminal(folder, rollouts):
    with Ring() as ring:
        long_name = "a/very/long/name/of/a/prompt/that/goes"
        lines = "".join(json.dumps({"instance_id": f"{long_name}/{i}", "repetition_id": 0,
                                    "group_size": 40, "tokens": [1, 2]}) + "\n" for i in range(5))
        run("produce", ring, "--input", "-", "--name", "a producer of some name and renown",
            stdin_text=lines)
        trainer = start("consume", ring, "--group-size", "auto", "--idle-timeout", 0, "--quiet")
        wait_until(lambda: report("groups", ring)["open_groups"] == 5, "five open groups")
        for command in ("stat", "groups"):
            piped = run(command, ring)[0]
            for columns in (200, 100, 80, 60, 40):
                shown = on_terminal(columns, command, ring)
                widest = max(len(re.sub("\x1b\\[[0-9]*m", "", one)) for one in shown.splitlines())
                assert widest <= columns, (command, columns, shown)
                assert ring[:12] in shown, shown
            assert max(map(len, piped.splitlines())) > 80, piped
            assert "\x1b" not in piped
        assert all(f"{long_name}/{i}" in run("groups", ring)[0] for i in range(5))
        assert "missing" in on_terminal(80, "groups", ring)
        for columns in (60, 40):
            shown = on_terminal(columns, "groups", ring)
            assert all(re.search(f"a/.*\u2026.*/{i} ", shown) for i in range(5)), shown
        trainer.terminate()
        finish(trainer, 143)


@test
def weights_are_waited_for(folder, rollouts):
    with Ring() as ring:
        watch = start("weights", ring, "--watch", "0.05")
        told = Lines(watch.stderr)
        told.wait_for(f"waiting: ring {ring} has no live weight publisher")
        watch.send_signal(signal.SIGINT)
        ended(watch, 130)
        watch = start("weights", ring, "--watch", "0.05", "--json")
        assert json.loads(watch.stdout.readline()) == {"ring": ring, "publishers": []}
        watch.send_signal(signal.SIGINT)
        finish(watch, 130)
        run("weights", ring, code=1)


@test
def what_does_not_fit_names_its_option_and_keeps_nothing(folder, rollouts):
    for options, words in (
            ("--lane-bytes 6MiB --spill-bytes 64MiB", ("the spill of ", "less --spill-bytes")),
            ("--lane-bytes 64KiB --group-rows 500000",
             ("the board of groups of ", "fewer --group-rows"))):
        done = with_shm_of("16M", f"""
            {PROGRAM} create r --lanes 1 {options} >&2 || exit 98
            head -c 12M /dev/zero >/dev/shm/others
            {PROGRAM} stat r --json
            {PROGRAM} consume r --group-size 4 --attach-timeout 0
            [ $? = 1 ] || exit 97
            {PROGRAM} stat r --json""")
        if done is None:
            return
        before, after = (json.loads(line)["resident_bytes"] for line in done.stdout.splitlines())
        assert before == after, (options, before, after)
        line = done.stderr.splitlines()[-1]
        assert line.startswith("rollring: not_enough_shared_memory: "), done.stderr
        assert all(word in line for word in words), line
        assert "lower --lane-bytes" not in line, line


@test
def another_users_ring_is_called_that(folder, rollouts):
    if os.getuid() != 0:
        print("skipped: needs root to be another user")
        return
    other = 12345
    with Ring() as ring:
        path = f"/dev/shm/rollring.0.{ring}"
        theirs = f"/dev/shm/rollring.{other}.{ring}theirs"
        # Theirs, under their name.
        with open(theirs, "w", encoding="utf-8"):
            os.chown(theirs, other, other)
        try:
            for command in ("stat", "rm", "groups", "weights"):
                _, err = run(command, ring + "theirs", code=1)
                assert f"uid {other}" in err and "has a ring of that name" in err, err
        finally:
            os.unlink(theirs)
        # Theirs, under ours.
        os.chown(path, other, other)
        for arguments in (("stat", ring), ("rm", ring), ("groups", ring), ("weights", ring),
                          ("create", ring), ("consume", ring),
                          ("produce", ring, "--synthetic", "groups=1")):
            _, err = run(*arguments, code=1)
            assert f"belongs to uid {other}" in err and "root (uid 0)" in err, (arguments, err)
        os.chown(path, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
