"""The GRPO trainer of Nous' torchtitan on a CPU, and the model of a rollout worker beside it. A run
with GPUs needs nothing of this file.

    torchrun --nproc-per-node=2 tiny_titan.py ARGUMENTS...    those of torchtitan.grpo_train

The trainer asks for GPUs in five places; each gets the answer of a CPU here.
"""
import runpy

import torch
from torch.distributed.fsdp import FSDPModule

torch.set_num_threads(1)
torch._utils._get_available_device_type = lambda: "cpu"
cpu = torch.cpu  # for its monitor of memory
cpu.get_device_name = lambda *_: "cpu"
cpu.get_device_properties = lambda *_: type("Properties", (), {"total_memory": 1 << 34})()
cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None
cpu.memory_stats = lambda *_: {}
cpu.current_device = lambda: 0
cpu.set_device = lambda *_: None
torch.cuda.synchronize = lambda *_: None
_barrier = torch.distributed.barrier
torch.distributed.barrier = lambda *_, **__: _barrier()  # gloo knows no device_ids
# FSDP scales while it sums, which only NCCL can; the trainer's factor is 1, so a sum is the same.
_set_factor = FSDPModule.set_gradient_divide_factor


def _set_factor_of_a_sum(module, factor):
    _set_factor(module, factor)
    module.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = _set_factor_of_a_sum


class Model:
    """Its llama3 of 2,048 tokens, in the process of a rollout worker; an engine such as vLLM takes
    its place.
    """

    @torch.no_grad()
    def __init__(self):
        from torchtitan.config.job_config import PEFT
        from torchtitan.protocols.train_spec import get_train_spec

        spec = get_train_spec("llama3")
        arguments = spec.model_args["debugmodel"]
        self._adapter = spec.state_dict_adapter(arguments, None)
        self._model = spec.model_cls(arguments, PEFT())
        self._model.init_weights()

    def load(self, tensors):
        """Under the names of Hugging Face, as the trainer publishes them."""
        state = {name: torch.as_tensor(tensor) for name, tensor in tensors}
        self._model.load_state_dict(self._adapter.from_hf(state), strict=False)

    @torch.no_grad()
    def answers(self, prompt, count, new_tokens=12):
        """Sampled: the token ids of each, without the prompt."""
        ids = torch.tensor([prompt] * count)
        for _ in range(new_tokens):
            chances = self._model(ids)[:, -1].float().softmax(-1)
            ids = torch.cat([ids, chances.multinomial(1)], 1)
        return ids[:, len(prompt):].tolist()


if __name__ == "__main__":
    runpy.run_module("torchtitan.grpo_train", run_name="__main__", alter_sys=True)
