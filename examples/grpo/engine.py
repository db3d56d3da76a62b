"""A vLLM server instead of the workers' own models: workers ask it for tokens, and the trainer
sends it weights through rollring's weight transfer backend.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import requests

from plan import Plan
from ring import PATIENCE, RingWorker
from sampler import Sampled
from transport import Tensors

START_SECONDS = 600.0  # vLLM itself is large


# --- the server -----------------------------------------------------------------------------------


@contextmanager
def vllm_server(plan: Plan) -> Iterator[str]:
    """Its address. The first weights come from the trainer."""
    folder = plan.path("served")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(plan)))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    command = [
        # The module behind `vllm serve`: the command itself does not start in vLLM's CPU build.
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
        "--host", "127.0.0.1", "--port", str(port),
        "--weight-transfer-config", '{"backend": "rollring"}',
        "--load-format", "dummy", "--dtype", "float32", "--skip-tokenizer-init",
        "--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
        "--max-model-len", "256", "--enable-scale-out",  # it enables tokens in, tokens out
    ]
    environment = {
        **os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    }
    with open(plan.path("vllm.log"), "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True,  # we pass Ctrl-C on
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, plan.path("vllm.log"))
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/health", timeout=PATIENCE).ok:
                return
        time.sleep(0.2)
    raise OSError(f"the vLLM server did not start: {log.read_text(errors='replace')[-1000:]}")


def config(plan: Plan) -> dict[str, Any]:
    """Our model as Hugging Face describes it. Its tied embeddings go out under both names."""
    shape = plan.shape
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }


# --- weights --------------------------------------------------------------------------------------


def published(name: str) -> list[str]:
    """vLLM's name of a tensor of our model."""
    if name == "embed_tokens.weight":
        return ["model.embed_tokens.weight", "lm_head.weight"]
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = name.replace(f".{part}.", f".mlp.{part}.")
    return [f"model.{name}"]


class Source:
    """The trainer's tensors, in vLLM's form."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = {
            known: tensor for name, tensor in tensors.items() for known in published(name)
        }

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, one.dtype, tuple(one.shape))
                for name, one in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._tensors.items())


class EngineWeights:
    """The trainer's end of the weights: three calls of the server a version."""

    def __init__(self, plan: Plan, tensors: Tensors) -> None:
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        import rollring.integrations.vllm
        from rollring.integrations.vllm.trainer import RollringTrainerInitInfo

        rollring.integrations.vllm.register()
        self._sender = WeightTransferTrainerFactory.trainer_init(
            RollringTrainerInitInfo(plan.ring, rank=0, standing=True, deadline_s=PATIENCE),
            client=HTTPVLLMWeightSyncClient(plan.engine, timeout=2 * PATIENCE),
            source=Source(tensors),
        )

    def publish(self, version: int) -> None:
        self._sender.send_weights(version)

    def close(self) -> None:
        self._sender.shutdown()


# --- rollouts -------------------------------------------------------------------------------------


class EngineWorker(RingWorker):
    """A worker's end: the weights are the server's."""

    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan, number, {})
        self._session = requests.Session()
        self._ask_at = 0.0

    def refresh(self) -> int:
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + 0.2
            answer = self._session.get(f"{self._plan.engine}/weight_info", timeout=PATIENCE)
            label = answer.json()["weight_version"]
            self.version = int(label) if label.isdecimal() else -1
        return self.version


class Asker:
    """Samples like `sampler.sample`, by requests to the server."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pool = ThreadPoolExecutor(plan.worker_groups)
        self._session = requests.Session()
        self._session.mount("http://", requests.adapters.HTTPAdapter(
            pool_maxsize=plan.worker_groups))

    def __call__(self, rows: np.ndarray, length: int) -> Sampled:
        """`rows` repeats each prompt for every member of its group."""
        prompts = rows[:: self._plan.members].tolist()
        answers = self._pool.map(lambda prompt: self._ask(prompt, length), prompts)
        choices = [choice for choice_of_one in answers for choice in choice_of_one]
        logprobs = [[one["logprob"] for one in choice["logprobs"]["content"]] for choice in choices]
        return Sampled(
            np.array([choice["token_ids"] for choice in choices], np.int64),
            np.array(logprobs, np.float32),
            np.array([versions(choice["weight_versions"], length) for choice in choices], np.int64),
        )

    def _ask(self, prompt: list[int], length: int) -> list[dict[str, Any]]:
        how = {"n": self._plan.members, "temperature": 1.0, "max_tokens": length, "logprobs": 0,
               "ignore_eos": True, "detokenize": False}
        answer = self._session.post(
            f"{self._plan.engine}/inference/v1/generate", timeout=PATIENCE,
            json={"token_ids": prompt, "sampling_params": how},
        )
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["choices"]
        return found


def versions(spans: list[dict[str, Any]], length: int) -> np.ndarray:
    """The version of the weights behind each token."""
    made = np.full(length, -1, np.int64)
    for span in spans:
        made[span["start"] : span["end"]] = int(span["version"])
    return made
