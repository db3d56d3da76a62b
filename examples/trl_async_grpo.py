"""TRL's AsyncGRPOTrainer with two rollout workers: python examples/trl_async_grpo.py [RING]"""
import contextlib
import itertools
import multiprocessing
import sys
import rollring as rr
import tiny  # a model made on the spot, and attention for a CPU: a run on GPUs needs neither

RING = (sys.argv[1:] or ["run42"])[0]
def work(name, folder):  # any process, in any number; they may come and go
    model, tokenizer = tiny.load(folder)
    with rr.Producer(RING, name) as producer, rr.WeightSubscriber(
            RING, dict(model.named_parameters()), name=name, timeout=None) as weights:
        for i in itertools.count():
            with contextlib.suppress(TimeoutError), weights.next(0 if i else None):
                pass  # the newest version is in the model when this block ends
            prompt, answers = tiny.roll(model, tokenizer, f"{i % 9}+{i % 7}=", 8)
            for member, (ids, logprobs) in enumerate(answers):
                producer.push(f"{name}/{i}", repetition_id=member, group_size=8,
                              token_ids=prompt + ids, logprobs=[0.0] * len(prompt) + logprobs,
                              n_prompt=len(prompt), reward=tiny.digits(ids),
                              policy_version=weights.live_version)

if __name__ == "__main__":
    from rollring.integrations.trl import RingRolloutWorker, RingWeightTransfer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    folder, spawn = tiny.save(), multiprocessing.get_context("spawn")
    rr.create(RING)
    for name in ("env-0", "env-1"):
        spawn.Process(target=work, args=(name, folder), daemon=True).start()
    worker = RingRolloutWorker(RING, versions="publisher")
    config = AsyncGRPOConfig(folder, max_steps=20, per_device_train_batch_size=16, token_budget=0,
                             **tiny.TRAINING)  # without token_budget TRL asks a vLLM server for it
    trainer = AsyncGRPOTrainer(folder, args=config, train_dataset=tiny.PROMPTS,  # goes unused
                               rollout_worker=worker,
                               weight_transfer=RingWeightTransfer(RING, engines=2))
    trainer.add_callback(worker.callback())
    tiny.trl_on_cpu()
    trainer.train()
    rr.remove(RING, force=True)
