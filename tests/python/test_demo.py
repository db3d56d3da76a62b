"""The demo in Python, as users run it: python -m rollring.demo."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, send_group
from rollring.demo.processes import Workers
from rollring.demo.proof import Seen, Tally
from rollring.demo.report import as_text, bytes_text, short, summary
from rollring.demo.sides import produce

DEMO = [sys.executable, "-I", "-m", "rollring.demo"]
SMALL = ("--synthetic", "groups=21,group-size=4,tokens=5:300", "--lane-bytes", "4MiB")
ENDLESS = (*SMALL, "--repeat", "1000000")


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Its stdout and its stderr."""
    done = subprocess.run(
        [*DEMO, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, done
    return done.stdout, done.stderr


def report(*arguments: str) -> dict[str, Any]:
    out, err = run(*arguments, "--json")
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


class Running:
    """A demo with processes of a group of its own, as a shell starts it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*DEMO, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ring(self) -> str | None:
        prefix = f"demo-{self.process.pid}-"
        return next((name for name in rr.rings() if name.startswith(prefix)), None)

    def lanes(self) -> list[dict[str, Any]]:
        """Of producers whose records the trainer takes."""
        try:
            lanes = rr.describe(self.ring() or "none-yet")["lanes"]
        except rr.RollringError:
            return []
        return [lane for lane in lanes if lane["alive"] and lane["released_records"] > 100]

    def ended(self, code: int) -> tuple[str, str]:
        """It, all of its processes and its ring are gone."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code, (self.process.returncode, out, err)
        until(self.nobody)
        assert self.ring() is None
        return out, err

    def nobody(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False


@pytest.fixture
def endless() -> Iterator[Running]:
    """In the middle of its work: all four producers have sent, and the trainer has acknowledged."""
    running = Running(*ENDLESS)
    try:
        until(lambda: len(running.lanes()) == 4 or running.process.poll() is not None)
        yield running
    finally:
        if not running.nobody():
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.communicate()
        if ring := running.ring():
            rr.remove(ring, force=True)


def test_it_says_that_every_record_arrived() -> None:
    out, err = run(*SMALL)
    assert err == ""
    assert out.endswith("Every record arrived exactly once and intact.\n")
    assert "groups       21 in 2 batches; 0 partial, 0 twice" in out
    assert re.search(r"\n  synthetic/1/20 +4/4 +[01]\.\d{3}(  [+-]\d\.\d\d){4}\n", out), out
    assert not [name for name in rr.rings() if name.startswith("demo-")]


def test_its_report_depends_on_the_load_alone() -> None:
    first = report(*SMALL, "--producers", "1")
    assert first["ok"] and first["digest_equal"] and not first["interrupted"]
    assert first["sent"] == first["records"] == 84 and first["groups"] == 21
    assert first["digest_sent"] == first["digest_received"]
    assert first["bytes"] == first["tokens"] * 9
    second = report(*SMALL, "--producers", "3", "--batch-groups", "2")
    assert second["batches"] == 11
    assert second["tokens"] == first["tokens"]
    assert second["digest_received"] == first["digest_received"]
    other = report("--synthetic", "groups=21,group-size=4,tokens=5:300,seed=2")
    assert other["digest_received"] != first["digest_received"]


def test_trajectories_of_65536_tokens_in_small_lanes() -> None:
    found = report(
        *("--synthetic", "groups=9,group-size=4,tokens=65536", "--lane-bytes", "2MiB"),
        *("--batch-groups", "2"),
    )
    assert found["ok"] and found["groups"] == 9 and found["tokens"] == 36 * 65536


def lines_of(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("\n".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def record(prompt: int, member: int, **more: Any) -> dict[str, Any]:
    tokens = [prompt, member, 7]
    return {"instance_id": f"p/{prompt}", "repetition_id": member, "tokens": tokens, **more}


def test_a_file_and_its_passes(tmp_path: Path) -> None:
    records = [
        record(p, m, reward=m, logprobs=[0, 0, -0.5], source="math", extra={"p": p})
        for p in range(3)
        for m in range(2)
    ]
    path = lines_of(tmp_path / "rollouts.jsonl", *records)
    found = report("--input", path, "--repeat", "5", "--producers", "2", "--group-size", "2")
    assert found["ok"] and found["groups"] == 15 and found["tokens"] == 90
    assert {group["visit"] for group in found["last_groups"]} <= set(range(5))
    assert found["last_groups"][0]["rewards"] == [0.0, 1.0]


def test_groups_that_are_not_complete_are_no_success(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "rollouts.jsonl", record(0, 0), record(0, 1), record(0, 2))
    out, _ = run("--input", path, "--group-size", "4", "--producers", "1", code=1)
    assert "received     0\n" in out and "incomplete   3 records of incomplete groups\n" in out
    assert out.splitlines()[-1].startswith("FAILED: some groups are incomplete: ")


def test_what_the_policy_drops_is_counted(tmp_path: Path) -> None:
    records = [record(0, 0), record(0, 0), record(0, 1)]  # a duplicate
    path = lines_of(tmp_path / "rollouts.jsonl", *records)
    out, _ = run("--input", path, "--group-size", "2", "--producers", "1")
    assert "dropped      1\n" in out and "groups       1 in 1 batch;" in out
    assert out.startswith("1 producer, one trainer, ")
    assert "were not compared" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"rollouts\.jsonl:3: not JSON"),
        ("[1]", r"rollouts\.jsonl:3: not an object"),
        ('{"tokens": [1]}', r"rollouts\.jsonl:3: .*instance_id"),
        (
            '{"instance_id": "x", "tokens": [1.5]}',
            r"rollouts\.jsonl:3: 'tokens' must be an integer, not 1\.5",
        ),
        (
            '{"instance_id": "x", "tokens": [1], "loss_mask": [1, 1]}',
            r"rollouts\.jsonl:3: 'loss_mask' has 2 entries for 1 tokens",
        ),
        (
            '{"instance_id": "x", "tokens": "abc"}',
            r"rollouts\.jsonl:3: 'tokens' must be a list, not \"abc\"",
        ),
        ("{}", r"rollouts\.jsonl:3: 'instance_id', 'token_ids' are missing: `rollring formats`"),
        ('{"instance_id": 5, "tokens": [1]}', r"rollouts\.jsonl:3: .*instance_id"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(record(0, 0, group_size=1)) + "\n\n" + line + "\n")
    out, err = run("--input", str(path), "--producers", "2", code=1)
    by = r"bad_record|producer \d \(pid \d+\) failed"
    assert re.fullmatch(rf"rollring: ({by}): .*{said}.*\n", err), err
    assert re.fullmatch(r"(FAILED after \d+ records?\n)?", out)  # the first one may have come


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGTERM, 143)]
)
def test_a_signal_to_all_of_its_processes_ends_it(
    endless: Running, number: signal.Signals, code: int
) -> None:
    os.killpg(endless.process.pid, number)
    out, err = endless.ended(code)
    assert out.endswith("Interrupted before the end.\n") and err == ""


def test_producers_leave_the_signals_of_a_terminal_to_it(endless: Running) -> None:
    for lane in endless.lanes():
        status = Path(f"/proc/{lane['pid']}/status").read_text(encoding="utf-8")
        blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)
        assert all(blocked >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGHUP))


def test_a_sigterm_of_its_own_ends_it(endless: Running) -> None:
    endless.process.terminate()
    out, err = endless.ended(143)
    assert out.endswith("Interrupted before the end.\n") and err == ""


def test_a_producer_that_is_killed_is_named(endless: Running) -> None:
    lane = endless.lanes()[2]
    os.kill(lane["pid"], signal.SIGKILL)
    out, err = endless.ended(1)
    assert err == f"rollring: {lane['producer']} (pid {lane['pid']}) was killed by SIGKILL\n"
    assert re.fullmatch(r"FAILED after [\d,]+ records?\n", out)


def test_producers_do_not_outlive_a_demo_that_is_killed(endless: Running) -> None:
    endless.process.kill()
    endless.process.wait(PATIENCE)
    until(endless.nobody)


def test_a_terminal_sees_progress() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([*DEMO, *SMALL], stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:  # the other end is closed
            pass
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert re.search(rb"\rdemo \[[#.]{12}\] +\d+%  [\d,]+ records", seen), seen
    assert seen.endswith(b"\r\x1b[K")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        ["--prod", "2"],
        ["left over"],
        ["--producers", "0"],
        ["--producers", "four"],
        ["--lane-bytes", "64MB"],
        ["--lane-bytes", "0"],
        ["--batch-groups", "-1"],
        ["--synthetic", "a"],
        ["--synthetic", "tokens=5:3"],
        ["--synthetic", "tokens=0"],
        ["--synthetic", "group-size=0"],
        ["--synthetic", "groups=2:3"],
        ["--input", "-"],
        ["--input", ""],
        ["--input", "x", "--synthetic", "groups=1"],
    ],
)
def test_wrong_use_is_told_in_one_line(arguments: list[str]) -> None:
    out, err = run(*arguments, code=2)
    assert out == ""
    assert re.fullmatch(r"rollring: invalid_argument: .*python -m rollring\.demo --help'\n", err)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no"):
        out, err = run("--input", str(path), code=1)
        assert out == "" and re.fullmatch(rf"rollring: \w+: .*{re.escape(str(path))}.*\n", err)
    assert err.startswith("rollring: not_found: ") and "check the path of --input" in err


def test_its_time_is_that_of_the_command() -> None:
    began = time.monotonic()
    found = report(*SMALL)
    took = time.monotonic() - began
    # The rest is the removal of the ring and the end of the interpreter.
    assert found["seconds"] < found["elapsed_seconds"] < took + 0.02
    assert found["elapsed_seconds"] > took / 2
    # ./dev installs and compiles before it becomes the demo.
    began = time.monotonic()
    shell = 'sleep 1; export ROLLRING_DEMO_BEGAN=$(cut -d " " -f 1 /proc/uptime); exec "$@"'
    done = subprocess.run(
        ["bash", "-c", shell, "demo", *DEMO, *SMALL, "--json"],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert json.loads(done.stdout)["elapsed_seconds"] < time.monotonic() - began - 1 + 0.02
    out, _ = run(*SMALL)
    assert re.search(r"\n  time +\d+\.\d\d s; records arrived over \d+\.\d\d s\n", out), out


def test_it_names_the_first_bad_line_of_the_file(tmp_path: Path) -> None:
    """Whichever of its producers met one first; none of them counts, as all records are plain."""
    path = tmp_path / "bad.jsonl"
    good = [json.dumps(record(0, member)) for member in range(8)] * 5
    for first in (2, 3, 39):
        path.write_text("\n".join([*good[: first - 1], *["{}"] * (41 - first)]), encoding="utf-8")
        _, err = run("--input", str(path), "--lane-bytes", "4MiB", code=1)
        assert err.count("bad.jsonl") == 1, err
        assert f"bad.jsonl:{first}: 'instance_id', 'token_ids' are missing" in err


def test_its_help_fits_a_terminal_and_its_examples_run(tmp_path: Path) -> None:
    lines_of(tmp_path / "rollouts.jsonl", *[record(p, m) for p in range(9) for m in range(8)])
    out, _ = run("--help")
    assert all(len(line) <= 90 for line in out.splitlines())
    examples = re.findall(r"^  python (-m rollring\.demo.*)", out, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        done = subprocess.run(
            f"{sys.executable} -I {example} --lane-bytes 4MiB",
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.stdout.endswith("exactly once and intact.\n"), (example, done)


def ended(digest: int) -> Workers:
    """Workers of whom all have ended well."""
    workers = Workers(produce)
    workers.digest = digest
    return workers


def test_wrong_data_and_groups_that_are_not_whole_are_found(ring: str) -> None:
    sent = Tally()
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1, deadline=0.05) as stash:
        send_group(producer, prompt=1)
        seen = Seen()
        with stash.next(timeout=PATIENCE) as batch:
            seen.take(batch)
            for sequence in batch.sequences:
                sent.add_got(sequence)
        good = summary(ring, ended(sent.digest), seen, interrupted=False)
        assert good["ok"] and good["digest_equal"]
        wrong = summary(ring, ended(sent.digest ^ 1), seen, interrupted=False)
        assert not wrong["ok"] and wrong["digest_equal"] is False
        assert "MISMATCH" in as_text(wrong)
        for member in range(2):
            producer.push("p/2", token_ids=[1], repetition_id=member, group_size=3)
        with stash.next(timeout=PATIENCE) as batch:
            seen.take(batch)
            for sequence in batch.sequences:
                sent.add_got(sequence)
        half = summary(ring, ended(sent.digest), seen, interrupted=False)
        assert half["digest_equal"] and half["groups_partial"] == 1 and not half["ok"]


def test_amounts_above_the_largest_unit_stay_in_it() -> None:
    assert [bytes_text(n) for n in (1023, 1536, 1 << 30, 3 << 40)] == [
        "1023 B", "1.5 KiB", "1 GiB", "3072 GiB",
    ]  # fmt: skip
    assert [short(n) for n in (950, 1500, 2e9, 3e12)] == ["950", "1.50k", "2.00G", "3000.00G"]


def test_a_digest_covers_ids_rewards_and_each_value() -> None:
    fields = {"visit": 0, "repetition_id": 1, "reward": 1, "token_ids": [1, 2]}
    changed: list[dict[str, Any]] = [
        {},
        {"visit": 1},
        {"repetition_id": 2},
        {"reward": 0},
        {"reward": None},
        {"token_ids": [1, 3]},
        {"logprobs": [0, 0]},
        {"loss_mask": [0, 0]},
    ]
    digests = set()
    for more in changed:
        tally = Tally()
        tally.add_pushed("p/1", {**fields, **more})
        digests.add(tally.digest)
    assert len(digests) == len(changed)
