#!/usr/bin/env bash
# verl's actor trains on groups from a ring and sends its weights back: examples/verl.sh [RING]
set -euo pipefail
ring=${1:-run42} here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} RAY_USAGE_STATS_ENABLED=0
export VERL_USE_EXTERNAL_MODULES=tiny_verl VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda
python -u - "$ring" \
    actor_rollout_ref.rollout.checkpoint_engine.backend=rollring \
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=rollring.integrations.verl \
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.rollring.ring="$ring" <<'PYTHON'
import sys, ray, rollring as rr
import tiny, tiny_verl  # a model made on the spot, for a run without a GPU and without a server
from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineWorker
from verl.utils.config import omega_conf_to_dataclass
class Rollout(CheckpointEngineWorker):  # verl's own, beside an engine
    def __init__(self, config, engine, ring):
        super().__init__(config, None, tiny_verl.Engine(engine))
        self.producer = rr.Producer(ring, name=f"rollout-{self.rank}")
    def roll(self, step):  # an agent, its tools and its environment: all of it runs here
        engine, key = self.server_adapter, f"{self.rank}+{step % 9}="
        prompt, answers = tiny.roll(engine.model, engine.tokenizer, key, 16)
        for i, (ids, logprobs) in enumerate(answers):
            self.producer.push(f"{key}/{step}", token_ids=prompt + ids, n_prompt=len(prompt),
                               logprobs=[0.0] * len(prompt) + logprobs, reward=tiny.digits(ids),
                               repetition_id=i, group_size=16)
ring, folder = sys.argv[1], tiny.save()
config = tiny_verl.settings(folder, sys.argv[2:])
ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
actor, rollout = tiny_verl.actor(config), omega_conf_to_dataclass(config.rollout)
engines = tiny_verl.workers(Rollout, 2, rollout, folder, ring)
manager = CheckpointEngineManager(rollout.checkpoint_engine, actor, [tiny_verl.Replica(engines)])
with rr.Stash(ring, batch_groups=2, deviation_epsilon=1e-6) as stash:  # as verl's GRPO
    for step in range(1, 21):
        manager.update_weights(global_steps=step)
        engines.execute_all_sync("roll", step)
        with stash.next(timeout=120) as batch:
            actor.update_actor(tiny_verl.mini_batch(batch))
            print(f"step {step}: mean reward {sum(batch.rewards) / len(batch.rewards):.3f}")
rr.remove(ring, force=True)
PYTHON
