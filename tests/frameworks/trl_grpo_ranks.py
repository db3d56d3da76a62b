"""A rank of TRL's synchronous trainer: torchrun trl_grpo_ranks.py RING MODEL OUTPUT.

RING: where its completions come from; "own": TRL generates them itself. OUTPUT gets, of each rank,
the inputs of its losses (`loss-RANK.pt`), the completions of each call, with their
prompts (`answers-RANK.json`), and checksums of the weights: its own before each call, those that
workers say they had for it, and its final ones (`weights-RANK.json`), and whether it has a part of
each only.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import trl_tiny

import torch
from datasets import Dataset
from torch.distributed.tensor import DTensor
from trl import GRPOConfig, GRPOTrainer

from rollring.integrations.trl import rollout_func

STEPS, SIZE, ACCUMULATION = 3, 4, 2


workers_had: list[set[float]] = []


def checksum(model: torch.nn.Module) -> int:
    """Of 24 bits: a reward carries it exactly. All ranks call it, each of which may have a part."""
    found = 0
    for _, weight in sorted(model.named_parameters()):
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        found = zlib.crc32(whole.detach().numpy().tobytes(), found)
    return found & 0xFFFFFF


def words_of(completions: list[str], **more: Any) -> list[float]:
    workers_had.append(set(more.get("reward", [])))
    return [float(len(set(each.split()))) / (1 + len(each)) for each in completions]


def trainer_of(ring: str, model: str, output: Path) -> GRPOTrainer:
    ranks = int(os.environ["WORLD_SIZE"])
    config = GRPOConfig(
        str(output),
        max_steps=STEPS,
        per_device_train_batch_size=SIZE // ranks,  # four ranks have half a group each
        num_generations=SIZE,
        max_completion_length=6,
        gradient_accumulation_steps=ACCUMULATION,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    prompts = [f"w{i} w{i % 7} " * (1 + i % 3) for i in range(40)]
    return GRPOTrainer(
        model,
        args=config,
        reward_funcs=words_of,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        rollout_func=None if ring == "own" else rollout_func(ring, engines=2),
        processing_class=trl_tiny.tokenizer(),
    )


def main(ring: str, model: str, folder: str) -> None:
    output = Path(folder)
    trl_tiny.shard_on_cpu()
    trainer = trainer_of(ring, model, output)
    rank = trainer.accelerator.process_index
    losses: list[dict[str, Any]] = []
    answers: list[list[Any]] = []  # of each call
    had: list[int] = []
    compute, generate = trainer._compute_loss, trainer._generate

    def noted(model: Any, inputs: dict[str, Any]) -> Any:
        losses.append({name: value.clone() for name, value in inputs.items()})
        return compute(model, inputs)

    def generated(prompts: list[str]) -> Any:
        had.append(checksum(trainer.accelerator.unwrap_model(trainer.model)))
        made = generate(prompts)
        answers.append(list(zip(prompts, made[0], made[1], strict=True)))
        torch.manual_seed(len(answers))  # the trainer shuffles its completions
        return made

    trainer._compute_loss, trainer._generate = noted, generated
    trainer.train()
    torch.save(losses, output / f"loss-{rank}.pt")
    (output / f"answers-{rank}.json").write_text(json.dumps(answers))
    plain = trainer.accelerator.unwrap_model(trainer.model)
    weights = {
        "divided": isinstance(next(plain.parameters()), DTensor),
        "had": had,
        "workers had": [sorted(each) for each in workers_had],
        "end": checksum(plain),
    }
    (output / f"weights-{rank}.json").write_text(json.dumps(weights))
    if torch.distributed.is_initialized():
        trl_tiny.leave_ranks(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])
