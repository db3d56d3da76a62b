"""The parts of vLLM under a trainer's end, for a trainer's process in which no vLLM is installed:
its servers have one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .calls import ServerCalls as HTTPVLLMWeightSyncClient

__all__ = ["HTTPVLLMWeightSyncClient", "TrainerInitInfo", "TrainerWeightTransferEngine"]


@dataclass
class TrainerInitInfo:
    rank: int = field(kw_only=True)


class TrainerWeightTransferEngine:
    def __init__(self, *, client: Any, source: Any, is_sender: bool) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender
