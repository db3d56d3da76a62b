"""Two of `vllm serve` on one channel, over HTTP: the tokens that they serve after each version, and
the number of calls to them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_tiny import EXTENSION, Tensors, labels, of_version, sender  # noqa: E402

from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient  # noqa: E402

from rollring.integrations.vllm.trainer import FleetClient, HTTPClient  # noqa: E402

sys.path.append(str(Path(__file__).parents[1]))

import pages  # noqa: E402

RUNNER = "tests/frameworks/test_vllm_servers.py"
WEIGHT_CALLS = ("init_weight_transfer_engine", "start_weight_update", "update_weights",
                "finish_weight_update", "collective_rpc")  # fmt: skip


def fleet(servers: Any) -> FleetClient:
    return FleetClient([HTTPVLLMWeightSyncClient(server.url) for server in servers])


def calls_of(server: Any) -> list[str]:
    return [path for path in server.called() if path in WEIGHT_CALLS]


def checksums(server: Any) -> Any:
    """By vLLM's own checker; a vLLM without labels has none, and is known by its tokens."""
    if not labels():
        return server.tokens()
    return server.post("weight_checker", action="checksum")["checksums"]


def has(server: Any, baseline: Any) -> bool:
    if not labels():
        return bool(server.tokens() == baseline)
    compared = server.post("weight_checker", action="compare", baseline=baseline)
    assert compared["match"] == (compared["mismatches"] == [])
    return bool(compared["match"])


def named(trained: Any) -> dict[str, Any]:
    return {name: one.detach() for name, one in trained.model.named_parameters()}


def test_their_checker_agrees_and_a_version_is_three_calls(
    ring: str, trained: Any, servers: Any
) -> None:
    at_first = {name: one.clone() for name, one in named(trained).items()}
    baselines = [checksums(server) for server in servers]
    assert baselines[0] == baselines[1]
    called = [len(calls_of(server)) for server in servers]
    trainer = sender(ring, fleet(servers), Tensors(named(trained)))
    for version in range(5):
        trained.step()
        trainer.send_weights()
        for server in servers:
            assert server.generated() == (trained.tokens(), of_version(str(version)))
    for server, begun in zip(servers, called, strict=True):
        assert calls_of(server)[begun:] == [WEIGHT_CALLS[0], *WEIGHT_CALLS[1:4] * 5]
        assert not has(server, baselines[0])
    for name, one in named(trained).items():
        one.copy_(at_first[name])
    trainer.send_weights()
    for server in servers:
        assert has(server, baselines[0])
    trainer.shutdown()


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_a_version_is_one_call_with_our_worker_extension(
    ring: str, trained: Any, servers: Any, staging: str
) -> None:
    called = [len(calls_of(server)) for server in servers]
    client = FleetClient([HTTPClient(server.url) for server in servers])
    source = Tensors(named(trained))
    trainer = sender(ring, client, source, staging=staging, one_call=True)
    for version in range(5):
        trained.step()
        trainer.send_weights()
        for server in servers:
            assert server.generated() == (trained.tokens(), of_version(str(version)))
    trainer.shutdown()
    each = ["collective_rpc", "finish_weight_update"] if labels() else ["collective_rpc"]
    for server, begun in zip(servers, called, strict=True):
        assert calls_of(server)[begun:] == [WEIGHT_CALLS[0], *each * 5]


def test_the_lines_of_the_page(ring: str, trained: Any, servers: Any) -> None:
    (line,) = pages.named(RUNNER, "server")
    developer, vllm, serve, model, *options = shlex.split(line.text)
    assert (developer, vllm, serve, model) == ("VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "MODEL")
    (backend,) = [one.partition("=")[2] for one in servers[0].command if "weight-transfer" in one]
    assert options == ["--weight-transfer-config", backend]
    (line,) = pages.named(RUNNER, "extension")
    words = shlex.split(line.text.replace("\\\n", ""))
    assert words == [developer, vllm, serve, model, *options, "--worker-extension-cls", EXTENSION]
    found = {"urls": [server.url for server in servers], "model": trained.model}
    for version, name in enumerate(("trainer", "pausing")):
        trained.step()
        found = pages.execute(RUNNER, name, {"run42": ring}, **found)
        if name == "pausing":
            found["sender"].send_weights()
        assert [server.tokens() for server in servers] == [trained.tokens()] * len(servers)
        assert found["sender"].version == version
        found["sender"].shutdown()
