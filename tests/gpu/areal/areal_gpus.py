"""AReaL's own controller, gateway, routes and adapters on GPUs: OUT=FOLDER python areal_gpus.py

    colocated   an FSDP trainer and an engine on one GPU that use its memory in turns, over the
                weight channel; beside it AReaL's own colocated path on the same GPU: versions in
                turns, bit for bit, and the time of each call
    refused     a version that the engine refuses, and the next one
    ranks       two FSDP ranks and two engines on two GPUs

Writes OUT/areal.json. Without a GPU it runs on the host with stand-ins of the memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "frameworks")]

import areal_world
from areal_world import World

import httpx

ON_GPU = torch.cuda.is_available()
LARGE = {"hidden": 2048, "layers": 14} if ON_GPU else {"hidden": 64}
SMALL = {"hidden": 1024, "layers": 4} if ON_GPU else {"hidden": 64}
VERSIONS = int(os.environ.get("GPU_VERSIONS", "8"))
WARM = 2
areal_world.PATIENCE = 100.0 if ON_GPU else 900.0
Seen = dict[str, Any]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def post(url: str, **told: Any) -> httpx.Response:
    return httpx.post(url, json=told, timeout=areal_world.PATIENCE)


class OnGpus(World):
    program = HERE / "areal_gpu_workers.py"

    def environment(self, given: Seen) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": str(given["gpu"]), "LOCAL_RANK": "0"} if ON_GPU else {}

    def turn(self, version: int) -> Any:
        """The engine has served, and the trainer trains: then a version."""
        self.to_trainer()
        return self.update(version)

    def to_trainer(self) -> None:
        for url in self.engines:
            post(f"{url}/awex/release_memory", tags=["weights", "kv_cache"]).raise_for_status()
        for url in self.trainers:
            post(f"{url}/awex/resume_memory", tags=["weights", "optimizer"]).raise_for_status()

    def seen(self) -> Seen:
        urls = {"trainer": self.trainers[0], "engine": self.engines[0]}
        return {
            role: httpx.get(f"{url}/seen", timeout=areal_world.PATIENCE).json()
            for role, url in urls.items()
        }

    def execute(self, version: int) -> list[int]:
        """The calls of the gateway up to the update itself, once; the gateway would repeat a call
        that fails for a minute. Returns the answers of all workers.
        """
        self.to_trainer()
        for url in self.trainers:
            httpx.post(f"{url}/step/{version}", timeout=60).raise_for_status()
            post(f"{url}/awex/release_memory", tags=["optimizer"]).raise_for_status()
        for url in self.engines:
            post(f"{url}/awex/resume_memory", tags=["weights"]).raise_for_status()
        calls = [f"{url}/awex/execute_colocate_weight_update" for url in self.urls]
        with ThreadPoolExecutor() as workers:
            return [
                one.status_code
                for one in workers.map(lambda url: post(url, version=version), calls)
            ]


def started(stack: ExitStack, name: str, ranks: int, **given: Any) -> OnGpus:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-")))
    world = OnGpus(folder)
    stack.callback(world.close)
    stack.callback(keep, world, name)
    for rank in range(ranks):
        world.start("trainer", ranks, rank, gpu=rank, **given)
    for rank in range(ranks):
        world.start("engine", gpu=rank, **given)
    return world


def keep(world: World, name: str) -> None:
    Path(os.environ["OUT"], f"areal-{name}.log").write_text(world.log(), encoding="utf-8")


def medians(times: list[tuple[str, float]], rounds: int) -> Seen:
    """Of each call, without those of the first versions."""
    found: dict[str, list[float]] = {}
    for call, took in times:
        found.setdefault(call, []).append(took)
    return {
        call: round(statistics.median(taken[max(0, len(taken) - rounds) :]), 2)
        for call, taken in found.items()
    }


def colocated(seen: Seen, worlds: dict[str, OnGpus]) -> None:
    for kind in ("rollring", "theirs"):
        seen[kind] = {"versions": [], "memory": []}
    for version in range(1, VERSIONS + 1):
        for kind in ("rollring", "theirs"):
            world, found = worlds[kind], seen[kind]
            if "error" in found:
                continue
            try:
                result = world.turn(version)
                equal = world.serve(version)
            except Exception as error:
                found["error"] = f"{type(error).__name__}: {error}"[:2000]
                continue
            one = {"status": result.status, "ms": round(result.duration_ms, 1), "equal": all(equal)}
            if result.status != "ok":  # the gateway has tried for a minute
                found["error"] = str(result.error)[:2000]
            found["versions"].append(one)
            say(f"{kind} version {version}: {one}")
    for kind in ("rollring", "theirs"):
        found = seen[kind]
        taken = [one["ms"] for one in found["versions"][WARM:]] or [0.0]
        found["median_ms"] = round(statistics.median(taken), 1)
        found["equal"] = sum(one["status"] == "ok" and one["equal"] for one in found["versions"])
        at_end = worlds[kind].seen()
        found["calls_ms"] = {
            role: medians(said.pop("times"), VERSIONS - WARM) for role, said in at_end.items()
        }
        found["at_end"] = at_end
        say(f"{kind}: {json.dumps(found)[:2500]}")
    in_turns(seen["rollring"], worlds["rollring"])


def in_turns(found: Seen, world: OnGpus) -> None:
    """The memory of each side, after an update and once the trainer has it."""
    for when in ("engine serves", "trainer trains"):
        if when == "trainer trains":
            world.to_trainer()
        said = world.seen()
        found["memory"].append(
            {
                "when": when,
                "device_used": said["trainer"].get("device_used"),
                **{role: said[role].get("tags") for role in said},
            }
        )


def refused(seen: Seen, worlds: dict[str, OnGpus]) -> None:
    world = worlds["rollring"]
    engine = world.engines[0]
    before = VERSIONS
    areal_world.post(f"{engine}/awex/resume_memory", {"tags": ["weights"]})
    areal_world.post(f"{engine}/head/80")
    seen["answers"] = world.execute(before + 1)
    areal_world.post(f"{engine}/head/64")
    # The head is as large as before, and its rows are those of the version before.
    seen["old_served"] = world.serve(before)
    result = world.turn(before + 2)
    seen["next"] = {"status": result.status, "equal": world.serve(before + 2)}
    seen["good"] = (
        500 in seen["answers"]
        and seen["old_served"] == [True]
        and seen["next"] == {"status": "ok", "equal": [True]}
    )
    say(f"refused: {seen}")


def ranks(seen: Seen, worlds: dict[str, OnGpus]) -> None:
    world = worlds["ranks"]
    seen["versions"] = []
    for version in range(1, 5):
        result = world.turn(version)
        equal = world.serve(version)
        seen["versions"].append(
            {"status": result.status, "ms": round(result.duration_ms, 1), "equal": equal}
        )
        say(f"ranks version {version}: {seen['versions'][-1]}")
        if result.status != "ok":
            seen["error"] = str(result.error)[:2000]
            break
    seen["good"] = all(
        one["status"] == "ok" and one["equal"] == [True, True] for one in seen["versions"]
    )


def connected(worlds: dict[str, OnGpus], seen: Seen) -> None:
    """All at once: each of their processes imports AReaL first."""

    def one(name: str) -> None:
        try:
            worlds[name].connect()
            say(f"{name} is connected")
        except BaseException as error:
            log = worlds[name].log()[-6000:]
            say(f"{name} is NOT connected: {error}\n{log}")
            seen[f"{name} is not connected"] = f"{type(error).__name__}: {error}"[:2000]

    with ThreadPoolExecutor() as threads:
        list(threads.map(one, worlds))


PARTS: dict[str, Callable[[Seen, dict[str, OnGpus]], None]] = {
    "colocated": colocated,
    "refused": refused,
    "ranks": ranks,
}


def main() -> int:
    seen: Seen = {"torch": torch.__version__, "gpus": []}
    if ON_GPU:
        seen["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    two = not ON_GPU or torch.cuda.device_count() > 1
    with ExitStack() as stack:
        worlds = {
            "rollring": started(stack, "rollring", 1, kind="rollring", **LARGE),
            "theirs": started(stack, "theirs", 1, kind="theirs", **LARGE),
        }
        if two:
            worlds["ranks"] = started(stack, "ranks", 2, kind="rollring", **SMALL)
        else:
            seen["ranks"] = {"MISSING": "a second GPU"}
        connected(worlds, seen)
        for name, part in PARTS.items():
            if name == "ranks" and not two:
                continue
            began, found = time.monotonic(), seen.setdefault(name, {})
            say(f"=== {name}")
            try:
                part(found, worlds)
            except BaseException as error:
                traceback.print_exc()
                found["error"] = f"{type(error).__name__}: {error}"[:3000]
            found["seconds"] = round(time.monotonic() - began, 1)
            path = Path(os.environ["OUT"], "areal.json")
            path.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    kinds = [seen["colocated"].get(kind, {}) for kind in ("rollring", "theirs")]
    good = (
        all(kind.get("equal") == VERSIONS for kind in kinds)
        and seen["refused"].get("good", False)
        and (not two or seen["ranks"].get("good", False))
    )
    say(f"areal: {'all equal' if good else 'NOT ALL EQUAL, see areal.json'}")
    return int(not good)


if __name__ == "__main__":
    Path(os.environ["OUT"]).mkdir(parents=True, exist_ok=True)
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of a call that hangs would be waited for
