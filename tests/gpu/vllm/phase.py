"""One question to vLLM's servers a run: python phase.py NAME OUT, with servers of serving.py there.

    versions    versions: bytes as the trainer's, tokens as those of vLLM's own ipc
    moe         the same with a model of experts
    times       versions of rollring and of ipc in turns (times8, times_moe: of larger models)
    delta       versions by difference, with different shares of changes, and back; delta_direct:
                engines read the trainer's tensors; delta8, ranks_delta: of larger models
    waits       how long requests wait for a token while versions come (waits8)
    kills1 ...  trainers are killed while they send other bytes, each with a server of its own
    ends        an engine's process is killed, and an API server
    shards      versions of a trainer whose two ranks have a shard each; ranks_shards: to an engine
                of two tensor parallel ranks
    ranks       versions of an engine of two tensor parallel ranks (two GPUs); ranks_moe,
                ranks_times, ranks_times_moe, ranks_kills1 ..., ranks_ends, ranks_sleeps: as above
    ranks_wide  the same with CUDA graphs; ranks_timed: of two servers with our versions, whose
                kernels were chosen by their times
    ranks_moe30 versions of 30 billion parameters, by ours alone
    far         an engine on another GPU than its trainer, beside vLLM's own nccl
    sleeps      sleep levels 1 and 2 with rollring's memory backend
    in_process  vLLM's LLM in the trainer's process
    prefix      prompts that are asked again after a version, with the prefix cache on
    adapters    versions while an adapter is loaded
    fp8         versions for an engine that quantizes its weights
    trl         TRL's AsyncGRPOTrainer with such a server: see trl_run.py

Writes OUT/NAME.json: the observations, and "error" where it was cut short.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import by_difference
import deaths
import others
import requests
import sharding
import tensor_parallel
import torch
import updates
from asking import RING, Seen, say
from models import ON_GPU

import rollring as rr


def trl(seen: Seen) -> None:
    import trl_run

    trl_run.run(seen, RING, Path(os.environ["VGPU_HOME"]) / "small")


PHASES = {
    "versions": updates.versions,
    "moe": updates.moe,
    "times": updates.times,
    "times8": updates.times8,
    "times_moe": updates.times_moe,
    "delta": by_difference.versions,
    "delta_direct": partial(by_difference.versions, memory="direct"),
    "delta8": partial(by_difference.versions, size="eight", at="eight"),
    "ranks_delta": partial(by_difference.versions, size="eight", at="tp2"),
    "waits": updates.waits,
    "waits8": updates.waits8,
    **{f"kills{n}": partial(deaths.kills, name=f"kills{n}") for n in range(1, 5)},
    "ends": deaths.ends,
    "shards": sharding.versions,
    "ranks_shards": partial(sharding.versions, at="tp2"),
    "ranks": tensor_parallel.versions,
    "ranks_times": tensor_parallel.times,
    "ranks_moe": tensor_parallel.moe,
    "ranks_wide": tensor_parallel.wide,
    "ranks_timed": tensor_parallel.timed,
    "ranks_moe30": tensor_parallel.moe30,
    "ranks_times_moe": tensor_parallel.times_moe,
    **{f"ranks_kills{n}": partial(deaths.kills, name=f"tp2kills{n}") for n in range(1, 5)},
    "ranks_ends": partial(deaths.ends, stays_at="tp2die4", dying=deaths.ENDS_OF_RANKS),
    "ranks_sleeps": partial(others.sleeps, name="tp2sleeps"),
    "far": tensor_parallel.far,
    "sleeps": others.sleeps,
    "in_process": others.in_process,
    "prefix": others.prefix,
    "adapters": others.adapters,
    "fp8": others.fp8,
    "trl": trl,
}


def cut_short(*_: object) -> None:
    raise TimeoutError("the time that run.sh gives is over")


def main(name: str, out: str) -> int:
    import vllm

    signal.signal(signal.SIGTERM, cut_short)

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
