"""A model's weights in GPU memory, and vLLM's own allocator of it, for memory_turns.py."""
import ctypes
import logging
import os
import sys
import types
from pathlib import Path

import torch

MIB = 1 << 20


def weights():
    """Llama-3.1-8B in bf16, as vLLM has it: qkv, and gate and up, are one tensor each."""
    hidden, kv, inner, words = 4096, 1024, 14336, 128256
    layer = [(hidden + 2 * kv, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner),
             (hidden,), (hidden,)]
    shapes = [(words, hidden), *(layer * 32), (hidden,), (words, hidden)]
    return [torch.randint(-30000, 30000, shape, dtype=torch.int16, device="cuda")
            for shape in shapes]


def digest_into(total, tensors):
    """Of every byte, by tensor and, a little, by place."""
    total.zero_()
    for place, tensor in enumerate(tensors, 1):
        words = tensor.view(-1)
        total.add_(words.sum(dtype=torch.int64), alpha=place)
        total.add_(words[::3].sum(dtype=torch.int64), alpha=place % 97)


def digest_graph(tensors):
    """A CUDA graph of digest_into, and its output."""
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        digest_into(total, tensors)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        digest_into(total, tensors)
    return graph, total


def loaded(name):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if name in os.path.basename(line.rstrip("\n")):
                return line[line.index("/"):].rstrip("\n")
    return None


def stand_in(name, **fields):
    module = sys.modules[name] = types.ModuleType(name)
    for field, value in fields.items():
        setattr(module, field, value)
    return module


def preload(library):
    """One that their extension names and torch has not loaded."""
    packages = Path(torch.__file__).parents[1]
    for place in (*packages.glob("nvidia/**/lib"), *Path("/usr/local").glob("cuda*/lib64")):
        if (place / library).exists():
            ctypes.CDLL(str(place / library), ctypes.RTLD_GLOBAL)
            return


def vllm_allocator(theirs):
    """CuMemAllocator itself, with stand-ins for the rest of vLLM."""
    preload("libnvrtc.so.13")
    stand_in("vllm", __path__=[str(theirs / "vllm")])
    stand_in("vllm.envs", VLLM_CUDART_SO_PATH=None)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.platforms", current_platform=types.SimpleNamespace(
        is_rocm=lambda: False, is_cuda=lambda: True, is_cuda_alike=lambda: True,
        is_xpu=lambda: False))
    stand_in("vllm.utils", __path__=[])
    stand_in("vllm.utils.system_utils", find_loaded_library=loaded)
    stand_in("vllm.utils.torch_utils", PIN_MEMORY=True)
    stand_in("vllm.distributed", __path__=[str(theirs / "vllm/distributed")])
    stand_in("vllm.distributed.device_communicators",
             __path__=[str(theirs / "vllm/distributed/device_communicators")])
    from vllm.device_allocator.cumem import CuMemAllocator
    return CuMemAllocator.get_instance()
