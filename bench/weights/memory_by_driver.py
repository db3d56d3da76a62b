"""GPU memory by calls of the driver alone: `steps` and `adoption` of memory_turns.py."""
import multiprocessing
import os
import statistics
import time
from multiprocessing.reduction import recv_handle

import torch

import driver_calls
from memory_model import MIB, digest_graph, digest_into, vllm_allocator


def driver():
    torch.cuda.synchronize()  # the primary context is this thread's
    return driver_calls.Driver(torch.cuda.current_device())


def of_steps(args):
    """The steps of a resume. Every way is taken three times; medians, in ms."""
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
        for at, handle in zip(pieces(chunk), handles, strict=True):
            cuda.map(base + at, chunk, handle)
        return handles

    def gone(chunk, handles):
        for at, handle in zip(pieces(chunk), handles, strict=True):
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
            for at, handle in zip(pieces(chunk), handles, strict=True):
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
    for (address, data), descriptor in zip(table.items(), descriptors, strict=True):
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
