"""SkyRL's asynchronous trainer around a tiny model on a CPU. A run with GPUs needs nothing of this
file.

Data, staleness, advantages, the loss and the loop are SkyRL's own. Its workers of a model need GPUs
and flash-attn: `Dispatch` has the step that they would make, in plain torch.
"""
import json

import tiny

import torch
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset

GROUPS, MEMBERS, STEPS = 4, 8, 20


def settings(folder):
    """SkyRL's configuration: groups of a step, its loss against the workers' log-probabilities."""
    path = f"{folder}/prompts.jsonl"
    with open(path, "w", encoding="utf-8") as out:
        for prompt in tiny.PROMPTS["prompt"][:GROUPS * STEPS]:
            prompt = [{"role": "user", "content": prompt}]
            out.write(json.dumps({"prompt": prompt, "env_class": "none"}) + "\n")
    made = SkyRLTrainConfig()
    made.data.train_data, made.data.val_data = [path], None
    made.data.dataloader.num_workers = 0
    trainer = made.trainer
    trainer.policy.model.path = folder
    trainer.placement.colocate_all = trainer.enable_ray_gpu_monitor = False
    trainer.train_batch_size = trainer.policy_mini_batch_size = GROUPS
    trainer.epochs, trainer.resume_mode, trainer.logger = 1, "none", "console"
    trainer.eval_interval = trainer.ckpt_interval = trainer.hf_save_interval = -1
    trainer.eval_before_train = trainer.update_ref_every_epoch = False
    trainer.algorithm.policy_loss_type = "rollout_is"
    trainer.algorithm.use_kl_loss = False
    vars(trainer.fully_async).update(
        enabled=True, max_staleness_steps=1, num_parallel_generation_workers=GROUPS)
    made.generator.n_samples_per_prompt, made.generator.batched = MEMBERS, False
    made.generator.inference_engine.enable_ray_prometheus_stats = False
    return made


class Engines:
    """The calls of the trainer to inference engines: workers generate, and no engine is started."""

    def increment_weight_version(self): ...


class Tracker:
    """The trainer's log: a line for each step."""

    def log(self, data, step, commit=False):
        if "reward/avg_raw_reward" in data:
            print(f"step {step}: mean reward {data['reward/avg_raw_reward']:.3f}", flush=True)

    def finish(self): ...


class Dispatch:
    """SkyRL's `WorkerDispatch` without workers: a step of the policy, and its weights sent out.

    Args:
        config: SkyRL's, of the trainer.
        model: The policy.

    `weights` is a publisher of the model's, once there is one.
    """

    def __init__(self, config, model):
        self.model, self.weights = model, None
        self._config, self._version = config, 0
        self._optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def init_weight_sync_state(self, engines): ...

    def empty_cache(self, model=None): ...

    def finalize_pending_saves(self, model): ...

    def get_timing_metrics(self):
        return {}

    def get_lcm_dp_size(self):
        return 1

    def stage_data(self, model, data, boundaries):
        return [data[start:end] for start, end in boundaries]

    def forward_backward_from_staged(self, model, data):
        length = data["loss_mask"].shape[1]
        logits = self.model(data["sequences"], attention_mask=data["attention_mask"]).logits
        logprobs = logits[:, -length - 1:-1].log_softmax(-1)
        chosen = logprobs.gather(-1, data["sequences"][:, -length:, None]).squeeze(-1)
        algorithm = self._config.algorithm
        loss, metrics = PolicyLossRegistry.get(algorithm.policy_loss_type)(
            chosen, data["action_log_probs"], data["advantages"], config=algorithm,
            loss_mask=data["loss_mask"], rollout_logprobs=data["rollout_logprobs"])
        loss.backward()
        return WorkerOutput(metrics={"policy_loss": loss.item(), **metrics})

    def optim_step(self, model):
        self._optimizer.step()
        self._optimizer.zero_grad()

    async def save_weights_for_sampler(self):
        self._version += 1
        await self.weights.publish_async(self._version)


def trainer(kind, folder, generator):
    """SkyRL's trainer of that class."""
    config = settings(folder)
    model, tokenizer = tiny.load(folder)
    prompts = PromptDataset(config.data.train_data, tokenizer, max_prompt_length=64, num_workers=1)
    made = kind(cfg=config, tracker=Tracker(), tokenizer=tokenizer, train_dataset=prompts,
                inference_engine_client=Engines(), generator=generator)
    made.dispatch = Dispatch(config.trainer, model)
    return made
