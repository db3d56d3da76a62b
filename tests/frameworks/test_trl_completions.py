"""The tables that TRL's trainer writes for `log_completions`, as an input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trl_tiny import tokenizer

import pandas
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import rollring as rr

STEPS, GROUPS, SIZE = 2, 2, 4


def length_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


def word_reward(completions: list[str], **_: Any) -> list[float]:
    return [text.count("1") / 8 for text in completions]


def answers(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """A stand-in for generation: each member's answer is one word longer."""
    ids = [[10 + i] * (1 + i % SIZE) for i in range(len(prompts))]
    return {
        "prompt_ids": trainer.processing_class(prompts)["input_ids"],
        "completion_ids": ids,
        "logprobs": [[[-1.0]] * len(each) for each in ids],
    }


def tables(model: str, folder: Path) -> Path:
    """Two steps of the real trainer: a table of each."""
    config = GRPOConfig(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=GROUPS * SIZE,
        num_generations=SIZE,
        max_completion_length=6,
        log_completions=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    GRPOTrainer(
        model,
        args=config,
        reward_funcs=[length_reward, word_reward],
        train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(8)]}),
        rollout_func=answers,
        processing_class=tokenizer(),
    ).train()
    return folder / "completions"


def test_its_completions_are_read(model: str, tmp_path: Path, ring: str) -> None:
    folder = tables(model, tmp_path)
    files = sorted(folder.iterdir())
    assert len(files) == STEPS and all(path.suffix == ".parquet" for path in files)
    wanted = pandas.concat([pandas.read_parquet(path) for path in files]).to_dict("records")
    words = tokenizer()
    words.save_pretrained(tmp_path / "words")
    found = list(rr.read_rollouts(str(folder), words))
    assert len(found) == len(wanted) == STEPS * GROUPS * SIZE
    for index, (fields, row) in enumerate(zip(found, wanted, strict=True)):
        prompt = words.encode(row["prompt"])
        assert fields["n_prompt"] == len(prompt)
        assert fields["token_ids"] == prompt + words.encode(row["completion"])
        assert fields["reward"] == row["length_reward"] + row["word_reward"]
        assert fields["visit"] == row["step"] == 1 + index // (GROUPS * SIZE)
        assert fields["extra"]["advantage"] == row["advantage"]
        assert (fields["repetition_id"], fields["group_size"]) == (index % SIZE, SIZE)
    module = [sys.executable, "-m", "rollring.rollouts", str(folder)]
    module += ["--tokenizer", str(tmp_path / "words")]
    lines = subprocess.run(module, stdout=subprocess.PIPE, check=True).stdout
    program = [str(Path(sys.executable).parent / "rollring"), "produce", ring, "--input", "-"]
    subprocess.run(program, input=lines, stdout=subprocess.DEVNULL, check=True)
    with rr.Stash(ring, batch_groups=STEPS * GROUPS) as stash, stash.next(60) as batch:
        sent = {(each.instance_id, tuple(each.token_ids)) for each in batch.sequences}
        assert sent == {(each["instance_id"], tuple(each["token_ids"])) for each in found}
