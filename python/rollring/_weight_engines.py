"""Engines that their trainer tells of each version: they attach when they hear of the first one."""

from __future__ import annotations

from collections.abc import Callable

from ._ring import describe_weights
from ._weight_subscriber import WeightSubscriber


def engines_alive(ring: str, rank: int) -> dict[str, int]:
    """The version that each engine of a publisher serves, by name."""
    return {
        engine["name"]: engine["live_version"]
        for publisher in describe_weights(ring)
        if publisher["rank"] == rank
        for engine in publisher["engines"]
        if engine["alive"]
    }


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
