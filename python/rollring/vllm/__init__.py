"""Weights into vLLM: a weight transfer backend named "rollring", for engine and trainer.

vLLM finds it by its entry point wherever rollring is installed:

    vllm serve MODEL --weight-transfer-config '{"backend": "rollring"}'

`rollring.vllm.trainer` has the other end. docs/vllm.md says what happens when.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Make the backend known to vLLM, without importing what is behind it. Twice is fine.

    vLLM calls it in each of its processes. A trainer that has not loaded vLLM's plugins calls it
    before `WeightTransferTrainerFactory.trainer_init`.
    """
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )

    for factory, module, name in (
        (WeightTransferEngineFactory, "rollring.vllm.engine", "RollringEngine"),
        (WeightTransferTrainerFactory, "rollring.vllm.trainer", "RollringTrainer"),
    ):
        if "rollring" not in factory._registry:
            factory.register_engine("rollring", module, name)
