"""Weights to the unpatched vLLM servers of ``grpo.sglang_urls``: as shards of all ranks, without a
gather, where the model and the servers allow it, and otherwise from one rank that gathers.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any, NamedTuple

from ... import RollringError
from ...adapters import is_divided
from ...errors import RejectedError, UnsupportedError
from ...stat import stat_ring
from ._parameters import Parameters
from ._ranks import distributed, failing_with_any, told
from ._settings import Settings
from ._shards import Shards, ring_on_all

_log = logging.getLogger("rollring")

BOOT = Path("/proc/sys/kernel/random/boot_id")


def trainer_end(
    ring: str,
    source: Any,
    settings: Settings,
    trainer: Any,
    *,
    rank: int = 0,
    deadline_s: float,
    shards: bool = False,
) -> Any:
    """vLLM's trainer for the servers; the environment needs no vLLM for it."""
    theirs: Any = importlib.import_module("rollring.integrations.vllm.trainer")
    clients = [theirs.HTTPClient(f"http://{url}") for url in trainer.job_config.grpo.sglang_urls]
    info = theirs.RollringTrainerInitInfo(
        ring,
        rank=rank,
        publish_as=settings.publish_as or None,
        device=trainer.device.type,
        **{"deadline_s": deadline_s, **settings.vllm, "shards": shards},
    )
    client = clients[0] if len(clients) == 1 else theirs.FleetClient(clients)
    return theirs.make_trainer(info, client=client, source=source)


class ShardsToServers:
    """One rank's side: each publishes its shards, and rank 0 calls the servers."""

    def __init__(self, trainer: Any, engine: Any) -> None:
        self._first, self._engine = trainer.metrics_rank, engine

    def send(self, step: int) -> None:
        """The weights as they are now. On every rank; engines serve them when this returns.

        Raises:
            RollringError: An engine could not take them, or a rank has failed.
        """
        number = told(max(step, self._engine.next_version), self._first)
        with failing_with_any():
            self._engine.send_weights(number)


def shards_to_servers(
    trainer: Any, settings: Settings, deadline_s: float
) -> ShardsToServers | None:
    """On every rank, with one result: None where one of them gathers, for the logged reason.

    Raises:
        UnsupportedError: The setting wants shards, and they cannot go out.
        RollringError: Servers or the ring, in all ways.
    """
    wanted, engine = settings.vllm.get("shards"), None
    if wanted is False:
        why_not = WhyNot("the setting says so")
    else:
        ring = ring_on_all(trainer, settings)
        shards, why_not = _own_shards(trainer, ring, settings.publish_as)
        if shards is not None:
            engine, why_not = _attached(ring, shards, settings, trainer, deadline_s)
    if engine is None and wanted:
        raise UnsupportedError(f"the vLLM servers get no shards: {why_not.text}")
    if distributed().get_rank() == trainer.metrics_rank:
        _say(engine is not None, why_not)
    return None if engine is None else ShardsToServers(trainer, engine)


class WhyNot(NamedTuple):
    """A reason to gather; an empty text: there is none."""

    text: str = ""
    is_refusal: bool = False  # of shards that there are


class Look(NamedTuple):
    """Of one rank, for all."""

    refusal: str
    is_cut: bool
    machine: str  # empty: the ring is not there


def _own_shards(trainer: Any, ring: str, publish_as: str) -> tuple[Shards | None, WhyNot]:
    """Of this rank; the reason is that of all ranks."""
    shards, refusal = None, ""
    try:
        shards = Shards(trainer, publish_as)
    except UnsupportedError as error:
        refusal = str(error)
    looks: list[Any] = [None] * distributed().get_world_size()
    distributed().all_gather_object(looks, Look(refusal, _is_cut(trainer), _machine_with(ring)))
    if not any(look.is_cut for look in looks):
        return None, WhyNot("no parameter is divided among ranks")
    if refusals := [look.refusal for look in looks if look.refusal]:
        return None, WhyNot(refusals[0], True)
    here = looks[trainer.metrics_rank].machine
    away = [rank for rank, look in enumerate(looks) if look.machine != here or not here]
    if away:
        text = f"rank {away[0]} does not see ring {ring}, which all that publish shards have to"
        return None, WhyNot(text, True)
    return shards, WhyNot()


def _is_cut(trainer: Any) -> bool:
    return any(is_divided(parameter) for _, parameter in Parameters(trainer).own())


def _machine_with(ring: str) -> str:
    try:
        stat_ring(ring)
        return BOOT.read_text(encoding="ascii").strip()
    except (RollringError, OSError):
        return ""


def _attached(
    ring: str, shards: Shards, settings: Settings, trainer: Any, deadline_s: float
) -> tuple[Any, WhyNot]:
    """This rank's end, once the servers' engines are attached to all ranks, or their refusal."""
    here, engine, refusal = distributed().get_rank(), None, ""
    with failing_with_any():
        try:
            engine = trainer_end(
                ring, shards, settings, trainer, rank=here, deadline_s=deadline_s, shards=True
            )
        except RejectedError as error:
            refusal = str(error)
    refusal = told(refusal, 0)
    if refusal and engine is not None:
        engine.shutdown()
    return (None if refusal else engine), WhyNot(refusal, bool(refusal))


def _say(as_shards: bool, why_not: WhyNot) -> None:
    if as_shards:
        _log.info("weights go to the vLLM servers as shards of all ranks, without a gather")
        return
    say = _log.warning if why_not.is_refusal else _log.info
    say("each version is gathered on one rank for the vLLM servers: %s", why_not.text)
