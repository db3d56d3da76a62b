"""Worker, weights and trainer on all nodes of a Ray cluster: python ray_rollouts.py [RING]"""
import sys
import threading
from contextlib import ExitStack, suppress
import numpy as np
import ray
import rollring as rr
from rollring.integrations.ray import Fabric, connect, weight_ring
RING, logits = (sys.argv[1:] or ["run42"])[0], np.zeros(64, np.float32)
def follow(name, held):  # in a thread: the trainer waits for it, the worker for the trainer
    with suppress(rr.errors.NotFoundError):  # the run has ended
        while ring := weight_ring(RING):  # attaches again if a relay or the trainer is gone
            with suppress(rr.errors.PeerGoneError):
                for new in rr.WeightSubscriber(ring, {"logits": logits}, name=name, timeout=None):
                    new.finish()
                    held[0] = new.version, logits.copy()  # the next version is written in place
@ray.remote(scheduling_strategy="SPREAD", max_calls=1)  # its thread ends with the process
def work(name):  # it samples tokens, and rewards even ones
    held, draw = [(-1, logits.copy())], np.random.default_rng()
    threading.Thread(target=follow, args=[name, held], daemon=True).start()
    with suppress(rr.errors.ClosedError), connect(RING, name) as producer:
        for i in range(1 << 60):  # until the run ends
            version, policy = held[0]
            ids = (policy + draw.gumbel(size=(32, 64))).argmax(axis=1).astype(np.int32)
            producer.push(f"{name}/{i // 8}", repetition_id=i % 8, group_size=8, token_ids=ids,
                          policy_version=version, reward=float((ids % 2 == 0).mean()))
ray.init()
rr.remove(RING, force=True, missing_ok=True)  # of a run that was killed
rr.create(RING, lanes=64)  # one for each node, and for each worker on this one
with (Fabric(RING, weights=True, timeout=300), rr.WeightPublisher(RING, {"logits": logits}) as out,
      rr.Stash(RING, batch_groups=4, max_open_groups=16) as stash, ExitStack() as end):
    workers = [work.remote(f"env-{i}") for i in range(len(ray.nodes()))]
    end.callback(lambda: ray.get(ray.wait(workers, timeout=0)[0]))  # raises the error of a worker
    for step in range(40):
        with stash.next(timeout=300) as batch:  # acknowledged at the end of the block
            print(f"step {step}: reward {np.mean([group.rewards for group in batch.groups]):.2f}")
            for one in (one for group in batch.groups for one in group):
                logits += 0.02 * one.advantage * (np.bincount(one.token_ids, None, 64) - 0.5)
        out.publish(step)
rr.remove(RING, force=True)  # workers end with it
