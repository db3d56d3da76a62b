"""Runs an environment of Atropos as it is, with its groups going into a ring.

usage: rollring run-env MODULE:CLASS [ARGUMENTS OF ITS OWN ...]

    rollring run-env my_envs.gsm8k:GSM8kEnv serve --slurm false

Use it instead of running that file, with the same arguments. The server at its rollout_server_url
must be `rollring serve-atropos`, which tells it the ring's name ($ROLLRING_RING overrides it).
"""

from __future__ import annotations

import importlib
import sys

from . import with_rollring


def misused(why: str) -> int:
    print(f"rollring run-env: {why}", file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    module, _, name = arguments[0].partition(":")
    if not module or not name:
        return misused(f"'{arguments[0]}' is not MODULE:CLASS; see 'rollring run-env --help'")
    sys.path.insert(0, "")  # as python -m finds modules
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks one: the traceback shows which line asks for it
        return misused(
            f"{error}: run rollring run-env in the folder of {error.name}, or add that folder to "
            "PYTHONPATH"
        )
    environment = getattr(loaded, name, None)
    if environment is None:
        return misused(f"the module {module} has no class {name}")
    sys.argv = [f"{module}:{name}", *arguments[1:]]
    with_rollring(environment).cli()  # type: ignore[attr-defined]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
