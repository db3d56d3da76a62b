"""Network namespaces that are joined by a switch, in a world of their own that leaves nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

# All that a run makes, processes and namespaces too, goes with its first process, and that one goes
# with ours, however we end. Names and addresses of two runs do not meet.
APART = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
# The shell stays, because it has to reap the processes that others leave.
OWN_FOLDERS = """
set -e
mount -t tmpfs rollring /run
mount -t tmpfs rollring /dev/shm
TMPDIR=/run "$@"
exit
"""
NETWORK = "192.0.2"  # for documentation: without an owner


def run_apart(*command: str) -> int:
    """How it ended. It has only the network that it makes."""
    return subprocess.run([*APART, "sh", "-c", OWN_FOLDERS, "sh", *command]).returncode


def missing() -> str:
    """Why this cannot be done here, with the remedy; nothing: it can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root"
    absent = [name for name in ("ip", "setpriv", "unshare") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install iproute2 util-linux"
    if run_apart(sys.executable, __file__) != 0:
        return "network namespaces are refused here: a container needs --privileged"
    return ""


def ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True)


@dataclasses.dataclass(frozen=True)
class Link:
    """Of a place to the switch."""

    address: str
    port: str

    def cut(self) -> None:
        """The place has its address yet, and hears nothing."""
        ip("-n", "switch", "link", "set", self.port, "down")

    def mend(self) -> None:
        ip("-n", "switch", "link", "set", self.port, "up")


class Network:
    """A switch, and places that have an address there."""

    def __init__(self) -> None:
        self._places = ["switch"]
        self._links = 0
        ip("netns", "add", "switch")
        ip("-n", "switch", "link", "add", "hub", "type", "bridge")
        ip("-n", "switch", "link", "set", "hub", "up")

    def link(self, place: str = "") -> Link:
        """To a new namespace of that name; without one, to ours."""
        self._links += 1
        within: tuple[str, ...] = ()
        if place:
            ip("netns", "add", place)
            self._places.append(place)
            within = ("-n", place)
        link = self.join(place, f"port{self._links}", f"{NETWORK}.{self._links}")
        ip(*within, "address", "add", f"{link.address}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            ip(*within, "link", "set", name, "up")
        return link

    def join(self, place: str, port: str, address: str) -> Link:
        """Makes the place's eth0, and joins it with a port of the switch."""
        within = ("-n", place) if place else ()
        end = ("type", "veth", "peer", "name", port, "netns", "switch")
        ip(*within, "link", "add", "eth0", *end)
        ip("-n", "switch", "link", "set", port, "master", "hub", "up")
        return Link(address, port)

    def settle(self) -> None:
        """All places are there that a run begins with."""

    def close(self) -> None:
        for place in reversed(self._places):
            ip("netns", "delete", place)


if __name__ == "__main__":
    assert os.getpid() != 1 and not any(Path("/dev/shm").iterdir())
    Network().link("place")
