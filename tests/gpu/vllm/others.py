"""Sleep, an engine in the trainer's process, adapters loaded beside, the prefix cache, fp8."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from asking import RING, Seen, attached, expected, say, sender, told
from models import DTYPE, Source, make, step
from probe import differing
from safetensors.torch import save_file
from serving import PROMPTS, TOKENS, Server
from twins import Own

import rollring as rr


def sleeps(seen: Seen, name: str = "sleeps") -> None:
    server = Server(name)
    server.wait()
    model = make("large", 2)
    rr.create(RING)
    seen["backend"] = server.call("use_rollring_sleep") or "set"
    seen["sleeps"] = []
    for staging in ("out_of_place", "in_place", "delta"):
        trainer = sender(RING, server, model, staging=staging)
        step(model)
        trainer.send_weights()
        wanted, tokens = expected(model, server.ranks), server.tokens()
        seen[f"before_differs, {staging}"] = len(differing(server.served(), wanted))
        for level in (1, 1, 2, 2):
            found = one_sleep(server, trainer, level, wanted)
            found["staging"] = staging
            found["tokens_as_before"] = server.tokens() == tokens
            seen["sleeps"].append(found)
            say(f"sleep {found}")
        server.post("sleep?level=1")
        trainer.shutdown()
        try:
            sender(RING, server, model, staging=staging)
            seen[f"attaching asleep, {staging}"] = "was taken"
        except Exception as error:
            seen[f"attaching asleep, {staging}"] = told(error)
        server.post("wake_up")
        seen[f"after_differs, {staging}"] = len(differing(server.served(), wanted))


def one_sleep(server: Server, trainer: Any, level: int, wanted: dict[str, str]) -> Seen:
    found: Seen = {"level": level, "awake": server.calls("probe_memory")}
    begun = time.monotonic()
    server.post(f"sleep?level={level}")
    found["sleep_ms"] = round(1e3 * (time.monotonic() - begun), 1)
    found["asleep"] = server.calls("probe_memory")
    try:
        trainer.send_weights()
        found["update_asleep"] = "was taken"
    except Exception as error:
        found["update_asleep"] = told(error)
    begun = time.monotonic()
    server.post("wake_up?tags=weights")
    found["wake_weights_ms"] = round(1e3 * (time.monotonic() - begun), 1)
    if level == 2:
        found["lost"] = len(differing(server.served(), wanted))
        trainer.send_weights()
    server.post("wake_up?tags=kv_cache")
    found["differs"] = len(differing(server.served(), wanted))
    return found


def in_process(seen: Seen) -> None:
    """vLLM's LLM in this process, with the trainer: as TRL's colocate has it."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.config import WeightTransferConfig

    from rollring.integrations.vllm.trainer import InProcessClient

    options: Seen = {} if torch.cuda.is_available() else {"enforce_eager": True}
    if torch.cuda.is_available():
        options = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 1 << 30}
    llm = LLM(
        model=str(Path(os.environ["VGPU_HOME"]) / "large"),
        dtype=str(DTYPE).rpartition(".")[2],
        max_model_len=256,
        weight_transfer_config=WeightTransferConfig(backend="rollring"),
        worker_extension_cls="probe.Probe",
        **options,
    )
    seen["prefix_caching"] = llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
    model = make("large", 5)
    rr.create(RING)
    how = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    long = [[3 + (7 * at + number) % 400 for at in range(80)] for number in range(4)]

    def tokens() -> list[list[int]]:
        asked = [{"prompt_token_ids": prompt} for prompt in [*PROMPTS, *long]]
        answers = llm.generate(asked, how, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in answers]

    seen["versions"] = []
    before = tokens()
    for number in range(20):
        info = {
            "staging": ("out_of_place", "in_place")[number % 2],
            "one_call": number % 4 > 1,
            "standing": number % 8 > 3,
            "pause": "keep",
        }
        trainer = sender(RING, [], model, client=InProcessClient(llm), **info)
        step(model)
        begun = time.monotonic()
        trainer.send_weights()
        found = {**info, "ms": round(1e3 * (time.monotonic() - begun), 1)}
        served = llm.collective_rpc("probe_digests")[0]
        found["differ_from_trainer"] = len(differing(served, expected(model)))
        now = tokens()
        llm.reset_prefix_cache()
        found["prefix_cache_is_of_this_version"] = tokens() == now
        found["tokens_changed"] = now != before
        before = now
        trainer.shutdown()
        seen["versions"].append(found)
    seen["right"] = sum(
        not one["differ_from_trainer"] and one["prefix_cache_is_of_this_version"]
        for one in seen["versions"]
    )
    say(f"in process: {seen['right']} of {len(seen['versions'])}")


def prefix(seen: Seen) -> None:
    """A prompt that is asked again after a version, with the prefix cache on, and once more when
    the cache is empty: the same server, because other kernels round otherwise.
    """
    server = Server("prefix")
    server.wait()
    model = make("large", 6)
    rr.create(RING)
    prompts = [[3 + (7 * at + number) % 400 for at in range(96)] for number in range(4)]
    for pause in ("keep", "wait", None):
        trainer = sender(RING, server, model, staging="out_of_place", pause=pause)
        rounds = []
        for _ in range(4):
            step(model)
            trainer.send_weights()
            first = server.tokens(prompts)
            server.post("reset_prefix_cache")
            rounds.append(first == server.tokens(prompts))
        trainer.shutdown()
        seen[f"pause {pause}: as without the cache"] = rounds
        say(f"pause {pause}: {rounds}")


def adapters(seen: Seen) -> None:
    """A version while an adapter is loaded: the base and the adapter's answers afterwards."""
    server = Server("lora")
    server.wait()
    save_adapter(Path(os.environ["VGPU_HOME"]) / "adapter")
    model = make("large", 7)
    rr.create(RING)
    seen["loads"] = server.try_post(
        "v1/load_lora_adapter",
        lora_name="one",
        lora_path=str(Path(os.environ["VGPU_HOME"]) / "adapter"),
    )
    seen["before"] = {name: server.completed(name) for name in ("base", "one")}
    try:
        trainer = sender(RING, server, model, staging="out_of_place")
        step(model)
        trainer.send_weights()
        seen["update"] = "was taken"
        seen["plan"] = server.call("probe_plan")
        served = {n.replace(".base_layer", ""): d for n, d in server.call("probe_digests").items()}
        wanted = expected(model)
        seen["parameters"] = len(wanted)
        seen["differ"] = [n for n in wanted if served.get(n) != wanted[n]][:5]
        trainer.shutdown()
    except Exception as error:
        seen["update"] = told(error)
    seen["after"] = {name: server.completed(name) for name in ("base", "one")}
    for name in ("base", "one"):
        seen[f"{name} changed"] = seen["before"][name] != seen["after"][name]
    say(f"adapters: {seen['update']}")


def save_adapter(folder: Path) -> None:
    """Of the rank 8, for q and v, with values that change answers."""
    found: dict[str, torch.Tensor] = {}
    torch.manual_seed(8)
    for name, tensor in Source(make("large", 8)).tensors.items():
        owner = name.removesuffix(".weight")
        if owner.endswith(("q_proj", "v_proj")):
            wide, into = tensor.shape[1], tensor.shape[0]
            found[f"base_model.model.{owner}.lora_A.weight"] = torch.randn(8, wide, dtype=DTYPE)
            found[f"base_model.model.{owner}.lora_B.weight"] = torch.randn(into, 8, dtype=DTYPE)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(found, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def fp8(seen: Seen) -> None:
    """Online quantization: a version of bf16 tensors for an engine whose weights are fp8."""
    ours, theirs = Server("fp8"), Server("fp8ipc")
    ours.wait()
    with_ipc = attached(theirs, seen)
    model = make("large", 9)
    own = Own(theirs, "large", model, 1 << 28)
    rr.create(RING)
    seen["versions"] = []
    for staging in ("out_of_place", "in_place"):
        trainer = sender(RING, ours, model, staging=staging)
        seen[f"plan, {staging}"] = ours.call("probe_plan")
        for _ in range(5):
            step(model)
            trainer.send_weights()
            found: Seen = {"staging": staging}
            if with_ipc:
                own.send()
                served, other = ours.call("probe_digests"), theirs.call("probe_digests")
                found["parameters"] = len(served)
                found["differ_from_ipc"] = differing(served, other)
                found["tokens_equal_ipc"] = ours.tokens() == theirs.tokens()
            seen["versions"].append(found)
        trainer.shutdown()
        say(f"fp8, {staging}: {seen['versions'][-1]}")
