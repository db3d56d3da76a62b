"""TRL's asynchronous trainers on a machine without a GPU: a tiny random model, and the two things
that they ask of a GPU. Everything of TRL's own is as it is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(
    CUDA_VISIBLE_DEVICES="",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    TRL_EXPERIMENTAL_SILENCE="1",
)

import torch
import torch.nn.functional as functional
import transformers
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AttentionInterface, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from trl_load import VOCABULARY

torch.set_num_threads(1)
CHAT = (
    "{% for m in messages %}{{ '<' + m['role'] + '> ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<unk>", "<user>", "<assistant>"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )
    fast.chat_template = CHAT
    fast.response_template = {  # TRL knows it of the chat templates that it knows
        "defaults": {"role": "assistant"},
        "start_anchor": "<assistant>",
        "fields": {"content": {"close": "<eos>"}},
    }
    return fast


def save_model(folder: Path) -> str:
    """A random Qwen2 with its tokenizer."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The part of the FlashAttention-3 kernel that TRL calls: each run of queries sees the keys of
    its own path, and of its own tokens those before it.
    """
    query, key, value = query[0], key[0], value[0]
    of_one = query.shape[0] // key.shape[0]
    q_ends, k_ends = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    parts = []
    for i in range(len(q_ends) - 1):
        rows = slice(q_ends[i], q_ends[i + 1])
        path = tree_kv_index[k_ends[i] : k_ends[i + 1]]
        n, seen = q_ends[i + 1] - q_ends[i], len(path)
        keys, values = (each[:, path].repeat_interleave(of_one, 0)[None] for each in (key, value))
        allowed = torch.ones(n, seen, dtype=torch.bool).tril(seen - n)
        parts.append(
            functional.scaled_dot_product_attention(
                query[None, :, rows], keys, values, attn_mask=allowed, scale=scaling
            )[0]
        )
    return torch.cat(parts, 1).transpose(0, 1)[None], None


def shard_on_cpu() -> None:
    """Let accelerate divide a model by FSDP2 without a GPU: it does so for accelerators alone."""
    theirs = AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        theirs(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init


def leave_ranks(trainer: Any) -> set[str]:
    """End the process group, with its threads: one of gloo's that outlives the interpreter may end
    the process by std::terminate. The model that is wrapped for the ranks would keep the group.

    Returns:
        The names of the threads that are left.
    """
    trainer.model_wrapped = trainer.model
    trainer.callback_handler.model = trainer.model
    trainer.accelerator.free_memory()
    gc.collect()
    torch.distributed.destroy_process_group()
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            names.add(path.read_text().strip())
    return names


class NoTransfer:
    """Weights go nowhere."""

    def __getattr__(self, name: str) -> Any:
        if name not in {"init_weight_transfer", "pause", "resume", "destroy"}:
            raise AttributeError(name)
        return lambda *_: None

    def send_weights(self, iterator: Iterator[Any]) -> None:
        """Takes them, for ranks that divide a model gather each tensor together."""
        deque(iterator, 0)


class StockWorker:
    """The protocol with a queue of the standard library's, and all samples in it."""

    def __init__(self, samples: list[Any]) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        for sample in samples:
            self.rollout_buffer.put(sample)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None: ...

    def check_health(self, stale_after_s: float) -> None:
        raise RuntimeError("there are too few samples")


class Watched:
    """A worker's buffer that notes which groups were handed out, by their first token."""

    def __init__(self, worker: Any) -> None:
        self._buffer = worker.rollout_buffer
        self.groups: list[int] = []
        self.samples: list[Any] = []
        worker.rollout_buffer = self

    def get(self, timeout: float) -> Any:
        sample = self._buffer.get(timeout=timeout)
        self.samples.append(sample)
        group = int(sample.input_ids[0]) - 5
        if not self.groups or self.groups[-1] != group:
            self.groups.append(group)
        return sample

    def qsize(self) -> int:
        return int(self._buffer.qsize())


def grpo_trainer(model: str, worker: Any, output: Path, **options: Any) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    prompts = options.pop("prompts", ["w1"] * 4)
    transfer = options.pop("weight_transfer", None) or NoTransfer()
    more = {key: options.pop(key) for key in ("reward_funcs",) if key in options}
    arguments: dict[str, Any] = {
        "output_dir": str(output),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": 5,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "token_budget": 0,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
        **options,
    }
    with mock.patch("torch.cuda.get_device_name", return_value="cpu"):
        trainer = AsyncGRPOTrainer(
            model=model,
            args=AsyncGRPOConfig(**arguments),
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": each}] for each in prompts]}
            ),
            processing_class=tokenizer(),
            rollout_worker=worker,
            weight_transfer=transfer,
            **more,
        )
    AttentionInterface.register("tree_fa3", tree_attention)  # the constructor sets it
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def logs(trainer: Any, *keys: str) -> list[tuple[Any, ...]]:
    """Its log of each step."""
    steps = [each for each in trainer.state.log_history if "loss" in each]
    return [tuple(each.get(key) for key in keys) for each in steps]
