"""SkyRL's rollouts, made by two workers: python examples/skyrl_rollouts.py [RING]"""
import asyncio
import multiprocessing
import sys
import rollring as rr
import tiny  # a model made on the spot, for a run without a GPU
from rollring.integrations.skyrl import RollringGenerator, serve

RING = (sys.argv[1:] or ["run42"])[0]

def work(name, folder):  # any process, in any number; they may come and go
    model, tokenizer = tiny.load(folder)

    def rollout(request):  # an agent, its tools and its environment: all of it runs here
        prompt, [(ids, logprobs)] = tiny.roll(model, tokenizer, request["prompt"][0]["content"], 1)
        return {"prompt_ids": prompt, "response_ids": ids, "logprobs": logprobs,
                "reward": tiny.digits(ids)}
    serve(RING, rollout, name=name)

if __name__ == "__main__":
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.generators.base import TrajectoryID
    from skyrl.train.utils.trainer_utils import validate_generator_output
    class Experiment(BasePPOExp):  # the experiment that a run on GPUs starts
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return RollringGenerator(RING, pad_token_id=tiny.PAD)

    generator, folder = Experiment.get_generator(None, None, None, None), tiny.save()
    for name in ("env-0", "env-1"):
        multiprocessing.get_context("spawn").Process(
            target=work, args=(name, folder), daemon=True).start()
    async def train():  # SkyRL's trainer asks this in each step
        for step in range(3):
            asked = [TrajectoryID(str(row), member) for row in range(4) for member in range(8)]
            rows = await generator.generate({"trajectory_ids": asked, "prompts": [
                [{"role": "user", "content": f"{each.instance_id}+{step}="}] for each in asked]})
            validate_generator_output(len(asked), rows)
            print(f"step {step}: {len(asked)} rollouts, mean {sum(rows['rewards']) / 32:.2f}")
    asyncio.run(train())
    rr.remove(RING, force=True)
