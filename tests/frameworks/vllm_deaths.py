"""Trainers and engines of vLLM in processes of their own, which stop where they are told to, so
that a test can kill them there.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from vllm_tiny import PATIENCE, Tensors, generated, sender

# Children begin with their imports already loaded.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["vllm_tiny", "vllm", "rollring.integrations.vllm.trainer"])


class Stopping:
    """A client of vLLM whose calls may stop before they are made, or behind that."""

    def __init__(self, client: Any, stop: Any) -> None:
        self._client, self._stop = client, stop

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def stopping(*args: Any) -> None:
            self._stop(f"before {name}")
            call(*args)
            self._stop(f"after {name}")

        return stopping


def send_one(
    ring: str,
    urls: list[str],
    state: dict[str, Any],
    at: str,
    once: str,
    info: dict[str, Any],
    told: Any,
) -> None:
    """A trainer that sends one version, and stops at a step ("URL'S NUMBER: STEP", or "all: STEP"),
    once another one, of another engine, is done.
    """
    from rollring.integrations.vllm.trainer import FleetClient, HTTPClient

    done: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def stops(where: str) -> Any:
        def stop(step: str) -> None:
            done[f"{where}: {step}"].set()
            if at in (f"{where}: {step}", f"all: {step}"):
                if once:
                    done[once].wait()
                told.send(at)
                threading.Event().wait()

        return stop

    clients = [Stopping(HTTPClient(url), stops(str(number))) for number, url in enumerate(urls)]
    sender(ring, FleetClient(clients), Tensors(state, stops("source")), **info).send_weights()
    told.send("all sent")


@contextlib.contextmanager
def killed_trainer(
    ring: str, urls: list[str], state: dict[str, Any], at: str, once: str = "", **info: Any
) -> Iterator[None]:
    """Runs one until it is `at` a step, and kills it there."""
    ours, theirs = FORKS.Pipe(duplex=False)
    child = FORKS.Process(
        target=send_one, args=(ring, urls, state, at, once, info, theirs), daemon=True
    )
    child.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE), f"it does not come to '{at}'"
        assert ours.recv() == at
        child.kill()
        child.join(PATIENCE)
        yield
    finally:
        child.kill()
        child.join()


def serve(model: str, told: Any) -> None:
    """An engine that follows its orders: vLLM's LLM, with all of it in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm_tiny import llm

    from rollring.integrations.vllm.trainer import InProcessClient

    engine = llm(model)
    client = InProcessClient(engine)
    told.send((None, "ready"))
    while True:
        name, args = told.recv()
        try:
            made = generated(engine) if name == "generated" else getattr(client, name)(*args)
            told.send((None, made))
        except Exception as error:
            told.send((f"{type(error).__name__}: {error}", None))


class Victim:
    """Such an engine: a client of vLLM, whose calls may stop, and which can be killed there."""

    def __init__(self, model: str) -> None:
        self._pipe, theirs = FORKS.Pipe()
        self._child = FORKS.Process(target=serve, args=(model, theirs), daemon=True)
        self._child.start()
        theirs.close()
        self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(PATIENCE), "the engine does not answer"
        failed, answer = self._pipe.recv()
        if failed:
            raise RuntimeError(failed)
        return answer

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self._pipe.send((name, args))
            return self._answer()

        return call

    def kill(self) -> None:
        self._child.kill()
        self._child.join(PATIENCE)
