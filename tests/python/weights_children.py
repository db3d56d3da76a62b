"""Engines and trainers that the tests of the weight channel run in processes of their own."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np

import rollring as rr
from conftest import PATIENCE

ROWS = 300_000


def model(value: int = 0) -> dict[str, Any]:
    """Some megabytes: views, scalars, an empty one, several dtypes."""
    wide = np.full((ROWS, 8), value, np.float32)
    return {
        "embed": np.full((ROWS, 4), value, np.float32),
        "norm": wide[:, ::2][:, 0],
        "bias": np.full(17, value, np.float16),
        "steps": np.full((), value, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "mask": np.full(100, value % 2 == 1, np.bool_),
    }


def fill(tensors: dict[str, Any], value: int) -> None:
    for name, tensor in tensors.items():
        tensor[...] = value % 2 == 1 if name == "mask" else value


def whole(tensors: dict[str, Any]) -> int:
    """The one version that all elements are of; -1: they are mixed."""
    value = int(tensors["steps"])
    same = all(
        bool((tensor == (value % 2 == 1 if name == "mask" else value)).all())
        for name, tensor in tensors.items()
    )
    return value if same else -1


def serve(ring: str, name: str, last: int, options: dict[str, Any], seen: Any) -> None:
    """An engine: says what it serves, (name, version, its elements' one value), until `last`."""
    tensors = model(-7)
    with rr.WeightSubscriber(ring, tensors, name=name, timeout=None, **options) as channel:
        for update in channel:
            try:
                with update:
                    update.load()
                    held = whole(tensors)
            except rr.VersionAbortedError:
                continue
            seen.send((name, update.version, held))
            if update.version >= last:
                break


def serve_until_gone(ring: str, name: str, seen: Any) -> None:
    tensors = model(-7)
    with rr.WeightSubscriber(ring, tensors, name=name, timeout=None) as channel:
        try:
            for update in channel:
                with update:
                    pass
                seen.send((name, update.version, whole(tensors)))
        except rr.PeerGoneError as error:
            seen.send((name, type(error).__name__, channel.live_version))


def refuse_once(ring: str, seen: Any) -> None:
    tensors = model(-7)
    with rr.WeightSubscriber(ring, tensors, name="picky", timeout=None, in_place=False) as channel:
        try:
            with channel.next():
                raise ValueError("rope_theta is not what I was built for")
        except ValueError:
            seen.send(("picky", channel.live_version, channel.state))
        with channel.next():
            pass
        seen.send(("picky", channel.live_version, whole(tensors)))


def stop_while_it_reads(ring: str, seen: Any) -> None:
    """Has a version half, and does nothing any more."""
    tensors = model(-7)
    with rr.WeightSubscriber(ring, tensors, name="stuck", timeout=None) as channel:
        update = channel.next()
        update.load()
        seen.send(("stuck", update.version, whole(tensors)))
        os.kill(os.getpid(), signal.SIGSTOP)
        for wait in (update.finish, channel.next):
            try:
                wait(60)
            except rr.RollringError as error:
                seen.send(("stuck", type(error).__name__, 0))


def publish_and_die(ring: str) -> None:
    tensors = model(1)
    channel = rr.WeightPublisher(ring, tensors)
    channel.wait_subscribers(2)
    channel.publish(1)
    channel.wait_live(1)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ctrl_c(ring: str, end: str, ready: Any) -> None:
    """Says which wait it begins, and that a Ctrl-C came out of it."""
    try:
        if end == "engine comes":
            with rr.WeightPublisher(ring, model()) as trainer:
                ready.set()
                trainer.wait_subscribers(1)
        elif end == "version comes":
            with rr.WeightSubscriber(ring, model(), timeout=None) as engine:
                ready.set()
                engine.next()
        else:
            ready.set()
            rr.WeightSubscriber(ring, model(), timeout=None)
    except KeyboardInterrupt:
        os._exit(42)


def publish_beside(trainer: rr.WeightPublisher, engine: rr.WeightSubscriber, version: int) -> None:
    """Both ends in this process: the trainer's in a thread."""
    failed: list[BaseException] = []

    def send() -> None:
        try:
            trainer.publish(version, PATIENCE)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    with engine.next(PATIENCE) as update:
        assert update.version == version
    thread.join()
    assert not failed and engine.live_version == version and engine.state == "ready"
