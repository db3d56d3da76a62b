"""Engines that their trainer tells of each version: they attach when they hear of the first one."""

from __future__ import annotations

from collections.abc import Callable

from ._errors import RollringError, TimedOutError, VersionAbortedError
from ._ring import describe_weights
from ._weight_subscriber import WeightSubscriber, WeightUpdate
from ._weights import Left

LOOK_S = 0.2  # between looks whether the version still comes


def engines_alive(ring: str, rank: int) -> dict[str, int]:
    """The version that each engine of a publisher serves, by name."""
    return {
        engine["name"]: engine["live_version"]
        for publisher in describe_weights(ring)
        if publisher["rank"] == rank
        for engine in publisher["engines"]
        if engine["alive"]
    }


def announced(channel: WeightSubscriber, version: int, timeout: float) -> WeightUpdate:
    """The next version, of a trainer that has told of one.

    Raises:
        VersionAbortedError: It was given up before this was called, and so would never come.
        RollringError: As `WeightSubscriber.next`.
    """
    left = Left(timeout)
    while True:
        rest = left() or 0.0
        try:
            return channel.next(min(LOOK_S, rest))
        except TimedOutError:
            if _is_given_up(channel, version):
                raise VersionAbortedError(
                    f"version {version} was aborted before this engine reached it", "aborted"
                ) from None
            if rest == 0.0:
                raise


def _is_given_up(channel: WeightSubscriber, version: int) -> bool:
    try:
        ranks = describe_weights(channel.ring)
    except RollringError:
        return False
    # A rank that gives a version up gives it up for all.
    return any(one["state"] == "aborted" and one["version"] >= version for one in ranks)


class Attachment:
    """To the channel, for as long as one trainer sends; to the next trainer, anew."""

    def __init__(self) -> None:
        self._sender = ""
        self._channel: WeightSubscriber | None = None

    def to(self, sender: str, attach: Callable[[int], WeightSubscriber]) -> WeightSubscriber:
        """The channel of this sender.

        Args:
            sender: Tells one from the next.
            attach: Gets the version that is held, or -1.
        """
        channel = self._channel
        if channel is None or channel.closed or sender != self._sender:
            held = -1
            if channel is not None and not channel.closed and channel.state == "ready":
                held = channel.live_version
            self.leave()
            channel = self._channel = attach(held)
            self._sender = sender
        return channel

    def leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
