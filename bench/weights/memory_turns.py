#!/usr/bin/env python3
"""GPU memory in turns: what it costs to let go of a model's weights with their bytes, and to take
them back, beside what the link gives in the same process.

Each method has a process of its own, with the tensors of Llama-3.1-8B (16.1 GB) in its memory:
  rollring             rollring.memory_saver
  rollring_sleep       rollring's sleep mode backend over vLLM's own CuMemAllocator
  vllm                 vLLM's own backend over the same allocator
  torch_memory_saver   torch_memory_saver itself, in its mode "torch"
  steps                what a resume is made of, by calls of the driver alone
  adoption             whether chunks that another process made can take the place of vLLM's own

--theirs: a folder with torch_memory_saver's wheel unpacked, and with vllm: of vLLM's wheel,
device_allocator, cumem_allocator.abi3.so, and cuda_wrapper of distributed/device_communicators.
What these import beside it is stood in for here.

Prints a JSON object a line. Ratios are of the median rate of one copy of the same bytes between
pinned memory and the GPU. Bytes are compared, and a CUDA graph over them is replayed, after every
resume. Exits 77 where torch or a GPU is missing, 1 if anything was not as it was.
"""
import argparse
import ctypes
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

METHODS = ("rollring", "rollring_sleep", "vllm", "torch_memory_saver", "steps", "adoption")
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
    """A CUDA graph of digest_into, and what it writes."""
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
    """pool(): what weights are made in."""
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
    from rollring.memory_saver import MemorySaver
    saver = MemorySaver()
    return in_turns("rollring", lambda: saver.region("weights", enable_cpu_backup=True),
                    lambda: saver.pause("weights"), lambda: saver.resume("weights"), args)


def of_torch_memory_saver(args):
    sys.path.insert(0, str(args.theirs))
    from torch_memory_saver import torch_memory_saver as saver
    saver.hook_mode = "torch"
    return in_turns("torch_memory_saver",
                    lambda: saver.region("weights", enable_cpu_backup=True),
                    lambda: saver.pause("weights"), lambda: saver.resume("weights"), args)


# --- vLLM's allocator -----------------------------------------------------------------------------

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


def of_backend(name, args):
    allocator = vllm_allocator(args.theirs)
    if name == "vllm":
        from vllm.device_allocator.sleep_mode_backend import CuMemBackend
        backend = CuMemBackend()
    else:
        # As vLLM would load it; rollring.vllm itself has parts that import more of vLLM.
        import importlib.util
        import rollring
        place = Path(rollring.__file__).parent / "vllm/sleep.py"
        spec = importlib.util.spec_from_file_location("rollring.vllm.sleep", place)
        stand_in("rollring.vllm", __path__=[str(place.parent)])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        backend = module.RollringSleep()
        assert backend.is_supported()
    answer = in_turns(name, lambda: allocator.use_memory_pool("weights"),
                      lambda: backend.suspend(1), backend.resume, args)
    answer["segments"] = len(allocator.pointer_to_data)
    answer["state"] = backend.state()
    return answer


# --- by calls of the driver -----------------------------------------------------------------------

def driver():
    import driver_calls
    torch.cuda.synchronize()  # the primary context is this thread's
    return driver_calls.Driver(torch.cuda.current_device())


def of_steps(args):
    """What a resume is made of. Every way is taken three times; medians, in ms."""
    cuda = driver()
    size = args.steps_gib << 30
    slab = cuda.pin(size)
    base = cuda.reserve(size)
    streams = [cuda.stream() for _ in range(2)]
    answer = {"method": "steps", "gib": args.steps_gib}

    def wait():
        for stream in streams:
            cuda.wait(stream)

    def pieces(chunk):
        return range(0, size, chunk)

    def made(chunk):
        handles = [cuda.create(chunk) for _ in pieces(chunk)]
        for at, handle in zip(pieces(chunk), handles):
            cuda.map(base + at, chunk, handle)
        return handles

    def gone(chunk, handles):
        for at, handle in zip(pieces(chunk), handles):
            cuda.unmap(base + at, chunk)
            cuda.release(handle)

    def timed(call):
        begun = time.perf_counter()
        result = call()
        return 1e3 * (time.perf_counter() - begun), result

    def copies(chunk, out=False, turns=1):
        for number, at in enumerate(pieces(chunk)):
            copy = cuda.copy_out if out else cuda.copy_in
            copy(base + at, slab + at, chunk, streams[number % turns])

    def over_memory_that_is_there(chunk, out=False, turns=1):
        handles = made(512 * MIB)
        copies(512 * MIB)
        wait()
        ms = timed(lambda: (copies(chunk, out, turns), wait()))[0]
        gone(512 * MIB, handles)
        return {"copies": ms}

    def mapped_first(chunk, pause_s=0.0, warm=False):
        handles = made(chunk)
        copies(chunk, out=True)
        wait()
        down, _ = timed(lambda: gone(chunk, handles))
        time.sleep(pause_s)
        create, handles = timed(lambda: [cuda.create(chunk) for _ in pieces(chunk)])

        def map_all():
            for at, handle in zip(pieces(chunk), handles):
                cuda.map(base + at, chunk, handle)
        mapping, _ = timed(map_all)
        touch = timed(lambda: (cuda.fill(base, size, streams[0]), wait()))[0] if warm else 0.0
        copy, _ = timed(lambda: (copies(chunk), wait()))
        again, _ = timed(lambda: (copies(chunk), wait()))
        gone(chunk, handles)
        return {"down": down, "create": create, "map": mapping, "touch": touch, "copies": copy,
                "copies_again": again, "all": create + mapping + touch + copy}

    def beside(chunk, turns=1, pause_s=0.0):
        """As rollring does: a chunk's copy beside the mapping of the next ones."""
        handles = made(chunk)
        copies(chunk, out=True)
        wait()
        gone(chunk, handles)
        time.sleep(pause_s)

        def resume():
            handles = []
            for number, at in enumerate(pieces(chunk)):
                handles.append(cuda.create(chunk))
                cuda.map(base + at, chunk, handles[-1])
                cuda.copy_in(base + at, slab + at, chunk, streams[number % turns])
            wait()
            return handles
        ms, handles = timed(resume)
        gone(chunk, handles)
        return {"all": ms}

    ways = {
        "there, out, one copy": lambda: over_memory_that_is_there(size, out=True),
        "there, one copy": lambda: over_memory_that_is_there(size),
        "there, 512 MiB": lambda: over_memory_that_is_there(512 * MIB),
        "there, 512 MiB, 2 streams": lambda: over_memory_that_is_there(512 * MIB, turns=2),
        "there, 64 MiB": lambda: over_memory_that_is_there(64 * MIB),
        "mapped first, 512 MiB": lambda: mapped_first(512 * MIB),
        "mapped first, 512 MiB, after 500 ms": lambda: mapped_first(512 * MIB, 0.5),
        "mapped first, 512 MiB, filled": lambda: mapped_first(512 * MIB, warm=True),
        "mapped first, all in one": lambda: mapped_first(size),
        "mapped first, 64 MiB": lambda: mapped_first(64 * MIB),
        "beside, 64 MiB": lambda: beside(64 * MIB),
        "beside, 512 MiB": lambda: beside(512 * MIB),
        "beside, 512 MiB, after 500 ms": lambda: beside(512 * MIB, pause_s=0.5),
        "beside, 512 MiB, 2 streams": lambda: beside(512 * MIB, turns=2),
        "beside, 2 GiB": lambda: beside(2048 * MIB),
    }
    for name, way in ways.items():
        runs = [way() for _ in range(3)]
        answer[name] = {part: round(statistics.median(run[part] for run in runs), 2)
                        for part in runs[0]}
    cuda.unpin(slab)
    cuda.unreserve(base, size)
    return answer


def of_adoption(args):
    """Chunks of another process at the addresses of vLLM's own, under a captured graph."""
    import multiprocessing
    import driver_calls
    from multiprocessing.reduction import recv_handle
    allocator = vllm_allocator(args.theirs)
    from vllm.device_allocator.sleep_mode_backend import CuMemBackend
    backend = CuMemBackend()
    with allocator.use_memory_pool("weights"):
        tensors = [torch.zeros(size * MIB // 2, dtype=torch.int16, device="cuda")
                   for size in (64, 300, 6, 5, 1)]
    graph, total = digest_graph(tensors)
    cuda = driver()
    # A segment with many tensors, or parts that are free, is one chunk all the same.
    table = dict(allocator.pointer_to_data)
    sizes = {address: data.handle[1] for address, data in table.items()}
    size = sum(sizes.values())
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=driver_calls.make_chunks, args=(theirs, list(sizes.values())), daemon=True)
    other.start()

    def ask(word):
        ours.send(word)
        return ours.recv()

    def free():
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    def replayed():
        graph.replay()
        return int(total)

    def expected(byte):
        word = byte | byte << 8
        sums = torch.zeros((), dtype=torch.int64)
        for place, tensor in enumerate(tensors, 1):
            sums += place * word * tensor.numel()
            sums += (place % 97) * word * len(range(0, tensor.numel(), 3))
        return int(sums)

    descriptors = [recv_handle(ours) for _ in sizes]
    assert ours.recv() == "made"
    awake = free()
    backend.suspend(2)  # vLLM unmaps and releases its own
    asleep = free()
    ms = time.perf_counter()
    for (address, data), descriptor in zip(table.items(), descriptors):
        handle = cuda.take(descriptor)
        os.close(descriptor)  # open, it would keep the memory
        cuda.map(address, sizes[address], handle)
        cuda.write_handle(data.handle[3], handle)
        data.is_asleep = False
    ms = 1e3 * (time.perf_counter() - ms)
    adopted = free()
    answer = {"method": "adoption", "chunks": len(sizes), "mib": size >> 20,
              "map_ms": round(ms, 2), "mapping_costs_no_memory": asleep - adopted < 8 * MIB}
    ask(("fill", 3))
    answer["graph_replays_over_chunks_of_the_other_process"] = replayed() == expected(3)
    ask(("fill", 5))
    answer["graph_sees_what_the_other_process_writes"] = replayed() == expected(5)
    for tensor in tensors:
        tensor.fill_(7 | 7 << 8)
    torch.cuda.synchronize()
    answer["the_other_process_sees_what_is_written_here"] = ask(("first",)) == 7
    # vLLM lets go of them: they stay the other process's, and only its.
    backend.suspend(2)
    answer["vllm_unmaps_them"] = not any(cuda.is_mapped(address) for address in table)
    held = free()
    answer["the_other_process_has_them_still"] = ask(("first",)) == 7
    ask(("let go",))
    after = free()
    answer["memory_is_free_when_both_let_go"] = after - held >= size
    ours.send(("end",))
    other.join(30)
    alone = free()
    backend.resume()  # its own again
    for tensor in tensors:
        tensor.fill_(1)
    torch.cuda.synchronize()
    graph.replay()
    direct = torch.zeros_like(total)
    digest_into(direct, tensors)
    answer["vllm_goes_on_with_its_own"] = int(total) == int(direct) and alone - free() >= size
    # The whole way without another process: chunks of ours, exportable, that only vLLM has then.
    backend.suspend(2)
    before = free()
    for address, data in table.items():
        handle = cuda.create(sizes[address], exportable=True)
        cuda.map(address, sizes[address], handle)
        cuda.write_handle(data.handle[3], handle)
        data.is_asleep = False
    for tensor in tensors:
        tensor.fill_(9 | 9 << 8)
    answer["graph_replays_over_exportable_chunks"] = replayed() == expected(9)
    between = free()
    backend.suspend(2)
    answer["vllm_frees_exportable_chunks"] = (
        before - between >= size and abs(free() - before) < 8 * MIB)
    backend.resume()
    answer["right"] = all(value for value in answer.values() if isinstance(value, bool))
    answer["free_mib"] = {"awake": awake >> 20, "asleep": asleep >> 20, "adopted": adopted >> 20,
                          "let go": held >> 20, "both let go": after >> 20}
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", default=",".join(METHODS), help="of " + " ".join(METHODS))
    parser.add_argument("--theirs", type=Path, help="see above; without it theirs are left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-gib", type=int, default=16)
    parser.add_argument("--alone", choices=METHODS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    if args.alone:
        how = {"rollring": of_rollring, "torch_memory_saver": of_torch_memory_saver,
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


try:
    import torch
except ImportError as missing:
    print(f"skipped: no torch ({missing})", file=sys.stderr)
    sys.exit(77)
if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: no GPU", file=sys.stderr)
        sys.exit(77)
    sys.exit(main())
