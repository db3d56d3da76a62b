"""An engine of vLLM's adapter, its client and its trainer, over stand-ins of vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from conftest import PATIENCE
from vllm_fakes import Model


class Client:
    """vLLM's worker: its steps for the four calls, with those that were taken."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.active = False
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.label = ""

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails.pop(name)

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._called("init")
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))

    def start_weight_update(self) -> None:
        self._called("start")
        if self.active:
            raise RuntimeError("a weight update is already active")
        self.engine.start_weight_update()
        self.active = True

    def update_weights(self, info: dict[str, Any]) -> None:
        self._called("update")
        try:
            self.engine.update_weights(info)
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self, label: str | None = None) -> None:
        self._called("finish")
        if not self.active:
            raise RuntimeError("finish_weight_update called without start_weight_update")
        self.engine.finish_weight_update()
        self.active = False
        self.label = label or self.label

    def pause_generation(self, mode: str) -> None:
        self._called(f"pause {mode}")

    def resume_generation(self) -> None:
        self._called("resume")


def made_engine(wide: int = 16, **parallel: Any) -> Any:
    from rollring.integrations.vllm.engine import RollringEngine

    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**{"enable_eplb": False, "rank": 0, **parallel}),
        model_config=SimpleNamespace(dtype=torch.float32),
    )
    return RollringEngine(None, config, torch.device("cpu"), Model(wide))


@contextlib.contextmanager
def sending(ring: str, client: Any, source: Any, **info: Any) -> Iterator[Any]:
    from rollring.integrations.vllm.trainer import RollringTrainer, RollringTrainerInitInfo

    info = {"deadline_s": PATIENCE, "slot_bytes": 1 << 20, "device": "cpu", **info}
    trainer = RollringTrainer.trainer_init(
        RollringTrainerInitInfo(ring, rank=0, **info), client=client, source=source
    )
    try:
        yield trainer
    finally:
        trainer.shutdown()


def served(model: Any) -> dict[str, Any]:
    return {
        "norm": model.norm.weight,
        "q": model.qk.weight[:8],
        "k": model.qk.weight[8:],
        "down": model.down.weight,
        "thin": model.thin.weight.float(),
    }


def serves(model: Any, source: Any) -> bool:
    packed = getattr(model.down, "packed", None)
    assert packed is None or torch.equal(packed, 2 * model.down.weight)
    return all(torch.equal(served(model)[name], one) for name, one in source.tensors.items())
