#!/usr/bin/env python3
"""`rollring metrics` from end to end, against its page in docs/.

usage: metrics_end_to_end.py PATH_OF_ROLLRING
       metrics_end_to_end.py PATH_OF_ROLLRING --table      the table of docs/watching.md
"""
import http.client
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
    ROOT,
    Lines,
    Ring,
    ended,
    main,
    run,
    start,
    test,
    wait_until,
)

FAMILY = re.compile(r"# HELP (\S+) (.+)\n# TYPE \1 (counter|gauge)\n")
LOAD = ("--synthetic", "groups=3,group-size=4,tokens=9")


class Exporter:
    def __init__(self, *arguments, **options):
        self.process = start("metrics", *arguments, **options)
        self.says = Lines(self.process.stderr)
        self.says.wait_for("http://")
        self.port = int(re.search(r":(\d+)/metrics$", self.says.lines[-1].strip())[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        ended(self.process, 130)

    def ask(self, path="/metrics", method="GET", **headers):
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        text = answer.read().decode()
        line.close()
        return answer.status, answer.getheader("Content-Type"), text

    def text(self):
        status, kind, text = self.ask()
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), (status, kind)
        return text


def families():
    """Name, type and help of each, whatever rings there are."""
    return [(found[1], found[3], found[2].replace("\\\\", "\\"))
            for found in FAMILY.finditer(run("metrics", f"{PREFIX}none", "--once")[0])]


def table():
    rows = [f"| `{name}` | {kind} | {about} |" for name, kind, about in families()]
    return "\n".join(["| metric | type | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def value(text, name, **labels):
    """Of the first sample with these labels; None if there is none."""
    wanted = [f'{key}="{label}"' for key, label in labels.items()]
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")) and all(one in line for one in wanted):
            return float(line.rsplit(" ", 1)[1])
    return None


@test
def what_a_ring_does_is_seen_and_rings_come_and_go(folder, _):
    with Exporter("--listen", "127.0.0.1:0") as exporter:
        with Ring() as ring:
            assert value(exporter.text(), "rollring_up", ring=ring) == 1
            run("produce", ring, *LOAD, "--name", "env-1")
            text = exporter.text()
            assert value(text, "rollring_lane_committed_records_total", ring=ring,
                         producer="env-1") == 12, text
            run("consume", ring, "--group-size", 4, "--batch-groups", 3, "--batches", 1)
            text = exporter.text()
            assert value(text, "rollring_stash_shipped_records_total", ring=ring) == 12, text
            assert value(text, "rollring_stash_dropped_records_total", ring=ring,
                         reason="stale") == 0, text
        assert value(exporter.text(), "rollring_up", ring=ring) is None


@test
def a_ring_that_is_named_may_come_later(folder, _):
    name = f"{PREFIX}later"
    with Exporter(name, "--listen", "127.0.0.1:0") as exporter, Ring() as other:
        assert value(exporter.text(), "rollring_up", ring=name) == 0
        run("create", name)
        text = exporter.text()
        assert value(text, "rollring_up", ring=name) == 1 and other not in text, text
        run("rm", name)
        assert value(exporter.text(), "rollring_up", ring=name) == 0


@test
def a_producer_that_is_killed_is_seen(folder, _):
    with Ring() as ring, Exporter(ring, "--listen", "127.0.0.1:0") as exporter:
        producer = start("produce", ring, "--input", "-", "--name", "env-1", stdin=-1)
        wait_until(lambda: value(exporter.text(), "rollring_lane_alive", ring=ring) == 1, "it")
        producer.kill()
        producer.communicate()
        text = exporter.text()
        assert value(text, "rollring_lane_died", ring=ring, producer="env-1") == 1, text
        assert value(text, "rollring_lane_info", ring=ring, state="dead") == 1, text


@test
def once_says_the_same_as_text_and_as_json(folder, _):
    with Ring() as ring:
        run("produce", ring, *LOAD)
        text, _ = run("metrics", ring, "--once")
        told = json.loads(run("metrics", ring, "--once", "--json")[0])
        assert [one["name"] for one in told] == [one[0] for one in families()]
        tokens = next(f for f in told if f["name"] == "rollring_lane_committed_tokens_total")
        (sample,) = tokens["samples"]
        assert sample["labels"]["ring"] == ring and sample["value"] == 108, sample
        assert value(text, "rollring_lane_committed_tokens_total", ring=ring) == 108, text


@test
def wrong_use_is_named(folder, _):
    free = {key: v for key, v in os.environ.items() if key != "ROLLRING_TOKEN"}
    assert "--token" in run("metrics", "--listen", "0.0.0.0:0", code=2, env=free)[1]
    for listen in ("9464", "127.0.0.1:", "127.0.0.1:99999", ":0", "::1:9464"):
        assert "ADDRESS:PORT" in run("metrics", "--listen", listen, code=2)[1], listen
    assert "--once" in run("metrics", "--json", code=2)[1]
    assert "name" in run("metrics", "a/b", "--once", code=2)[1]
    with Exporter("--listen", "127.0.0.1:0") as exporter:
        _, err = run("metrics", "--listen", f"127.0.0.1:{exporter.port}", code=1)
        assert str(exporter.port) in err, err
        assert exporter.ask("/")[0] == 200 and exporter.ask("/other")[0] == 404
        assert exporter.ask(method="POST")[0] == 405
        status, _, text = exporter.ask(method="HEAD")
        assert (status, text) == (200, "")


@test
def the_program_beside_serves(folder, _):
    """In the same process, which keeps its arguments."""
    with Exporter("--listen", "127.0.0.1:0") as exporter:
        place = f"/proc/{exporter.process.pid}"
        assert os.readlink(f"{place}/exe") == f"{os.path.realpath(PROGRAM)}-serve"
        with open(f"{place}/cmdline", encoding="utf-8") as words:
            assert words.read().split("\0")[1:] == ["metrics", "--listen", "127.0.0.1:0", ""]


@test
def without_the_programs_beside_rollouts_still_move(folder, _):
    """A command that another program carries out names the one that is missing."""
    alone = shutil.copy(PROGRAM, folder / "rollring")

    def said(*arguments, code):
        done = subprocess.run([alone, *arguments], text=True, capture_output=True, check=False)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    for command in ("metrics", "serve-atropos"):
        assert f"{folder}/rollring-serve" in said(command, f"{PREFIX}none", code=1)
    for command in ("ls", "stat", "doctor", "groups", "weights"):
        assert f"{folder}/rollring-inspect" in said(command, "--help", code=1)
    assert "exactly once" in said("demo", "--synthetic", "groups=2,tokens=8:16", code=0)


@test
def a_signal_at_any_time_ends_it(folder, _):
    """Before the first program hears signals, while it becomes the second one, or afterwards."""
    for spins in range(0, 200_000, 10_000):
        process = start("metrics", "--listen", "127.0.0.1:0")
        for _ in range(spins):
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode in (143, -signal.SIGTERM), process.returncode


@test
def elsewhere_it_asks_for_a_token(folder, _):
    with Exporter("--listen", "0.0.0.0:0",
                  env={**os.environ, "ROLLRING_TOKEN": "secret"}) as exporter:
        assert exporter.ask()[0] == 401
        assert exporter.ask(Authorization="Bearer other")[0] == 401
        assert exporter.ask(Authorization="Bearer secret")[0] == 200


@test
def the_page_lists_all_metrics(folder, _):
    page = (ROOT / "docs/watching.md").read_text(encoding="utf-8")
    assert table() in page, "docs/watching.md: put in what --table prints"


@test
def the_dashboard_shows_what_is_exported(folder, _):
    dashboard = json.loads((ROOT / "docs/grafana.json").read_text(encoding="utf-8"))
    known = {name for name, *_ in families()}
    asked = []
    for panel in dashboard["panels"]:
        assert panel["type"] == "row" or panel["targets"], panel["title"]
        asked += [target["expr"] for target in panel.get("targets", [])]
    asked += [one["definition"] for one in dashboard["templating"]["list"]
              if one["type"] == "query"]
    named = set(re.findall(r"rollring_\w+", " ".join(asked)))
    assert len(named) > 15 and named <= known, named - known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@test
def alerts_ask_for_what_is_exported(folder, _):
    alerts = (ROOT / "docs/alerts.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"rollring_\w+", alerts))
    known = {name for name, *_ in families()}
    assert len(named) > 10 and named <= known, named - known


if __name__ == "__main__":
    if "--table" in sys.argv:
        print(table(), end="")
        sys.exit(0)
    sys.exit(main())
