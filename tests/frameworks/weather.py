"""A network of namespaces whose frames are late, get lost and wait: a switch that is a process.

The kernel's own way (netem) is rarely there. Here the end of a place is a TAP device, so all frames
of Ethernet pass here, of whatever connection, and TCP has to deal with the rest.

usage: weather.py SEED     lines of JSON on stdin, each with an answer on stdout
"""

from __future__ import annotations

import collections
import dataclasses
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
from typing import Any

from namespaces import Link, Network, ip

FRAMES = 64  # of one port before others have their turn
LONGEST = 1 << 16
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


@dataclasses.dataclass(frozen=True)
class Weather:
    """Of a link, both ways.

    Attributes:
        delay_ms: Of each frame.
        jitter_ms: How much more or less than that, at random: frames overtake each other.
        drop: The share of frames that never arrive.
        hold: Nothing passes; all of it arrives when this ends.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    drop: float = 0.0
    hold: bool = False


FAIR = Weather()
NEAR = Weather(delay_ms=5, jitter_ms=2.5, drop=0.01)
FAR = Weather(delay_ms=50, jitter_ms=25, drop=0.02)
LOSSY = Weather(delay_ms=5, jitter_ms=2.5, drop=0.2)
POOR = Weather(delay_ms=300, jitter_ms=150, drop=0.05)
WORST = Weather(delay_ms=300, jitter_ms=150, drop=0.2)
HELD = Weather(hold=True)
CUT = Weather(drop=1.0)


# --- the switch -----------------------------------------------------------------------------------


class Port:
    """An end of a link, with the counts of frames that came in there."""

    def __init__(self, name: str) -> None:
        self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        wanted = struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI)
        fcntl.ioctl(self.tap, TUNSETIFF, wanted)
        self.weather = FAIR
        self.held: list[tuple[Port, bytes]] = []  # and where to
        self.counts = {"passed": 0, "late": 0, "dropped": 0, "held": 0}

    def send(self, frame: bytes) -> None:
        try:
            os.write(self.tap, frame)
        except OSError:  # its place is about to go, or takes no more: a frame is lost
            self.counts["dropped"] += 1


class Switch:
    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._ports: dict[str, Port] = {}
        self._by_tap: dict[int, Port] = {}
        self._by_address: dict[bytes, Port] = {}
        self._late: list[tuple[float, int, Port, bytes]] = []
        self._number = 0
        self._polled = select.epoll()
        self._polled.register(0, select.EPOLLIN)

    def run(self) -> None:
        """Until stdin ends."""
        while True:
            for tap, _ in self._polled.poll(self._patience()):
                if tap:
                    self._take(self._by_tap[tap])
                elif not self._obey():
                    return
            self._send_due()

    def _patience(self) -> float | None:
        return max(0.0, self._late[0][0] - time.monotonic()) if self._late else None

    def _obey(self) -> bool:
        if not (line := sys.stdin.readline()):
            return False
        asked = json.loads(line)
        if (name := asked["port"]) not in self._ports:
            port = self._ports[name] = Port(name)
            self._by_tap[port.tap] = port
            self._polled.register(port.tap, select.EPOLLIN)
        port = self._ports[name]
        port.weather = Weather(**asked["weather"])
        if not port.weather.hold:
            held, port.held = port.held, []
            for to, frame in held:
                to.send(frame)
        print(json.dumps(port.counts), flush=True)
        return True

    def _take(self, port: Port) -> None:
        for _ in range(FRAMES):
            try:
                frame = os.read(port.tap, LONGEST)
            except OSError:
                return
            to, source = frame[:6], frame[6:12]
            self._by_address[source] = port
            known = self._by_address.get(to)
            for other in [known] if known else self._ports.values():
                if other is not port:
                    self._pass(port, other, frame)

    def _pass(self, port: Port, to: Port, frame: bytes) -> None:
        weathers = (port.weather, to.weather)
        counts, delay_ms = port.counts, 0.0
        for one in weathers:
            if one.drop and self._draw.random() < one.drop:
                counts["dropped"] += 1
                return
            delay_ms += max(0.0, one.delay_ms + self._draw.uniform(-1, 1) * one.jitter_ms)
        holding = next((end for end in (port, to) if end.weather.hold), None)
        if holding is not None:
            counts["held"] += 1
            holding.held.append((to, frame))
        elif delay_ms:
            counts["late"] += 1
            self._number += 1
            due = time.monotonic() + delay_ms / 1e3
            heapq.heappush(self._late, (due, self._number, to, frame))
        else:
            counts["passed"] += 1
            to.send(frame)

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, to, frame = heapq.heappop(self._late)
            to.send(frame)


# --- the network ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class WeatherLink(Link):
    """Whose weather changes."""

    network: WeatherNetwork
    usual: Weather

    def change(self, weather: Weather) -> None:
        self.network.change(self.port, weather)

    def cut(self) -> None:
        self.change(CUT)

    def mend(self) -> None:
        self.change(self.usual)


class WeatherNetwork(Network):
    """As `Network`, with its switch in a process.

    Args:
        weather: Of the links of places that are not ours, from settle() on, until it changes.
        seed: Of the choice of dropped frames, and of the others' delay.
    """

    def __init__(self, weather: Weather, seed: int = 1) -> None:
        super().__init__()
        self._usual = weather
        self._settled = False
        self._one = threading.Lock()
        self._now: dict[str, Weather] = {}  # of ports
        self._links_by_port: dict[str, WeatherLink] = {}
        self._switch = subprocess.Popen(
            [sys.executable, __file__, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def join(self, place: str, port: str, address: str) -> Link:
        usual = self._usual if place else FAIR
        self.change(port, usual if self._settled else FAIR)
        where = ("netns", place) if place else ()
        ip("link", "set", port, "name", "eth0", *where)
        self._links_by_port[port] = WeatherLink(address, port, self, usual)
        return self._links_by_port[port]

    def settle(self) -> None:
        """Ray gives a node 30 s for its start."""
        if not self._settled:
            self._settled = True
            for link in self._links_by_port.values():
                link.mend()

    def change(self, port: str, weather: Weather) -> dict[str, int]:
        """Returns the fate of frames that came in there."""
        with self._one:
            self._now[port] = weather
            if self._switch.poll() is not None:  # it was closed, before a link was mended
                return {}
            asked = {"port": port, "weather": dataclasses.asdict(weather)}
            assert self._switch.stdin is not None and self._switch.stdout is not None
            self._switch.stdin.write(json.dumps(asked) + "\n")
            self._switch.stdin.flush()
            answer: dict[str, int] = json.loads(self._switch.stdout.readline())
            return answer

    def counts(self) -> dict[str, int]:
        """The fate of all frames."""
        found = collections.Counter[str]()
        for port, weather in list(self._now.items()):
            found.update(self.change(port, weather))
        return dict(found)

    def close(self) -> None:
        super().close()
        with self._one:
            self._switch.communicate()


def as_text(weather: Weather) -> str:
    """For `network`."""
    return json.dumps(dataclasses.asdict(weather))


def network(given: str) -> Network:
    """Of ROLLRING_NAMESPACES: "1", or the weather as JSON."""
    weather: Any = json.loads(given)
    return WeatherNetwork(Weather(**weather)) if isinstance(weather, dict) else Network()


if __name__ == "__main__":
    Switch(int(sys.argv[1])).run()
