#!/usr/bin/env python3
"""GPU memory in turns: the cost of releasing a model's weights with their bytes, and of taking them
back, beside the rate of the link in the same process.

Each method has a process of its own, with the tensors of Llama-3.1-8B (16.1 GB) in its memory:
  rollring             rollring.extras.memory_saver
  rollring_sleep       rollring's sleep mode backend over vLLM's own CuMemAllocator
  vllm                 vLLM's own backend over the same allocator
  torch_memory_saver   torch_memory_saver itself, in its mode "torch"
  torch_memory_saver_retained   the same with TMS_RETAIN_CPU_BACKUP=1: it keeps its host memory
  steps                the parts of a resume, by calls of the driver alone
  adoption             whether chunks that another process made can take the place of vLLM's own

--theirs: a folder with torch_memory_saver's wheel unpacked, and with vllm: of vLLM's wheel,
device_allocator, cumem_allocator.abi3.so, and cuda_wrapper of distributed/device_communicators.
Stand-ins of this file replace the other imports of these.

Prints a JSON object a line. Ratios are of the median rate of one copy of the same bytes between
pinned memory and the GPU. Bytes are compared, and a CUDA graph over them is replayed, after every
resume. Exits 77 where torch or a GPU is missing, 1 if anything was not as it was.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

try:
    import torch
except ImportError as missing:
    print(f"skipped: no torch ({missing})", file=sys.stderr)
    sys.exit(77)

from memory_by_driver import of_adoption, of_steps
from memory_model import digest_graph, digest_into, stand_in, vllm_allocator, weights

METHODS = ("rollring", "rollring_sleep", "vllm", "torch_memory_saver",
           "torch_memory_saver_retained", "steps", "adoption")


def ms_of(call):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun)


class Link:
    """Copies of `size` bytes between one pinned piece of memory and the GPU."""

    def __init__(self, size):
        self.size = size
        self.out_ms, self.in_ms = [], []

    def measure(self, runs):
        host = torch.empty(self.size, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(self.size, dtype=torch.uint8, device="cuda")
        for run in range(runs + 1):
            out_ms = ms_of(partial(host.copy_, device, non_blocking=True))
            in_ms = ms_of(partial(device.copy_, host, non_blocking=True))
            if run > 0:  # the first warms up
                self.out_ms.append(out_ms)
                self.in_ms.append(in_ms)
        del host, device
        torch.cuda.empty_cache()
        getattr(torch._C, "_host_emptyCache", lambda: None)()  # gives pinned memory back

    def rates(self):
        return (self.size / statistics.median(self.out_ms) / 1e6,
                self.size / statistics.median(self.in_ms) / 1e6)


def in_turns(name, pool, pause, resume, args):
    """pool(): the memory pool in which weights are made."""
    link = Link(8 << 30)
    link.measure(3)
    with pool():
        tensors = weights()
    size = sum(tensor.nbytes for tensor in tensors)
    addresses = [tensor.data_ptr() for tensor in tensors]
    graph, total = digest_graph(tensors)
    graph.replay()
    expected = int(total)
    outs, ins, right = [], [], True
    free = []
    gc_ms = ms_of(gc.collect)
    gc.freeze()  # as vLLM's workers do once they have warmed up: sleeping collects garbage
    for _ in range(args.rounds + 1):
        before = torch.cuda.mem_get_info()[0]
        outs.append(ms_of(pause))
        free.append(torch.cuda.mem_get_info()[0] - before)
        ins.append(ms_of(resume))
        graph.replay()
        right = right and int(total) == expected
        right = right and addresses == [tensor.data_ptr() for tensor in tensors]
    digest_into(total, tensors)
    right = right and int(total) == expected
    link.measure(3)
    out_rate, in_rate = link.rates()
    later_outs, later_ins = outs[1:], ins[1:]
    rate_out = size / statistics.median(later_outs) / 1e6
    rate_in = size / statistics.median(later_ins) / 1e6
    return {
        "method": name, "gb": round(size / 1e9, 2), "rounds": args.rounds, "right": right,
        "freed_gb": round(min(free) / 1e9, 2),
        "link_out_gb_s": round(out_rate, 2), "link_in_gb_s": round(in_rate, 2),
        "first_pause_ms": round(outs[0], 1), "first_resume_ms": round(ins[0], 1),
        "pause_ms": [round(one, 1) for one in later_outs],
        "resume_ms": [round(one, 1) for one in later_ins],
        "gc_ms_unfrozen": round(gc_ms, 1),
        "pause_ratio": round(rate_out / out_rate, 3), "resume_ratio": round(rate_in / in_rate, 3),
    }


def of_rollring(args):
    from rollring.extras.memory_saver import MemorySaver
    saver = MemorySaver()
    return in_turns("rollring", lambda: saver.region("weights", enable_cpu_backup=True),
                    lambda: saver.pause("weights"), lambda: saver.resume("weights"), args)


def of_torch_memory_saver(name, args):
    if name.endswith("_retained"):
        os.environ["TMS_RETAIN_CPU_BACKUP"] = "1"
    sys.path.insert(0, str(args.theirs))
    from torch_memory_saver import torch_memory_saver as saver
    saver.hook_mode = "torch"
    return in_turns(name,
                    lambda: saver.region("weights", enable_cpu_backup=True),
                    lambda: saver.pause("weights"), lambda: saver.resume("weights"), args)


def of_backend(name, args):
    allocator = vllm_allocator(args.theirs)
    if name == "vllm":
        from vllm.device_allocator.sleep_mode_backend import CuMemBackend
        backend = CuMemBackend()
    else:
        # As vLLM would load it; other parts of the adapter import more of vLLM.
        import importlib.util

        import rollring
        place = Path(rollring.__file__).parent / "integrations/vllm/sleep.py"
        spec = importlib.util.spec_from_file_location("rollring.integrations.vllm.sleep", place)
        stand_in("rollring.integrations.vllm", __path__=[str(place.parent)])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        backend = module.RollringSleep()
        assert backend.is_supported()
    answer = in_turns(name, lambda: allocator.use_memory_pool("weights"),
                      lambda: backend.suspend(1), backend.resume, args)
    answer["segments"] = len(allocator.pointer_to_data)
    answer["state"] = backend.state()
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", default=",".join(METHODS), help="of " + " ".join(METHODS))
    parser.add_argument("--theirs", type=Path, help="see above; without it theirs are left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-gib", type=int, default=16)
    parser.add_argument("--alone", choices=METHODS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        theirs = partial(of_torch_memory_saver, args.alone)
        how = {"rollring": of_rollring, "torch_memory_saver": theirs,
               "torch_memory_saver_retained": theirs,
               "steps": of_steps, "adoption": of_adoption}.get(args.alone)
        answer = how(args) if how else of_backend(args.alone, args)
        print(json.dumps(answer), flush=True)
        os._exit(0 if answer.get("right", True) else 1)  # no allocator's end is waited for
    worst = 0
    for method in args.methods.split(","):
        if args.theirs is None and method not in ("rollring", "steps"):
            print(json.dumps({"method": method, "skipped": "without --theirs"}), flush=True)
            continue
        begun = time.perf_counter()
        call = [sys.executable, __file__, *sys.argv[1:], "--alone", method]
        try:
            done = subprocess.run(call, timeout=90, stderr=subprocess.PIPE, text=True)
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired as error:
            status, said = 124, (error.stderr or b"").decode()
        if status != 0:
            print(json.dumps({"method": method, "failed": status, "said": said[-1500:]}))
        print(json.dumps({"method": method, "seconds": round(time.perf_counter() - begun, 1)}),
              flush=True)
        worst = max(worst, 1 if status else 0)
    return worst


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: no GPU", file=sys.stderr)
        sys.exit(77)
    sys.exit(main())
