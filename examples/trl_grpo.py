"""TRL's synchronous GRPOTrainer with two rollout workers: python examples/trl_grpo.py [RING]"""
import multiprocessing
import sys
import rollring as rr
import tiny  # a model made on the spot, for a run without a GPU and without a server
from rollring.integrations.trl import RingRollouts, answer_prompts

RING = (sys.argv[1:] or ["run42"])[0]

def work(name, folder):  # any process, in any number; they may come and go
    model, tokenizer = tiny.load(folder)

    def rollout(prompt, count):  # an engine, a tool loop, an environment: all of it runs here
        ids, answers = tiny.roll(model, tokenizer, prompt, count)
        return [{"prompt_ids": ids, "completion_ids": completion, "logprobs": logprobs,
                 "reward": tiny.digits(completion)} for completion, logprobs in answers]

    answer_prompts(RING, rollout, dict(model.named_parameters()), name=name)

def worker_reward(completions, reward, **_):  # or any reward function of yours, in the trainer
    return reward

if __name__ == "__main__":
    from trl import GRPOConfig, GRPOTrainer
    folder = tiny.save()
    rollouts = RingRollouts(RING, engines=2)  # makes the ring; sends the weights to two workers
    for i in range(2):
        multiprocessing.get_context("spawn").Process(
            target=work, args=(f"env-{i}", folder), daemon=True).start()
    config = GRPOConfig(folder, max_steps=20, per_device_train_batch_size=16, num_generations=8,
                        max_completion_length=16, **tiny.TRAINING)
    trainer = GRPOTrainer(folder, args=config, reward_funcs=worker_reward,
                          train_dataset=tiny.PROMPTS, rollout_func=rollouts)
    trainer.train()
    rr.remove(RING, force=True)
