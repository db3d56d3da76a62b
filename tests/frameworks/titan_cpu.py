"""The GRPO trainer of Nous' torchtitan as it is, on a CPU: titan_cpu.py FORK ARGUMENTS...

It asks for GPUs in five places; each gets here what a CPU has.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch

sys.path.insert(0, sys.argv.pop(1))

torch.set_num_threads(1)
torch._utils._get_available_device_type = lambda: "cpu"
cpu: Any = torch.cpu  # what its monitor of memory asks for
cpu.get_device_name = lambda *_: "cpu"
cpu.get_device_properties = lambda *_: type("Properties", (), {"total_memory": 1 << 34})()
cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None
cpu.memory_stats = lambda *_: {}
cpu.current_device = lambda: 0
cpu.set_device = lambda *_: None
torch.cuda.synchronize = lambda *_: None
_barrier = torch.distributed.barrier
torch.distributed.barrier = lambda *_, **__: _barrier()  # gloo knows no device_ids
# FSDP's reduce_scatter with a factor of 1 is a sum, which gloo has.
torch.distributed._make_nccl_premul_sum = lambda _: torch.distributed.ReduceOp.SUM

runpy.run_module("torchtitan.grpo_train", run_name="__main__", alter_sys=True)
