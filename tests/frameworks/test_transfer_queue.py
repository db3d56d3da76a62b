"""TransferQueue itself over a store: its own suites, verl's ReplayBuffer, and the calls of a
run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tq = pytest.importorskip("transfer_queue")

import ray
import torch
from ray.exceptions import RayError
from tensordict import NonTensorStack, TensorDict

sys.path.append(str(Path(__file__).parents[1]))

import pages
import rollring as rr
import tq_workers
from conftest import PATIENCE

HERE = Path(__file__).parent
IMPORTING = 10 * PATIENCE  # seconds for Ray's workers, which import verl or torch
SUITES = Path(sysconfig.get_paths()["purelib"]) / "tests/e2e"


@pytest.mark.parametrize(
    ("suite", "tests"), [("test_kv_interface_e2e", 56), ("test_e2e_lifecycle_consistency", 8)]
)
def test_its_own_suites_pass(suite: str, tests: int, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tq_suite", "-p", "no:cacheprovider",
         "--timeout", "240", "--rootdir", str(tmp_path), str(SUITES / f"{suite}.py")],
        env=os.environ | {"TQ_TEST_BACKEND": "Rollring", "PYTHONPATH": paths,
                          "RAY_USAGE_STATS_ENABLED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(rf"\b{tests} passed", done.stdout), done.stdout[-2000:]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    paths = os.pathsep.join([str(HERE), *sys.path])
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()


def start(**backend: Any) -> rr.Store:
    import rollring.integrations.transfer_queue  # noqa: F401

    tq.init(tq_workers.settings(**backend))
    store: rr.Store = tq.get_client().storage_manager.storage_client.store
    return store


@pytest.fixture
def store(cluster: None) -> Iterator[rr.Store]:
    made = start(capacity="64MiB", lanes=16)
    yield made
    tq.close()
    assert made.name not in rr.rings()


def workers(count: int) -> list[Any]:
    return [ray.remote(tq_workers.AgentLoop).remote() for _ in range(count)]


def put(keys: list[str], tokens: int = 100, fill: int = 1) -> None:
    rows = TensorDict({"ids": torch.full((len(keys), tokens), fill)}, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id="train", fields=rows)


def get(keys: list[str]) -> list[Any]:
    return list(tq.kv_batch_get(keys=keys, partition_id="train")["ids"].unbind())


def test_the_settings_of_the_page(cluster: None) -> None:
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module

    (given,) = pages.named("tests/frameworks/test_transfer_queue.py", "settings")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", given.text.split())
    import rollring.integrations.transfer_queue  # noqa: F401

    tq.init(config.transfer_queue)  # as verl's main_ppo does
    try:
        store = tq.get_client().storage_manager.storage_client.store
        put(["a", "b"], fill=3)
        assert [int(row[0]) for row in get(["a", "b"])] == [3, 3]
        assert store.stats()["values"] == 2 and store.stats()["capacity_bytes"] == 16 << 30
    finally:
        tq.close()


def test_replay_buffer_of_verl_with_two_workers(store: rr.Store) -> None:
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    first, second = workers(2)
    ray.get(
        [first.generate.remote("a", 4, 1), second.generate.remote("b", 4, 1)], timeout=IMPORTING
    )
    buffer = ReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        poll_interval=0.05,
    )
    meta, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    keys = [f"{uid}_{session}_0" for uid in "ab" for session in range(4)]
    assert sorted(meta.keys) == keys
    rows = tq.kv_batch_get(keys=meta.keys, partition_id="train")
    lengths = [15 + int(key.split("_")[1]) for key in meta.keys]
    assert [len(row) for row in rows["input_ids"].unbind()] == lengths
    assert rows["response_mask"].is_nested
    assert [row["min_global_steps"] for row in rows["extra_fields"]] == [1] * 8
    # Another column, by a worker that has put none of them, and read in a third process.
    sums = ray.get(second.add_values.remote(meta.keys), timeout=PATIENCE)
    assert tq.kv_batch_get(keys=meta.keys, partition_id="train")["values"].tolist() == sums
    ray.get(first.clear.remote([*meta.keys, "a", "b"]), timeout=PATIENCE)
    assert store.stats()["values"] == 0


def test_memory_stays_flat(store: rr.Store) -> None:
    keys = [f"k{i}" for i in range(16)]
    used = []
    for cycle in range(1000):
        put(keys, fill=cycle)
        if cycle % 100 == 0:
            assert all(int(row[-1]) == cycle for row in get(keys))
        tq.kv_clear(keys=keys, partition_id="train")
        assert store.stats()["values"] == 0
        used.append(store.stats()["used_bytes"])
    assert max(used) == 0
    # And where no process clears them, but the rows are written anew.
    for cycle in range(300):
        put(keys, tokens=5000, fill=cycle)
    assert all(int(row[0]) == 299 for row in get(keys))
    tq.kv_clear(keys=keys, partition_id="train")
    assert store.stats()["values"] == 0


def test_a_worker_is_killed_while_it_holds_rows(store: rr.Store) -> None:
    (worker,) = workers(1)
    keys = [f"k{i}" for i in range(8)]
    ray.get(worker.put.remote(keys, 1000, 7), timeout=IMPORTING)
    with pytest.raises(RayError):
        ray.get(worker.die.remote(), timeout=PATIENCE)
    assert [int(row[0]) for row in get(keys)] == [7] * 8
    put(keys[:4], fill=8)  # some are written anew
    assert [int(row[0]) for row in get(keys)] == [8] * 4 + [7] * 4
    tq.kv_clear(keys=keys, partition_id="train")
    assert store.stats()["values"] == 0


def test_a_full_store_is_an_error_by_name(cluster: None) -> None:
    store = start(capacity="4MiB", lanes=4, timeout=0.2)
    keys = [f"k{i}" for i in range(10)]
    with pytest.raises(
        rr.StoreFullError, match="clear some values, or create the store with more capacity"
    ):
        put(keys, tokens=100_000)
    put(keys[:2], tokens=50_000)
    assert len(get(keys[:2])) == 2
    tq.close()
    assert store.name not in rr.rings()


def test_rows_that_are_no_tensors_and_shapes_that_differ(store: rr.Store) -> None:
    plain = tq_workers.no_tensors()
    rows = [torch.ones(i + 1, 2 + i % 2) for i in range(len(plain))]
    fields = TensorDict(
        {
            "plain": NonTensorStack(*plain),
            "odd": NonTensorStack(*rows),
            "scalar": torch.arange(len(plain)),
            "bf16": torch.ones(len(plain), 3, dtype=torch.bfloat16),
        },
        batch_size=len(plain),
    )
    keys = [f"k{i}" for i in range(len(plain))]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields)
    got = tq.kv_batch_get(keys=keys, partition_id="train")
    for wanted, value in zip(plain, list(got["plain"]), strict=True):
        assert type(value) is type(wanted)
        assert str(value) == str(wanted)
    for wanted, value in zip(rows, list(got["odd"].unbind()), strict=True):
        assert torch.equal(wanted, value)
    assert got["scalar"].tolist() == list(range(len(plain)))
    assert got["bf16"].dtype == torch.bfloat16
    # A returned value is the caller's own.
    got["bf16"].values().zero_()
    again = tq.kv_batch_get(keys=keys, partition_id="train")
    assert all(bool((row == 1).all()) for row in again["bf16"].unbind())


def test_nested_tensors_of_every_kind(store: rr.Store) -> None:
    rows = [torch.full((3 + i % 2, 4), float(i)) for i in range(6)]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    columns = {
        "jagged": jagged,
        "narrow": torch.nested.narrow(
            torch.arange(6 * 9.0).view(6, 9),
            1,
            torch.arange(6),
            torch.tensor([1, 2, 3, 1, 2, 3]),
            layout=torch.jagged,
        ),
        "turned": jagged.transpose(1, 2),
        "strided": torch.nested.nested_tensor(rows),
        "dense": torch.arange(6 * 8).view(6, 8)[:, ::2],
    }
    keys = [f"k{i}" for i in range(6)]
    fields = TensorDict(columns, batch_size=6)
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields)
    got = tq.kv_batch_get(keys=keys, partition_id="train")
    for name, wanted in columns.items():
        for one, other in zip(wanted.unbind(), got[name].unbind(), strict=True):
            assert torch.equal(one, other), name


def test_a_row_that_is_gone_is_named(store: rr.Store) -> None:
    put(["k0", "k1"])
    store.clear_keys([str(index) for index in range(100)])  # whichever they have
    with pytest.raises(rr.NotStoredError, match=r"TransferQueue's keys \d+@ids, \d+@ids"):
        get(["k0", "k1"])
