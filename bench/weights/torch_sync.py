#!/usr/bin/env python3
"""A weight sync between two processes on one GPU, as RL systems do it with torch.

Each method follows the code of a system, with a local pipe in place of its RPC:
  per_tensor  vLLM ipc_engine.py, not packed: a handle per tensor, all of them in one message
  skyrl       SkyRL cuda_ipc_strategy.py: per chunk of 1 GiB a fresh buffer, a copy per tensor into
              it, one handle, ipc_collect
  vllm        vLLM packed_tensor.py: one buffer of 1 GiB per sync, one handle that the engine
              imports once; vLLM's consumer also clones its slices: --clone
  rollring    rollring for Python, where it is installed
A tensor larger than a chunk is a chunk of its own (vLLM refuses it). Prints a JSON object a line;
ms is the median after two rounds of warm-up. The engine's bytes are compared with the trainer's.
Exits 77 where torch or a GPU is missing.
"""
import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import pickle
import statistics
import sys
import time
from base64 import b64decode, b64encode

try:
    import torch
    from torch.multiprocessing.reductions import reduce_tensor
except ImportError as error:
    print(f"skipped: no torch ({error})", file=sys.stderr)
    sys.exit(77)

CHUNK_BYTES = 1 << 30
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
collect = torch.cuda.ipc_collect if torch.cuda.is_available() else lambda: None


def make_tensors(path, device):
    torch.multiprocessing.set_sharing_strategy("file_system")  # on a CPU
    if device != "cpu":
        torch.cuda.set_device(device)
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["name"]: torch.zeros(row["shape"], dtype=DTYPES[row["dtype"]], device=device)
            for row in rows}


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def flat(tensor):
    return tensor.detach().contiguous().view(torch.uint8).view(-1)


def digest(tensors, device):
    """Of every byte, by tensor and, a little, by place; one look at the device at the end."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for place, tensor in enumerate(tensors.values(), 1):
        words = flat(tensor).view(torch.int16)
        total.add_(words.sum(dtype=torch.int64), alpha=place)
        total.add_(words[::3].sum(dtype=torch.int64), alpha=place % 97)
    return int(total)


def chunks_of(tensors):
    chunk, size = [], 0
    for name, tensor in tensors.items():
        if chunk and size + bytes_of(tensor) > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, tensor))
        size += bytes_of(tensor)
    yield chunk


def call(engine, what, chunk=(), **more):
    """An RPC: returns when the engine has followed the order."""
    engine.send_bytes(pickle.dumps({
        "what": what, **more, "names": [name for name, _ in chunk],
        "dtypes": [str(tensor.dtype).split(".")[-1] for _, tensor in chunk],
        "shapes": [list(tensor.shape) for _, tensor in chunk],
        "sizes": [bytes_of(tensor) for _, tensor in chunk]}))
    return pickle.loads(engine.recv_bytes())


def pickled(handles):
    return b64encode(bytes(multiprocessing.reduction.ForkingPickler.dumps(handles)))


def pack(chunk, buffer):
    offset = 0
    for _, tensor in chunk:
        part = flat(tensor)
        buffer[offset:offset + part.numel()].copy_(part)
        offset += part.numel()
    synchronize()


def send_per_tensor(engine, tensors, _):
    handles = [reduce_tensor(tensor.detach().contiguous()) for tensor in tensors.values()]
    call(engine, "tensors", list(tensors.items()), handles=pickled(handles))


def send_skyrl(engine, tensors, device):
    for chunk in chunks_of(tensors):
        size = sum(bytes_of(tensor) for _, tensor in chunk)
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        pack(chunk, buffer)
        call(engine, "packed", chunk, handles=pickled(reduce_tensor(buffer)), keep=False)
        collect()
        synchronize()


def send_vllm(engine, tensors, device):
    size = max(CHUNK_BYTES, *map(bytes_of, tensors.values()))
    buffer = torch.empty(size, dtype=torch.uint8, device=device)
    handles = pickled(reduce_tensor(buffer))
    for chunk in chunks_of(tensors):
        pack(chunk, buffer)
        call(engine, "packed", chunk, handles=handles, keep=True)


SEND = {"per_tensor": send_per_tensor, "skyrl": send_skyrl, "vllm": send_vllm}


def send_rollring():
    """Its trainer's end stays, as the library is used: made at the first sync."""
    import rollring
    ring = f"torch-sync-{os.getpid()}"
    rollring.create(ring, lanes=1, lane_bytes="1MiB")
    made, version = [], itertools.count(1)

    def send(engine, tensors, _):
        if not made:
            made.append(rollring.WeightPublisher(ring, tensors))
            call(engine, "attach", ring=ring)
        engine.send_bytes(pickle.dumps({"what": "take", "names": []}))
        made[0].publish(next(version))
        engine.recv_bytes()

    def end():
        made[0].close()
        rollring.remove(ring)
    return send, end


def views_of(message, kept, clone):
    handles = message["handles"]
    if message["what"] == "tensors":
        return [rebuild(*arguments) for rebuild, arguments in pickle.loads(b64decode(handles))]
    if handles not in kept:
        kept.clear()
        rebuild, arguments = pickle.loads(b64decode(handles))
        kept[handles] = rebuild(*arguments)
    # vLLM keeps one import for all chunks of a sync.
    buffer = kept[handles] if message["keep"] else kept.pop(handles)
    parts = buffer[:sum(message["sizes"])].split(message["sizes"])
    views = [part.view(getattr(torch, dtype)).view(shape)
             for part, dtype, shape in zip(parts, message["dtypes"], message["shapes"],
                                           strict=True)]
    return [view.clone() for view in views] if clone and message["keep"] else views


def serve(trainer, options, device):
    parameters = make_tensors(options.list, device)
    kept, message, channel = {}, {"what": "ready"}, None
    while message["what"] != "end":
        message, answer = pickle.loads(trainer.recv_bytes()), None
        if message["names"]:
            views = zip(message["names"], views_of(message, kept, options.clone), strict=True)
            views = [parameters[name].copy_(view) for name, view in views]  # and lets go of them
        elif message["what"] == "attach":
            import rollring
            channel = rollring.WeightSubscriber(message["ring"], parameters)
        elif message["what"] == "take":
            with channel.next():
                pass
        elif message["what"] == "digest":
            answer = digest(parameters, device)
        synchronize()
        trainer.send_bytes(pickle.dumps(answer))


def measure(method, engine, tensors, device, repeat):
    send, end = SEND.get(method), lambda: None
    if send is None:
        send, end = send_rollring()
    took_ms = []
    for turn in range(repeat + 2):
        if turn in (0, repeat + 1):
            for tensor in tensors.values():
                flat(tensor).random_(0, 120)  # finite as any float
        synchronize()
        began = time.perf_counter()
        send(engine, tensors, device)
        took_ms.append((time.perf_counter() - began) * 1e3)
    end()
    if call(engine, "digest") != digest(tensors, device):
        sys.exit(f"{method}: the engine's digest differs from the trainer's")
    print(json.dumps({"method": method, "ms": statistics.median(took_ms[2:]), "repeats":
                      took_ms[2:], "bytes": sum(map(bytes_of, tensors.values()))}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--list", required=True, help="from rollring-bench weights --print-list")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--method", default="all", choices=("all", "rollring", *SEND))
    parser.add_argument("--clone", action="store_true", help="see above")
    parser.add_argument("--gpu", default="0", help="ordinal; cpu: to try this script, no figures")
    options = parser.parse_args()
    device = "cpu" if options.gpu == "cpu" else f"cuda:{options.gpu}"
    if device != "cpu" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU", file=sys.stderr)
        sys.exit(77)
    here, there = multiprocessing.Pipe()
    engine = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, options, device), daemon=True)
    engine.start()
    there.close()  # so that an engine that dies is noticed
    tensors = make_tensors(options.list, device)
    call(here, "ready")
    methods = [options.method]
    if options.method == "all":
        methods = [*SEND, *(["rollring"] if importlib.util.find_spec("rollring") else [])]
    for method in methods:
        measure(method, here, tensors, device, options.repeat)
    call(here, "end")
    engine.join()


if __name__ == "__main__":
    main()
