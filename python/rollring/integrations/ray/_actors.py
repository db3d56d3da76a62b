"""Actors of a run, each on a node of its own choice, and the nodes that live."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayActorError,
    RayError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...adapters import TimeLeft
from ...errors import TimedOutError

_log = logging.getLogger("rollring")

NAMESPACE = "rollring"
AGAIN_S = 0.05  # before an actor that is away is asked again
END_S = 20.0  # that an actor may take to end
AWAY = (RayActorError, ActorUnschedulableError)  # it has died; it may come back


def actor_on(node: str, name: str, kind: type, *given: object) -> Any:
    """The actor of that name, which is made where there is none. It outlives its maker."""
    made: Any = ray.remote(kind)
    return made.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        max_concurrency=getattr(kind, "MAX_CALLS", None),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(*given)


def actor_named(name: str) -> Any:
    """ValueError: there is none. RayError: the answer is unknown, for example while a link
    fails."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except AssertionError as error:  # Ray expects an answer of the head, and has got none
        raise ActorUnavailableError(f"the head does not tell of {name}: {error}", None) from error


def find_actor(name: str) -> Any:
    """actor_named(), asked again for some seconds while the answer is unknown."""
    left = TimeLeft(END_S)
    while True:
        try:
            return actor_named(name)
        except AWAY:
            if left() == 0:
                raise
            time.sleep(AGAIN_S)


def is_gone(actor: Any, name: str) -> bool:
    """It has ended, and does not come back."""
    try:
        found = actor_named(name)
    except ValueError:
        return True
    except Exception as error:  # the head is away
        _log.warning("actor %s: it is unknown whether it lives: %s", name, error)
        return False
    return bool(found._actor_id != actor._actor_id)


def ask(call: Callable[[], Any], left: TimeLeft, gone: Callable[[], bool] = lambda: False) -> Any:
    """The answer of call(), a call of an actor. An actor that has died comes back, and is asked
    again. One of AWAY: it did not in time, or is gone(); GetTimeoutError: it has not answered."""
    while True:
        try:
            return ray.get(call(), timeout=left())
        except AWAY:
            if not (left() is None or left()) or gone():
                raise
            time.sleep(AGAIN_S)


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """The errors of Ray that ask() lets through become one of ours about `what`."""
    try:
        yield
    except (*AWAY, GetTimeoutError) as error:
        raise TimedOutError(
            f"{what} did not answer in time: {last_line(error)}", "timed_out"
        ) from error


def last_line(error: Exception) -> str:
    """The message of one of Ray's errors, which begin with a trace."""
    return str(error).strip().splitlines()[-1]


def end(actor: Any, name: str) -> int:
    """Ends it, whatever state it is in. Returns how many records it has dropped."""
    dropped = 0
    try:
        dropped = ask(actor.close.remote, TimeLeft(END_S), lambda: is_gone(actor, name)) or 0
    except AWAY as error:
        if not is_gone(actor, name):
            _log.warning("actor %s is killed: %s", name, error)
    except RayError as error:
        _log.warning("actor %s is killed: %s", name, error)
    ray.kill(actor)
    return dropped


def this_actor() -> str:
    number: str = ray.get_runtime_context().get_actor_id()
    return number


def end_own(name: str, number: str, *, close: bool = False) -> None:
    """The actor of this process, of that number, which may close before. Ray would restart an actor
    whose process just ends."""
    with contextlib.suppress(ValueError):
        found = find_actor(name)
        if found._actor_id.hex() != number:  # its successor
            return
        if close:  # by a future, as in end_with()
            with contextlib.suppress(RayError, futures.TimeoutError):
                found.close.remote().future().result(END_S)
        ray.kill(found)


def end_with(receiver: Any, receiver_title: str, own_name: str) -> None:
    """Closes and ends the actor of this process once the run of the receiver is over."""
    number = this_actor()

    def wait() -> None:  # by futures: ray.get() would hold up the loop of such an actor
        while True:
            try:
                receiver.until_run_over.remote().future().result()
                break
            except RayError:
                if is_gone(receiver, receiver_title):
                    break
                time.sleep(AGAIN_S)
        end_own(own_name, number, close=True)

    threading.Thread(target=wait, name="rollring-run", daemon=True).start()


def this_node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def living_nodes() -> set[str]:
    nodes: Any = ray.nodes  # which has no types
    return {node["NodeID"] for node in nodes() if node["Alive"]}
