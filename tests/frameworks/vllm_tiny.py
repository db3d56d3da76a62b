"""vLLM on a CPU: tiny random models made on the spot, engines of this process and servers of their
own, and the next tokens according to the trainer's model. Everything of vLLM's own is as it is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
os.environ.update(ENVIRONMENT)

import requests
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

torch.set_num_threads(1)
PATIENCE = 600.0  # vLLM imports much
TOKENS = 8
EXTENSION = "rollring.integrations.vllm.worker.WorkerExtension"
PROMPTS = ([5, 17, 99, 400, 7], [1000, 3])
SIZES: dict[str, Any] = {
    "vocab_size": 1003,  # padded by vLLM
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}


def labels() -> bool:
    """Whether this vLLM says of which version a token is."""
    from rollring.integrations.vllm._generation import labels_tokens

    return labels_tokens()


def scales_out() -> bool:
    """Whether this vLLM has an option without which it takes no tokens instead of texts."""
    found = importlib.util.find_spec("vllm.entrypoints.launchers")
    return found is not None


def spans(choice: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Of an answer: which tokens are of which version."""
    found = choice["weight_versions"] if labels() else ()
    return [(span["version"], span["start"], span["end"]) for span in found]


def of_version(label: str) -> list[Any]:
    """The spans of answers that are of one version as a whole."""
    return [[(label, 0, TOKENS)] if labels() else []] * len(PROMPTS)


class Trained:
    """The trainer's model. In float32: its results and the engine's differ in the last bits, and in
    bf16 that would decide between tokens that are equally likely."""

    def __init__(self, kind: str, folder: Path, **more: Any) -> None:
        torch.manual_seed(1)
        sizes = {**SIZES, **more}
        if kind == "qwen3":
            self.model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=32))
        else:
            self.model = Qwen2ForCausalLM(Qwen2Config(**sizes))
        self.model.eval()
        self.folder = str(folder / kind)
        self.model.save_pretrained(self.folder)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)

    def tokens(self) -> list[list[int]]:
        """The likeliest ones after each prompt."""
        found = []
        for prompt in PROMPTS:
            ids = list(prompt)
            with torch.no_grad():
                for _ in range(TOKENS):
                    ids.append(int(self.model(torch.tensor([ids])).logits[0, -1].argmax()))
            found.append(ids[len(prompt) :])
        return found


class Tensors:
    """A source of the trainer's tensors, as vLLM 0.28 to 0.32 has it.

    Args:
        tensors: By name.
        stop: Called with each name before its tensor is given.
    """

    def __init__(self, tensors: dict[str, Any], stop: Any = lambda name: None) -> None:
        self.tensors = tensors
        self._stop = stop

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.tensors.items():
            self._stop(name)
            yield name, tensor


def sender(ring: str, client: Any, source: Any, **info: Any) -> Any:
    """The trainer's end, from vLLM's own factory."""
    from rollring.integrations.vllm.trainer import RollringTrainerInitInfo, make_trainer

    return make_trainer(
        RollringTrainerInitInfo(ring, rank=0, deadline_s=PATIENCE, **info),
        client=client,
        source=source,
    )


def llm(model: str, **more: Any) -> Any:
    """vLLM's LLM with the backend; its engine is a process of its own."""
    from vllm import LLM
    from vllm.config import WeightTransferConfig

    return LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        weight_transfer_config=WeightTransferConfig(backend="rollring"),
        enable_prefix_caching=False,
        **more,
    )


def generated(engine: Any) -> tuple[list[list[int]], list[Any]]:
    """Tokens, and the versions that vLLM says they are of."""
    from vllm import SamplingParams

    how = SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
    answers = [one.outputs[0] for one in engine.generate(asked, how, use_tqdm=False)]
    of = [
        [(one.version, one.start, one.end) for one in (each.weight_versions if labels() else ())]
        for each in answers
    ]
    return [list(one.token_ids) for one in answers], of


class Served:
    """`vllm serve`, as its command line has it.

    Args:
        backend: Of its weight transfer.
        environment: Beside this process's.
        **more: Of its options.
    """

    def __init__(
        self,
        model: str,
        log: Path,
        backend: str = "rollring",
        environment: dict[str, str] | None = None,
        **more: str,
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.model = model
        self._log = log
        # The module behind `vllm serve`: the command itself asks for the version of a package
        # called vllm, and the CPU build is called vllm-cpu.
        start = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}"]
        options = {
            "host": "127.0.0.1",
            "port": port,
            "dtype": "float32",
            "max-model-len": 128,
            "weight-transfer-config": json.dumps({"backend": backend}),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        self.command = [*start, *(f"--{name}={value}" for name, value in options.items())]
        self.command += ["--skip-tokenizer-init", "--enforce-eager", "--no-enable-prefix-caching"]
        self.command += ["--enable-scale-out"] if scales_out() else []  # tokens in, tokens out
        with log.open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{self.url}/health", timeout=PATIENCE).ok:
                    return
            time.sleep(0.2)
        raise AssertionError(f"the server does not answer:\n{self.log()[-3000:]}")

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def called(self) -> list[str]:
        """The paths of POSTs, as its access log has them."""
        return re.findall(r'"POST /(\S+) HTTP', self.log())

    def post(self, path: str, **body: Any) -> Any:
        answer = requests.post(f"{self.url}/{path}", json=body, timeout=PATIENCE)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def ask(self, prompt: Sequence[int], tokens: int = TOKENS) -> dict[str, Any]:
        """Its answer of the likeliest tokens."""
        how = {"temperature": 0, "max_tokens": tokens}
        answer = self.post("inference/v1/generate", token_ids=list(prompt), sampling_params=how)
        found: dict[str, Any] = answer["choices"][0]
        return found

    def _choices(self) -> list[dict[str, Any]]:
        return [self.ask(prompt) for prompt in PROMPTS]

    def generated(self) -> tuple[list[list[int]], list[Any]]:
        """Tokens, and the versions that vLLM says they are of."""
        choices = self._choices()
        return [one["token_ids"] for one in choices], [spans(one) for one in choices]

    def tokens(self) -> list[list[int]]:
        return [choice["token_ids"] for choice in self._choices()]

    def kill_engine(self) -> None:
        """The process of its engine, and those below it: the API server stays."""
        import psutil  # one of vLLM's needs

        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("VLLM::" in word for word in child.cmdline()):
                    child.kill()

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(model: str, folder: Path, number: int, **how: Any) -> Iterator[list[Served]]:
    servers = [Served(model, folder / f"server{index}.log", **how) for index in range(number)]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.stop()
