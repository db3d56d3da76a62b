"""Stores that another process fetches records from: Ray's objects, and TransferQueue on Ray."""
import os
import sys

from peers_load import MASK64, Meter, array_digest, array_records

HERE = os.path.dirname(os.path.abspath(__file__))
AT_ONCE = 32  # records a call
AHEAD = 4     # calls under way


def start_ray():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    import ray
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
             object_store_memory=256 << 20)
    return ray


def calls(meter, put):
    """The answers of put(first, count), a few calls ahead of the one that is looked at."""
    starts, flight = list(range(0, meter.total, AT_ONCE)), []
    while starts or flight:
        while starts and len(flight) < AHEAD:
            first = starts.pop(0)
            flight.append(put.remote(first, min(AT_ONCE, meter.total - first)))
        yield flight.pop(0)


def run_ray(plan):
    """An actor puts each record into the object store; the driver gets them, 32 at a time."""
    ray = start_ray()

    @ray.remote
    class Producer:
        def __init__(self, n_tokens):
            sys.path.insert(0, HERE)
            self.records = array_records(n_tokens)

        def put(self, first, count):
            size = len(self.records)
            return [ray.put((i, *self.records[i % size])) for i in range(first, first + count)]

    try:
        producer = Producer.remote(plan.tokens)
        meter = Meter(plan, array_digest)
        for call in calls(meter, producer.put):
            for record in ray.get(ray.get(call)):
                meter.record(*record)
        return meter.seconds
    finally:
        ray.shutdown()


def run_transferqueue(plan):
    """An actor puts 32 rows a call, a column a field; the driver gets them by their keys and clears
    them. SimpleStorage with two units, as it comes."""
    ray = start_ray()
    import transfer_queue
    from omegaconf import OmegaConf
    transfer_queue.init(OmegaConf.create({
        "controller": {"polling_mode": True},
        "backend": {"storage_backend": "SimpleStorage",
                    "SimpleStorage": {"num_data_storage_units": 2}}}))
    where = {"partition_id": "train"}

    @ray.remote
    class Producer:
        def __init__(self, n_tokens):
            sys.path.insert(0, HERE)
            self.records = array_records(n_tokens)
            transfer_queue.init()

        def put(self, first, count):
            import numpy
            import torch
            from tensordict import TensorDict
            rows = [self.records[i % len(self.records)] for i in range(first, first + count)]
            fields = {name: torch.from_numpy(numpy.stack([row[at] for row in rows]))
                      for at, name in enumerate(("token_ids", "logprobs", "mask"))}
            fields["digest"] = torch.tensor([row[3] - (1 << 63) for row in rows]).unsqueeze(1)
            keys = [f"k{i}_0_0" for i in range(first, first + count)]
            transfer_queue.kv_batch_put(keys=keys, fields=TensorDict(fields, batch_size=count),
                                        tags=[{"at": 1}] * count, **where)
            return keys

    try:
        producer = Producer.remote(plan.tokens)
        meter = Meter(plan, array_digest)
        for call in calls(meter, producer.put):
            keys = ray.get(call)
            rows = transfer_queue.kv_batch_get(keys=keys, **where)
            columns = [rows[name].unbind() for name in ("token_ids", "logprobs", "mask", "digest")]
            for i, key in enumerate(keys):
                token_ids, logprobs, mask, digest = (column[i].numpy() for column in columns)
                meter.record(int(key[1:key.index("_")]), token_ids, logprobs, mask,
                             (int(digest[0]) + (1 << 63)) & MASK64)
            transfer_queue.kv_clear(keys=keys, **where)
        return meter.seconds
    finally:
        transfer_queue.close()
        ray.shutdown()
