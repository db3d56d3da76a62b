"""P10: a committed version has the values of the trainer's tensors, or there is an error with the
tensor's name."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE

torch = pytest.importorskip("torch")


def sync(trainer: Any, engine: Any, version: int) -> None:
    """One version from end to end; the trainer's error is raised."""
    failed: list[BaseException] = []

    def take() -> None:
        try:
            with engine.next(PATIENCE):
                pass
        except BaseException as error:
            failed.append(error)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        trainer.publish(version, PATIENCE)
    finally:
        taker.join()
    assert not failed


def parameter(value: float) -> Any:
    return torch.nn.Parameter(torch.full((64, 64), float(value)))


def test_a_parameter_whose_data_was_exchanged_is_read_from_its_new_memory(ring: str) -> None:
    weight, bias = parameter(1), parameter(10)
    into = {"weight": torch.zeros(64, 64), "bias": torch.zeros(64, 64)}
    with (
        rr.WeightPublisher(ring, {"weight": weight, "bias": bias}) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
    ):
        sync(trainer, engine, 1)
        weight.data = torch.full((64, 64), 2.0)
        bias.data.fill_(20)
        sync(trainer, engine, 2)
        assert into["weight"].unique().tolist() == [2]
        assert into["bias"].unique().tolist() == [20]


@pytest.mark.parametrize("first", ["put_all", "wait_staged", "decide"])
def test_data_that_is_exchanged_once_a_version_is_put_is_for_the_next_one(
    ring: str, first: str
) -> None:
    weight = parameter(1)
    with rr.WeightPublisher(ring, {"weight": weight}) as trainer:
        with trainer.begin(1) as transaction:
            getattr(transaction, first)(PATIENCE)
            weight.data = torch.full((64, 64), 2.0)
            assert transaction.commit(PATIENCE)["version"] == 1
        assert trainer.committed_version == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: setattr(one, "data", torch.zeros(64, 32)), "'weight' has shape"),
        (lambda one: setattr(one, "data", torch.zeros(64, 64).t()), "'weight' has strides"),
        (lambda one: setattr(one, "data", one.data.to(torch.bfloat16)), "'weight' has dtype"),
        (lambda one: one.untyped_storage().resize_(0), "'weight' has no memory now"),
    ],
)
def test_a_parameter_that_is_another_one_now_is_refused_by_name(
    ring: str, change: Any, says: str
) -> None:
    weight = parameter(1)
    into = {"weight": torch.zeros(64, 64)}
    with (
        rr.WeightPublisher(ring, {"weight": weight}) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
    ):
        sync(trainer, engine, 1)
        change(weight)
        with pytest.raises(rr.InvalidArgumentError, match=says):
            trainer.publish(2, PATIENCE)
        assert engine.live_version == 1
        assert into["weight"].unique().tolist() == [1]


def test_an_engine_whose_tensor_moved_writes_nothing(ring: str) -> None:
    weight, served = parameter(1), parameter(0)
    with (
        rr.WeightPublisher(ring, {"weight": weight}) as trainer,
        rr.WeightSubscriber(ring, {"weight": served}) as engine,
    ):
        sync(trainer, engine, 1)
        before = served._version
        weight.data.fill_(2)
        served.data = served.data.clone()
        failed: list[BaseException] = []

        def take() -> None:
            try:
                with engine.next(PATIENCE):
                    pass
            except rr.InvalidArgumentError as error:
                failed.append(error)

        taker = threading.Thread(target=take)
        taker.start()
        with pytest.raises(rr.RejectedError, match="'weight' lies elsewhere"):
            trainer.publish(2, PATIENCE)
        taker.join()
        assert "attach again" in str(failed[0])
        assert served.unique().tolist() == [1] and engine.live_version == 1
        assert before > 0, "autograd saw the write of version 1"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: torch.eye(4).to_sparse(), "to_dense"),
        (lambda: torch.conj(torch.ones(4, dtype=torch.complex64)).imag, "resolve_neg"),
        (lambda: torch.zeros(4).to(torch.complex64), "complex64"),
        (lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float8_e8m0fnu), "publish_as"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_by_name(ring: str, made: Any, says: str) -> None:
    with pytest.raises(rr.UnsupportedError, match=f"'layers.0.w' .*{says}"):
        rr.WeightPublisher(ring, {"layers.0.w": made()})


def test_a_tensor_without_memory_is_not_taken_for_the_publishers_own(ring: str) -> None:
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
            raise NotImplementedError(func)

    old = torch.full((4, 4), -1.0)
    freed = torch.full((4, 4), 7.0)
    freed.untyped_storage().resize_(0)
    with rr.WeightPublisher(ring, {"w": old}) as trainer:
        for version, (given, error) in enumerate(
            [(Wrapped(torch.full((4, 4), 7.0)), rr.UnsupportedError), (freed, ValueError)]
        ):
            with pytest.raises(error, match="'w'"), trainer.begin(version) as transaction:
                transaction.put("w", given, PATIENCE)


def test_bits_go_where_the_trainer_says_so(ring: str) -> None:
    scales = torch.arange(16, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    into = torch.zeros(16, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    with (
        rr.WeightPublisher(ring, {"scales": scales}, publish_as={"scales": "u8"}) as trainer,
        rr.WeightSubscriber(ring, {"scales": into}) as engine,
    ):
        sync(trainer, engine, 1)
        assert into.view(torch.uint8).tolist() == list(range(16))


def test_one_buffer_for_all_layers_sends_each_layer(ring: str) -> None:
    buffer = torch.empty(32, 32)
    names = [f"layers.{layer}" for layer in range(4)]
    into = {name: torch.zeros(32, 32) for name in names}
    with (
        rr.WeightPublisher(ring, dict.fromkeys(names, buffer)) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
    ):
        taker = threading.Thread(target=lambda: engine.next(PATIENCE).finish(PATIENCE))
        taker.start()
        with trainer.begin(1) as transaction:
            for layer, name in enumerate(names):
                buffer.fill_(layer + 1)  # an all-gather writes here
                transaction.put(name, buffer, PATIENCE)
        taker.join()
        assert [into[name].unique().tolist() for name in names] == [[1], [2], [3], [4]]


class Tied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)
        self.head = torch.nn.Linear(8, 64, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("ours", ["state_dict", "parameters"])
@pytest.mark.parametrize("theirs", ["state_dict", "parameters"])
def test_tied_weights_attach_whoever_names_them(ring: str, ours: str, theirs: str) -> None:
    def named(model: Tied, way: str) -> dict[str, Any]:
        return model.state_dict() if way == "state_dict" else dict(model.named_parameters())

    trains, serves = Tied(), Tied()
    with (
        rr.WeightPublisher(ring, named(trains, ours)) as trainer,
        rr.WeightSubscriber(ring, named(serves, theirs)) as engine,
    ):
        assert trainer.payload_bytes == 64 * 8 * 4
        sync(trainer, engine, 1)
        assert torch.equal(serves.head.weight, trains.embed.weight)


def test_a_tie_that_only_the_engine_has_is_refused_by_both_names(ring: str) -> None:
    shared = torch.zeros(8)
    with (
        rr.WeightPublisher(ring, {"a": torch.ones(8), "b": torch.ones(8)}),
        pytest.raises(rr.LayoutMismatchError, match="'a' and 'b' of the engine share memory"),
    ):
        rr.WeightSubscriber(ring, {"a": shared, "b": shared}, timeout=PATIENCE)


def test_a_declared_tie_goes_once_and_not_from_elsewhere(ring: str) -> None:
    embed = torch.full((8,), 1.0)
    with rr.WeightPublisher(
        ring, {"embed": embed, "head": embed}, tied={"head": "embed"}
    ) as trainer:
        assert trainer.payload_bytes == 32
        with (
            pytest.raises(rr.InvalidArgumentError, match="'head' is tied to 'embed'"),
            trainer.begin(1) as transaction,
        ):
            transaction.put("embed", None, PATIENCE)
            transaction.put("head", torch.full((8,), 6.0), PATIENCE)
    with pytest.raises(rr.InvalidArgumentError, match="not one of the tensors"):
        rr.WeightPublisher(ring, {"embed": embed}, tied={"head": "embed"})


def test_a_version_of_nothing_is_refused(ring: str) -> None:
    empty = {f"layers.{i}": torch.nn.Parameter(torch.empty(0)) for i in range(8)}
    with (
        rr.WeightPublisher(ring, empty) as trainer,
        pytest.raises(rr.InvalidArgumentError, match="all 8 tensors are empty, 'layers.0'"),
    ):
        trainer.publish(1, PATIENCE)


def test_a_model_whose_parameters_leave_their_state_dict_behind_is_warned_of_once(
    ring: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(8, 8)
    with rr.WeightPublisher(ring, model.state_dict()) as trainer:
        trainer.publish(1, PATIENCE)
        assert not caplog.records
        model.weight.data = torch.ones(8, 8)
        for version in (2, 3):
            trainer.publish(version, PATIENCE)
    assert [record.getMessage() for record in caplog.records] == [
        "tensor 'weight' and 0 others of the state_dict() are held by the weight publisher alone "
        "now: if the model's parameters have moved, their new values are not sent; give the "
        "publisher dict(model.named_parameters())"
    ]


def test_a_state_dict_that_nobody_else_held_is_not_warned_of(
    ring: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rr.WeightPublisher(ring, torch.nn.Linear(8, 8).state_dict()) as trainer:
        trainer.publish(1, PATIENCE)
    assert not caplog.records
