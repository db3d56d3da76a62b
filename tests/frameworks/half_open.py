"""A receiver that dies while the link is down, with unread parcels: its kernel says so once, and
the message is lost. Run by test_ray_stream.py in a network of its own.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import uuid
from typing import Any

import numpy as np

from rollring.integrations.ray._stream import _HELLO, Stream, read_struct, unacknowledged

PATIENCE = 60.0
TOKEN = SESSION = uuid.uuid4().hex


def receive(port: int) -> None:
    """Takes the connection, and reads none of its parcels."""
    with socket.create_server(("127.0.0.1", port)) as server:
        print("listens", flush=True)
        connection, _ = server.accept()
        assert read_struct(connection, _HELLO) is not None
        connection.sendall(b"\1")
        sys.stdin.read()


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def send() -> None:
    link("up")
    receiver = subprocess.Popen(
        [sys.executable, __file__, "4000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert receiver.stdout is not None
    receiver.stdout.readline()
    heard: queue.Queue[Any] = queue.Queue()
    stream = Stream(("127.0.0.1", 4000), TOKEN, 7, SESSION, heard.put)
    for _ in stream.send(0, b"index", [np.zeros(8, np.uint8)], 0):
        pass
    while unacknowledged(stream._connection):
        os.sched_yield()
    link("down")
    receiver.kill()
    receiver.wait()
    link("up")
    assert heard.get(timeout=PATIENCE) is None
    stream.close()
    print("heard of it")


if __name__ == "__main__":
    receive(int(sys.argv[1])) if sys.argv[1:] else send()
