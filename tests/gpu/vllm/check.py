"""Says which versions of the needs of vLLM and TRL are here, and which cannot be imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

MODULES = [
    "torch", "transformers", "tokenizers", "numpy", "triton", "pydantic", "fastapi", "uvicorn",
    "requests", "aiohttp", "openai", "zmq", "msgspec", "datasets", "pyarrow", "accelerate", "trl",
    "numba", "ray", "xgrammar", "vllm", "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch", "vllm.cumem_allocator",
    "vllm.vllm_flash_attn._vllm_fa3_C", "vllm.entrypoints.openai.api_server",
    "vllm.distributed.weight_transfer.ipc_engine", "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner", "vllm.model_executor.models.qwen3", "rollring",
    "rollring.integrations.vllm.engine", "rollring.integrations.vllm.trainer",
    "rollring.integrations.vllm.sleep", "rollring.integrations.vllm.worker",
    "rollring.integrations.trl", "trl.experimental.async_grpo",
]  # fmt: skip

for name in MODULES:
    try:
        module = importlib.import_module(name)
        version = getattr(module, "__version__", "")
        print(f"{name} {version} {getattr(module, '__file__', '')}", flush=True)
    except Exception as error:
        print(f"{name} MISSING: {type(error).__name__}: {error}", flush=True)
print(sys.version)
