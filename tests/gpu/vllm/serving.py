"""vLLM's own server as a process, and its HTTP calls.

python serving.py FOLDER NAME...: runs these servers until it is told to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import requests

HERE = Path(__file__).resolve().parent
PATIENCE = float(os.environ.get("VGPU_PATIENCE", "240"))
TOKENS = int(os.environ.get("VGPU_TOKENS", "9"))
ASKED = int(os.environ.get("VGPU_PROMPTS", "8"))
PROMPTS = [[5 + i, 17, 99 + 7 * i, 400, 7 + i] for i in range(ASKED)]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",  # it may use the multicast of NVLink
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # vLLM's ipc pickles its handles
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # its kernels are not carried
}
EAGER = "--enforce-eager"
PLAIN = "--no-enable-prefix-caching"
# Two servers with the same weights have the same tokens only if neither of them has chosen kernels
# by their times. Inductor does so with combined kernels, and, unless it is deterministic, with
# reductions of more than 2,048 values, which it has in two forms.
COMBINED = {"combo_kernels": False, "benchmark_combo_kernel": False}


def graphed(**inductor: bool) -> str:
    made = {"cudagraph_capture_sizes": [1, 2, 4, 8], "inductor_compile_config": inductor}
    return f"--compilation-config={json.dumps(made)}"


GRAPHED = graphed(**COMBINED, deterministic=True)
TIMED = graphed(**COMBINED)
DUMMY = "--load-format=dummy"
RANKS = "--tensor-parallel-size="
TWO = [RANKS + "2", "--disable-custom-all-reduce"]
# Each server's own options beside the common ones: its port, its model and its backend.
SERVERS: dict[str, tuple[int, str, str, list[str]]] = {
    "rollring": (8101, "large", "rollring", [PLAIN, GRAPHED]),
    "ipc": (8102, "large", "ipc", [PLAIN, GRAPHED]),
    "trl": (8103, "small", "rollring", [PLAIN, EAGER]),
    "sleeps": (8104, "large", "rollring", [PLAIN, GRAPHED, "--enable-sleep-mode"]),
    "eight": (8105, "eight", "rollring", [PLAIN, GRAPHED, DUMMY]),
    "eightipc": (8106, "eight", "ipc", [PLAIN, GRAPHED, DUMMY]),
    "moe": (8107, "moe", "rollring", [PLAIN, GRAPHED, DUMMY]),
    "moeipc": (8108, "moe", "ipc", [PLAIN, GRAPHED, DUMMY]),
    "prefix": (8109, "large", "rollring", [GRAPHED, "--enable-prefix-caching"]),
    "lora": (
        8110,
        "large",
        "rollring",
        [PLAIN, EAGER, "--enable-lora", "--max-lora-rank=8", "--served-model-name=base"],
    ),
    "fp8": (8111, "large", "rollring", [PLAIN, EAGER, "--quantization=fp8"]),
    "fp8ipc": (8112, "large", "ipc", [PLAIN, EAGER, "--quantization=fp8"]),
    "tp2": (8113, "eight", "rollring", [PLAIN, GRAPHED, DUMMY, *TWO]),
    "tp2ipc": (8114, "eight", "ipc", [PLAIN, GRAPHED, DUMMY, *TWO]),
    "tp2moe": (8115, "moe", "rollring", [PLAIN, GRAPHED, DUMMY, *TWO]),
    "tp2moeipc": (8116, "moe", "ipc", [PLAIN, GRAPHED, DUMMY, *TWO]),
    "tp2moe30": (8117, "moe30", "rollring", [PLAIN, EAGER, DUMMY, *TWO]),
    "tp2sleeps": (8118, "large", "rollring", [PLAIN, GRAPHED, "--enable-sleep-mode", *TWO]),
    "tp2wide": (8119, "wide", "rollring", [PLAIN, GRAPHED, DUMMY, *TWO]),
    "tp2wideipc": (8171, "wide", "ipc", [PLAIN, GRAPHED, DUMMY, *TWO]),
    "tp2timed1": (8172, "wide", "rollring", [PLAIN, TIMED, DUMMY, *TWO]),
    "tp2timed2": (8173, "wide", "rollring", [PLAIN, TIMED, DUMMY, *TWO]),
    "far": (8141, "eight", "rollring", [PLAIN, EAGER, DUMMY]),
    "farnccl": (8142, "eight", "nccl", [PLAIN, EAGER, DUMMY]),
    **{f"tp2kills{n}": (8150 + n, "small", "rollring", [PLAIN, EAGER, *TWO]) for n in range(1, 5)},
    **{f"tp2die{n}": (8160 + n, "small", "rollring", [PLAIN, EAGER, *TWO]) for n in range(1, 5)},
    **{f"kills{n}": (8120 + n, "small", "rollring", [PLAIN, EAGER]) for n in range(1, 5)},
    **{f"die{n}": (8130 + n, "small", "rollring", [PLAIN, EAGER]) for n in range(1, 3)},
}


def of_all(ranks: list[dict[str, str]]) -> dict[str, str]:
    """The parameters of all ranks, named by them if there are several."""
    if len(ranks) == 1:
        return ranks[0]
    return {
        f"{rank} {name}": one for rank, found in enumerate(ranks) for name, one in found.items()
    }


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def command(folder: Path, name: str) -> list[str]:
    port, size, backend, more = SERVERS[name]
    if os.environ.get("VGPU_EAGER"):  # they start in half of the time
        more = [EAGER if one == GRAPHED else one for one in more]
    made = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={folder / size}",
        f"--port={port}",
        "--host=127.0.0.1",
        "--max-model-len=256",
        "--max-num-seqs=16",
        f"--weight-transfer-config={json.dumps({'backend': backend})}",
        "--worker-extension-cls=probe.Probe",
    ]
    if on_gpu():
        # Servers start side by side, so none may measure free memory.
        made += ["--gpu-memory-utilization=0.1", f"--kv-cache-memory-bytes={1 << 30}", *more]
    else:
        left_out = ("sleep", "compilation", "quantization")
        kept = [one for one in more if not any(word in one for word in left_out)]
        made += ["--dtype=float32", *kept]
        made += [] if EAGER in kept else [EAGER]
    return made


def ended(folder: Path, name: str) -> Path:
    """A file that is there once a server has ended by itself."""
    return folder / f"server-{name}.ended"


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[float]


class Server:
    """One that runs, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        port, _, _, options = SERVERS[name]
        self.url = f"http://127.0.0.1:{port}"
        self.ranks = next((int(one[len(RANKS) :]) for one in options if one.startswith(RANKS)), 1)

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                if requests.get(f"{self.url}/health", timeout=5).ok:
                    return
            if ended(Path(os.environ["VGPU_HOME"]), self.name).exists():
                break
            time.sleep(0.3)
        raise TimeoutError(f"the server '{self.name}' does not answer")

    def post(self, path: str, timeout: float = 120, **body: Any) -> Any:
        answer = requests.post(f"{self.url}/{path}", json=body, timeout=timeout)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def call(self, method: str) -> Any:
        """The first worker's answer."""
        return self.calls(method)[0]

    def calls(self, method: str) -> list[Any]:
        """Each worker's answer, by its rank."""
        found: list[Any] = self.post("collective_rpc", method=method)["results"]
        return found

    def served(self) -> dict[str, str]:
        """Digests of the parameters of all workers, as `of_all` names them."""
        return of_all(self.calls("probe_digests"))

    def ask(self, prompt: Sequence[int], **how: Any) -> dict[str, Any]:
        params = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, **how}
        path = "inference/v1/generate"
        answer: dict[str, Any] = self.post(path, token_ids=list(prompt), sampling_params=params)
        return answer

    def tokens(self, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
        """The likeliest ones after each prompt, asked one by one: batches of one size."""
        return [self.ask(prompt)["choices"][0]["token_ids"] for prompt in prompts]

    def answers(self) -> list[Answer]:
        """The likeliest tokens after each prompt, and the log-probabilities of the prompt's own
        tokens, which do not depend on those.
        """
        found = []
        for prompt in PROMPTS:
            answer = self.ask(prompt, prompt_logprobs=0)
            pairs = zip(prompt[1:], answer["prompt_logprobs"][1:], strict=True)
            likely = [one[str(token)]["logprob"] for token, one in pairs]
            found.append(Answer(answer["choices"][0]["token_ids"], likely))
        return found

    def completed(self, model: str) -> list[list[int]]:
        """The likeliest tokens after each prompt, by a model or an adapter of the server."""
        how = {"model": model, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        how["return_token_ids"] = True
        answers = [self.post("v1/completions", prompt=list(prompt), **how) for prompt in PROMPTS]
        return [answer["choices"][0]["token_ids"] for answer in answers]

    def try_post(self, path: str, **body: Any) -> str:
        answer = requests.post(f"{self.url}/{path}", json=body, timeout=120)
        return f"{answer.status_code} {answer.text[:300]}"


# On the second GPU, where a trainer on the first one has no other process beside it.
ELSEWHERE = {"far": "1", "farnccl": "1"}


def environment(folder: Path, name: str) -> dict[str, str]:
    # No server takes the kernels that another one has compiled.
    cache = str(folder / f"cache-{name}")
    found = {**os.environ, **ENVIRONMENT, "VLLM_CACHE_ROOT": cache}
    if name in ELSEWHERE and on_gpu():
        found["CUDA_VISIBLE_DEVICES"] = ELSEWHERE[name]
    return found


def run(folder: Path, names: list[str]) -> None:
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name in names:
        ended(folder, name).unlink(missing_ok=True)
        with (folder / f"server-{name}.log").open("w", encoding="utf-8") as log:
            running[name] = subprocess.Popen(
                command(folder, name),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(folder, name),
            )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while any(one.poll() is None for one in running.values()):
            for name, one in running.items():
                if one.poll() is not None:
                    ended(folder, name).write_text(f"{one.returncode}\n")
            time.sleep(0.5)
    finally:
        for one in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
