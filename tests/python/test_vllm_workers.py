"""An engine of several workers, whose answers vLLM's executor counts as this one does: it stops at
the first error, and the answers that are left count as those to the next call.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import WIDE, Source  # noqa: E402
from vllm_world import PATIENCE, Client, made_engine, sending, serves  # noqa: E402

COUNT = 2
STEPS = ("init", "start", "update", "finish")


class Meeting:
    """The highest of the numbers of all workers, as torch.distributed finds it."""

    def __init__(self) -> None:
        self._all_here = threading.Barrier(COUNT, timeout=PATIENCE)
        self._brought: list[tuple[int, ...]] = []

    def most(self, *numbers: int) -> list[int]:
        self._brought.append(numbers)
        self._all_here.wait()
        found = [max(each) for each in zip(*self._brought, strict=True)]
        if self._all_here.wait() == 0:
            self._brought.clear()
        self._all_here.wait()
        return found


class Worker(Client):
    def rollback(self) -> None:
        self.engine.rollback()


class Server:
    """Workers as threads, behind HTTP: the trainer sees failures as a status."""

    def __init__(self) -> None:
        self.workers = [
            Worker(
                made_engine(WIDE, rank=rank, world_size=COUNT, distributed_executor_backend="mp")
            )
            for rank in range(COUNT)
        ]
        self.killed_before = ""  # the trainer, whose calls do not come from then on
        self._is_killed = False
        self._asked = [queue.Queue[Any]() for _ in self.workers]
        self._answers = [queue.Queue[Exception | None]() for _ in self.workers]
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(COUNT)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        while (asked := self._asked[number].get()) is not None:
            name, args = asked
            try:
                getattr(self.workers[number], name)(*args)
                self._answers[number].put(None)
            except Exception as error:
                self._answers[number].put(error)
            self._asked[number].task_done()

    def close(self) -> None:
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _call(self, step: str, name: str, *args: Any) -> None:
        self._is_killed = self._is_killed or step == self.killed_before
        if self._is_killed:
            raise ConnectionError("the trainer was killed")
        for asked in self._asked:
            asked.put((name, args))
        for answers in self._answers:
            if answers.get(timeout=PATIENCE) is not None:
                raise OSError("500 Server Error: Internal Server Error")

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._call("init", "init_weight_transfer_engine", info)

    def start_weight_update(self) -> None:
        self._call("start", "start_weight_update")

    def update_weights(self, info: dict[str, Any]) -> None:
        self._call("update", "update_weights", info)

    def finish_weight_update(self, label: str | None = None) -> None:
        self._call("finish", "finish_weight_update", label)

    def rollback(self) -> None:
        self._call("rollback", "rollback")

    def revive(self) -> None:
        self.killed_before, self._is_killed = "", False

    @property
    def unread(self) -> int:
        for asked in self._asked:  # until all calls have been answered
            asked.join()
        return sum(answers.qsize() for answers in self._answers)

    def serve(self, source: Source) -> list[bool]:
        return [serves(worker.engine.model, source) for worker in self.workers]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    vllm_fakes.install(monkeypatch)
    from rollring.integrations.vllm import _peers

    meeting = Meeting()
    monkeypatch.setattr(_peers.Peers, "_most", lambda _, *numbers: meeting.most(*numbers))
    made = Server()
    yield made
    made.close()


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
@pytest.mark.parametrize("killed_before", STEPS[1:])
def test_the_next_trainer_goes_on_after_one_that_was_killed(
    ring: str, server: Server, killed_before: str, staging: str
) -> None:
    source = Source(WIDE)
    with sending(ring, server, source, staging=staging) as trainer:
        trainer.send_weights()
        source.fill(2)
        server.killed_before = killed_before
        with pytest.raises((ConnectionError, rr.RollringError)):
            trainer.send_weights()
    server.revive()
    assert server.unread == 0
    for number in range(3, 6):
        source.fill(number)
        with sending(ring, server, source, staging=staging) as trainer:
            for _ in range(2):
                trainer.send_weights()
                assert server.serve(source) == [True, True]
                assert server.unread == 0


@pytest.mark.parametrize("rank", range(COUNT))
@pytest.mark.parametrize("step", ["update", "adopt", "install"])
@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_a_worker_that_fails_leaves_no_answer_behind(
    ring: str, server: Server, rank: int, step: str, staging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(WIDE)
    engine = server.workers[rank].engine

    def fails(*_: Any) -> None:
        raise rr.ReleasedError(f"worker {rank} has no memory", "released")

    with sending(ring, server, source, staging=staging) as trainer:
        trainer.send_weights()
        source.fill(2)
        with monkeypatch.context() as patch:
            if step == "update":
                patch.setattr(engine, "_awake", fails)
            elif step == "adopt":
                patch.setattr(engine, "_refuse_asleep", iter_fails(fails))
            else:
                patch.setattr(engine._model, "install", fails)
            with pytest.raises(rr.RejectedError, match=f"worker {rank} has no memory"):
                trainer.send_weights()
        assert server.unread == 0
        versions = [worker.engine._served for worker in server.workers]
        if step == "install" or (step, staging) == ("adopt", "in_place"):
            assert versions == [-1, -1]
        elif staging == "in_place":  # the other one has loaded it into the model
            assert versions[rank] == 0 and versions[1 - rank] == -1
        else:
            assert versions == [0, 0] and server.serve(source) == [False, False]
        source.fill(3)
        if step == "update":  # no worker has left
            trainer.send_weights()
            assert server.serve(source) == [True, True]
            assert server.unread == 0
    with sending(ring, server, source, staging=staging) as trainer:
        trainer.send_weights()
        assert server.serve(source) == [True, True]
        assert server.unread == 0


def iter_fails(fails: Any) -> Any:
    """The second look is the one before a version is adopted."""
    looks = iter("x")
    return lambda: None if next(looks, "") else fails()


def test_workers_attach_together(
    ring: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(WIDE)

    def fails() -> None:
        raise rr.ReleasedError("worker 0 has no memory", "released")

    with monkeypatch.context() as patch:
        patch.setattr(server.workers[0].engine, "_awake", fails)
        with (
            pytest.raises(rr.RejectedError, match="worker 0 has no memory"),
            sending(ring, server, source),
        ):
            pass
    assert server.unread == 0
    assert all(worker.engine._channel is None for worker in server.workers)
    with sending(ring, server, source) as trainer:
        trainer.send_weights()
        assert server.serve(source) == [True, True]


def test_a_worker_whose_own_process_calls_it_waits_for_no_other(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_fakes.install(monkeypatch)
    parallel = {"world_size": COUNT, "distributed_executor_backend": "external_launcher"}
    client, source = Client(made_engine(WIDE, rank=0, **parallel)), Source(WIDE)
    with sending(ring, client, source) as trainer:
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_all_load_in_place_if_one_has_no_memory_to_load_beside(
    ring: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.workers[0].engine, "_out_of_place", lambda: False)
    source = Source(WIDE)
    with sending(ring, server, source) as trainer:
        trainer.send_weights()
        assert server.serve(source) == [True, True]
    assert not any(worker.engine._model.out_of_place for worker in server.workers)


def test_an_update_is_ended_that_another_server_of_the_fleet_has_failed(
    ring: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollring.integrations.vllm.trainer import FleetClient

    source, other = Source(WIDE), Client(made_engine(WIDE, rank=COUNT))

    def fails(*_: Any) -> None:
        raise rr.ReleasedError("asleep", "released")

    with sending(ring, FleetClient([server, other]), source) as trainer:
        trainer.send_weights()
        source.fill(2)
        with monkeypatch.context() as patch:
            patch.setattr(other.engine, "_refuse_asleep", fails)
            with pytest.raises(rr.RejectedError, match="asleep"):
                trainer.send_weights()
        source.fill(3)
        trainer.send_weights()
        assert server.serve(source) == [True, True]
        assert serves(other.engine.model, source)
        assert server.unread == 0


def test_a_wrong_argument_leaves_no_answer_behind(ring: str, server: Server) -> None:
    source = Source(WIDE)
    with (
        pytest.raises(rr.InvalidArgumentError, match="staging 'beside' is unknown"),
        sending(ring, server, source, staging="beside"),
    ):
        pass
    with sending(ring, server, source) as trainer:
        trainer.send_weights()
        with pytest.raises(OSError):
            server.init_weight_transfer_engine({"ring": ring, "staging": "beside"})
        assert server.unread == 0
    with sending(ring, server, source) as trainer:
        trainer.send_weights()
        server.start_weight_update()
        with pytest.raises(OSError):
            server.update_weights({"number": 5})
        assert server.unread == 0
    source.fill(2)
    with sending(ring, server, source) as trainer:
        trainer.send_weights()
        assert server.serve(source) == [True, True]
        assert server.unread == 0


@pytest.mark.parametrize("rank", range(COUNT))
@pytest.mark.parametrize("step", ["check", "go back", "install"])
def test_workers_go_back_together(
    ring: str, server: Server, rank: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(WIDE)
    engine = server.workers[rank].engine

    def fails(*_: Any) -> None:
        raise rr.BusyError(f"worker {rank} is busy", "busy")

    with sending(ring, server, source, staging="delta") as trainer:
        for number in range(1, 3):
            source.fill(number)
            trainer.send_weights()
        with monkeypatch.context() as patch:
            if step == "check":
                patch.setattr(engine, "_refuse_asleep", fails)
            elif step == "go back":
                channel = SimpleNamespace(rollback=fails, close=engine._channel.close)
                patch.setattr(engine, "_attached", lambda: channel)
            else:
                patch.setattr(engine._model, "install", fails)
            with pytest.raises(OSError):
                trainer.rollback()
        assert server.unread == 0
        versions = {worker.engine._served for worker in server.workers}
        assert versions == ({1} if step == "check" else {-1})
        if step == "check":
            assert server.serve(source) == [True, True]
    source.fill(3)
    with sending(ring, server, source, staging="delta") as trainer:
        trainer.send_weights()
        source.fill(4)
        trainer.send_weights()
        source.fill(3)
        trainer.rollback()
        assert server.serve(source) == [True, True]
        assert server.unread == 0


def test_workers_that_have_no_version_before_leave_no_answer_behind(
    ring: str, server: Server
) -> None:
    source = Source(WIDE)
    with sending(ring, server, source, staging="delta") as trainer:
        trainer.send_weights()
        with pytest.raises(OSError):
            server.rollback()
        assert server.unread == 0


def test_a_trainer_that_the_workers_cannot_attach_to_is_told_so_after_one_that_was_killed(
    ring: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(WIDE)

    def fails() -> None:
        raise rr.ReleasedError("worker 0 has no memory", "released")

    with sending(ring, server, source) as trainer:
        server.killed_before = "finish"
        with pytest.raises((ConnectionError, rr.RollringError)):
            trainer.send_weights()
    server.revive()
    with monkeypatch.context() as patch:
        patch.setattr(server.workers[0].engine, "_awake", fails)
        with (
            pytest.raises(rr.RejectedError, match="worker 0 has no memory"),
            sending(ring, server, source),
        ):
            pass
    assert server.unread == 0
    source.fill(2)
    with sending(ring, server, source) as trainer:
        trainer.send_weights()
        assert server.serve(source) == [True, True]
        assert server.unread == 0
