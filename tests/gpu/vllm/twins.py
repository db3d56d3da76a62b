"""vLLM's own packed ipc to an engine of one or more ranks. Each of them reads from the trainer's
process on its GPU, so there are as many of these: each has the model whole, as FSDP gathers it.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
from models import ON_GPU, Source, make
from probe import synchronized
from serving import Server
from torch import multiprocessing

BUFFER = 1 << 30  # vLLM's way takes no tensor above it, and a process keeps one a version


def group(rank: int, ranks: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)


def hand_over(url: str, model: Any, buffer: int) -> None:
    """A rank's part of a version. All ranks come here, and the first one calls the server."""
    from vllm.distributed.weight_transfer import ipc_engine

    args = ipc_engine.IPCTrainerSendWeightsArgs(
        send_mode="http", url=url, packed=True, packed_buffer_size_bytes=buffer
    )
    ipc_engine.IPCWeightTransferEngine.trainer_send_weights(iter(Source(model)), args)


def twin(rank: int, ranks: int, port: int, size: str, pipe: Any) -> None:
    """Another rank, on a GPU of its own."""
    if ON_GPU:
        torch.cuda.set_device(rank)
    group(rank, ranks, port)
    model = make(size)
    first = pipe.recv()
    while (asked := pipe.recv()) is not None:
        if asked[0] == "copy":
            with torch.no_grad():
                for own, its in zip(model.parameters(), first, strict=True):
                    own.copy_(its)
            synchronized()
        else:
            hand_over(asked[1], model, asked[2])
        pipe.send("done")


class Own:
    """vLLM's own way to a server, as a block: its other processes end with it."""

    def __init__(self, server: Server, size: str, model: Any, buffer: int = BUFFER) -> None:
        self.server, self._model, self._buffer = server, model, buffer
        self._pipes: list[Any] = []
        self._twins: list[Any] = []
        if server.ranks > 1:
            self._start(size)

    def _start(self, size: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        spawn = multiprocessing.get_context("spawn")
        for rank in range(1, self.server.ranks):
            ours, theirs = spawn.Pipe()
            args = (rank, self.server.ranks, port, size, theirs)
            self._twins.append(spawn.Process(target=twin, args=args, daemon=True))
            self._twins[-1].start()
            self._pipes.append(ours)
        group(0, self.server.ranks, port)
        for pipe in self._pipes:
            pipe.send([one.detach() for one in self._model.parameters()])

    def __enter__(self) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._twins:
            one.kill()
            one.join(30)
        if self._twins:
            torch.distributed.destroy_process_group()

    def _ask(self, *asked: Any) -> None:
        for pipe in self._pipes:
            pipe.send(asked)

    def _wait(self) -> None:
        for pipe in self._pipes:
            if not pipe.poll(120):
                raise TimeoutError("another rank of the trainer does not answer")
            pipe.recv()

    def copy(self) -> None:
        """The other ranks get the weights of the first one."""
        self._ask("copy")
        self._wait()

    def send(self) -> None:
        """A version, as the ranks have it."""
        self.server.post("start_weight_update")
        self._ask("send", self.server.url, self._buffer)
        hand_over(self.server.url, self._model, self._buffer)
        self._wait()
        self.server.post("finish_weight_update")
