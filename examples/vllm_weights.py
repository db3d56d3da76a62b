"""A trainer's weights go into vLLM's engine, a version a step: python examples/vllm_weights.py"""
import os
import sys
import tempfile
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1")  # vLLM's CPU build
import rollring as rr
import torch
from rollring.integrations.vllm.trainer import (
    InProcessClient, RollringTrainerInitInfo, make_trainer)
from transformers import Qwen3Config, Qwen3ForCausalLM
from vllm import LLM, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import ModuleSource

RING = (sys.argv[1:] or ["run42"])[0]

if __name__ == "__main__":  # the engine is a process of its own
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=1000, hidden_size=128, intermediate_size=192, num_hidden_layers=2, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256))
    model.save_pretrained(folder := tempfile.mkdtemp())
    llm = LLM(folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
              max_model_len=64, weight_transfer_config=WeightTransferConfig(backend="rollring"))
    rr.create(RING)
    sender = make_trainer(RollringTrainerInitInfo(RING, rank=0), client=InProcessClient(llm),
                          source=ModuleSource(model))
    for step in range(3):
        with torch.no_grad():  # a step of training
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        sender.send_weights()
        (answer,) = llm.generate({"prompt_token_ids": [5, 17, 99]},
                                 SamplingParams(temperature=0, max_tokens=8, detokenize=False))
        print(f"step {step}: version {sender.version}, {answer.outputs[0].token_ids}")
    sender.shutdown()
    rr.remove(RING)
