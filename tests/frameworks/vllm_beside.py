"""`vllm serve` of another Python than the test's, with rollring's backend: nothing of vLLM is
imported here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.error
from pathlib import Path
from typing import Any

from python.atropos_servers import free_port
from rollring.integrations.vllm.calls import ServerCalls

HERE = Path(__file__).parent
PATIENCE = 1800.0
TOKENS = 8
PROMPTS = [[5, 17, 99, 400, 7], [1000, 3]]
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_RPC_TIMEOUT": "1800000",
    "VLLM_SERVER_DEV_MODE": "1",
}
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Beside:
    """One server, for a block. Its model has made-up weights.

    Args:
        python: Of an environment with vLLM and rollring.
        model: The folder of its configuration.
        log: Its file.
        prompts: Of `tokens`.
    """

    def __init__(
        self, python: str, model: str, log: Path, prompts: list[list[int]] = PROMPTS
    ) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self._log, self._prompts = log, prompts
        self._calls = ServerCalls(self.url, PATIENCE)
        options = {
            "model": model,
            "host": "127.0.0.1",
            "port": str(port),
            "dtype": "float32",
            "load-format": "dummy",
            "max-model-len": "128",
            "max-num-seqs": "4",
            "weight-transfer-config": json.dumps({"backend": "rollring"}),
            "worker-extension-cls": "vllm_served.Served",
        }
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += [f"--{name}={value}" for name, value in options.items()]
        command += ["--skip-tokenizer-init", "--enforce-eager", "--no-enable-prefix-caching"]
        packages = Path(python).parents[1] / "lib"
        if any(packages.glob("*/site-packages/vllm/entrypoints/launchers")):  # as vllm_tiny has it
            command.append("--enable-scale-out")
        inherited = {k: v for k, v in os.environ.items() if k not in OF_TORCHRUN}
        with log.open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**inherited, **ENVIRONMENT, "PYTHONPATH": str(HERE)},
            )

    def __enter__(self) -> Beside:
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _wait(self) -> None:
        for _ in range(int(PATIENCE / 0.5)):
            assert self.process.poll() is None, self.log()[-4000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self._calls.ask("GET", "health")
                return
            signal.sigtimedwait([], 0.5)
        raise AssertionError(f"the server does not answer:\n{self.log()[-4000:]}")

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def called(self) -> list[str]:
        """The paths of POSTs, as its access log has them."""
        return re.findall(r'"POST /(\S+) HTTP', self.log())

    def tokens(self) -> list[list[int]]:
        """The likeliest ones after each prompt."""
        how = {"temperature": 0, "max_tokens": TOKENS}
        found = []
        for prompt in self._prompts:
            asked = {"token_ids": prompt, "sampling_params": how}
            answer = self._calls.ask("POST", "inference/v1/generate", asked)
            found.append(list(answer["choices"][0]["token_ids"]))
        return found

    def digests(self) -> dict[str, str]:
        """Of the parameters that it serves."""
        (found,) = self._calls.ask("POST", "collective_rpc", {"method": "served_digests"})[
            "results"
        ]
        return dict(found)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
