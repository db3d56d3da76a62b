"""The records that all peers in Python carry, and the book that their consumer keeps. The records
are those of the C++ side: the same generator, the same arrays."""
import multiprocessing
import os
import time
from array import array

SOURCE_TOKENS = 262_144
ROLL_WAIT_S = 60
MASK64 = (1 << 64) - 1


class Wrong(Exception):
    """A record that differs from the one that was sent."""


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
    if values.nbytes % 8 == 0:
        return int(numpy.add.reduce(values.view(numpy.uint64)))  # sum() without its wrapper
    data = values.view(numpy.uint8)
    whole = data.size // 8 * 8
    tail = int.from_bytes(data[whole:].tobytes(), "little")
    return (int(numpy.add.reduce(data[:whole].view(numpy.uint64))) + tail) & MASK64


def array_digest(token_ids, logprobs, mask):
    return (words(token_ids) + words(logprobs) + words(mask)) & MASK64


def array_records(n_tokens):
    import numpy
    ids, logprobs, mask = (numpy.frombuffer(column, dtype=kind) for column, kind in
                           zip(numbers(n_tokens), (numpy.int32, numpy.float32, numpy.uint8),
                               strict=True))
    found = []
    for at in range(0, len(ids), n_tokens):
        part = [column[at:at + n_tokens] for column in (ids, logprobs, mask)]
        found.append((*part, array_digest(*part)))
    return found


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
            raise Wrong("a record's digest differs from the digest that was sent")
        self.arrived(sequence)

    def records(self, sent, token_ids, logprobs, mask):
        """(sequence, digest) of several, and their columns end to end, of whole words each."""
        if len(token_ids) != self.plan.tokens * len(sent) or self.plan.tokens % 8:
            raise Wrong("columns end to end have another length")
        if self.digest(token_ids, logprobs, mask) != sum(digest for _, digest in sent) & MASK64:
            raise Wrong("a batch's digest differs from the digest that was sent")
        for sequence, _ in sent:
            self.arrived(sequence)

    def arrived(self, sequence):
        if self.seen[sequence] or (self.ordered and sequence != self.count):
            raise Wrong("a record came twice or out of sequence")
        self.seen[sequence] = 1
        self.count += 1
        if self.count == self.plan.warmup:  # from here on fetches are timed
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
