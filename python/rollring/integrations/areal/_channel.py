"""Names and numbers that both ends of a colocated update derive in one way, without a message."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ... import remove, rings
from ...errors import RollringError, StaleVersionError
from ...stat import stat_weights
from ._settings import as_name

# AReaL may send one of its versions again: its gateway does so after a failure, and a caller may
# give each update the same number (0 is the default). A channel's versions only grow.
ATTEMPTS = 1_000_000


class Pair(NamedTuple):
    """A trainer and its engines, of one `connect` of AReaL's gateway."""

    ring: str
    engines: int  # that attach, counted by ranks
    publishers: int

    @classmethod
    def of(cls, told: dict[str, Any]) -> Pair:
        """The pair of these arguments of `init_colocate_weight_update`.

        Each rank of the trainer sends to the engine on its GPU if there are as many of both; else
        the first rank sends to all engines.
        """
        engines, ranks = told["infer_world_size"], told["train_world_size"]
        # The gateway chooses a port for each connect, which tells one connect from the next.
        ring = as_name("areal", told["pair_name"], told["master_port"])
        return cls(ring, engines, ranks if ranks == engines else 1)

    def remove_old(self) -> None:
        """Remove the rings that killed trainers left, of this connect and of earlier ones."""
        remove(self.ring, force=True, missing_ok=True)
        before = re.compile(re.escape(self.ring.rpartition("-")[0]) + r"-\d+")
        for ring in rings():
            if before.fullmatch(ring) and not _has_publisher(ring):
                remove(ring, force=True, missing_ok=True)


def _has_publisher(ring: str) -> bool:
    try:
        return bool(stat_weights(ring))
    except RollringError:
        return False


def channel_version(version: int, least: int) -> int:
    """The version of the channel under which a version of AReaL's is sent.

    Args:
        version: AReaL's.
        least: The smallest version that the channel takes.

    Raises:
        StaleVersionError: The channel has had a later one.
    """
    first, last = version * ATTEMPTS, (version + 1) * ATTEMPTS - 1
    if least > last:
        raise StaleVersionError(
            f"version {version} cannot follow version {least // ATTEMPTS} in one connection of "
            "AReaL's gateway: connect the pair again",
            "stale_version",
        )
    return max(first, least)
