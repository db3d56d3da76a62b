"""SkyRL's trainer, its rollouts and weights over a ring: python examples/skyrl.py [RING]"""
import asyncio
import contextlib
import multiprocessing
import sys
import threading
import rollring as rr
sys.path.append(sys.path.pop(0))  # behind the packages, one of which has the name of this file
import tiny  # a model made on the spot, for a run without a GPU
from rollring.integrations.skyrl import RollringGenerator, serve

RING = (sys.argv[1:] or ["run42"])[0]

def work(name, folder):  # any process, in any number; they may come and go
    (model, tokenizer), changing = tiny.load(folder), threading.Lock()
    def follow():  # each version, at once in all workers
        with contextlib.suppress(rr.errors.PeerGoneError):  # until the trainer ends
            for update in rr.WeightSubscriber(RING, model.state_dict(), name=name, timeout=60):
                with changing, update:
                    pass
    def rollout(request):  # an agent, its tools and its environment: all of it runs here
        with changing:
            text = request["prompt"][0]["content"]
            prompt, [(ids, logprobs)] = tiny.roll(model, tokenizer, text, 1)
        return {"prompt_ids": prompt, "response_ids": ids, "logprobs": logprobs,
                "reward": tiny.digits(ids)}
    threading.Thread(target=follow, daemon=True).start()
    serve(RING, rollout, name=name)
if __name__ == "__main__":
    import tiny_skyrl  # SkyRL's own workers of a model need GPUs
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
    generator, folder = RollringGenerator(RING, pad_token_id=tiny.PAD), tiny.save()
    trainer = tiny_skyrl.trainer(FullyAsyncRayPPOTrainer, folder, generator)
    with rr.WeightPublisher(RING, trainer.dispatch.model.state_dict()) as trainer.dispatch.weights:
        for name in ("env-0", "env-1"):
            multiprocessing.get_context("spawn").Process(
                target=work, args=(name, folder), daemon=True).start()
        trainer.dispatch.weights.wait_subscribers(2, timeout=600)
        asyncio.run(trainer.train())
    rr.remove(RING, force=True)
