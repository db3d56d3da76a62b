"""Runs an environment of Atropos as it is, with its groups going into a ring.

usage: rollring run-env MODULE:CLASS [ARGUMENTS OF ITS OWN ...]

    rollring run-env my_envs.gsm8k:GSM8kEnv serve --slurm false

In the place of running that file with the same arguments. The server at its rollout_server_url
is `rollring serve-atropos`, which says what the ring's name is (or $ROLLRING_RING does).
"""

from __future__ import annotations

import importlib
import sys

from . import with_rollring


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    module, colon, name = arguments[0].partition(":")
    if not colon:
        print(f"run_env: '{arguments[0]}' is not MODULE:CLASS; see --help", file=sys.stderr)
        return 2
    sys.path.insert(0, "")  # as python -m finds modules
    try:
        environment = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        print(f"run_env: {error}", file=sys.stderr)
        return 2
    sys.argv = [f"{module}:{name}", *arguments[1:]]
    with_rollring(environment).cli()  # type: ignore[attr-defined]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
