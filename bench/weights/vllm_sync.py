#!/usr/bin/env python3
"""A version of a model's weights from a trainer into vLLM's layers, on one GPU: vLLM's own packed
CUDA IPC beside rollring's weight transfer backend, in the same two processes.

--vllm: a folder with vLLM's wheel unpacked, or of it distributed/weight_transfer,
model_executor/model_loader/reload and the files that vllm_parts.py names. They run unmodified:
trainer, producer, worker, layerwise reload and the layers' loaders; vllm_parts.py stands in for
their other imports, and has the two models. Both ends call over a pipe in place of HTTP.

  vllm                    its backend "ipc", packed, 1 GiB at a time
  rollring                rollring's backend, in place, from tensors that stay where they are
  rollring, beside        out of place: a version that fails leaves the old one whole
  rollring, iterated      in place, and the source is iterated for each version

Prints a JSON object a line: ms from the first call to the engine's GPU being done with the last
one; python_ms of either end is the time of that end's calls without the waits of the library and
for the other end. Two copies: of the same bytes, on this GPU, in this run. The engine's bytes are
compared with the result of vLLM's own backend for the same tensors.
"""
import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
import traceback
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

WAYS = {"vllm": None,
        "rollring": {"staging": "in_place", "standing": True},
        "rollring, beside": {"staging": "out_of_place", "standing": True},
        "rollring, iterated": {"staging": "in_place", "standing": False}}


class Waits:
    """Seconds that this thread was in calls which are not Python of the adapter."""

    def __init__(self):
        self.seconds = 0.0
        self._thread = threading.get_ident()

    def around(self, call):
        @functools.wraps(call)
        def timed(*args, **more):
            begun = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                if threading.get_ident() == self._thread:
                    self.seconds += time.perf_counter() - begun
        return timed


class Beside:
    """An object whose calls are waits."""

    def __init__(self, waits, of):
        self._waits, self._of = waits, of

    def __getattr__(self, name):
        found = getattr(self._of, name)
        return self._waits.around(found) if callable(found) else found


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- the engine's process -------------------------------------------------------------------------

class Engine:
    def __init__(self, options):
        from vllm.model_executor.model_loader.reload import layerwise
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            self.model = vllm_parts.Model(vllm_parts.MODELS[options.model])
            layerwise.record_metadata_for_reloading(self.model)
        for parameter in self.model.parameters():
            parameter.data.zero_()
        self.config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(enable_eplb=False, rank=0),
            model_config=types.SimpleNamespace(dtype=torch.bfloat16))
        self.waits = Waits()
        self.seconds = 0.0
        self.engine = None

    def use(self, way):
        if self.engine is not None:
            self.engine.shutdown()
        if way == "vllm":
            from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine as made
        else:
            from rollring.integrations.vllm.engine import RollringEngine as made
        self.engine = made(None, self.config, self.device, self.model)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def init(self, info):
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))

    def start(self):
        channel = getattr(self.engine, "_channel", None)
        if channel is not None and not isinstance(channel._end, Beside):
            channel._end = Beside(self.waits, channel._end)
        self._timed(self.engine.start_weight_update)

    def update(self, info):
        self._timed(self.engine.update_weights, info)

    def finish(self, version=None):
        self._timed(self.engine.finish_weight_update)
        synchronize(self.device)

    def _timed(self, call, *args):
        begun = time.perf_counter()
        call(*args)
        self.seconds += time.perf_counter() - begun

    def python_seconds(self):
        spent = self.seconds - self.waits.seconds
        self.seconds = self.waits.seconds = 0.0
        return spent

    def directly(self):
        model = getattr(self.engine, "_model", None)
        return None if model is None else [len(model.direct), len(model.reasons)]

    def digest(self):
        total = torch.zeros((), dtype=torch.int64, device=self.device)
        for place, parameter in enumerate(self.model.parameters(), 1):
            words = parameter.detach().view(-1).view(torch.int16)
            total.add_(words.sum(dtype=torch.int64), alpha=place)
            total.add_(words[::3].sum(dtype=torch.int64), alpha=place % 97)
        return int(total)


def serve(pipe, options):
    prepare(options)
    engine = Engine(options)
    pipe.send(("ready", None))
    while True:
        name, args = pipe.recv()
        if name == "end":
            return
        try:
            pipe.send((None, getattr(engine, name)(*args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))


# --- the trainer's --------------------------------------------------------------------------------

class Client:
    """vLLM's client protocol over a pipe."""

    def __init__(self, pipe):
        self._pipe = pipe

    def call(self, name, *args):
        self._pipe.send((name, args))
        failed, answer = self._pipe.recv()
        if failed:
            raise RuntimeError(failed)
        return answer

    def init_weight_transfer_engine(self, info):
        self.call("init", info)

    def start_weight_update(self):
        self.call("start")

    def update_weights(self, info):
        self.call("update", info)

    def finish_weight_update(self, version=None):
        self.call("finish", version)


def source_of(tensors):
    from functools import cached_property

    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        @cached_property
        def metadata(self):
            return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in tensors.items()]

        def iter_full(self):
            return iter(tensors.items())
    return Source()


def sender_of(way, client, tensors, device):
    if way == "vllm":
        from vllm.distributed.weight_transfer import ipc_engine
        return ipc_engine.IPCTrainerWeightTransferEngine.trainer_init(
            ipc_engine.IPCTrainerInitInfo(rank=0, packed=True), client=client,
            source=source_of(tensors)), lambda: None
    import rollring
    from rollring.integrations.vllm.trainer import RollringTrainer, RollringTrainerInitInfo
    ring = f"vllm-sync-{os.getpid()}"
    rollring.create(ring, lanes=1, lane_bytes="1MiB")
    info = RollringTrainerInitInfo(ring, rank=0, device=str(device), deadline_s=60, **WAYS[way])
    sender = RollringTrainer.trainer_init(info, client=client, source=source_of(tensors))

    def end():
        sender.shutdown()
        rollring.remove(ring)
    return sender, end


def fill(tensors, seed, device):
    torch.manual_seed(seed)
    for tensor in tensors.values():
        tensor.view(-1).view(torch.int16).random_(0, 16000)  # finite as bf16
    synchronize(device)


def measure(way, client, tensors, device, expected, repeat):
    client.call("use", way)
    begun = time.perf_counter()
    sender, end = sender_of(way, client, tensors, device)
    setup = time.perf_counter() - begun
    fill(tensors, 2, device)
    begun = time.perf_counter()
    sender.send_weights()
    first = time.perf_counter() - begun
    other = client.call("digest")
    fill(tensors, 1, device)
    waits = Waits()
    publisher = getattr(sender, "_publisher", None)
    if publisher is not None:
        publisher._end = Beside(waits, publisher._end)
        sender.client = Beside(waits, client)
        result = concurrent.futures.Future.result
        concurrent.futures.Future.result = waits.around(result)
    took, here, there = [], [], []
    for _ in range(repeat + 2):
        client.call("python_seconds")
        waits.seconds = 0.0
        synchronize(device)
        begun = time.perf_counter()
        sender.send_weights()
        took.append(1e3 * (time.perf_counter() - begun))
        here.append(took[-1] - 1e3 * waits.seconds)
        there.append(1e3 * client.call("python_seconds"))
    if publisher is not None:
        concurrent.futures.Future.result = result
    digest = client.call("digest")
    answer = {"way": way, "ms": statistics.median(took[2:]), "repeats": took[2:],
              "setup_ms": 1e3 * setup, "first_ms": 1e3 * first, "modules": client.call("directly"),
              "right": other != digest and expected in (None, digest)}
    if way != "vllm":
        answer |= {"trainer_python_ms": statistics.median(here[2:]),
                   "engine_python_ms": statistics.median(there[2:])}
        if sender.report is not None:
            answer["report"] = {name: value for name, value in sender.report.items()
                                if not isinstance(value, str)}
    end()
    return answer, digest


def two_copies_ms(size, device):
    """The time of two copies of `size` bytes within the device."""
    part = min(size, 4 << 30) if device.type == "cuda" else min(size, 64 << 20)
    there, here = (torch.empty(part, dtype=torch.uint8, device=device) for _ in range(2))
    took = []
    for _ in range(9):
        synchronize(device)
        begun = time.perf_counter()
        here.copy_(there)
        here.copy_(there)
        synchronize(device)
        took.append(1e3 * (time.perf_counter() - begun))
    del there, here
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return statistics.median(took[2:]) * size / part


def prepare(options):
    global torch, vllm_parts
    import torch

    import vllm_parts
    vllm_parts.use(options.vllm)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--model", default="llama8b", help="or qwen30b, small, small_moe")
    parser.add_argument("--ways", default="/".join(WAYS), help="of them, with / between")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--device", default="cuda:0", help="cpu: to try it, no figures")
    options = parser.parse_args()
    try:
        prepare(options)
    except ImportError as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return 77
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU", file=sys.stderr)
        return 77
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, options), daemon=True)
    process.start()
    there.close()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16, device=device)
               for name, shape in vllm_parts.tensors_of(vllm_parts.MODELS[options.model])}
    assert here.recv()[0] == "ready"
    client = Client(here)
    size = sum(tensor.nbytes for tensor in tensors.values())
    copies = two_copies_ms(size, device)
    print(json.dumps({"model": options.model, "tensors": len(tensors), "gb": size / 1e9,
                      "two_copies_ms": copies}), flush=True)
    expected, baseline, worst = None, None, 0
    for way in options.ways.split("/"):
        answer, digest = measure(way, client, tensors, device, expected, options.repeat)
        if way == "vllm":
            expected, baseline = digest, answer["ms"]
        elif baseline:
            answer["times_vllm"] = baseline / answer["ms"]
        answer["times_two_copies"] = answer["ms"] / copies
        print(json.dumps(answer), flush=True)
        worst = max(worst, 0 if answer["right"] else 1)
    here.send(("end", ()))
    process.join(30)
    return worst


if __name__ == "__main__":
    sys.exit(main())
