"""GPU memory that AReaL's trainer and engine release and resume by tag."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

_log = logging.getLogger("rollring")

KEPT = ("weights", "optimizer")  # with their contents; others are dropped
_domains: list[Any] = []


def use_domain(domain: Any) -> None:
    """Tags of this `rollring.extras.MemoryDomain` are released and resumed by AReaL's gateway, in
    this process: allocate in ``with domain.region("weights")`` and the like.
    """
    _domains[:] = [domain]


class Turns:
    """Of one adapter: tags that a domain of the process has go to it, the others to AReaL's own
    adapter.

    AReaL may release released memory or resume resumed memory: that changes nothing.
    """

    def __init__(self, theirs: Any, known: tuple[str, ...]) -> None:
        self._theirs = theirs
        self._known = known
        self._warned: set[str] = set()

    def release(self, tags: list[str] | None) -> None:
        """
        Raises:
            NotEnoughMemoryError: No pinned host memory is available. Nothing has changed.
        """
        mine, rest = self._split(tags, resident=True)
        if mine:
            _domains[0].release(*mine, keep=[tag for tag in mine if tag in KEPT])
        self._pass_on("release_memory", rest)

    def resume(self, tags: list[str] | None) -> None:
        """
        Raises:
            NotEnoughMemoryError: The GPU has too little free. Nothing has changed: try again.
        """
        mine, rest = self._split(tags, resident=False)
        if mine:
            _domains[0].resume(*mine)
        self._pass_on("resume_memory", rest)

    @contextlib.contextmanager
    def resident(self, tag: str) -> Iterator[None]:
        """Bring the tag's memory back for the block, if it is released."""
        released = self._is_released(tag)
        if released:
            self.resume([tag])
        try:
            yield
        finally:
            if released:
                self.release([tag])

    def _is_released(self, tag: str) -> bool:
        """By the domain, or by AReaL's adapter for Megatron, which moves weights to the host."""
        mine = self._split([tag], resident=False)[0]
        return bool(mine) or tag in getattr(self._theirs, "_released_tags", ())

    def _split(self, tags: list[str] | None, resident: bool) -> tuple[list[str], list[str]]:
        """Those of the domain that are to change, and those that it does not have."""
        wanted = list(dict.fromkeys(tags or self._known))
        there = _domains[0].tags() if _domains else {}
        mine = [tag for tag in wanted if tag in there and there[tag]["resident"] == resident]
        return mine, [tag for tag in wanted if tag not in there]

    def _pass_on(self, call: str, tags: list[str]) -> None:
        if not tags:
            return
        if _has_own(self._theirs, call):
            getattr(self._theirs, call)(tags)
        elif new := [tag for tag in tags if tag not in self._warned]:
            self._warned.update(new)
            _log.warning(
                "%s: no memory domain of this process has the tag %s, and AReaL's %s has no such "
                "call: nothing changes (rollring.integrations.areal.use_domain)",
                call,
                ", ".join(new),
                type(self._theirs).__name__,
            )


def _has_own(theirs: Any, call: str) -> bool:
    """Whether AReaL's adapter does something: one that lacks the call inherits an empty one from
    its Protocol.
    """
    found = getattr(type(theirs), call, None)
    return found is not None and not any(
        getattr(base, "_is_protocol", False) and vars(base).get(call) is found
        for base in type(theirs).__mro__
    )
