"""SkyRL's weight sync without a GPU: a tiny random model, vLLM's server as SkyRL starts
its engines, and SkyRL's own worker around the model. All of SkyRL's and vLLM's is as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(
    CUDA_VISIBLE_DEVICES="",
    HF_HUB_OFFLINE="1",
    LOG_LEVEL="WARNING",
    RAY_USAGE_STATS_ENABLED="0",
    TOKENIZERS_PARALLELISM="false",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    VLLM_SERVER_DEV_MODE="1",
)

import requests
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.set_num_threads(1)
PATIENCE = 600.0  # vLLM imports much
PROMPTS = ([5, 17, 99, 400, 7], [900, 3])
TOKENS = 8


class Policy:
    """As SkyRL's worker has it: ``model.model`` is the inner one. In float32, for tokens that are
    equally likely in bf16 are not the same ones everywhere.
    """

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(1)
        config = Qwen3Config(
            vocab_size=1003,
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model: Any = Qwen3ForCausalLM(config).eval()
        self.folder = str(folder / "model")
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


class Served:
    """vLLM's server with the backend's name and the worker extension that SkyRL gives it."""

    def __init__(self, model: str, ring: str, log: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        # The program `vllm` of this build asks for the version of a package that is named vllm.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        options = {
            "model": model,
            "host": "127.0.0.1",
            "port": port,
            "dtype": "float32",
            "max-model-len": 128,
            "weight-transfer-config": '{"backend": "skyrl_ipc"}',
            "worker-extension-cls": "skyrl.backends.skyrl_train.inference_servers."
            "new_inference_worker_wrap.NewInferenceWorkerWrap",
        }
        command += [f"--{name}={value}" for name, value in options.items()]
        command += ["--skip-tokenizer-init", "--enforce-eager", "--no-enable-prefix-caching"]
        command += ["--enable-scale-out"]  # which has tokens in, tokens out
        environment = {**os.environ, "ROLLRING_SKYRL": ring}
        with log.open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True, env=environment
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

    def tokens(self) -> list[list[int]]:
        found = []
        for prompt in PROMPTS:
            asked = {
                "token_ids": list(prompt),
                "sampling_params": {"temperature": 0, "max_tokens": TOKENS},
            }
            url = f"{self.url}/inference/v1/generate"
            answer = requests.post(url, json=asked, timeout=PATIENCE)
            answer.raise_for_status()
            found.append(answer.json()["choices"][0]["token_ids"])
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(model: str, ring: str, folder: Path, number: int) -> Iterator[list[Served]]:
    servers = [Served(model, ring, folder / f"server{index}.log") for index in range(number)]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.stop()


class Client:
    """What SkyRL's worker asks of its client of the inference servers."""

    def __init__(self, urls: list[str]) -> None:
        self.server_urls = urls
        self.data_parallel_size = 1
        self.resets = 0

    async def get_world_size(self) -> tuple[int, list[int]]:
        return len(self.server_urls), [1] * len(self.server_urls)

    async def reset_prefix_cache(self, **_: Any) -> None:
        self.resets += 1


def policy_worker(policy: Policy) -> tuple[Any, Any]:
    """SkyRL's worker, but for what it sets up for training, and the engines' settings."""
    from skyrl.backends.skyrl_train.weight_sync.sources import FsdpWeightSource
    from skyrl.backends.skyrl_train.workers.worker import Worker
    from skyrl.train.config import SkyRLTrainConfig

    class PolicyWorker(Worker):
        def __init__(self, cfg: Any) -> None:
            self.cfg = cfg

        def _build_weight_source(self, dtype: torch.dtype, backend: str) -> Any:
            assert backend == "ipc"
            return FsdpWeightSource(policy.model, dtype)

    config = SkyRLTrainConfig()
    config.trainer.placement.colocate_all = True
    config.trainer.policy.model.path = policy.folder
    engines = config.generator.inference_engine
    engines.model_dtype = "float32"
    return PolicyWorker(config.trainer), engines
