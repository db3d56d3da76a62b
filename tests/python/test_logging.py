"""Events of a run reach the logger "rollring", and cost nothing where it is off."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group


def _send_and_die(ring: str, name: str = "env-dies") -> None:
    producer = rr.Producer(ring, name=name)
    producer.push("p/9", token_ids=[1], repetition_id=0, group_size=2)
    os.kill(os.getpid(), signal.SIGKILL)


def _until_logged(caplog: Any, stash: rr.Stash, text: str) -> logging.LogRecord:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with pytest.raises(TimeoutError):
            stash.next(0.01)
        for record in caplog.records:
            if text in record.getMessage():
                return record
    raise AssertionError(f"not logged: {text}; {caplog.text}")


def test_a_death_is_a_warning(ring: str, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "rollring")
    with rr.Stash(ring, batch_groups=1) as stash:
        child = multiprocessing.get_context("spawn").Process(target=_send_and_die, args=(ring,))
        child.start()
        child.join(PATIENCE)
        record = _until_logged(caplog, stash, "env-dies")
        assert record.levelno == logging.WARNING and record.name == "rollring"
        assert f"ring {ring}: producer env-dies (lane 0) died after 1 record" in caplog.text
        assert "joined" not in caplog.text


def test_groups_and_drops_are_told(ring: str, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "rollring")
    with (
        rr.Stash(ring, batch_groups=1, deadline=0.05, min_size=1) as stash,
        rr.Producer(ring, name="env-1") as producer,
    ):
        send_group(producer, 1)
        stash.next(PATIENCE).ack()
        send_group(producer, 1)  # all of it late
        record = _until_logged(caplog, stash, "dropped as late")
        assert record.levelno == logging.WARNING and "its own visit" in record.getMessage()
        assert "producer env-1 (lane 0) joined" in caplog.text
        producer.push("p/2", token_ids=[1], repetition_id=0, group_size=2)
        stash.next(PATIENCE).ack()
        record = _until_logged(caplog, stash, "it ships with 1 of 2 members (1 such group so far)")
        assert record.levelno == logging.WARNING and "p/2" in record.getMessage()
        _until_logged(caplog, stash, "1 group shipped without all members (1 so far)")
        producer.close()
        _until_logged(caplog, stash, "env-1 (lane 0) closed after 5 records")
        told = len(caplog.records)
        with pytest.raises(TimeoutError):
            stash.next(0)
        assert len(caplog.records) == told  # nothing is told twice


def test_nothing_is_asked_for_where_the_level_is_off(ring: str, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL, "rollring")
    with rr.Stash(ring, batch_groups=1) as stash, rr.Producer(ring) as producer:
        send_group(producer, 1)
        stash.next(PATIENCE).ack()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                stash.next(0.01)
        assert caplog.records == []
        # They are still there for a caller that would ask.
        news = stash._core.news(False)
        assert news is not None and [event["kind"] for event in news[0]] == ["producer_joined"]


def test_totals_of_before_are_told_once_the_level_lets_them(ring: str, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "rollring")
    with rr.Stash(ring, zero_variance="drop") as stash, rr.Producer(ring) as producer:
        for member in range(2):
            producer.push("p/1", token_ids=[1], repetition_id=member, group_size=2, reward=1.0)
        with pytest.raises(TimeoutError):
            stash.next(0)
        assert stash._core.news(False) is None  # it was told, and nothing has come since
        caplog.set_level(logging.INFO, "rollring")
        _until_logged(caplog, stash, "1 group dropped (1 so far)")


def test_records_that_move_to_the_spill_are_told(ring: str, caplog: Any) -> None:
    """A group that is not complete pins its lane, in which other groups come and go."""
    caplog.set_level(logging.INFO, "rollring")
    tokens = np.zeros(100_000, np.int32)

    def send() -> None:
        with rr.Producer(ring, name="env-1") as producer:
            producer.push("waits", token_ids=tokens, group_size=2, timeout=PATIENCE)
            for i in range(30):
                producer.push(f"p/{i}", token_ids=tokens, group_size=1, timeout=PATIENCE)

    with rr.Stash(ring, batch_groups=1, min_size=1) as stash:
        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(30):
            stash.next(PATIENCE).ack()
        sender.join(PATIENCE)
        record = _until_logged(caplog, stash, "records moved to the spill")
        assert record.levelno == logging.INFO and ring in record.getMessage()


def test_a_wait_without_end_tells_which_group_waits_for_whom(
    ring: str, caplog: Any, monkeypatch: pytest.MonkeyPatch, run_loop: Any
) -> None:
    monkeypatch.setattr("rollring._waits.LOOK_SECONDS", 0.02)
    caplog.set_level(logging.WARNING, "rollring")
    told = threading.Event()

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "missing: member 1; from env-3 (lane 0, died)" in record.getMessage():
                told.set()

    logging.getLogger("rollring").addHandler(handler := Tells())
    options = {"deadline": 0.02, "at_deadline": "hold"}
    try:
        with rr.Stash(ring, batch_groups=1, **options) as stash:
            child = multiprocessing.get_context("spawn").Process(
                target=_send_and_die, args=(ring, "env-3")
            )
            child.start()
            child.join(PATIENCE)

            def complete() -> None:
                told.wait(PATIENCE)
                with rr.Producer(ring) as producer:
                    producer.push("p/9", token_ids=[1], repetition_id=1, group_size=2)

            completing = threading.Thread(target=complete)
            completing.start()

            async def main() -> None:
                (await stash.next_async()).ack()

            run_loop(main())
            completing.join(PATIENCE)  # the ring goes with this test
            assert told.is_set()
    finally:
        logging.getLogger("rollring").removeHandler(handler)


PLAIN = """
import sys
import rollring as rr

with rr.Producer(sys.argv[1]) as producer, rr.Stash(sys.argv[1], batch_groups=1) as stash:
    for _ in range(2):
        producer.push("p/1", token_ids=[1], repetition_id=0, group_size=1)
    try:
        while True:
            stash.next(timeout=0.1).ack()
    except TimeoutError:
        pass
"""


def test_a_program_without_logging_sees_warnings_and_nothing_else(ring: str) -> None:
    command = [sys.executable, "-c", PLAIN, ring]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ring {ring}: 1 record dropped as"), line


def test_removal_names_the_argument_of_python(ring: str) -> None:
    with rr.Producer(ring), pytest.raises(rr.BusyError, match="force=True"):
        rr.remove(ring)
