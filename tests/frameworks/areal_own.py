"""pytest -p areal_own: AReaL's own tests with rollring's changes in their process, and how many of
their tensors the store took. Their servers have the changes by a file sitecustomize.py.
"""

from __future__ import annotations

import sys
from typing import Any

import rollring.integrations.areal as areal

areal.install()
placed: list[str] = []
store = areal.RTensorBackend.store


def _counted(self: areal.RTensorBackend, tensor: Any) -> str:
    placed.append(store(self, tensor))
    return placed[-1]


areal.RTensorBackend.store = _counted  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rtensor: Any = sys.modules["areal.infra.rpc.rtensor"]
    assert isinstance(rtensor.get_backend(), areal.RTensorBackend)
    ours = sum(shard.startswith("rollring:") for shard in placed)
    terminalreporter.write_line(f"rollring: {ours} of {len(placed)} tensors in the store")
