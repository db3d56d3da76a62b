"""Worker, weights and trainer on all nodes of a Ray cluster: python ray_rollouts.py [RING]"""
import contextlib
import sys
import threading
import numpy as np
import ray
import rollring as rr
from rollring.integrations.ray import Fabric, connect, weight_ring
RING, logits = (sys.argv[1:] or ["run42"])[0], np.zeros(64, np.float32)

def follow(ring, name, served):  # in a thread: the trainer waits for it, the worker for the trainer
    with contextlib.suppress(rr.PeerGoneError, rr.RingNotFoundError):  # the run has ended
        for update in rr.WeightSubscriber(ring, {"logits": logits}, name=name, timeout=None):
            update.finish()  # in place; from here on records carry the version
            served[0] = logits.copy()  # the next version is written while this one is read
@ray.remote(scheduling_strategy="SPREAD")
def work(name):  # it samples tokens, and rewards even ones
    served, draw = [logits.copy()], np.random.default_rng()
    threading.Thread(target=follow, args=[weight_ring(RING), name, served], daemon=True).start()
    with contextlib.suppress(rr.ClosedError), connect(RING, name) as producer:
        for i in range(1 << 60):  # until the run ends
            ids = (served[0] + draw.gumbel(size=(32, 64))).argmax(axis=1).astype(np.int32)
            producer.push(f"{name}/{i // 8}", repetition_id=i % 8, group_size=8, token_ids=ids,
                          reward=float((ids % 2 == 0).mean()))

ray.init()
rr.remove(RING, force=True, missing_ok=True)  # of a run that was killed
rr.create(RING, lanes=64)  # one for each node, and for each worker on this one
with Fabric(RING, weights=True, timeout=300), contextlib.ExitStack() as end, \
        rr.Stash(RING, batch_groups=4, max_open_groups=16) as stash, \
        rr.WeightPublisher(RING, {"logits": logits}) as publisher:
    workers = [work.remote(f"env-{i}") for i in range(len(ray.nodes()))]
    end.callback(lambda: ray.get(ray.wait(workers, timeout=0)[0]))  # raises the error of a worker
    for step in range(40):
        with stash.next(timeout=300) as batch:  # acknowledged at the end of the block
            print(f"step {step}: reward {np.mean([group.rewards for group in batch.groups]):.2f}")
            for one in (one for group in batch.groups for one in group):
                logits += 0.02 * one.advantage * (np.bincount(one.token_ids, None, 64) - 0.5)
        publisher.publish(step)
rr.remove(RING, force=True)  # workers end with it
