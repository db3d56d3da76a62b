"""Kills while a version is on its way: of the trainer, of an engine, of an API server."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from asking import RING, Seen, expected, say, sender, server_log, told
from models import DEVICE, Source, make, step
from probe import differing, synchronized
from serving import Server

import rollring as rr

SECONDS = float(os.environ.get("VGPU_KILL_SECONDS", "100"))
KILLS = int(os.environ.get("VGPU_KILLS", "1000"))
SLOT = 1 << 16  # the engine has parts of a version before its last tensor comes
CALLS = ("start_weight_update", "update_weights", "finish_weight_update", "send_version")


def children() -> Any:
    """Processes that have imported everything, if these can still use the GPU."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["deaths", "vllm", "rollring.integrations.vllm.trainer"])
    child = made.Process(target=touch)
    child.start()
    child.join(120)
    return made if child.exitcode == 0 else multiprocessing.get_context("spawn")


def touch() -> None:
    torch.zeros(1, device=DEVICE)
    synchronized()


class Stopping(Source):
    """A source that stops for its killer before one of its tensors."""

    def __init__(self, model: Any, after: int, stop: Any) -> None:
        super().__init__(model)
        self._after, self._stop = after, stop

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for place, named in enumerate(super().__iter__()):
            if place == self._after:
                synchronized()
                self._stop()
            yield named


class StoppingClient:
    """A client that stops before one of its calls, or behind it."""

    def __init__(self, client: Any, at: str, stop: Any) -> None:
        self._client, self._at, self._stop = client, at, stop

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in CALLS:
            return call

        def stopping(*args: Any) -> None:
            if self._at == f"before {name}":
                self._stop()
            call(*args)
            if self._at == f"after {name}":
                self._stop()

        return stopping


def victim(ring: str, name: str, seed: int, case: Seen, pipe: Any) -> None:
    """A trainer that says which weights it has, and sends them until it stops, or for ever."""
    from rollring.integrations.vllm.trainer import HTTPClient

    model = make("small", seed)
    step(model)
    weights = [expected(model, Server(name).ranks)]
    if case["at"] == "anywhere":
        other = make("small", seed + 5000)
        weights.append(expected(other, Server(name).ranks))
    pipe.send(weights)

    def stop() -> None:
        pipe.send("there")
        threading.Event().wait()

    client = StoppingClient(HTTPClient(Server(name).url), case["at"], stop)
    info = {"staging": case["staging"], "one_call": case["one_call"], "slot_bytes": SLOT}
    source = Stopping(model, case.get("after", -1), stop)
    trainer = sender(ring, Server(name), source, client=client, **info)
    if case["at"] != "anywhere":
        trainer.send_weights()
        pipe.send("sent")
        return
    pipe.send("there")
    tensors = [source.tensors, Source(other).tensors]
    while True:
        trainer.send_weights()
        tensors.reverse()
        source.tensors = tensors[0]


def cases(count: int, draws: random.Random) -> Iterator[Seen]:
    """Where trainers die: at a tensor, at a call, or at any moment of a loop."""
    number = 0
    steps = [f"{when} {call}" for call in CALLS[:3] for when in ("before", "after")]
    while True:
        for staging in ("out_of_place", "in_place"):
            for one_call in (False, True):
                case = {"staging": staging, "one_call": one_call, "number": number}
                yield {**case, "at": "tensor", "after": draws.randrange(1, count)}
                yield {**case, "at": "anywhere", "seconds": draws.random() * 0.3}
                yield {**case, "at": "tensor", "after": count - 1}
                if one_call:
                    yield {**case, "at": f"{draws.choice(('before', 'after'))} send_version"}
                else:
                    yield {**case, "at": draws.choice(steps)}
                number += 1


def kills(seen: Seen, name: str = "kills1") -> None:
    """Of trainers, each with other bytes."""
    server, forks = Server(name), children()
    seen["processes"] = forks.get_start_method()
    server.wait()
    draws = random.Random(name)
    model = make("small", draws.randrange(1000))
    count = len(Source(model).tensors)
    rr.create(RING)
    seen.update(kills=[], wrong=[])
    until = time.monotonic() + SECONDS
    for number, case in enumerate(cases(count, draws)):
        if time.monotonic() > until or number == KILLS:
            break
        step(model)
        cure = sender(RING, server, model, staging=case["staging"], slot_bytes=SLOT)
        cure.send_weights()
        cure.shutdown()
        found = one_kill(server, forks, model, 1000 + 10 * number, case)
        step(model)
        again = sender(RING, server, model, staging=case["staging"], slot_bytes=SLOT)
        again.send_weights()
        again.shutdown()
        found["cured"] = not differing(server.served(), expected(model, server.ranks))
        seen["kills"].append(found)
        if not is_right(found):
            seen["wrong"].append(found)
            say(f"WRONG {found}")
        sum_up(seen)


def one_kill(server: Server, forks: Any, model: Any, seed: int, case: Seen) -> Seen:
    """Kills a trainer, and looks at the served weights before the next trainer comes."""
    old, tokens = expected(model, server.ranks), server.tokens()
    log = len(server_log(server.name))
    ours, theirs = forks.Pipe(duplex=False)
    child = forks.Process(target=victim, args=(RING, server.name, seed, case, theirs))
    child.start()
    theirs.close()
    try:
        if not ours.poll(120):
            raise TimeoutError("the victim does not begin")
        weights = ours.recv()
        if not ours.poll(120) or ours.recv() != "there":
            raise TimeoutError("the victim does not come to its end")
        time.sleep(case.get("seconds", 0))
        child.kill()
        child.join(30)
    finally:
        child.kill()
    killed = time.monotonic()
    answered = server.tokens()
    found = {**case, "answers_after_s": round(time.monotonic() - killed, 3)}
    now = server.served()
    is_old = not differing(now, old)
    found["serves"] = "old" if is_old else "a mixture"
    if any(not differing(now, one) for one in weights):
        found["serves"] = "new"
    if server.ranks > 1:
        found["ranks"] = [of_rank(now, [old, *weights], rank) for rank in range(server.ranks)]
    found["tokens_changed"] = answered != tokens
    found["states"] = [e["state"] for r in rr.describe_weights(RING) for e in r["engines"]]
    found["said"] = server_log(server.name)[log:].count("POISONED")
    return found


def of_rank(now: dict[str, str], known: list[dict[str, str]], rank: int) -> str:
    def its(digests: dict[str, str]) -> dict[str, str]:
        return {name: one for name, one in digests.items() if name.startswith(f"{rank} ")}

    for name, one in zip(("old", "new", "the other new one"), known, strict=False):
        if not differing(its(now), its(one)):
            return name
    return "a mixture"


def is_right(found: Seen) -> bool:
    whole = found["serves"] != "a mixture"
    if found["serves"] == "old" and found["tokens_changed"]:
        whole = False
    return found["cured"] and (whole or (found["staging"] == "in_place" and found["said"] > 0))


def sum_up(seen: Seen) -> None:
    counts: dict[str, int] = {}
    for one in seen["kills"]:
        key = f"{one['staging']}: {one['serves']}{', POISONED' if one['said'] else ''}"
        counts[key] = counts.get(key, 0) + 1
    seen["counts"] = counts
    seen["slowest_answer_s"] = max((k["answers_after_s"] for k in seen["kills"]), default=0)
    if len(seen["kills"]) % 8 == 1:
        say(f"{len(seen['kills'])} kills, wrong {len(seen['wrong'])}: {counts}")


# --- the engine and the API server ----------------------------------------------------------------


def processes_of(name: str) -> dict[str, int]:
    """The API server of a server, its engine, and the ranks of an engine with several."""
    port = Server(name).url.rpartition(":")[2]
    lines: dict[int, str] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                lines[int(entry.name)] = text
                stat = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2]
                parents[int(entry.name)] = int(stat.split()[1])
    (api,) = [pid for pid, line in lines.items() if f"--port={port}" in line]
    (engine,) = [pid for pid, line in lines.items() if parents[pid] == api and "Engine" in line]
    found = {"api": api, "engine": engine}
    for pid, line in lines.items():
        if parents[pid] == engine and "Worker_TP" in line:
            found[f"rank {line.rpartition('Worker_TP')[2].strip()}"] = pid
    return found


ENDS = (("die1", "engine"), ("die2", "api"))
ENDS_OF_RANKS = (("tp2die1", "rank 1"), ("tp2die2", "rank 0"), ("tp2die3", "api"))


def ends(seen: Seen, stays_at: str = "kills1", dying: Sequence[tuple[str, str]] = ENDS) -> None:
    """An engine's process and an API server are killed: the other server serves a whole version."""
    stays = Server(stays_at)
    stays.wait()
    model = make("small", 77)
    count = len(Source(model).tensors)
    rr.create(RING)
    seen["ends"] = []
    after = count // 2
    for name, kind in dying:
        dies = Server(name)
        dies.wait()
        pids = processes_of(name)
        say(f"{name}: {pids}")
        trainer = sender(RING, [stays, dies], model, staging="out_of_place", slot_bytes=SLOT)
        trainer.send_weights()
        before = stays.served()
        trainer.shutdown()
        step(model)

        def kill(pid: int = pids[kind]) -> None:
            os.kill(pid, signal.SIGKILL)

        source = Stopping(model, after, kill)
        trainer = sender(RING, [stays, dies], source, staging="out_of_place", slot_bytes=SLOT)
        found: Seen = {"killed": kind, "after": after, "of": count}
        begun = time.monotonic()
        try:
            trainer.send_weights()
            found["trainer"] = "went on"
        except Exception as error:
            found["trainer"] = told(error)
        found["seconds"] = round(time.monotonic() - begun, 2)
        trainer.shutdown()
        now = stays.served()
        found["other_serves"] = "old" if now == before else "a mixture"
        if not differing(now, expected(model, stays.ranks)):
            found["other_serves"] = "new"
        alone = sender(RING, stays, model, slot_bytes=SLOT)
        alone.send_weights()
        found["goes_on_alone"] = not differing(stays.served(), expected(model, stays.ranks))
        alone.shutdown()
        seen["ends"].append(found)
        say(f"{found}")
