#!/usr/bin/env python3
"""Every example of every --help, and every command that pages show of the program, pasted into a
shell, on real rings.

usage: help_examples.py PATH_OF_ROLLRING
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

from program import (
    LIMIT_S,
    PREFIX,
    PROGRAM,
    Ring,
    examples,
    main,
    page_lines,
    report,
    run,
    shell,
    start,
    test,
    wait_until,
)

INPUTS = {
    "groups.jsonl": json.dumps({"tokens": [[1, 2], [1, 3]], "masks": [[-100, 2], [-100, 3]],
                                "scores": [1, 0], "advantages": None}) + "\n",
    "more.json": '[{"name":"entropy","dtype":"f32","per":"token","dims":[],"required":false}]',
}
STOPPED = (130, -signal.SIGINT)  # of the program, or of the shell that waits for it
COMMANDS = ("create", "size", "rm", "ls", "stat", "doctor", "produce", "consume", "groups",
            "weights", "metrics", "top", "view", "serve-atropos", "run-env", "demo",
            "formats")  # each has a test
LOAD = ("--synthetic", "groups=1400,group-size=4,tokens=5:20")


def place(folder, rollouts):
    """A folder with the files that examples name, and `rollring` on the way."""
    for name, text in INPUTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    if not (folder / "rollouts.jsonl").exists():
        shutil.copy(rollouts, folder / "rollouts.jsonl")
    if not (folder / "bin").exists():
        (folder / "bin").mkdir()
        (folder / "bin/rollring").symlink_to(PROGRAM)


def paste(folder, line, ring, **options):
    return shell(re.sub(r"\b(r|run42)\b", ring, line), folder, **options)


def done(process, codes=(0,)):
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode in codes, (process.args, process.returncode, out, err)
    return out


def stop_when_seen(process):
    assert process.stdout.readline(), process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    done(process, STOPPED)


def room_for(line):
    """Whether /dev/shm can hold the example's objects."""
    found = re.search(r"--lane-bytes (\d+)(MiB|GiB)", line)
    lanes = 1 if "create" in line else 5
    wanted = int(found[1]) << (20 if found[2] == "MiB" else 30) if found else 0
    space = os.statvfs("/dev/shm")
    return space.f_bavail * space.f_frsize > wanted * lanes


@test
def every_line_of_a_page_is_one_of_a_command(folder, rollouts):
    lines = page_lines()
    assert len(lines) >= 10, lines
    for line in lines:
        assert line.split()[0] == "rollring" and line.split()[1] in COMMANDS, line


@test
def every_command_has_examples_that_fit_a_terminal(folder, rollouts):
    for command in COMMANDS:
        assert examples(command), command
        footer = run(command, "--help")[0].split("Examples:")[1]
        assert all(len(line) <= 90 for line in footer.splitlines()), command


@test
def the_first_steps(folder, rollouts):
    place(folder, rollouts)
    steps = [line for line in examples(None) if line != "rollring demo"]
    assert len(steps) >= 5 and len(steps) < len(examples(None)), steps
    name = PREFIX + "steps"
    out = done(paste(folder, "set -e\n" + "\n".join(steps), name))
    assert "received" in out and "sent" in out and f"{name}: 8 lanes" in out, out
    assert name not in run("ls")[0]


@test
def create_and_rm(folder, rollouts):
    place(folder, rollouts)
    name = PREFIX + "made"
    for line in examples("create"):
        if not room_for(line):
            print(f"skipped, /dev/shm is too small: {line}")
            continue
        done(paste(folder, line, name))
        run("rm", name)
    for line in examples("rm"):
        run("create", name)
        trainer = start("consume", name, "--quiet") if "--force" in line else None
        if trainer:
            wait_until(lambda: report("stat", name)["consumer_alive"], "a consumer")
        done(paste(folder, line, name))
        assert name not in run("ls")[0]
        if trainer:
            trainer.communicate()


@test
def looking(folder, rollouts):
    place(folder, rollouts)
    with Ring() as ring:
        run("produce", ring, "--synthetic", "groups=3,group-size=4,tokens=9")
        report("consume", ring, "--group-size", 4, "--batch-groups", 1, "--batches", 1)
        for line in examples("ls") + examples("stat") + examples("groups"):
            process = paste(folder, line, ring)
            if "--watch" in line:
                stop_when_seen(process)
            else:
                assert done(process), line
        for line in examples("weights"):  # with a publisher: weights_command.py
            process = paste(folder, line, ring)
            if "--json" in line:
                stop_when_seen(process)
            elif "--watch" in line:
                assert "no live weight publisher" in process.stderr.readline(), line
                os.killpg(process.pid, signal.SIGINT)
                done(process, STOPPED)
            else:
                done(process, (1,))


@test
def size(folder, rollouts):
    place(folder, rollouts)
    for line in examples("size"):
        assert "lane" in done(paste(folder, line, "x"), (0, 1)), line


@test
def doctor(folder, rollouts):
    place(folder, rollouts)
    for line in examples("doctor"):
        if "--fix" not in line:
            assert "/dev/shm" in done(paste(folder, line, "x"), (0, 1)), line
            continue
        # It would take away other tests' leftovers: on a /dev/shm of its own.
        own = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
        if own.returncode != 0:
            print(f"skipped, needs root: {line}")
            continue
        # A ring that is empty for the moment stays; one that was never finished goes, and that of
        # a killed demo.
        text = ("set -e; mount -t tmpfs tmpfs /dev/shm; rollring create idle\n"
                "rollring produce idle --synthetic groups=1,tokens=5 >&2\n"
                "rollring consume idle --until-closed >&2\n"
                "rollring create left; truncate -s 0 /dev/shm/rollring.0.left\n"
                "touch /dev/shm/rollring.0.gone~0123456789abcdef.requests\n"
                "rollring demo --synthetic groups=100000,tokens=2000:4000 >&2 & demo=$!\n"
                "until rollring ls | grep -q '^demo-.* ok '; do :; done; kill -9 $demo\n"
                "until rollring doctor | grep -q 'its owner has ended'; do :; done >&2\n" + line +
                "\nrollring ls --json")
        out = done(shell(text, folder, before=("unshare", "--mount")))
        assert "left: leftover (unfinished): left behind by a dead process; removed" in out, out
        assert re.search(r"demo-\S+: leftover \(ok\): its owner has ended; removed", out), out
        assert re.search(r"gone~\S+: leftover: .* is gone; removed", out), out
        assert [entry["ring"] for entry in json.loads(out.splitlines()[-1])] == ["idle"], out


@test
def produce(folder, rollouts):
    place(folder, rollouts)
    with Ring() as ring:
        trainer = start("consume", ring, "--idle-timeout", 0, "--json")
        sent = 0
        for line in examples("produce"):
            out = done(paste(folder, line, ring))
            if "--digest" in line:
                assert json.loads(out)["records"] > 0, out
            else:
                assert " 0 records" not in out, out
                sent += int(re.search(r"sent ([\d,]+) records", out)[1].replace(",", ""))
        wait_until(lambda: sum(lane["delivered_records"] for lane in report("stat", ring)["lanes"])
                   == sent, "what was sent")
        trainer.send_signal(signal.SIGINT)
        assert json.loads(trainer.communicate(timeout=LIMIT_S)[0])["records"] == sent


@test
def formats(folder, rollouts):
    place(folder, rollouts)
    for line in examples("formats"):
        out = done(paste(folder, line, "x"))
        assert "would send 2 records" in out if "produce" in line else ">" in line or out, line


@test
def consume(folder, rollouts):
    place(folder, rollouts)
    for line in examples("consume"):
        with Ring() as ring:
            senders = [start("produce", ring, *LOAD, "--shard", f"{i}/4") for i in range(4)]
            process = paste(folder, line, ring)
            if "--until-closed" not in line and "--records" not in line:
                wait_until(lambda: sum(lane["delivered_records"]
                                       for lane in report("stat", ring)["lanes"]) == 5600, line)
                os.killpg(process.pid, signal.SIGINT)
                done(process, STOPPED)
            else:
                done(process)
            for sender in senders:
                sender.communicate(timeout=LIMIT_S)
                assert sender.returncode == 0, line


@test
def serve_atropos(folder, rollouts):
    place(folder, rollouts)
    for line in examples("serve-atropos"):
        # The ring is there already, and of the size that the example asks for.
        with Ring("--lanes", 2, *re.findall(r"--lane-bytes|\d+MiB", line)) as ring:
            # On a port of its own: 8000 may be another's here.
            free = line if "--port" in line else line + " --port 0"
            process = paste(folder, free.replace("--port 8001", "--port 0"), ring)
            assert "serving ring" in process.stderr.readline(), line
            os.killpg(process.pid, signal.SIGINT)
            assert "0" in done(process, STOPPED)


@test
def metrics(folder, rollouts):
    place(folder, rollouts)
    with Ring() as ring:
        for line in examples("metrics"):
            # On a port of its own, and here alone.
            port = re.sub(r"--listen \S+", "", line) + " --listen 127.0.0.1:0"
            process = paste(folder, line if "--once" in line else port, ring)
            if "--once" in line:
                assert "rollring_up" in done(process), line
                continue
            assert "/metrics" in process.stderr.readline(), line
            os.killpg(process.pid, signal.SIGINT)
            done(process, STOPPED)


@test
def top(folder, rollouts):
    place(folder, rollouts)
    python = folder / "bin/python3"  # the first on the path
    python.write_text('#!/bin/sh\necho "asked: $*"\n', encoding="utf-8")
    python.chmod(0o755)
    for line in examples("top"):
        out = done(paste(folder, f"script -qec '{line}' /dev/null", "x")).replace("\r", "")
        assert "asked: -m rollring.top --every " in out and out.endswith("-- x\n"), out
        assert " ".join(line.split()[3:]) in out, (line, out)  # its options
    python.unlink()


@test
def view(folder, rollouts):
    place(folder, rollouts)
    python = folder / "bin/python3"  # the first on the path
    python.write_text('#!/bin/sh\necho "asked: $*"\n', encoding="utf-8")
    python.chmod(0o755)
    for line in examples("view"):
        out = done(paste(folder, line, "x"))
        assert "asked: -m rollring.view --port " in out, out
        sources = ("x", "rollouts.jsonl", "runs/42", "runs/42.ledger")
        assert out.endswith(tuple(f"-- {one}\n" for one in sources)), out
    python.unlink()


@test
def run_env(folder, rollouts):
    place(folder, rollouts)
    python = folder / "bin/python3"  # the first on the path
    python.write_text('#!/bin/sh\necho "asked: $*"\n', encoding="utf-8")
    python.chmod(0o755)
    assert "run-env [OPTIONS] MODULE:CLASS [ARGUMENTS]\n" in run("run-env", "--help")[0]
    for line in examples("run-env"):
        out = done(paste(folder, line, "x"))
        module = "rollring.integrations.atropos.run_env"
        assert f"asked: -m {module} my_envs.gsm8k:GSM8kEnv serve" in out, out
    python.unlink()


@test
def demo(folder, rollouts):
    place(folder, rollouts)
    for line in examples("demo"):
        if not room_for(line):
            print(f"skipped, /dev/shm is too small: {line}")
            continue
        assert "exactly once and intact" in done(paste(folder, line, "x")), line


if __name__ == "__main__":
    sys.exit(main())
