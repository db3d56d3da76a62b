"""AReaL's `areal.infra.rpc.rpc_server` over rollring, for `scheduling_spec.cmd`:

python -m rollring.integrations.areal
"""

from __future__ import annotations

import runpy

from . import install

if __name__ == "__main__":
    install()
    runpy.run_module("areal.infra.rpc.rpc_server", run_name="__main__", alter_sys=True)
