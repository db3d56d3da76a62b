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
import dataclasses
import importlib.util
import json
import multiprocessing
import os
import signal
import sys

import peers_atropos
import peers_stores
from peers_load import (
    ROLL_WAIT_S,
    Meter,
    Wrong,
    array_digest,
    array_records,
    list_digest,
    list_records,
    pin,
    start,
)


class Late(Exception):
    """Not TimeoutError: libraries would take that for one of theirs."""


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


def run_trl(plan):
    """TRL's asynchronous trainers: their worker puts one dataclass a sample into an mp.Queue, with
    64-bit ids and mask (trl/experimental/async_grpo)."""
    queue = multiprocessing.get_context("fork").Queue(queue_capacity(plan))
    producer = start(plan, put_samples, [Sample.of(*one) for one in array_records(plan.tokens)],
                     queue)
    meter = Meter(plan, array_digest)
    while not meter.done:
        sequence, sample = queue.get(timeout=ROLL_WAIT_S)
        meter.record(sequence, sample.input_ids, sample.old_log_probs, sample.completion_mask,
                     sample.group_id)
    producer.join()
    return meter.seconds


def put_samples(plan, samples, queue):
    for sequence in range(plan.warmup + plan.records):
        queue.put((sequence, samples[sequence % len(samples)]))
    queue.close()
    queue.join_thread()


@dataclasses.dataclass(slots=True)
class Sample:
    """The fields of TRL's RolloutSample; its group_id carries the digest."""
    prompt: list
    completion: list
    input_ids: object
    completion_mask: object
    old_log_probs: object
    advantage: float
    model_version: int  # tidy-ok: TRL's name of the field
    group_id: int
    metrics: dict
    enqueued_at: float

    @classmethod
    def of(cls, token_ids, logprobs, mask, _digest):
        import numpy
        wide_ids, wide_mask = token_ids.astype(numpy.int64), mask.astype(numpy.int64)
        return cls([], [], wide_ids, wide_mask, logprobs, 0.5, 1,
                   array_digest(wide_ids, logprobs, wide_mask), {"reward": 1.0}, 0.0)


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


# --- rollring itself, in Python ------------------------------------------------------------------

def push_all(plan, records, ring):
    import rollring
    with rollring.Producer(ring) as producer:
        for sequence in range(plan.warmup + plan.records):
            token_ids, logprobs, mask, digest = records[sequence % len(records)]
            # A digest has 64 bits without a sign, the field has one.
            producer.push("record", visit=sequence, group_size=1, token_ids=token_ids,
                          logprobs=logprobs, loss_mask=mask, finished_ns=digest - (1 << 63))


def push_many(plan, records, ring):
    """As an environment does that has a group's completions at once."""
    import rollring
    at_once = 16
    ready = [{"instance_id": "record", "group_size": 1, "token_ids": token_ids,
              "logprobs": logprobs, "loss_mask": mask, "finished_ns": digest - (1 << 63)}
             for token_ids, logprobs, mask, digest in records]
    total = plan.warmup + plan.records
    with rollring.Producer(ring) as producer:
        for first in range(0, total, at_once):
            producer.push_many([{**ready[sequence % len(ready)], "visit": sequence}
                                for sequence in range(first, min(first + at_once, total))])


def take_records(batch, meter):
    for one in batch.sequences:
        meter.record(one.visit, one.token_ids, one.logprobs, one.loss_mask,
                     one.finished_ns + (1 << 63))


def run_rollring_packed(plan):
    """As trainers do that pack: a column of the whole batch as one array, in memory that stays.
    They come from an environment that sends several at once."""
    import numpy
    kept = {}

    def column(batch, name, dtype):
        at = name, batch.n_tokens
        if at not in kept:
            kept[at] = numpy.empty(batch.n_tokens, dtype)
        return batch.packed(name, out=kept[at])

    def take_columns(batch, meter):
        meter.records([(one.visit, one.finished_ns + (1 << 63)) for one in batch.sequences],
                      column(batch, "token_ids", numpy.int32),
                      column(batch, "logprobs", numpy.float32),
                      column(batch, "loss_mask", numpy.uint8))

    return run_rollring(plan, take_columns, push_many, 64)


def run_rollring(plan, take=take_records, send=push_all, at_once=16):
    import rollring
    ring = f"peers-{os.getpid()}"
    rollring.create(ring, lanes=1, lane_bytes="64MiB")
    try:
        producer = start(plan, send, array_records(plan.tokens), ring)
        meter = Meter(plan, array_digest, ordered=False)
        with rollring.Stash(ring, batch_sequences=at_once, group_size=1, min_size=1,
                            advantages="none") as stash:
            while not meter.done:
                left = meter.total - meter.count
                batch = stash.next(ROLL_WAIT_S) if left >= at_once else stash.rest()
                if batch is None:
                    continue
                with batch:
                    take(batch, meter)
        producer.join()
        return meter.seconds
    finally:
        rollring.remove(ring, force=True)


# --- no transport --------------------------------------------------------------------------------

def run_sums(plan):
    """The consumer's numpy work on each record, and nothing else: the floor of all."""
    pin(plan.cpus[1])
    records = array_records(plan.tokens)
    meter = Meter(plan, array_digest)
    put_all(plan, records, lambda record: meter.record(*record))
    return meter.seconds


# --- the table -----------------------------------------------------------------------------------

def run_atropos(plan):
    return peers_atropos.run(plan, compress=True)


def run_atropos_plain(plan):
    return peers_atropos.run(plan, compress=False)


ATROPOS_NEEDS = ("atroposlib", "fastapi", "uvicorn", "aiohttp", "requests")
# key: (name, how, modules it needs, records of a first run, records come in multiples of)
PEERS = {
    "numpy-sums": ("numpy's sums alone", run_sums, ("numpy",), 800, 1),
    "mpq-lists": ("mp.Queue, pickled lists", run_mpq_lists, (), 400, 1),
    "mpq-numpy": ("mp.Queue, numpy", run_mpq_numpy, ("numpy",), 800, 1),
    "faster-fifo": ("faster-fifo, numpy", run_faster_fifo, ("faster_fifo", "numpy"), 800, 1),
    "rollring-numpy": ("rollring in Python, numpy", run_rollring, ("rollring", "numpy"), 800, 16),
    "rollring-packed": ("rollring in Python, packed", run_rollring_packed,
                        ("rollring", "numpy"), 800, 16),
    "trl": ("TRL's sample through mp.Queue", run_trl, ("numpy",), 400, 1),
    "ray": ("Ray object store", peers_stores.run_ray, ("ray", "numpy"), 256, 1),
    "transferqueue": ("TransferQueue", peers_stores.run_transferqueue,
                      ("transfer_queue", "ray", "torch"), 256, 32),
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
