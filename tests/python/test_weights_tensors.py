"""The ways in which engines take a version: parts by views, tensors one by one, arrays of other
packages."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, RunLoop
from weights_children import fill, model, publish_beside, whole


@pytest.mark.parametrize("slot_bytes", [0, 512])
def test_a_sharded_engine_takes_views(ring: str, slot_bytes: int) -> None:
    """Rank 1 of 2: rows of q and k side by side, columns of o, an embedding that is padded."""
    dice = np.random.default_rng(5)
    shapes = {"q": (16, 24), "k": (4, 24), "o": (24, 16), "embed": (13, 24), "norm": (24,)}
    sent = {name: dice.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    qk = np.full((10, 24), -1, np.float32)
    o = np.full((24, 8), -1, np.float32)
    embed = np.full((8, 24), -1, np.float32)
    norms = np.full((3, 24), -1, np.float32)
    into = {
        "q": rr.WeightView(qk[:8], 8 * 24),
        "k": [rr.WeightView(qk[8:9], 2 * 24), rr.WeightView(qk[9:], 3 * 24)],
        "o": rr.WeightView(o.T, 8, (1, 16)),
        "embed": rr.WeightView(embed[:6], 7 * 24, (24, 1)),
        "norm": (rr.WeightView(norms[::2], 0, (0, 1)),),
    }
    options = {"slot_bytes": slot_bytes, "slots": 2} if slot_bytes else {}
    with (
        rr.WeightPublisher(ring, sent, **options) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
    ):
        for version in (1, 2):
            for tensor in sent.values():
                tensor += version
            publish_beside(trainer, engine, version)
            assert np.array_equal(qk, np.concatenate([sent["q"][8:], sent["k"][2:]]))
            assert np.array_equal(o, sent["o"][:, 8:])
            assert np.array_equal(embed[:6], sent["embed"][7:]) and (embed[6:] == -1).all()
            assert np.array_equal(norms[::2], [sent["norm"]] * 2) and (norms[1] == -1).all()


def test_views_that_cannot_be_are_refused(ring: str) -> None:
    held = np.zeros((2, 3), np.float32)
    view = rr.WeightView(held, 4, [6, 1])
    assert view.strides == (6, 1) and "(2, 3) from element 4" in repr(view)
    with pytest.raises(AttributeError):
        view.offset = 1  # type: ignore[misc]
    for kind, match, make in (
        (rr.InvalidArgumentError, "offset is -1", lambda: rr.WeightView(held, -1)),
        (rr.InvalidArgumentError, "63 bits", lambda: rr.WeightView(held, 1 << 63)),
        (rr.InvalidArgumentError, "stride is 9.*63", lambda: rr.WeightView(held, 0, [2**63, 1])),
        (TypeError, "float", lambda: rr.WeightView(held, 1.5)),  # type: ignore[arg-type]
    ):
        with pytest.raises(kind, match=match):
            make()
    with rr.WeightPublisher(ring, {"w": np.zeros((4, 6), np.float32)}):
        for kind, match, into in (
            (rr.LayoutMismatchError, "'w': its view .* element 24, 24", rr.WeightView(held, 19)),
            (rr.LayoutMismatchError, "'w': dtype f64", rr.WeightView(held.astype(float), 0)),
            (rr.UnsupportedError, "'w': its view has neg", rr.WeightView(held, 9, [-6, 1])),
            (rr.InvalidArgumentError, "'w' has 2 dim.* 1 strides", rr.WeightView(held, 0, [1])),
            (rr.InvalidArgumentError, "'w' has 2 dim.* 0 strides", rr.WeightView(held, 0, [])),
            (TypeError, "'w' is list", []),
            (TypeError, "'w' has a ndarray among its views", [view, held]),
            (TypeError, "'w' is list", rr.WeightView([1.0], 0)),
        ):
            with pytest.raises(kind, match=match):
                rr.WeightSubscriber(ring, {"w": into})
        with rr.WeightSubscriber(ring, {"w": [view, view]}):
            pass
    with pytest.raises(rr.InvalidArgumentError, match="'w' is a view, which only engines may use"):
        rr.WeightPublisher(ring, {"w": view})


def test_tensors_are_put_one_by_one(ring: str) -> None:
    tensors, engines = model(), model(-7)
    with (
        rr.WeightPublisher(ring, tensors) as trainer,
        rr.WeightSubscriber(ring, engines) as engine,
    ):
        failed: list[BaseException] = []

        def take() -> None:
            try:
                engine.next(PATIENCE).finish(PATIENCE)
            except BaseException as error:
                failed.append(error)

        with pytest.raises(ZeroDivisionError), trainer.begin(1) as transaction:
            transaction.put("embed")
            raise ZeroDivisionError
        with pytest.raises(rr.InvalidArgumentError, match="version 1 is over"):
            transaction.put("norm")
        thread = threading.Thread(target=take)
        gathered = model(2)
        old = transaction
        with trainer.begin(2) as transaction:
            thread.start()
            with pytest.raises(rr.InvalidArgumentError, match="version 1 is over"):
                old.commit(PATIENCE)  # not the one that is open
            with pytest.raises(rr.BusyError):
                trainer.begin(3)
            with pytest.raises(rr.InvalidArgumentError, match="'norm'.*embed is next"):
                transaction.put("norm", gathered["norm"])
            for other in (gathered["embed"].astype(np.float64), gathered["embed"].T):
                with pytest.raises(rr.InvalidArgumentError, match="'embed' has dtype"):
                    transaction.put("embed", other)
            with pytest.raises(rr.InvalidArgumentError, match="no tensor 'nowhere'"):
                transaction.put("nowhere", gathered["embed"])
            for name, tensor in gathered.items():
                if name != "mask":  # it goes at the end, from where it lies
                    transaction.put(name, tensor, PATIENCE)
        assert transaction.report is not None and transaction.report["subscribers"] == 1
        thread.join()
        assert not failed and engine.live_version == 2
        assert engines.pop("mask").sum() == 0
        assert all((tensor == 2).all() for tensor in engines.values())


def test_an_engine_that_loads_by_itself_gets_each_tensor_whole(ring: str) -> None:
    tensors = model(3)
    tensors["tied"] = tensors["embed"]
    tensors["bits"] = np.arange(100, dtype=np.float32)
    # The slots are smaller than a tensor: it comes in pieces.
    with (
        rr.WeightPublisher(
            ring,
            tensors,
            slots=2,
            slot_bytes=1 << 20,
            publish_as={"bits": "bf16"},
            tied={"tied": "embed"},
        ) as trainer,
        rr.WeightSubscriber(ring) as engine,
    ):
        for version in (3, 4):
            fill({name: one for name, one in tensors.items() if name != "bits"}, version)
            sender = threading.Thread(target=trainer.publish, args=(version, PATIENCE))
            sender.start()
            with engine.next(PATIENCE) as update:
                found = dict(update.tensors(PATIENCE))
            sender.join()
            assert engine.live_version == version
            assert sorted(found) == sorted(tensors)
            for name, one in found.items():
                assert one.shape == tensors[name].shape, name
                if name != "bits":
                    assert one.dtype == tensors[name].dtype and (one == tensors[name]).all(), name
            assert found["tied"] is found["embed"]
            assert found["bits"].tolist() == (tensors["bits"].view(np.uint32) >> 16).tolist()
        # A part of the tensors is not a version.
        outcome: queue.Queue[Any] = queue.Queue()

        def send() -> None:
            try:
                outcome.put(trainer.publish(5, PATIENCE))
            except rr.RollringError as error:
                outcome.put(error)

        sender = threading.Thread(target=send)
        sender.start()
        with (
            pytest.raises(rr.InvalidArgumentError, match="tensors"),
            engine.next(PATIENCE) as update,
        ):
            next(update.tensors())
        sender.join()
        assert isinstance(outcome.get(), rr.RejectedError)
    with pytest.raises(rr.InvalidArgumentError, match="device"):
        rr.WeightSubscriber(ring, {"w": np.zeros(1)}, device="cpu", timeout=0)


def test_tensors_come_to_an_event_loop(ring: str, run_loop: RunLoop) -> None:
    tensors = model(7)

    async def run() -> None:
        with (
            rr.WeightPublisher(ring, tensors, slot_bytes=1 << 20) as trainer,
            rr.WeightSubscriber(ring) as engine,
        ):
            sending = asyncio.create_task(trainer.publish_async(1, PATIENCE))
            async with await engine.next_async(PATIENCE) as update:
                found = {name: one async for name, one in update.tensors_async(PATIENCE)}
            assert (await sending)["subscribers"] == 1
            assert whole(found) == 7 and engine.live_version == 1

    run_loop(run())


class Foreign:
    """An array of another package, as DLPack shows it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_other_packages_come_by_dlpack(ring: str) -> None:
    sent = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    into = np.zeros((4, 3), np.float32)
    with (
        rr.WeightPublisher(ring, {"w": Foreign(sent)}) as trainer,
        rr.WeightSubscriber(ring, {"w": Foreign(into)}) as engine,
    ):
        publish_beside(trainer, engine, 1)
        assert (into == sent).all()
        sender = threading.Thread(target=lambda: trainer.begin(2).commit(PATIENCE))
        sender.start()
        with engine.next(PATIENCE):
            pass
        sender.join()
    with pytest.raises(TypeError, match="DLPack"):
        rr.WeightPublisher(ring, {"w": Foreign(np.array(["text"], object))})
    with pytest.raises(TypeError, match="DLPack"):
        rr.WeightPublisher(ring, {"w": [1.0]})


def test_a_publisher_says_which_memory_it_uses(ring: str, caplog: pytest.LogCaptureFixture) -> None:
    tensors = {"w": np.zeros(4, np.float32)}
    with rr.WeightPublisher(ring, tensors) as plain:
        assert (plain.memory, plain.why_not_direct) == ("host", "")
    with (
        caplog.at_level(logging.INFO, "rollring"),
        rr.WeightPublisher(ring, tensors, allow_direct=True) as slots,
    ):
        assert slots.memory == "host" and "host memory" in slots.why_not_direct
        assert slots.why_not_direct in caplog.text
        (looked,) = rr.describe_weights(ring)
        assert looked["why_not_direct"] == slots.why_not_direct
    with pytest.raises(rr.InvalidArgumentError, match="direct needs a GPU"):
        rr.WeightPublisher(ring, tensors, memory="direct")
