"""The real Atropos API server as a peer: `atroposlib.api:app` under uvicorn, in its own process.

The environment side posts groups of 8 to /scored_data as atroposlib/envs/base.py does
(_post_json_with_compression: json.dumps, gzip if it gets shorter, aiohttp, a session for each
post); the trainer side polls /batch as example_trainer does (requests, which asks for gzip), but
without its sleep of a second. compress=False omits gzip on both legs and keeps one session, which
is faster than a real run.
"""
import asyncio
import gzip
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time

from peers_load import ROLL_WAIT_S, Meter, list_digest, list_records, start

GROUP_SIZE = 8
BATCH_SIZE = 32
QUEUE_GROUPS = 12  # an environment waits above 3 batches (max_batches_offpolicy)


def groups(plan):
    records = list_records(plan.tokens)
    for first in range(0, plan.warmup + plan.records, GROUP_SIZE):
        sequences = range(first, first + GROUP_SIZE)
        part = [records[sequence % len(records)] for sequence in sequences]
        yield {"tokens": [record[0] for record in part],
               "inference_logprobs": [record[1] for record in part],
               "masks": [record[2] for record in part],
               "scores": [float(i) for i in range(GROUP_SIZE)],
               "overrides": [{"sequence": sequence, "digest": record[3]}
                             for sequence, record in zip(sequences, part, strict=True)],
               "env_id": 0}


async def post(session, url, payload, compress):
    body = json.dumps(payload).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    if compress:
        compressed = gzip.compress(body)
        if len(compressed) < len(body):
            headers["Content-Encoding"] = "gzip"
            body = compressed
    async with session.post(url, data=body, headers=headers) as answer:
        if answer.status != 200:
            raise RuntimeError(f"POST {url}: {answer.status}")
        await answer.text()


async def send_all(plan, base, compress, taken):
    import aiohttp
    kept = None if compress else aiohttp.ClientSession()
    try:
        for number, group in enumerate(groups(plan)):
            while number * GROUP_SIZE - taken.value > QUEUE_GROUPS * GROUP_SIZE:
                await asyncio.sleep(0.0005)
            if kept is not None:
                await post(kept, f"{base}/scored_data", group, compress)
                continue
            async with aiohttp.ClientSession() as session:
                await post(session, f"{base}/scored_data", group, compress)
    finally:
        if kept is not None:
            await kept.close()


def produce(plan, base, compress, taken):
    asyncio.run(send_all(plan, base, compress, taken))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server():
    """(process, base address) once it answers."""
    import requests
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "atroposlib.api:app", "--host", "127.0.0.1", "--port",
         str(port), "--log-level", "warning"], stdout=subprocess.DEVNULL, cwd="/tmp")
    base = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            requests.get(base, timeout=1)
            return server, base
        except requests.ConnectionError:
            time.sleep(0.05)
    server.kill()
    raise RuntimeError("the Atropos server did not start")


def register(session, base, plan):
    session.post(f"{base}/register", timeout=10, json={
        "wandb_group": "bench", "wandb_project": "bench", "batch_size": BATCH_SIZE,
        "max_token_len": plan.tokens + 1, "checkpoint_dir": "/tmp",
        "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": 1 << 30})
    session.get(f"{base}/batch", timeout=10)  # environments wait for the first one
    answer = session.post(f"{base}/register-env", timeout=10, json={
        "max_token_length": plan.tokens + 1, "desired_name": "bench", "weight": 1.0,
        "group_size": GROUP_SIZE}).json()
    if answer.get("env_id") != 0:
        raise RuntimeError(f"register-env: {answer}")


def consume(plan, session, base, taken):
    meter = Meter(plan, list_digest, ordered=False)
    idle_since = time.monotonic()
    while not meter.done:
        batch = session.get(f"{base}/batch", timeout=60).json()["batch"]
        if batch is None:
            if time.monotonic() - idle_since > ROLL_WAIT_S:
                raise RuntimeError("no batch for a minute")
            time.sleep(0.0005)
            continue
        idle_since = time.monotonic()
        for group in batch:
            for i, sent in enumerate(group["overrides"]):
                meter.record(sent["sequence"], group["tokens"][i], group["inference_logprobs"][i],
                             group["masks"][i], sent["digest"])
        taken.value = meter.count
    return meter.seconds


def run(plan, compress):
    import requests
    os.environ["NO_PROXY"] = "127.0.0.1"
    server, base = start_server()
    try:
        session = requests.Session()
        if not compress:
            session.headers["Accept-Encoding"] = "identity"
        register(session, base, plan)
        taken = multiprocessing.get_context("fork").Value("q", 0, lock=False)
        plan.cpus = (None, None)  # three processes: the system places them
        producer = start(plan, produce, base, compress, taken)
        seconds = consume(plan, session, base, taken)
        producer.join()
        return seconds
    finally:
        server.kill()
        server.wait()
