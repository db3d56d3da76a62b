"""SkyRL's own worker, weight source and control client send to real engines of the vLLM that it
asks for, over the channel that takes the name of its CUDA IPC transfer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skyrl")
pytest.importorskip("vllm")

import skyrl_engine
from skyrl_engine import Client, Policy, policy_worker, serving

import torch
from vllm.distributed.weight_transfer import factory

import rollring as rr
import rollring.integrations.skyrl.weights

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import pages  # noqa: E402
from killing import FORK  # noqa: E402
from rank_jobs import RankJob  # noqa: E402
from vllm_shard_trainer import weights_of  # noqa: E402

RUNNER = "tests/frameworks/test_skyrl_weights.py"


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def enabled(ring: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As in a worker of Ray's, in which SkyRL has registered nothing yet."""
    monkeypatch.setenv("ROLLRING_SKYRL", ring)
    found = (factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory)
    for each in found:
        if each not in rollring.integrations.skyrl.weights._registered:
            each._registry.pop(rollring.integrations.skyrl.weights.NAME, None)
    rollring.integrations.skyrl.weights.enable()
    return ring


def committed(ring: str) -> Any:
    return rr.describe(ring)["policy_version"]


def test_tokens_of_two_engines_are_the_trainers(
    enabled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rollring")
    policy = Policy(tmp_path)
    with serving(policy.folder, enabled, tmp_path, 2) as servers:
        client = Client([each.url for each in servers])
        worker, engines = policy_worker(policy)
        asyncio.run(worker.init_weight_sync_state(client, engines))
        assert type(worker._weight_sync_engine).__name__ == "SkyrlTrainer"
        assert "for the engines: no parameter is divided among ranks (FSDP2)" in caplog.text
        seen = set()
        for version in range(4):
            asyncio.run(worker._sync_weights_to_inference_engines(client, engines))
            wanted = policy.tokens()
            assert [each.tokens() for each in servers] == [wanted] * 2
            assert committed(enabled) == version
            seen.add(str(wanted))
            policy.step()
        assert len(seen) == 4 and client.resets == 4

        # A trainer that is killed while it sends: all serve the old version, and the next one's.
        def send_and_die() -> None:
            engine = worker._weight_sync_engine
            source = engine.source

            class Dying:
                metadata = source.metadata

                def __iter__(self) -> Iterator[Any]:
                    for place, each in enumerate(source):
                        if place == 5:
                            os.kill(os.getpid(), signal.SIGKILL)
                        yield each

            from skyrl.backends.skyrl_train.weight_sync.control_plane import SkyrlWeightSyncClient
            from skyrl.backends.skyrl_train.weight_sync.weight_senders import (
                get_skyrl_ipc_trainer,
            )
            from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

            again = WeightTransferTrainerFactory.trainer_init(
                get_skyrl_ipc_trainer()[0](packed=True, rank=0),
                client=SkyrlWeightSyncClient(client.server_urls, 1),
                source=Dying(),
            )
            again.send_weights()

        old = servers[0].tokens()
        worker._weight_sync_engine.shutdown()
        child = FORK.Process(target=send_and_die)
        child.start()
        child.join(skyrl_engine.PATIENCE)
        assert child.exitcode == -signal.SIGKILL
        assert [each.tokens() for each in servers] == [old] * 2 != [policy.tokens()] * 2
        worker, engines = policy_worker(policy)
        asyncio.run(worker.init_weight_sync_state(client, engines))
        asyncio.run(worker._sync_weights_to_inference_engines(client, engines))
        assert [each.tokens() for each in servers] == [policy.tokens()] * 2
        assert committed(enabled) == 4
        worker._weight_sync_engine.shutdown()


def test_ranks_of_fsdp2_send_what_they_have(
    enabled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an engine of two ranks, without a gather."""
    policy, versions = Policy(tmp_path), (1, 2, 3)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with serving(policy.folder, enabled, tmp_path, 1, tensor_parallel_size="2") as servers:
        program = Path(__file__).with_name("skyrl_shard_trainer.py")
        urls = json.dumps([each.url for each in servers])
        with RankJob(2, program, policy.folder, urls, ",".join(map(str, versions))) as job:
            code, output = job.end()
        assert code == 0, output[-4000:]
        assert "weights go to the engines as shards of all ranks, without a gather" in output
        assert "from the trainer's shards" in servers[0].log()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"version"')]
    wanted = []
    for version in versions:
        policy.model.load_state_dict(weights_of(policy.model, version))
        wanted.append({"version": version, "tokens": [policy.tokens()]})
    assert lines == wanted
    assert len({str(each["tokens"]) for each in lines}) == len(versions)


def test_shards_that_are_asked_for_and_are_none_are_refused(
    enabled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.backends.skyrl_train.weight_sync.sources import (
        FsdpWeightSource,
        MegatronWeightSource,
    )

    from rollring.integrations.skyrl.trainer import SkyrlTrainer

    monkeypatch.setenv("ROLLRING_SKYRL", json.dumps({"ring": enabled, "shards": True}))
    model = Policy(tmp_path).model
    for source, why in (
        (MegatronWeightSource(None, model, torch.float32), "is a MegatronWeightSource"),
        (FsdpWeightSource(model, torch.float32, "language_model."), "under 'language_model.'"),
        (FsdpWeightSource(model, torch.float32), "no parameter is divided"),
    ):
        with pytest.raises(rr.UnsupportedError, match=why):
            SkyrlTrainer.trainer_init(None, client=None, source=source)


def test_what_is_no_plain_weights_is_refused(enabled: str) -> None:
    from skyrl.backends.skyrl_train.weight_sync.sources import (
        LoraAdapterWeightSource,
        SerializedFp8WeightSource,
    )

    from rollring.integrations.skyrl.trainer import SkyrlTrainer

    for source in (
        SerializedFp8WeightSource([], None),
        LoraAdapterWeightSource(dtype=torch.float32, experts_per_shared_adapter=1),
    ):
        with pytest.raises(rr.UnsupportedError, match="has no plain weights"):
            SkyrlTrainer.trainer_init(None, client=None, source=source)
    made = SkyrlTrainer.__new__(SkyrlTrainer)
    made.skyrl_draft_source = None
    with pytest.raises(rr.UnsupportedError, match="drafter"):
        made.skyrl_draft_source = object()


def test_its_workers_have_what_it_reads_of_an_engine() -> None:
    from skyrl.backends.skyrl_train.weight_sync.weight_senders import SkyrlTrainerCapabilities

    from rollring.integrations.skyrl.trainer import SkyrlTrainer

    for name in vars(SkyrlTrainerCapabilities):
        if name.startswith("skyrl_"):
            assert hasattr(SkyrlTrainer, name), name


def _registered() -> list[str]:
    from skyrl.backends.skyrl_train.weight_sync import register
    from vllm.distributed.weight_transfer import factory

    register.register_receive_engines()
    register.register_trainer_engines()
    found = (factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory)
    return [each._registry["skyrl_ipc"]().__name__ for each in found]


def test_a_run_of_its_own_hands_it_to_rays_workers(
    ring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import initialize_ray

    settings = pages.exported(RUNNER, "settings", {"run42": ring})
    assert settings["ROLLRING_SKYRL"] == ring and len(settings) == 3
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    monkeypatch.setenv("PYTHONPATH", paths)  # Ray's workers inherit it from the cluster
    config = SkyRLTrainConfig()
    config.trainer.log_path = str(tmp_path)
    initialize_ray(config)
    try:
        found = ray.get(ray.remote(_registered).remote())
    finally:
        ray.shutdown()
    assert found == ["RollringEngine", "SkyrlTrainer"]
