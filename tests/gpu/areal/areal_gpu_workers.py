"""tests/frameworks/areal_workers.py on one GPU of its own for each process, with a memory domain.

`kind` "theirs" has AReaL's own colocated adapters: `AwexMegatronAdapter`, but with the names that
its FSDP adapter has, since Megatron's are made by its bridges, and `AwexSGLangAdapter`. Without a
GPU both run on the host, where AReaL's handles are those of files.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "frameworks"))

import areal_workers
from areal_workers import AREAL, Domain, Host

ON_GPU = torch.cuda.is_available()
KV_CACHE = 1 << 30 if ON_GPU else 1 << 20
CLOCKED = ("execute_colocate_weight_update", "release_memory", "resume_memory")


def on_the_host() -> None:
    """Stand-ins of the GPU calls and the handles of AReaL's own adapters."""
    torch.cuda.synchronize = lambda *_: None
    util: Any = importlib.import_module("awex.util.tensor_util")
    util.cuda_ipc_serialize, util.cuda_ipc_deserialize = util.ipc_serialize, util.ipc_deserialize
    group: Any = importlib.import_module(f"{AREAL}.weight_update.nccl_group")
    group.init_weights_update_group.__defaults__ = ("gloo", "")


def newer_torch() -> None:
    """AReaL 1.0.4 takes torch 2.10 and later for versions before 2.6, and then gives a call the
    former name of an argument: its own path would not connect.
    """
    distributed: Any = importlib.import_module("torch.distributed.distributed_c10d")
    made = distributed._new_process_group_helper

    def renamed(*given: Any, **told: Any) -> Any:
        if "pg_options" in told:
            told["backend_options"] = told.pop("pg_options")
        return made(*given, **told)

    distributed._new_process_group_helper = renamed


def fsdp_engine_or_stand_in() -> str:
    """AReaL's, of which only the name is used, may not suit the machine's transformers."""
    try:
        importlib.import_module("areal.engine.fsdp_engine")
        return ""
    except Exception as error:
        module: Any = ModuleType("areal.engine.fsdp_engine")
        module.FSDPEngine = type("FSDPEngine", (), {})
        sys.modules[module.__name__] = module
        return f"FSDPEngine, for {type(error).__name__}: {error}"


def sglang() -> None:
    """The two messages by which AReaL's adapter asks SGLang's scheduler for its memory."""
    path = "sglang.srt.managers.io_struct"
    for end in range(1, 5):
        name = ".".join(path.split(".")[:end])
        sys.modules.setdefault(name, ModuleType(name))
    messages: Any = sys.modules[path]
    messages.ReleaseMemoryOccupationReqInput = SimpleNamespace
    messages.ResumeMemoryOccupationReqInput = SimpleNamespace


def colocated(named: Any) -> Any:
    """AReaL's own sender, with the parameters of its FSDP adapter."""
    megatron: Any = importlib.import_module(f"{AREAL}.weight_update.awex.megatron_adapter")

    class Colocated(megatron.AwexMegatronAdapter):  # type: ignore[misc]
        @property
        def parallelism_strategy(self) -> dict[str, Any]:
            return named.parallelism_strategy

        def _build_rank_info(self) -> Any:
            return named._build_rank_info()

        def _iter_hf_params(self) -> Iterator[tuple[str, Any]]:
            for name, tensor in named.get_local_shard_parameters().items():
                yield name, tensor.detach()

    return Colocated(named._engine)


class Gpu(Host):
    device = "cuda" if ON_GPU else "cpu"
    backend = "cpu:gloo,cuda:nccl" if ON_GPU else "gloo"

    def __init__(self, given: dict[str, Any], *tags: str, resident: bool) -> None:
        super().__init__(given, *tags, resident=resident)
        self.times: list[tuple[str, float]] = []
        self.stand_in = fsdp_engine_or_stand_in() if "optimizer" in tags else ""
        self.is_ours = given["kind"] == "rollring"
        # AReaL's own path has whole tensors on each rank.
        self.least_sharded = 1 if self.is_ours else 1 << 30
        if not ON_GPU:
            on_the_host()
        elif self.is_ours:
            import rollring as rr

            torch.cuda.set_device(0)
            self.domain = rr.extras.MemoryDomain()

    def region(self, tag: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if isinstance(self.domain, Domain) else self._region(tag)

    def _region(self, tag: str) -> contextlib.AbstractContextManager[None]:
        made: contextlib.AbstractContextManager[None] = self.domain.region(tag)
        return made

    def made(self, model: Any, *tags: str) -> Any:
        state: dict[Any, dict[str, Any]] = {}
        if "optimizer" in tags:
            with self.region("optimizer"):
                for parameter in model.parameters():
                    local = getattr(parameter.data, "_local_tensor", parameter.data)
                    state[parameter] = {
                        key: torch.zeros(local.shape, device=local.device)
                        for key in ("exp_avg", "exp_avg_sq")
                    }
        if "kv_cache" in tags:
            with self.region("kv_cache"):
                self.cache = torch.zeros(KV_CACHE, dtype=torch.uint8, device=self.device)
        if ON_GPU:
            torch.cuda.empty_cache()
            if self.is_ours and "kv_cache" in tags:  # the trainer has the GPU first
                self.domain.release("weights", "kv_cache", keep=["weights"])
        return SimpleNamespace(state=state)

    def training_adapter(self, adapter: Any) -> Any:
        return self._clocked(adapter if self.is_ours else colocated(adapter))

    def inference_adapter(self, adapter: Any) -> Any:
        if not self.is_ours:
            sglang()
            newer_torch()
            scheduler = adapter._scheduler
            scheduler.release_memory_occupation = lambda request: None
            scheduler.resume_memory_occupation = lambda request: None
            # Of SGLang's scheduler, which AReaL's group of engines asks for.
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        return self._clocked(adapter)

    def _clocked(self, adapter: Any) -> Any:
        for name in CLOCKED:
            setattr(adapter, name, self._clock(name, getattr(adapter, name)))
        return adapter

    def _clock(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **told: Any) -> Any:
            tags = [
                one for part in (*given, *told.values()) if isinstance(part, list) for one in part
            ]
            began = time.perf_counter()
            try:
                return call(*given, **told)
            finally:
                took = time.perf_counter() - began
                self.times.append((" ".join([name.partition("_")[0], *tags]), round(1e3 * took, 2)))

        return timed

    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = {"times": self.times, "stand_in": self.stand_in}
        if ON_GPU:
            free, total = torch.cuda.mem_get_info()
            found |= {"device_used": total - free, "allocated": torch.cuda.memory_allocated()}
            if self.is_ours:
                found["tags"] = self.domain.tags()
        return found


if __name__ == "__main__":
    role = {"trainer": areal_workers.trainer, "engine": areal_workers.engine}[sys.argv[1]]
    role(json.loads(sys.argv[2]), Gpu)
