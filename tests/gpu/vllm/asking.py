"""The parts that phases share: a trainer's end for servers, and vLLM's own way beside it."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from models import ON_GPU, Source, as_served
from probe import digests
from serving import Server, of_all

import rollring.integrations.vllm

RING = f"vgpu{os.getpid()}"
Seen = dict[str, Any]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def sender(ring: str, servers: Server | list[Server], model: Any, **info: Any) -> Any:
    """The end of a trainer, or of one of its ranks. `model`: or a source."""
    from rollring.integrations.vllm.trainer import (
        FleetClient,
        HTTPClient,
        RollringTrainerInitInfo,
        make_trainer,
    )

    rollring.integrations.vllm.register()
    several = servers if isinstance(servers, list) else [servers]
    clients = [HTTPClient(server.url) for server in several]
    client = info.pop("client", None) or (FleetClient(clients) if len(several) > 1 else clients[0])
    as_it_is = info.get("shards") or hasattr(model, "metadata")
    source = model if as_it_is else Source(model)
    info = {"deadline_s": 60.0, "rank": 0, **info}
    return make_trainer(RollringTrainerInitInfo(ring, **info), client=client, source=source)


def attached(server: Server, seen: Seen) -> bool:
    """Whether the server with vLLM's own ipc is there, which a CPU cannot have."""
    if not ON_GPU:
        return False
    try:
        server.wait()
        server.post("init_weight_transfer_engine", init_info={})
    except Exception as error:
        seen["without_ipc"] = f"{type(error).__name__}: {error}"
        return False
    return True


def expected(model: Any, ranks: int = 1) -> dict[str, str]:
    """The answer of `Server.served`, if it serves the model."""
    named = dict(model.named_parameters())
    return of_all([digests(as_served(named, rank, ranks)) for rank in range(ranks)])


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def of(found: list[float]) -> Seen:
    """The middle of some times in milliseconds, and their ends."""
    return {
        "median_ms": round(statistics.median(found), 1),
        "min_ms": round(min(found), 1),
        "max_ms": round(max(found), 1),
        "versions": len(found),
    }


def server_log(name: str) -> str:
    path = Path(os.environ["VGPU_HOME"]) / f"server-{name}.log"
    return path.read_text(encoding="utf-8", errors="replace")
