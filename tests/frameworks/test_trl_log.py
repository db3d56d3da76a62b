"""rr.log with a trainer of transformers: its dashboards get the numbers, and its own log is left
alone.
"""
import os

import numpy as np
import torch
import transformers

import rollring as rr

STEPS = 6


class Dashboard(transformers.TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, model=None, **_):
        self.seen.append((state.global_step, logs))


def test_the_trainers_dashboards_get_the_numbers(ring, tmp_path, model, capsys):
    dashboard = Dashboard()
    trainer = transformers.Trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(model),
        args=transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True),
        callbacks=[dashboard])
    with rr.Producer(ring) as producer:
        for member in range(4):
            producer.push("q", token_ids=np.arange(member + 3, dtype=np.int32), group_size=4,
                          repetition_id=member, reward=float(member))
    with rr.Stash(ring, batch_groups=1) as stash:
        rr.log(stash, trainer)
        trainer.state.global_step = 7
        with stash.next(timeout=10):
            pass
    ((step, logs),) = dashboard.seen
    assert step == 7 and logs["rollring/reward/mean"] == 1.5 and logs["rollring/sequences"] == 4
    assert trainer.state.log_history == []
    assert "rollring" not in capsys.readouterr().out


class Rollouts(torch.utils.data.IterableDataset):
    """The sequences of each batch of a stash, acknowledged when the next one is asked for."""

    def __init__(self, stash):
        self.stash = stash

    def __iter__(self):
        for _ in range(STEPS):
            with self.stash.next(timeout=60) as batch:
                for sequence in batch.sequences:
                    ids = torch.tensor(sequence.token_ids.tolist())
                    yield {"input_ids": ids, "labels": ids}


def train(ring, model, output, dashboard, logged):
    """The trainer after all of its steps, one for each group of four rollouts."""
    rr.create(ring, lanes=1, lane_bytes="1MiB")
    try:
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            for group in range(STEPS):
                for member in range(4):
                    producer.push(f"g{group}", token_ids=np.arange(6, dtype=np.int32) + group,
                                  group_size=4, repetition_id=member, reward=float(group + member))
            transformers.set_seed(7)
            trainer = transformers.Trainer(
                model=transformers.AutoModelForCausalLM.from_pretrained(model),
                args=transformers.TrainingArguments(
                    str(output), report_to=[], use_cpu=True, max_steps=STEPS, logging_steps=2,
                    per_device_train_batch_size=4, save_strategy="no", disable_tqdm=True,
                    learning_rate=1e-2),
                train_dataset=Rollouts(stash), callbacks=[dashboard])
            if logged:
                rr.log(stash, trainer)
            trainer.train()
            assert stash.last_acked_step == STEPS - 1
    finally:
        rr.remove(ring, force=True)
    return trainer


def test_a_whole_training(tmp_path, model, capsys):
    name = f"test-{os.getpid()}-trained"
    dashboard, alone = Dashboard(), Dashboard()
    trainer = train(name, model, tmp_path / "logged", dashboard, logged=True)
    rows = [(step, logs) for step, logs in dashboard.seen if "rollring/reward/mean" in logs]
    assert [logs["rollring/reward/mean"] for _, logs in rows] == [1.5 + i for i in range(STEPS)]
    assert all(logs["rollring/sequences"] == 4 for _, logs in rows)
    steps = [step for step, _ in rows]
    assert steps == sorted(steps) and 0 <= steps[0] < steps[-1] < STEPS  # as they were loaded
    # The trainer's own log is the one of a training without ours: losses are averages of two steps.
    other = train(name, model, tmp_path / "alone", alone, logged=False)
    own = [(step, logs["loss"]) for step, logs in dashboard.seen if "loss" in logs]
    assert own == [(step, logs["loss"]) for step, logs in alone.seen if "loss" in logs]
    assert [step for step, _ in own] == list(range(2, STEPS + 1, 2))
    keys = [set(each) for each in trainer.state.log_history]
    assert keys == [set(each) for each in other.state.log_history]
    assert "rollring" not in capsys.readouterr().out
