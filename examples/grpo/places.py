"""The transport between workers and trainer, from before a run until after it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import rollring as rr
from plan import Plan
from processes import SPAWN

PATIENCE = 60.0


@contextmanager
def place_of(plan: Plan) -> Iterator[Plan]:
    """The plan, completed by the addresses that the processes need."""
    if plan.transport == "ring":
        from ring import create

        create(plan)
        try:
            with engine_of(plan) as placed, fabric_of(plan):
                yield placed
        finally:
            rr.remove(plan.ring, force=True, missing_ok=True)
    elif plan.transport == "queue":
        from queues import Queues

        yield replace(plan, queues=Queues(SPAWN, plan))
    else:
        with atropos_server() as url:
            from atropos import register

            found = replace(plan, url=url)
            register(found)
            yield found


def fabric_of(plan: Plan) -> AbstractContextManager[Any]:
    """The run's fabric, if it has other nodes."""
    if not plan.cluster.nodes:
        return nullcontext()
    from nodes import fabric_ends

    return fabric_ends(plan)


@contextmanager
def engine_of(plan: Plan) -> Iterator[Plan]:
    """With the vLLM server, if the run has one."""
    if not plan.engine:
        yield plan
        return
    from engine import vllm_server

    with vllm_server(plan) as url:
        yield replace(plan, engine=url)


@contextmanager
def atropos_server() -> Iterator[str]:
    """The API server of atroposlib, unmodified."""
    import requests

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port",
         str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,  # we pass Ctrl-C on
    )
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                requests.get(url, timeout=PATIENCE)
                break
            except requests.ConnectionError:
                if process.poll() is not None or time.monotonic() > end:
                    raise OSError("the server of atroposlib did not start") from None
                time.sleep(0.05)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
