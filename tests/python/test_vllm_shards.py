"""An engine of vLLM takes versions from the ranks of a trainer that publish their shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rollring as rr
from rollring.adapters import refusals
from rollring.integrations.vllm.calls import attach, start_update

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from test_vllm_workers import COUNT, Meeting, Server  # noqa: E402
from vllm_fakes import WIDE, Source  # noqa: E402
from vllm_layouts import RowTrainer, ended  # noqa: E402
from vllm_world import PATIENCE, Client, made_engine, sending, serves  # noqa: E402

RANKS = 2


def passed(client: Client, trainer: Trainer, version: int) -> None:
    """A version, all the way."""
    committing = trainer.publish(version)
    client.start_weight_update()
    client.update_weights({"version": version})
    client.finish_weight_update()
    ended(committing)


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_fakes.install(monkeypatch)


class Trainer(RowTrainer):
    """With the tensors of a source."""

    def __init__(
        self,
        ring: str,
        wide: int = 16,
        lacks: tuple[int, str] = (-1, ""),
        only: tuple[str, ...] = (),
        more: str = "",
    ) -> None:
        self.source = Source(wide)
        if more:
            self.source.tensors[more] = torch.zeros(4)
        sent = {n: one for n, one in self.source.tensors.items() if not only or n in only}
        super().__init__(ring, sent, RANKS, lacks)

    def publish(self, version: int) -> list[threading.Thread]:
        self.source.fill(version)
        return self.begin(version)


@pytest.fixture
def trainer(ring: str) -> Iterator[Trainer]:
    made = Trainer(ring)
    yield made
    made.close()


def info(ring: str, **more: Any) -> dict[str, Any]:
    return {"ring": ring, "deadline_s": PATIENCE, **more}


def served(model: Any) -> dict[str, Any]:
    return {name: one.clone() for name, one in model.named_parameters()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("staging", ["auto", "out_of_place", "in_place", "delta"])
def test_versions_come_whole_and_only_with_the_finish(
    ring: str, trainer: Trainer, staging: str
) -> None:
    """Into parameters that are written directly, and through loaders: of one that is packed, and of
    one with another dtype.
    """
    client = Client(made_engine())
    client.init_weight_transfer_engine(info(ring, staging=staging))
    engine = client.engine
    assert engine._model.direct == {"norm", "qk"}
    for version in range(1, 4):
        before = served(engine.model)
        committing = trainer.publish(version)
        client.start_weight_update()
        client.update_weights({"version": version})
        assert same(before, served(engine.model))
        client.finish_weight_update()
        ended(committing)
        assert serves(engine.model, trainer.source)
    if staging == "delta":
        engine.rollback()
        assert same(before, served(engine.model))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from rollring.integrations.vllm import _peers

    meeting = Meeting()
    monkeypatch.setattr(_peers.Peers, "_most", lambda _, *numbers: meeting.most(*numbers))
    made = Server()
    yield made
    made.close()


def sent_to(server: Any, version: int) -> None:
    start_update(server)
    server.update_weights({"version": version})
    server.finish_weight_update()


def test_workers_of_one_engine_serve_a_version_or_say_poisoned(
    ring: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(ring, WIDE)
    server.init_weight_transfer_engine(info(ring))
    for version in (1, 2):
        committing = trainer.publish(version)
        sent_to(server, version)
        ended(committing)
        assert server.serve(trainer.source) == [True] * COUNT

    def fails(*_: Any) -> None:
        raise rr.ReleasedError("no memory", "released")

    committing = trainer.publish(3)
    server.start_weight_update()
    server.update_weights({"version": 3})
    with monkeypatch.context() as patch:
        patch.setattr(server.workers[1].engine, "_adopt", fails)
        with pytest.raises(OSError, match="500"):
            server.finish_weight_update()
    ended(committing)
    assert server.unread == 0
    assert [worker.engine._served for worker in server.workers] == [-1, -1]
    assert all(worker.engine._channel is None for worker in server.workers)
    trainer.close()
    trainer = Trainer(ring, WIDE)
    attach(server, info(ring))
    committing = trainer.publish(4)
    sent_to(server, 4)
    ended(committing)
    assert server.serve(trainer.source) == [True] * COUNT
    trainer.close()


def test_a_rank_that_goes_before_the_decision_leaves_the_old_version(
    ring: str, trainer: Trainer
) -> None:
    client = Client(made_engine())
    client.init_weight_transfer_engine(info(ring))
    passed(client, trainer, 1)
    before = served(client.engine.model)
    first = trainer.ends[0].begin(2)
    first.put_all(PATIENCE)
    client.start_weight_update()
    trainer.ends[1].close()
    with pytest.raises((rr.errors.PeerGoneError, rr.errors.VersionAbortedError)):
        client.update_weights({"version": 2})
    first.abort()
    assert same(before, served(client.engine.model))


def test_elements_that_no_rank_has_are_refused_by_name(ring: str) -> None:
    trainer = Trainer(ring, lacks=(1, "k"))
    client = Client(made_engine())
    with pytest.raises(rr.errors.LayoutMismatchError, match="'k'"):
        client.init_weight_transfer_engine(info(ring))
    (told,) = refusals(ring)
    assert "'k'" in told
    trainer.close()


def test_a_parameter_that_nothing_reaches_is_refused_by_name(ring: str, trainer: Trainer) -> None:
    client = Client(made_engine())
    other = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    other.weight_loader = vllm_fakes.copied  # type: ignore[attr-defined]
    model = client.engine.model
    model.norm.register_parameter("scale", other)
    lacking = "reaches 3 of 3 elements of parameter 'norm.scale'"
    with pytest.raises(rr.errors.LayoutMismatchError, match=lacking):
        client.init_weight_transfer_engine(info(ring))
    model.norm.scale = model.norm.weight  # tied
    client.init_weight_transfer_engine(info(ring))


def test_a_part_of_a_parameter_that_nothing_reaches_is_refused_by_name(ring: str) -> None:
    trainer = Trainer(ring, only=("norm", "q", "down", "thin"))
    client = Client(made_engine())
    lacking = "reaches 128 of 256 elements of parameter 'qk.weight'"
    with pytest.raises(rr.errors.LayoutMismatchError, match=lacking):
        client.init_weight_transfer_engine(info(ring))
    trainer.close()


def test_a_tensor_that_no_loader_takes_is_refused_by_name(ring: str) -> None:
    """Not by the finish, when the version is committed."""
    trainer = Trainer(ring, more="unknown")
    client = Client(made_engine())
    with pytest.raises(rr.errors.LayoutMismatchError, match="not take tensor 'unknown'.*Attribute"):
        client.init_weight_transfer_engine(info(ring))
    trainer.close()


def test_a_parameter_that_has_moved_is_refused_by_name(ring: str, trainer: Trainer) -> None:
    client = Client(made_engine())
    client.init_weight_transfer_engine(info(ring))
    weight = client.engine.model.norm.weight
    weight.data = weight.data.clone()
    committing = trainer.publish(1)
    client.start_weight_update()
    with pytest.raises(rr.errors.InvalidArgumentError, match="norm.weight"):
        client.update_weights({"version": 1})
    ended(committing)


def test_a_trainer_of_whole_tensors_comes_after_one_of_shards(ring: str) -> None:
    client = Client(made_engine())
    for version in (1, 3):
        trainer = Trainer(ring)
        client.init_weight_transfer_engine(info(ring))
        assert client.engine._model.layout is not None
        committing = trainer.publish(version)
        client.start_weight_update()
        client.update_weights({"version": version})
        client.finish_weight_update()
        ended(committing)
        assert serves(client.engine.model, trainer.source)
        trainer.close()
        source = Source()
        with sending(ring, client, source) as whole:
            assert client.engine._model.layout is None
            source.fill(version + 1)
            whole.send_weights(version + 1)
            assert serves(client.engine.model, source)


def test_a_trainer_without_shards_is_refused(ring: str) -> None:
    with (
        pytest.raises(rr.errors.InvalidArgumentError, match="no tensor of the source is a DTensor"),
        sending(ring, Client(made_engine()), torch.nn.Linear(2, 2), shards=True),
    ):
        pass
    lent = {"memory": "direct"}  # of neither a standing source nor shards
    with (
        pytest.raises(rr.errors.InvalidArgumentError, match="memory 'direct' lends the source's"),
        sending(ring, Client(made_engine()), {}, **lent),
    ):
        pass


def test_an_engine_that_comes_late_takes_the_next_version(ring: str, trainer: Trainer) -> None:
    """The ranks offer it the version before first, which no call has told it of."""
    clients = [Client(made_engine(rank=rank)) for rank in range(2)]
    for version in range(1, 4):
        if version < 3:
            clients[version - 1].init_weight_transfer_engine(info(ring))
        here = clients[: min(version, 2)]
        committing = trainer.publish(version)
        for client in here:
            client.start_weight_update()
            client.update_weights({"version": version})
        for client in here:
            client.finish_weight_update()
        ended(committing)
        assert all(serves(client.engine.model, trainer.source) for client in here)


def test_a_version_that_a_rank_gives_up_before_the_engine_looks_is_refused_as_aborted(
    ring: str, trainer: Trainer
) -> None:
    """As a rank that cannot read its shards does. All ranks offer the committed version again."""
    client = Client(made_engine())
    client.init_weight_transfer_engine(info(ring))
    passed(client, trainer, 1)
    first = trainer.ends[0].begin(2)
    trainer.ends[1].begin(2).abort()
    with pytest.raises(rr.errors.VersionAbortedError, match="another rank"):
        first.wait_staged(PATIENCE)
    first.abort()
    client.start_weight_update()
    with pytest.raises(rr.errors.VersionAbortedError, match="version 2 was aborted before"):
        client.update_weights({"version": 2})
    committing = trainer.publish(3)
    client.start_weight_update()
    client.update_weights({"version": 3})
    client.finish_weight_update()
    ended(committing)
    assert serves(client.engine.model, trainer.source)
