"""SkyRL's own asynchronous trainer, its training step simulated as its simulator does it, over
workers of which one is killed; and the verdict of its own checks on the rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from python.conftest import PATIENCE

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import rollring as rr  # noqa: E402
from killing import FORK  # noqa: E402
from rollring.integrations.skyrl import RollringGenerator  # noqa: E402
from skyrl_world import (  # noqa: E402
    TrajectoryID,
    Workers,
    asked,
    expected,
    pages,
    pasted,
    work,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("LOG_LEVEL", "WARNING")

base = pytest.importorskip("skyrl.train.generators.base")

RUNNER = "tests/frameworks/test_skyrl.py"
GROUPS, SIZE, STALENESS, WAYS, ROWS, EPOCHS = 4, 4, 1, 6, 14, 2
STEPS = EPOCHS * (ROWS // GROUPS)


def test_its_types_are_the_stand_ins_and_its_interface_is_ours(ring: str) -> None:
    ours, theirs = TrajectoryID("7", 3), base.TrajectoryID("7", 3)
    assert vars(ours) == vars(theirs)
    assert set(base.GeneratorInput.__annotations__) == set(asked(1, 1))
    generator = RollringGenerator(ring, timeout=PATIENCE)
    assert isinstance(generator, base.GeneratorInterface)
    generator.close()


def test_its_checks_take_rows_that_came_out_of_order_failed_and_came_again(ring: str) -> None:
    from skyrl.train.generators.utils import concatenate_generator_outputs
    from skyrl.train.utils.trainer_utils import validate_generator_output

    generator = RollringGenerator(ring, timeout=PATIENCE)
    workers = Workers(ring, 3)

    async def main() -> None:
        for _ in range(2):  # the same uids again
            given = [asked(1, SIZE, first=uid) for uid in range(GROUPS)]
            given[1]["env_extras"][2] = {"fails": [2]}
            outputs = await asyncio.gather(*(generator.generate(each) for each in given))
            for output in outputs:
                validate_generator_output(SIZE, output)
            all_rows = concatenate_generator_outputs(outputs)
            validate_generator_output(GROUPS * SIZE, all_rows)
            assert all_rows["stop_reasons"].count("rollout_error") == 1
            assert all_rows["loss_masks"][SIZE + 2] == [0]
            assert all_rows["response_ids"][0] == expected("0", 0)["response_ids"]
            assert [key.repetition_id for key in all_rows["trajectory_ids"]] == [0, 1, 2, 3] * 4

    asyncio.run(main())
    generator.close()
    assert workers.end(PATIENCE) == [0, 0, 0]


def test_the_two_ends_of_the_page(ring: str) -> None:
    from skyrl.train.utils.trainer_utils import validate_generator_output

    experiment = pages.execute(RUNNER, "trainer", {"run42": ring})["MyExp"]
    generator = experiment.get_generator(None, None, tokenizer(), None)
    workers = Workers(ring, 2, target=pasted, args=(RUNNER, "worker"))
    output = asyncio.run(generator.generate(asked(GROUPS, SIZE)))
    validate_generator_output(GROUPS * SIZE, output)
    generator.close()
    assert workers.end(PATIENCE) == [0, 0]


class Engines:
    """The calls that the simulated trainer makes to its inference engines."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def pause_generation(self, *_: Any, **__: Any) -> None:
        self.calls["pause"] += 1

    async def resume_generation(self, *_: Any, **__: Any) -> None:
        self.calls["resume"] += 1

    def increment_weight_version(self) -> None:
        self.calls["version"] += 1


class Tracker:
    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        self.logged.append(dict(data))

    def finish(self) -> None:
        pass


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "user", ":", *(f"w{i}" for i in range(250))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"
    return made


def settings(data: str) -> Any:
    from skyrl.train.config import SkyRLTrainConfig

    made = SkyRLTrainConfig()
    made.data.train_data, made.data.val_data = [data], None
    made.data.dataloader.num_workers = 0
    trainer = made.trainer
    trainer.placement.colocate_all = False
    trainer.train_batch_size = trainer.policy_mini_batch_size = GROUPS
    trainer.epochs, trainer.resume_mode, trainer.logger = EPOCHS, "none", "console"
    trainer.eval_interval = trainer.ckpt_interval = trainer.hf_save_interval = -1
    trainer.eval_before_train = trainer.update_ref_every_epoch = False
    trainer.enable_ray_gpu_monitor = False
    trainer.algorithm.policy_loss_type = "rollout_is"
    ways = trainer.fully_async
    ways.enabled = ways.simulate_training = True
    ways.max_staleness_steps, ways.num_parallel_generation_workers = STALENESS, WAYS
    ways.simulate_training_step_seconds = ways.simulate_weight_sync_seconds = 0.02
    made.generator.n_samples_per_prompt, made.generator.batched = SIZE, False
    made.generator.inference_engine.enable_ray_prometheus_stats = False
    return made


def test_its_asynchronous_trainer_over_four_workers_one_of_them_killed(
    ring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.fully_async_trainer_sim import FullyAsyncTrainerSim, _SimDispatch

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    data = tmp_path / "train.jsonl"
    with data.open("w", encoding="utf-8") as out:
        for row in range(ROWS):
            prompt = [{"role": "user", "content": f"w{row} w{row + 1}"}]
            out.write(json.dumps({"prompt": prompt, "env_class": "none"}) + "\n")

    class Dispatch(_SimDispatch):  # their simulator calls two methods that it does not have
        def get_timing_metrics(self) -> dict[str, float]:
            return {}

        def finalize_pending_saves(self, model: str) -> None:
            pass

    batches: list[Any] = []

    class Trainer(FullyAsyncTrainerSim):
        def init_weight_sync_state(self) -> None:
            seconds = self.cfg.trainer.fully_async.simulate_weight_sync_seconds
            self.dispatch = Dispatch(self.inference_engine_client, seconds)

        async def _run_training(self, batch: Any) -> Any:
            batches.append(batch)
            return await super()._run_training(batch)

    begun = FORK.SimpleQueue()
    victim = FORK.Process(target=work, args=(ring, begun, 5))
    victim.start()
    # They begin once the victim stands: else they might leave it too little to do.
    gate = FORK.Event()
    others = Workers(ring, 3, gate)
    words = tokenizer()
    generator = RollringGenerator(ring, timeout=PATIENCE, pad_token_id=words.pad_token_id)
    trainer = Trainer(
        cfg=settings(str(data)),
        tracker=Tracker(),
        tokenizer=words,
        train_dataset=PromptDataset([str(data)], words, max_prompt_length=64, num_workers=1),
        inference_engine_client=Engines(),
        generator=generator,
    )

    async def main() -> None:
        training = asyncio.ensure_future(trainer.train())
        pid = await asyncio.to_thread(begun.get)
        gate.set()
        os.kill(pid, signal.SIGKILL)
        await training

    asyncio.run(main())
    generator.close()
    victim.join(PATIENCE)
    assert victim.exitcode == -signal.SIGKILL
    assert others.end(PATIENCE) == [0, 0, 0]
    assert len(batches) == STEPS
    for batch in batches:
        assert batch.batch_size == GROUPS * SIZE
        assert Counter(Counter(batch.metadata["uids"]).values()) == {SIZE: GROUPS}
        # Each row is that of its uid and member, masked nowhere but where the worker says so.
        for row, uid in enumerate(batch.metadata["uids"]):
            want = expected(uid, row % SIZE)
            shown = batch["response_mask"][row].bool()
            trained = batch["loss_mask"][row][shown].tolist()
            assert [int(each) for each in trained] == want["loss_mask"]
            ids = batch["sequences"][row][-shown.numel() :][shown].tolist()
            assert ids == want["response_ids"]
    assert trainer.inference_engine_client.calls["version"] == STEPS + 1
    stat = trainer._staleness_manager._stat
    assert stat.submitted == stat.accepted + stat.filtered
    with pytest.raises(rr.RingNotFoundError):
        rr.describe(ring)
