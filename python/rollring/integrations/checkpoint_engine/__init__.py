"""A sender for checkpoint-engine's receiver, which vLLM, SGLang and LMDeploy have inside them.

    versions    checkpoint-engine 0.4.2, torch 2.15.0
    proven      the real receiver, on a CPU and on one H100
    called by   a trainer of your own; its receiver, in the engine, calls `open_slot`

    with rr.WeightPublisher("run42", model.state_dict()) as publisher:
        sender = rollring.integrations.checkpoint_engine.Sender(publisher, ["GPU-..."])
        sender.update(version, lambda handles: post("/update_weights_from_ipc", dict(handles)))

That receiver runs whatever function its sender names, to get the memory that weights lie in. Ours
is `open_slot`: the engine's process attaches to the weight channel and maps its slots, and stays
attached. The engine needs checkpoint-engine and rollring installed, and nothing is changed.
docs/checkpoint_engine.md describes failures.
"""

from __future__ import annotations

from ._receiver import open_slot
from ._sender import Sender

__all__ = ["Sender", "open_slot"]
