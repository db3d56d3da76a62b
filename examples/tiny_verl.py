"""A platform "cpu" for verl, which has none of its own, and a tiny model instead of an inference
engine. A run with GPUs needs nothing of this file.

verl imports this module into each of its processes (VERL_USE_EXTERNAL_MODULES) and selects the
platform by VERL_PLATFORM.
"""
import tiny

import ray
import torch
from tensordict import TensorDict
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.utils.distributed import initialize_global_process_group_ray

SETTINGS = (
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.optim.lr=5e-3",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.model.use_remove_padding=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.rollout.name=vllm",  # a name is required; no engine is started
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
)
MINI_BATCH = {"calculate_entropy": False, "distillation_use_topk": False, "compute_loss": True,
              "distillation_only": False, "temperature": 1.0, "epochs": 1, "seed": 0,
              "dataloader_kwargs": {"shuffle": False}}  # verl's trainer sends these with each batch
torch.cuda.mem_get_info = lambda *_: (0, 0)  # verl logs it


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    device_name = vendor_name = "cpu"

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def set_device(self, index): ...

    def synchronize(self, index=None): ...

    def set_allocator_settings(self, settings): ...

    def communication_backend_name(self):
        return "gloo"


def settings(folder, given):
    """verl's own configuration, with the settings of the command line."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [f"actor_rollout_ref.model.path={folder}", *SETTINGS,
                                       *given]).actor_rollout_ref


def workers(kind, count, *arguments, **named):
    """verl's group of Ray actors of a class, on CPUs."""
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    return RayWorkerGroup(RayResourcePool([count], use_gpu=False, max_colocate_count=1),
                          RayClassWithInitArgs(ray.remote(kind), *arguments, **named),
                          device_name="cpu")


def actor(config):
    """verl's own worker of a trainer, with its FSDP engine."""
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.workers.engine_workers import ActorRolloutRefWorker

    class Actor(ActorRolloutRefWorker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self):
            initialize_global_process_group_ray(backend="cpu:gloo")
            super().init_model()

    made = workers(Actor, 1, config=config, role="actor")
    made.init_model()
    return made


class Engine:
    """A model of transformers instead of an inference engine; verl's weights are loaded into it."""

    replica_rank = 0

    def __init__(self, folder):
        self.model, self.tokenizer = tiny.load(folder)

    async def update_weights(self, weights, **_):
        mine = self.model.state_dict()
        async for name, tensor in weights:
            mine[name].copy_(tensor)


class Replica:
    """The inference server that a sync would stop and start: there is none."""

    def __init__(self, group):
        self.workers = group.workers

    async def _nothing(self, **_): ...

    abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = _nothing


def mini_batch(batch):
    """The groups of a `rollring.Batch` as verl's trainer gives them to its actor."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import left_right_2_no_padding

    def padded(rows, left):
        return torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in rows], True, tiny.PAD,
            padding_side="left" if left else "right")

    rows = [(each.token_ids.tolist(), each.n_prompt, each.logprobs.tolist())
            for each in batch.sequences]
    prompts = padded([ids[:n] for ids, n, _ in rows], left=True)
    responses = padded([ids[n:] for ids, n, _ in rows], left=False)
    mask = padded([[1] * len(ids[n:]) for ids, n, _ in rows], left=False)
    attention = torch.cat([padded([[1] * n for _, n, _ in rows], left=True), mask], 1)
    advantages = torch.tensor([a for group in batch.groups for a in group.advantages])
    made = left_right_2_no_padding(TensorDict({
        "input_ids": torch.cat([prompts, responses], 1), "prompts": prompts,
        "responses": responses, "attention_mask": attention, "response_mask": mask,
        "position_ids": (attention.cumsum(1) - 1).clamp(0),
        "old_log_probs": padded([logprobs[n:] for _, n, logprobs in rows], left=False),
        "advantages": advantages.float()[:, None] * mask}, len(rows)))
    tensordict_utils.assign_non_tensor(made, **MINI_BATCH, global_batch_size=len(rows),
                                       mini_batch_size=len(rows))
    return made
