"""After each version rank 0 of Nous' trainer asks its server for the digests that it serves, and
says them, with the number of calls of `full_tensor` that sent the version.
"""

from __future__ import annotations

import json
from typing import Any

import torch

SAYS = "[served] "
PATIENCE = 1800.0


def said(log: str) -> dict[int, Any]:
    """By step, as `say_what_is_served` says it."""
    lines = [line.split(SAYS, 1)[1] for line in log.splitlines() if SAYS in line]
    return {found["step"]: found for found in map(json.loads, lines)}


def say_what_is_served(trainer: Any) -> None:
    from torch.distributed.tensor import DTensor

    from rollring.integrations.vllm.calls import ServerCalls

    send, gather = trainer.send_weights, DTensor.full_tensor
    gathers: list[Any] = []

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        gathers.append(self.shape)
        return gather(self, *given, **named)

    def send_and_say(self: Any) -> None:
        gathers.clear()
        send(self)
        count = len(gathers)
        if torch.distributed.get_rank() == 0:
            (url,) = self.job_config.grpo.sglang_urls
            asked = {"method": "all_digests"}
            answer = ServerCalls(f"http://{url}", PATIENCE).ask("POST", "collective_rpc", asked)
            (digests,) = answer["results"]
            found = {"step": self.step, "gathers": count, "digests": digests}
            print(SAYS + json.dumps(found), flush=True)

    DTensor.full_tensor = counted  # type: ignore[method-assign]
    trainer.send_weights = send_and_say
