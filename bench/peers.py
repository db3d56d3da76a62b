#!/usr/bin/env python3
"""Peers of rollring that live in Python; `rollring-bench peers` runs this, once a run.

    peers.py --probe                                   what can run here, as one JSON object
    peers.py --run KEY --tokens N --records R --warmup W [--cpus P,C] [--realtime] [--limit-s S]

A run prints {"seconds": ...} for R records after W to warm up. The records are those of the C++
side: the same generator, the same arrays. The consumer reads every element of every record and
compares with the digest that travels with it; exit code 3 if one is wrong, 1 if the peer cannot
run.

Each digest is the cheapest that reads everything, so that it costs the peer little: sums of the
64-bit words for numpy arrays, plain sums for lists.
"""
import argparse
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import time
from array import array

SOURCE_TOKENS = 262_144
ROLL_WAIT_S = 60
MASK64 = (1 << 64) - 1


class Wrong(Exception):
    """A record that is not what was sent."""


def numbers(n_tokens):
    """The columns of all records, from minstd_rand seeded with n_tokens: as bench/workload.cpp."""
    total = max(1, SOURCE_TOKENS // n_tokens) * n_tokens
    token_ids, logprobs, mask, value = array("i"), array("f"), array("B"), n_tokens
    for _ in range(total):
        value = value * 48271 % 2147483647
        token_ids.append(value % 151_936)
        logprobs.append(-(value % 10_000) / 1000)
        mask.append(1 if value % 8 else 0)
    return token_ids, logprobs, mask


def list_digest(token_ids, logprobs, mask):
    return [sum(token_ids), sum(logprobs), sum(mask)]


def list_records(n_tokens):
    """(token_ids, logprobs, mask, digest) of each record, as lists."""
    columns = numbers(n_tokens)
    found = []
    for at in range(0, len(columns[0]), n_tokens):
        lists = [column[at:at + n_tokens].tolist() for column in columns]
        found.append((*lists, list_digest(*lists)))
    return found


def words(values):
    """Sum of the 64-bit words, the tail padded with zeroes."""
    import numpy
    data = values.view(numpy.uint8)
    whole = data.size // 8 * 8
    tail = int.from_bytes(data[whole:].tobytes(), "little")
    return (int(data[:whole].view(numpy.uint64).sum(dtype=numpy.uint64)) + tail) & MASK64


def array_digest(token_ids, logprobs, mask):
    return (words(token_ids) + words(logprobs) + words(mask)) & MASK64


def array_records(n_tokens):
    import numpy
    ids, logprobs, mask = (numpy.frombuffer(column, dtype=kind) for column, kind in
                           zip(numbers(n_tokens), (numpy.int32, numpy.float32, numpy.uint8)))
    found = []
    for at in range(0, len(ids), n_tokens):
        part = [column[at:at + n_tokens] for column in (ids, logprobs, mask)]
        found.append((*part, array_digest(*part)))
    return found


class Late(Exception):
    """Not TimeoutError: libraries would take that for one of theirs."""


class Meter:
    """The consumer's book. ordered=False: each sequence once, in any order."""

    def __init__(self, plan, digest, ordered=True):
        self.plan, self.digest, self.ordered = plan, digest, ordered
        self.total = plan.warmup + plan.records
        self.count, self.began, self.seconds = 0, time.perf_counter(), 0.0
        self.seen = bytearray(self.total)

    def record(self, sequence, token_ids, logprobs, mask, digest):
        if len(token_ids) != self.plan.tokens or len(mask) != self.plan.tokens:
            raise Wrong("a record has another length")
        if self.digest(token_ids, logprobs, mask) != digest:
            raise Wrong("a record's digest is not that of what was sent")
        if self.seen[sequence] or (self.ordered and sequence != self.count):
            raise Wrong("a record came twice or out of sequence")
        self.seen[sequence] = 1
        self.count += 1
        if self.count == self.plan.warmup:  # what comes together is fetched within the timed part
            self.began = time.perf_counter()
        if self.count == self.total:
            self.seconds = time.perf_counter() - self.began

    @property
    def done(self):
        return self.count == self.total


def pin(cpu):
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


def start(plan, target, *args):
    """A producer process on its CPU; this process is the consumer, on the other one."""
    def body():
        pin(plan.cpus[0])
        target(plan, *args)

    process = multiprocessing.get_context("fork").Process(target=body, daemon=True)
    process.start()
    pin(plan.cpus[1])
    return process


# --- queues --------------------------------------------------------------------------------------

def put_all(plan, records, put):
    for sequence in range(plan.warmup + plan.records):
        put((sequence, *records[sequence % len(records)]))


def queue_capacity(plan):
    return max(2, (4 << 20) // (plan.tokens * 9))  # as many records as the other queues hold


def put_to_queue(plan, records, queue):
    put_all(plan, records, queue.put)
    queue.close()
    queue.join_thread()


def run_queue(plan, records, digest):
    queue = multiprocessing.get_context("fork").Queue(queue_capacity(plan))
    producer = start(plan, put_to_queue, records, queue)
    meter = Meter(plan, digest)
    while not meter.done:
        meter.record(*queue.get(timeout=ROLL_WAIT_S))
    producer.join()
    return meter.seconds


def run_mpq_lists(plan):
    return run_queue(plan, list_records(plan.tokens), list_digest)


def run_mpq_numpy(plan):
    return run_queue(plan, array_records(plan.tokens), array_digest)


def put_to_fifo(plan, records, queue):
    put_all(plan, records, lambda record: queue.put(record, timeout=ROLL_WAIT_S))


def run_faster_fifo(plan):
    from faster_fifo import Queue
    queue = Queue(max_size_bytes=max(4 << 20, plan.tokens * 9 * 4))
    producer = start(plan, put_to_fifo, array_records(plan.tokens), queue)
    meter = Meter(plan, array_digest)
    while not meter.done:
        for record in queue.get_many(timeout=ROLL_WAIT_S):
            meter.record(*record)
    producer.join()
    return meter.seconds


# --- Ray's object store --------------------------------------------------------------------------

def run_ray(plan):
    """An actor puts each record into the object store; the driver gets them, 32 at a time."""
    import ray
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
             object_store_memory=256 << 20)
    at_once, ahead = 32, 4

    @ray.remote
    class Producer:
        def __init__(self, n_tokens):
            sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
            self.records = array_records(n_tokens)

        def put(self, first, count):
            size = len(self.records)
            return [ray.put((i, *self.records[i % size])) for i in range(first, first + count)]

    try:
        producer = Producer.remote(plan.tokens)
        meter = Meter(plan, array_digest)
        starts = list(range(0, meter.total, at_once))
        flight = []
        while not meter.done:
            while starts and len(flight) < ahead:
                first = starts.pop(0)
                flight.append(producer.put.remote(first, min(at_once, meter.total - first)))
            for record in ray.get(ray.get(flight.pop(0))):
                meter.record(*record)
        return meter.seconds
    finally:
        ray.shutdown()


# --- the table -----------------------------------------------------------------------------------

def run_atropos(plan):
    import peers_atropos
    return peers_atropos.run(plan, compress=True)


def run_atropos_plain(plan):
    import peers_atropos
    return peers_atropos.run(plan, compress=False)


ATROPOS_NEEDS = ("atroposlib", "fastapi", "uvicorn", "aiohttp", "requests")
# key: (name, how, modules it needs, records of a first run, records come in multiples of)
PEERS = {
    "mpq-lists": ("mp.Queue, pickled lists", run_mpq_lists, (), 400, 1),
    "mpq-numpy": ("mp.Queue, numpy", run_mpq_numpy, ("numpy",), 800, 1),
    "faster-fifo": ("faster-fifo, numpy", run_faster_fifo, ("faster_fifo", "numpy"), 800, 1),
    "ray": ("Ray object store", run_ray, ("ray", "numpy"), 256, 1),
    "atropos": ("Atropos API server", run_atropos, ATROPOS_NEEDS, 64, 32),
    "atropos-plain": ("Atropos server, no gzip", run_atropos_plain, ATROPOS_NEEDS, 64, 32),
}


def probe():
    found = []
    for key, (name, _, modules, first, unit) in PEERS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        found.append({"key": key, "name": name, "first_records": first, "unit": unit,
                      "missing": f"no module {', '.join(missing)}" if missing else ""})
    return {"python": sys.version.split()[0], "peers": found}


def end_after(seconds):
    """An exception in this process, so that servers and producers are ended, too."""
    def late(_signal, _frame):
        raise Late(f"no end within {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--run", choices=PEERS)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--cpus", type=lambda text: tuple(map(int, text.split(","))),
                        default=(None, None))
    parser.add_argument("--realtime", action="store_true", help="SCHED_RR, with all children")
    parser.add_argument("--limit-s", type=int, default=0, help="0: none")
    plan = parser.parse_args()
    if plan.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if plan.run is None:
        print(json.dumps(probe()))
        return 0
    end_after(plan.limit_s)
    try:
        print(json.dumps({"seconds": PEERS[plan.run][1](plan), "records": plan.records}))
    except Wrong as wrong:
        print(json.dumps({"problem": str(wrong)}))
        return 3
    except Exception as error:  # whatever a peer's library throws: it is named and skipped
        print(json.dumps({"problem": f"{type(error).__name__}: {error}"[:200]}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
