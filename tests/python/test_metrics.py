"""`rollring metrics`, read by Prometheus' own parser, while producers die and rings go."""

from __future__ import annotations

import multiprocessing
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import rollring as rr
from conftest import PATIENCE, send_group

SPAWN = multiprocessing.get_context("spawn")
PROGRAM = Path(sys.executable).parent / "rollring"
HOSTILE = 'a"b\\c{x="y"} 1\n# ü,'


@pytest.fixture
def url() -> Iterator[str]:
    process = subprocess.Popen(
        [PROGRAM, "metrics", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found is not None
    yield found[0]
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    process.stderr.close()


def scrape(url: str) -> dict[str, list[Any]]:
    """Samples by name. Their labels are unique, and counters say that they are some."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        text = answer.read().decode("utf-8")
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("gauge", "counter") and family.documentation
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample
            found.setdefault(sample.name, []).append(sample)
    for samples in found.values():
        keys = [tuple(sorted(sample.labels.items())) for sample in samples]
        assert len(set(keys)) == len(keys)
    return found


def of_ring(samples: list[Any], ring: str, **labels: str) -> list[Any]:
    wanted = {"ring": ring, **labels}
    return [one for one in samples if wanted.items() <= one.labels.items()]


def push_and_stay(ring: str, ready: Any) -> None:
    with rr.Producer(ring, name="doomed") as producer:
        send_group(producer, 1)
        ready.set()
        signal.pause()


def test_names_of_others_are_labels_and_nothing_else(ring: str, url: str) -> None:
    with rr.Producer(ring, name=HOSTILE) as producer:
        send_group(producer, 1)
        samples = scrape(url)
        (tokens,) = of_ring(samples["rollring_lane_committed_tokens_total"], ring)
    assert tokens.value == 32
    assert tokens.labels["producer"] == HOSTILE.replace("\n", "?")


def test_the_dead_and_what_goes(ring: str, url: str) -> None:
    ready = SPAWN.Event()
    child = SPAWN.Process(target=push_and_stay, args=(ring, ready))
    child.start()
    assert ready.wait(PATIENCE)
    (alive,) = of_ring(scrape(url)["rollring_lane_alive"], ring, producer="doomed")
    assert alive.value == 1
    child.kill()
    child.join(PATIENCE)
    (died,) = of_ring(scrape(url)["rollring_lane_died"], ring, producer="doomed")
    assert died.value == 1
    with rr.Stash(ring, batch_groups=1) as stash:
        with stash.next(PATIENCE):
            (leased,) = of_ring(scrape(url)["rollring_groups"], ring, state="leased")
            assert leased.value == 1
        samples = scrape(url)
    (shipped,) = of_ring(samples["rollring_stash_shipped_records_total"], ring)
    assert shipped.value == 2
    assert len(of_ring(samples["rollring_stash_dropped_records_total"], ring)) > 5
    rr.remove(ring, force=True)
    assert not of_ring(scrape(url).get("rollring_up", []), ring)


def test_the_weight_channel(ring: str, url: str) -> None:
    weights, held = {"w": np.ones(1000, np.float32)}, {"w": np.zeros(1000, np.float32)}
    with (
        rr.WeightPublisher(ring, weights) as trainer,
        rr.WeightSubscriber(ring, held, name="engine-0") as engine,
    ):
        assert not of_ring(scrape(url).get("rollring_engine_live_version", []), ring)
        thread = threading.Thread(target=lambda: engine.next(PATIENCE).finish(PATIENCE))
        thread.start()
        trainer.publish(3, PATIENCE)
        thread.join()
        samples = scrape(url)
        (live,) = of_ring(samples["rollring_engine_live_version"], ring, engine="engine-0")
        (syncs,) = of_ring(samples["rollring_publisher_syncs_total"], ring, rank="0")
        (put,) = of_ring(samples["rollring_publisher_last_sync_put_seconds"], ring)
        assert live.value == 3 and syncs.value == 1 and 0 < put.value < PATIENCE
        (told,) = rr.describe_weights(ring)
        assert told["engines"][0]["name"] == "engine-0" and told["committed_version"] == 3
        assert told["last_sync"]["put"] == pytest.approx(put.value)
        assert set(told["last_sync"]) == {"wait_slot", "put", "publish", "staged", "commit"}
    assert rr.describe_weights(ring) == []


def test_requests_and_who_has_them(ring: str, url: str) -> None:
    assert not of_ring(scrape(url).get("rollring_requests_posted_total", []), ring)
    with rr.RequestBoard(ring) as board, rr.RequestBoard(ring, "env-3") as worker:
        for prompt in "abc":
            board.post(prompt)
        assert worker.take(PATIENCE).done()
        request = worker.take(PATIENCE)
        samples = scrape(url)
        for name, value in (("waiting", 1), ("taken", 1), ("posted_total", 3),
                            ("answered_total", 1), ("workers_alive", 1)):  # fmt: skip
            (sample,) = of_ring(samples[f"rollring_requests_{name}"], ring)
            assert sample.value == value, name
        (has,) = of_ring(samples["rollring_request_worker_taken"], ring, worker="env-3", seat="0")
        assert has.value == 1
        request.done()


def test_a_name_that_is_cut_ends_with_a_character(ring: str, url: str) -> None:
    with rr.Producer(ring, name="a" + "\N{PILE OF POO}" * 20):
        (lane,) = rr.describe(ring)["lanes"]
        (alive,) = of_ring(scrape(url)["rollring_lane_alive"], ring)
    for shown in (lane["producer"], alive.labels["producer"]):
        assert shown == "a" + "\N{PILE OF POO}" * 9
