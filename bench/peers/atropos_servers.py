#!/usr/bin/env python3
"""Groups of Atropos from environments to a trainer: by their server, by ours, by the ring alone.

    .cache/python/bin/python bench/peers/atropos_servers.py [--groups N] [--tokens N] [--json]

Each way moves the same groups (8 members, tokens, masks, inference_logprobs, scores) from sending
processes to one that reads every number. The ways take turns, for several rounds:

    theirs         atroposlib.api, bodies as stock clients send them (gzip), made beforehand
    ours           rollring serve-atropos, the same bodies
    ours, plain    the same without gzip
    theirs, stock  json.dumps and gzip in the environment, as BaseEnv does
    ours, stock    likewise
    ring           RollringSendMixin, and a trainer that is a rollring.Stash

The trainer reads JSON by orjson. Needs the package, the packages that `./dev python` installs for
its tests, and orjson.
"""
import argparse
import asyncio
import gzip
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson
import requests

import rollring as rr
from rollring.integrations.atropos import RollringSendMixin

MEMBERS = 8
BATCH_GROUPS = 4  # of each batch, in every way
DISTINCT = 4  # groups that an environment sends again and again
PROGRAM = Path(sys.executable).with_name("rollring")
WAIT_S = 60


def make_group(seed, tokens):
    """A group in lists, as an environment holds it."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 151_936, (MEMBERS, tokens))
    prompt = tokens // 8
    masks = np.where(np.arange(tokens) < prompt, -100, ids)
    logprobs = np.where(np.arange(tokens) < prompt, 1.0, -random.exponential(0.5, ids.shape))
    return {"tokens": ids.tolist(), "masks": masks.tolist(),
            "scores": random.random(MEMBERS).tolist(),
            "inference_logprobs": logprobs.tolist(), "env_id": None}


def packed(group):
    return gzip.compress(json.dumps(group).encode())  # level 9, as their client does


# --- sending -------------------------------------------------------------------------------------

def post_all(url, seed, tokens, groups, how, ready):
    made = [make_group(seed * DISTINCT + i, tokens) for i in range(DISTINCT)]
    headers = {"Content-Type": "application/json"}
    if how != "plain":
        headers["Content-Encoding"] = "gzip"
    bodies = [json.dumps(one).encode() if how == "plain" else packed(one) for one in made]
    session = requests.Session()
    ready.wait()
    for i in range(groups):
        body = packed(made[i % DISTINCT]) if how == "stock" else bodies[i % DISTINCT]
        answer = session.post(url + "/scored_data", data=body, headers=headers, timeout=WAIT_S)
        answer.raise_for_status()


class Sender(RollringSendMixin):
    env_id = None

    def __init__(self, ring):
        self.rollring_ring = ring


def send_all(ring, seed, tokens, groups, _, ready):
    made = [make_group(seed * DISTINCT + i, tokens) for i in range(DISTINCT)]
    # Arrays stay arrays, as an environment would have them: they are not converted to lists.
    for one in made:
        for key, dtype in (("tokens", "i4"), ("masks", "i4"), ("inference_logprobs", "f4")):
            one[key] = [np.asarray(row, dtype) for row in one[key]]
    sender = Sender(ring)

    async def send():
        for i in range(groups):
            await sender._send_scored_data_to_api({**made[i % DISTINCT]})

    ready.wait()
    asyncio.run(send())


# --- receiving -----------------------------------------------------------------------------------

def total_of(group):
    return sum(map(sum, group["tokens"])) + sum(map(sum, group["inference_logprobs"])) + \
        sum(map(sum, group["masks"]))


def read_batches(url, groups):
    session = requests.Session()
    seen, total, end = 0, 0.0, time.monotonic() + WAIT_S
    while seen < groups:
        answer = session.get(url + "/batch", timeout=WAIT_S)
        batch = orjson.loads(answer.content)["batch"]  # else the trainer's json is the limit
        if batch is None:
            assert time.monotonic() < end, "no batch came"
            time.sleep(0.0005)
            continue
        end = time.monotonic() + WAIT_S
        seen += len(batch)
        total += sum(map(total_of, batch))
    return total


def bits_of(ids, mask, logprobs):
    """A sum that depends on every bit of every number, and takes one pass."""
    return sum(int(one.view(np.int32).sum(dtype=np.int32)) for one in (ids, logprobs)) + \
        int(np.count_nonzero(mask))


def bits_of_group(group):
    masked = np.asarray(group["masks"], "i4") != -100
    return bits_of(np.asarray(group["tokens"], "i4"), masked,
                   np.asarray(group["inference_logprobs"], "f4"))


def read_ring(ring, groups):
    total = 0
    seen = 0
    # Every batch goes to the same memory, as into a trainer's pinned buffers: all are of one size.
    own = {}
    with rr.Stash(ring, batch_groups=BATCH_GROUPS) as stash:
        while seen < groups:
            with stash.next(timeout=WAIT_S) as batch:
                seen += len(batch.groups)
                for column in ("token_ids", "loss_mask", "logprobs"):
                    own[column] = batch.packed(column, out=own.get(column))
            total += bits_of(*own.values())
    return total % 2**32


# --- ways ----------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def server(command, port):
    process = subprocess.Popen([*map(str, command), "--port", str(port)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + WAIT_S
        while True:
            try:
                requests.get(url, timeout=WAIT_S)
                break
            except requests.ConnectionError:
                assert process.poll() is None and time.monotonic() < end, "no server came"
                time.sleep(0.05)
        requests.post(url + "/register", timeout=WAIT_S, json={
            "wandb_group": "", "wandb_project": "", "batch_size": BATCH_GROUPS * MEMBERS,
            "max_token_len": -1, "checkpoint_dir": "", "save_checkpoint_interval": 0,
            "starting_step": 0, "num_steps": 1 << 30}).raise_for_status()
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def timed(send, to, read, how, options, share, total_of=total_of):
    """Seconds from the first group sent to the last one read."""
    groups = max(4, int(options.groups * share))
    ready = multiprocessing.Barrier(options.environments + 1)
    children = [multiprocessing.Process(
        target=send, args=(to, i, options.tokens, groups, how, ready), daemon=True)
        for i in range(options.environments)]
    for child in children:
        child.start()
    ready.wait()
    began = time.perf_counter()
    total = read(to, groups * options.environments)
    seconds = time.perf_counter() - began
    for child in children:
        child.join()
    totals = [total_of(make_group(seed, options.tokens))
              for seed in range(DISTINCT * options.environments)]
    wanted = sum(totals[i * DISTINCT + j % DISTINCT]
                 for i in range(options.environments) for j in range(groups))
    if isinstance(total, int):
        assert total == wanted % 2**32, (total, wanted)
    else:
        assert abs(total - wanted) < 1e-6 * abs(wanted), (total, wanted)
    return groups * options.environments * MEMBERS * options.tokens / seconds


def their_server(how):
    def run(options, folder, share):
        command = [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1"]
        with server(command, free_port()) as url:
            return timed(post_all, url, read_batches, how, options, share)
    return run


def our_server(how):
    def run(options, folder, share):
        ring = f"bench-atropos-{os.getpid()}"
        command = [PROGRAM, "serve-atropos", ring, "--state", folder / "state.json"]
        try:
            with server(command, free_port()) as url:
                return timed(post_all, url, read_batches, how, options, share)
        finally:
            rr.remove(ring, force=True, missing_ok=True)
    return run


def ring_alone(options, folder, share):
    ring = f"bench-atropos-{os.getpid()}"
    rr.create(ring, lanes=16, lane_bytes="64MiB")
    try:
        return timed(send_all, ring, read_ring, None, options, share, bits_of_group)
    finally:
        rr.remove(ring, force=True)


# With the share of the groups that each moves: all take seconds.
WAYS = {
    "theirs": (their_server("made"), 0.1),
    "ours": (our_server("made"), 1),
    "ours, plain": (our_server("plain"), 1),
    "theirs, stock": (their_server("stock"), 0.1),
    "ours, stock": (our_server("stock"), 0.1),
    "ring": (ring_alone, 50),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=200, help="of an environment (ours)")
    parser.add_argument("--tokens", type=int, default=2048, help="of a member")
    parser.add_argument("--environments", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="ways that begin so")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = {}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.rounds):
            for way, (run, share) in WAYS.items():
                if way.startswith(options.only):
                    rate = run(options, Path(name), share)
                    rates.setdefault(way, []).append(rate)
                    print(f"{way}: {rate:,.0f} tokens/s", file=sys.stderr)
    if options.json:
        print(json.dumps(rates))
        return
    base = statistics.median(rates["theirs"]) if "theirs" in rates else None
    for way, of in rates.items():
        middle = statistics.median(of)
        ratio = f"{middle / base:10,.1f} times theirs" if base else ""
        print(f"{way:14} {middle:16,.0f} tokens/s [{min(of):,.0f}-{max(of):,.0f}]{ratio}")


if __name__ == "__main__":
    main()
