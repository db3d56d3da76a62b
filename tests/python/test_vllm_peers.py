"""The workers of one engine, without an engine: where they meet, and whose errors are raised."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402

COUNT = 2


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_workers_of_every_executor_that_stops_at_an_error_are_quiet(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_fakes.install(monkeypatch)
    from rollring.integrations.vllm._peers import Peers

    def raised(rank: int) -> bool:
        config = {"rank": rank, "world_size": COUNT, "distributed_executor_backend": backend}
        try:
            with Peers(SimpleNamespace(**config)).quietly():
                raise ValueError("no memory")
        except ValueError:
            return True
        return False

    assert [raised(rank) for rank in range(COUNT)] == [False, True]


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2)])
def test_workers_meet_in_all_their_groups(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_fakes.install(monkeypatch)
    from rollring.integrations.vllm import _peers

    names = ("get_tp_group", "get_pp_group", "get_pcp_group")
    groups = {
        name: lambda name=name, size=size: SimpleNamespace(world_size=size, cpu_group=name)
        for name, size in zip(names, sizes, strict=True)
    }
    met = []
    state = types.ModuleType("parallel_state")
    vars(state).update(groups)
    monkeypatch.setattr(sys.modules["vllm.distributed"], "parallel_state", state, raising=False)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda held, how, group: met.append(group))
    peers = _peers.Peers(SimpleNamespace(rank=0, world_size=sizes[0] * sizes[1] * sizes[2]))
    assert peers.one_has(True)
    assert met == [name for name, size in zip(names, sizes, strict=True) if size > 1]
    others = _peers.Peers(SimpleNamespace(rank=0, world_size=16))
    with pytest.raises(rr.UnsupportedError, match="this engine has 16 workers"):
        others.one_has(True)


def test_the_others_do_not_wait_for_a_worker_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm_fakes.install(monkeypatch)
    from rollring.integrations.vllm._peers import Peers

    met: list[tuple[int, ...]] = []

    def most(_: Any, *numbers: int) -> list[int]:
        met.append(numbers)
        return list(numbers)

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Peers, "_most", most)
    peers = Peers(SimpleNamespace(rank=0, world_size=COUNT))
    with pytest.raises(KeyboardInterrupt):
        peers.jointly(interrupted)
    assert met == [(-1, 1)]


def test_a_failure_is_told_although_the_workers_cannot_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm_fakes.install(monkeypatch)
    from rollring.integrations.vllm._peers import Peers

    def fails(*_: Any) -> Any:
        raise ValueError("no memory")

    def apart(*_: Any) -> Any:
        raise RuntimeError("connection closed")

    monkeypatch.setattr(Peers, "_most", apart)
    peers = Peers(SimpleNamespace(rank=0, world_size=COUNT))
    with pytest.raises(RuntimeError, match="connection closed") as caught:
        peers.jointly(fails)
    assert isinstance(caught.value.__cause__, ValueError)
