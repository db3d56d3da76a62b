"""Worker, weights and trainer on all nodes of a Ray cluster: python examples/ray_rollouts.py"""
import itertools
import sys
import threading
import numpy as np
import ray
import rollring as rr
import rollring.ray
RING, STEPS = (sys.argv[1:] or ["run42"])[0], 40
def policy(logits):
    return np.exp(logits) / np.exp(logits).sum()
def follow(ring, logits):  # in a thread: the trainer waits for it, and the worker for the trainer
    for update in rr.WeightSubscriber(ring, {"logits": logits}):
        with update:  # in place; from here on records carry the version
            pass
@ray.remote(scheduling_strategy="SPREAD")
def work(number):  # it samples tokens, and rewards even ones
    logits, draw = np.zeros(64, np.float32), np.random.default_rng(number)
    ring = rollring.ray.weight_ring(RING)
    threading.Thread(target=follow, args=[ring, logits], daemon=True).start()
    with rollring.ray.connect(RING, f"env-{number}") as producer:
        for i in itertools.count():
            for member in range(8):
                ids = draw.choice(64, 32, p=policy(logits)).astype(np.int32)
                producer.push(f"{number}/{i}", repetition_id=member, group_size=8, token_ids=ids,
                              reward=float((ids % 2 == 0).mean()))
if __name__ == "__main__":
    ray.init()
    rr.create(RING, lanes=64)  # one for each node, and for each worker on this one
    logits = np.zeros(64, np.float32)
    with rollring.ray.Fabric(RING, weights=True), rr.Stash(RING, batch_groups=4) as stash, \
            rr.WeightPublisher(RING, {"logits": logits}) as publisher:
        workers = [work.remote(number) for number in range(len(ray.nodes()))]
        for step, batch in zip(range(STEPS), stash, strict=False):
            with batch:  # acknowledged at its end
                for one in itertools.chain(*(group.members for group in batch.groups)):
                    logits += 0.02 * one.advantage * (np.bincount(one.token_ids, None, 64) - 0.5)
            publisher.publish(step)
            print(f"step {step}: p(even) = {policy(logits)[::2].sum():.2f}", flush=True)
    rr.remove(RING, force=True)  # workers end with it
