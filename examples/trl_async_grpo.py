"""TRL's AsyncGRPOTrainer with two rollout workers: python examples/trl_async_grpo.py [RING]"""
import contextlib
import multiprocessing
import sys
import rollring as rr
import tiny  # a model made on the spot, and attention for a CPU: a run on GPUs needs neither
RING = (sys.argv[1:] or ["run42"])[0]
def work(name, folder):  # any process, in any number; they may come and go
    model, tokenizer = tiny.load(folder)
    into, held, i = dict(model.named_parameters()), -1, 0
    with rr.Producer(RING, name) as producer:
        while True:  # if the trainer dies, attach to the next one, with the version that is held
            with (contextlib.suppress(rr.errors.PeerGoneError, rr.errors.VersionError),
                  rr.WeightSubscriber(RING, into, name=name, held_version=held, timeout=None)
                  as weights):
                while True:
                    with contextlib.suppress(TimeoutError), weights.next(None if held < 0 else 0):
                        held = -1  # the model is a mixture of versions, until this block ends
                    held, i = weights.live_version, i + 1
                    prompt, answers = tiny.roll(model, tokenizer, f"{i % 9}+{i % 7}=", 8)
                    producer.push_many([{
                        "instance_id": f"{name}/{i}", "repetition_id": member, "group_size": 8,
                        "token_ids": prompt + ids, "logprobs": [0.0] * len(prompt) + logprobs,
                        "n_prompt": len(prompt), "reward": tiny.digits(ids),
                        "policy_version": held} for member, (ids, logprobs) in enumerate(answers)])
if __name__ == "__main__":
    from rollring.integrations.trl import RingRolloutWorker, RingWeightTransfer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    folder, spawn = tiny.save(), multiprocessing.get_context("spawn")
    rr.create(RING)
    for name in ("env-0", "env-1"):
        spawn.Process(target=work, args=(name, folder), daemon=True).start()
    worker = RingRolloutWorker(RING, versions="publisher")
    config = AsyncGRPOConfig(folder, max_steps=20, token_budget=0, **tiny.TRAINING)
    trainer = tiny.trl_on_cpu(AsyncGRPOTrainer(
        folder, args=config, train_dataset=tiny.PROMPTS, rollout_worker=worker,
        weight_transfer=RingWeightTransfer(RING, engines=2)))
    trainer.add_callback(worker.callback())
    trainer.train()
    rr.remove(RING, force=True)
