"""One question to vLLM's servers a run: python phase.py NAME OUT, with servers of serving.py there.

    versions   20 versions: bytes as the trainer's, tokens as those of vLLM's own ipc
    trl        TRL's AsyncGRPOTrainer with such a server: see trl_run.py
    kills      the trainer is killed while it sends other bytes
    sleeps     sleep levels 1 and 2 with rollring's memory backend
    times      versions of rollring and of ipc in turns

Writes OUT/NAME.json: the observations, and "error" where it was cut short.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import torch
from models import DEVICE, ON_GPU, as_served, make, step
from probe import differing, digests, synchronized
from serving import Server

import rollring as rr
import rollring.integrations.vllm

SPAWN = multiprocessing.get_context("spawn")
RING = f"vgpu{os.getpid()}"
VERSIONS = int(os.environ.get("VGPU_VERSIONS", "20"))
Seen = dict[str, Any]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def sender(ring: str, server: Server, model: Any, client: Any = None, **info: Any) -> Any:
    from vllm.distributed.weight_transfer.base import ModuleSource

    from rollring.integrations.vllm.trainer import HTTPClient, RollringTrainerInitInfo, make_trainer

    rollring.integrations.vllm.register()
    return make_trainer(
        RollringTrainerInitInfo(ring, rank=0, deadline_s=60.0, **info),
        client=client or HTTPClient(server.url),
        source=ModuleSource(model),
    )


def send_by_ipc(server: Server, model: Any, buffer: int) -> None:
    """vLLM's own way, in the form that this vLLM has it."""
    from vllm.distributed.weight_transfer import ipc_engine

    args = ipc_engine.IPCTrainerSendWeightsArgs(
        send_mode="http", url=server.url, packed=True, packed_buffer_size_bytes=buffer
    )
    named = ((name, one.detach()) for name, one in model.named_parameters())
    server.post("start_weight_update")
    ipc_engine.IPCWeightTransferEngine.trainer_send_weights(named, args)
    server.post("finish_weight_update")


def attached(server: Server, seen: Seen) -> bool:
    """Whether the server with vLLM's own ipc is there, which a CPU cannot have."""
    if not ON_GPU:
        return False
    try:
        server.wait()
        server.post("init_weight_transfer_engine", init_info={})
    except Exception as error:
        seen["without_ipc"] = f"{type(error).__name__}: {error}"
        return False
    return True


def expected(model: Any) -> dict[str, str]:
    return digests(as_served(dict(model.named_parameters())))


# --- the phases -----------------------------------------------------------------------------------


def versions(seen: Seen) -> None:
    ours, theirs = Server("rollring"), Server("ipc")
    ours.wait()
    with_ipc = attached(theirs, seen)
    model = make("large")
    seen.update(parameters=sum(p.numel() for p in model.parameters()), versions=[])
    seen["tensors"] = len(list(model.parameters()))
    rr.create(RING)
    trainer = sender(RING, ours, model, staging="out_of_place")
    for _ in range(VERSIONS):
        step(model)
        begun = time.monotonic()
        trainer.send_weights()
        took = time.monotonic() - begun
        found = {"version": trainer.version, "ms": round(1e3 * took, 1)}
        served = ours.call("probe_digests")
        found["parameters"] = len(served)
        found["differ_from_trainer"] = differing(served, expected(model))
        tokens = ours.tokens()
        found["tokens"] = str(hash(json.dumps(tokens)) & 0xFFFFFFFF)
        if with_ipc:
            send_by_ipc(theirs, model, 1 << 28)
            found["differ_from_ipc"] = differing(served, theirs.call("probe_digests"))
            found["tokens_equal_ipc"] = tokens == theirs.tokens()
        seen["versions"].append(found)
        say(f"version {found}")
    trainer.shutdown()
    each = seen["versions"]
    seen["different_outputs"] = len({one["tokens"] for one in each})
    seen["equal"] = sum(
        not one["differ_from_trainer"]
        and not one.get("differ_from_ipc")
        and one.get("tokens_equal_ipc", True)
        for one in each
    )


def trl(seen: Seen) -> None:
    import trl_run

    trl_run.run(seen, RING, Path(os.environ["VGPU_HOME"]) / "small")


class Stopping:
    """A source that stops for its killer after some tensors."""

    def __init__(self, model: Any, after: int, told: Any) -> None:
        self._model, self._after, self._told = model, after, told

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        named = self._model.named_parameters()
        return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in named]

    def __iter__(self) -> Any:
        for place, (name, one) in enumerate(self._model.named_parameters()):
            if place == self._after:
                synchronized()
                self._told.send("there")
                threading.Event().wait()
            yield name, one.detach()


def victim(ring: str, seed: int, after: int, staging: str, told: Any) -> None:
    from rollring.integrations.vllm.trainer import (
        HTTPClient,
        RollringTrainer,
        RollringTrainerInitInfo,
    )

    model = make("large", seed)  # other bytes in all tensors but those that are constant
    step(model)
    RollringTrainer.trainer_init(
        RollringTrainerInitInfo(ring, rank=0, staging=staging, slot_bytes=1 << 22),
        client=HTTPClient(Server("rollring").url),
        source=Stopping(model, after, told),
    ).send_weights()
    told.send("sent")


def kills(seen: Seen) -> None:
    server = Server("rollring")
    server.wait()
    model = make("large", 1)
    count = len(list(model.parameters()))
    rr.create(RING)
    seen["kills"] = []
    cases = [("out_of_place", count // 2), ("out_of_place", count - 1), ("in_place", count // 2)]
    for number, (staging, after) in enumerate(cases):
        step(model)
        trainer = sender(RING, server, model, staging=staging)
        trainer.send_weights()
        trainer.shutdown()
        before, tokens = server.call("probe_digests"), server.tokens()
        ours, theirs = SPAWN.Pipe(duplex=False)
        child = SPAWN.Process(target=victim, args=(RING, 100 + number, after, staging, theirs))
        child.start()
        try:
            if not ours.poll(120) or ours.recv() != "there":
                raise TimeoutError("the victim does not come to its tensor")
            child.kill()
            killed = time.monotonic()
            child.join(30)
            answered = server.tokens()
            found: Seen = {
                "staging": staging,
                "after": after,
                "of": count,
                "answers_after_s": round(time.monotonic() - killed, 3),
            }
        finally:
            child.kill()
        now = server.call("probe_digests")
        found["tokens_as_before"] = answered == tokens
        found["parameters_changed"] = len(differing(now, before))
        found["states"] = [e["state"] for r in rr.describe_weights(RING) for e in r["engines"]]
        found["poisoned"] = "POISONED" in server_log("rollring")[seen.get("log", 0) :]
        seen["log"] = len(server_log("rollring"))
        step(model)
        again = sender(RING, server, model, staging=staging)
        again.send_weights()
        found["next_version_differs"] = len(
            differing(server.call("probe_digests"), expected(model))
        )
        again.shutdown()
        seen["kills"].append(found)
        say(f"kill {found}")


def server_log(name: str) -> str:
    path = Path(os.environ["VGPU_HOME"]) / f"server-{name}.log"
    return path.read_text(encoding="utf-8", errors="replace")


def sleeps(seen: Seen) -> None:
    server = Server("sleeps")
    server.wait()
    model = make("large", 2)
    rr.create(RING)
    seen["backend"] = server.call("use_rollring_sleep") or "set"
    trainer = sender(RING, server, model, staging="in_place")
    trainer.send_weights()
    wanted, tokens = expected(model), server.tokens()
    seen["before_differs"] = len(differing(server.call("probe_digests"), wanted))
    seen["sleeps"] = []
    for level in (1, 1, 2, 2):
        found: Seen = {"level": level, "awake": server.call("probe_memory")}
        begun = time.monotonic()
        server.post(f"sleep?level={level}")
        found["sleep_ms"] = round(1e3 * (time.monotonic() - begun), 1)
        found["asleep"] = server.call("probe_memory")
        try:
            trainer.send_weights()
            found["update_asleep"] = "was taken"
        except Exception as error:
            found["update_asleep"] = f"{type(error).__name__}: {error}"[:300]
        begun = time.monotonic()
        server.post("wake_up?tags=weights")
        found["wake_weights_ms"] = round(1e3 * (time.monotonic() - begun), 1)
        if level == 2:
            found["lost"] = len(differing(server.call("probe_digests"), wanted))
            trainer.send_weights()
        server.post("wake_up?tags=kv_cache")
        found["differs"] = len(differing(server.call("probe_digests"), wanted))
        found["tokens_as_before"] = server.tokens() == tokens
        seen["sleeps"].append(found)
        say(f"sleep {found}")
    trainer.shutdown()


def times(seen: Seen) -> None:
    ours, theirs = Server("rollring"), Server("ipc")
    ours.wait()
    model = make("large", 3)
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    seen.update(bytes=total, tensors=len(list(model.parameters())))
    rr.create(RING)
    with_ipc = attached(theirs, seen)
    ways: dict[str, tuple[Server, Callable[[], None]]] = {}
    for staging in ("in_place", "out_of_place"):
        trainer = sender(RING, ours, model, staging=staging, standing=True)
        ways = {staging: (ours, trainer.send_weights)}
        if with_ipc:
            ways["ipc"] = (theirs, lambda: send_by_ipc(theirs, model, 1 << 30))
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(12):  # in turns; the first two warm up
            for name, (server, send) in ways.items():
                begun = time.perf_counter()
                send()
                server.call("probe_idle")
                taken[name].append(1e3 * (time.perf_counter() - begun))
        trainer.shutdown()
        for name, found in taken.items():
            key = name if name != "ipc" else f"ipc beside {staging}"
            kept = found[2:]
            seen[key] = {
                "median_ms": round(statistics.median(kept), 1),
                "min_ms": round(min(kept), 1),
                "max_ms": round(max(kept), 1),
                "versions": len(kept),
            }
            say(f"{key}: {seen[key]}")
    if ON_GPU:
        seen["two_copies_ms"] = two_copies(total)


def two_copies(total: int) -> float:
    one = torch.empty(total, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(one)
    found = []
    for _ in range(6):
        synchronized()
        begun = time.perf_counter()
        other.copy_(one)
        one.copy_(other)
        synchronized()
        found.append(1e3 * (time.perf_counter() - begun))
    return round(statistics.median(found[1:]), 2)


PHASES = {"versions": versions, "trl": trl, "kills": kills, "sleeps": sleeps, "times": times}


def main(name: str, out: str) -> int:
    import vllm

    seen: Seen = {"phase": name, "vllm": vllm.__version__, "torch": torch.__version__}
    if ON_GPU:
        seen["gpu"] = torch.cuda.get_device_name(0)
    begun = time.monotonic()
    try:
        PHASES[name](seen)
    except BaseException as error:
        traceback.print_exc()
        seen["error"] = f"{type(error).__name__}: {error}"
        if isinstance(error, requests.HTTPError):
            seen["answer"] = error.response.text[:2000]
    finally:
        rr.remove(RING, force=True) if RING in rr.rings() else None
    seen["seconds"] = round(time.monotonic() - begun, 1)
    Path(out, f"{name}.json").write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    say(f"{name}: {'error' if 'error' in seen else 'done'} in {seen['seconds']} s")
    return int("error" in seen)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(code)  # threads of other libraries may wait for ever
