"""rollring.integrations.vllm's engine and trainer over stand-ins of their imports from vLLM."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import (  # noqa: E402
    WIDE,
    NewSource,
    Packs,
    QuantizeMethodBase,
    Refuses,
    Remembers,
    Replaces,
    Shuffles,
    Source,
    copied,
    module_of,
)
from vllm_world import Client, made_engine, sending, served, serves  # noqa: E402


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_fakes.install(monkeypatch)


@pytest.mark.parametrize("staging", ["in_place", "out_of_place"])
@pytest.mark.parametrize("made", [Source, NewSource])
@pytest.mark.parametrize("standing", [False, True])
def test_versions_arrive(ring: str, staging: str, made: Any, standing: bool) -> None:
    source, client = made(), Client(made_engine())
    with sending(ring, client, source, staging=staging, standing=standing) as trainer:
        model = client.engine._model
        for version in range(4):
            source.fill(version)
            trainer.send_weights()
            assert serves(client.engine.model, source)
            assert (trainer.version, client.label) == (version, str(version))
            assert model.direct == {"norm", "qk"} and set(model.reasons) == {"down", "thin"}
        assert client.calls == ["init", *["start", "update", "finish"] * 4]
        assert rr.describe_weights(ring)[0]["engines"][0]["live_version"] == 3
        trainer.send_weights(version=17)
        assert client.label == "17"
        with pytest.raises(rr.StaleVersionError):
            trainer.send_weights(version=17)


def test_what_is_done_after_loading_is_tried_on_a_copy() -> None:
    from rollring.integrations.vllm._trial import Loadable, obstacle

    said = {}
    made = [QuantizeMethodBase, Packs, Shuffles, Remembers, Replaces, Refuses]
    for method in made:
        module = module_of(copied, method(), weight=(6, 4))
        module.weight.data.fill_(3)
        live, fields = module.weight, set(vars(module))
        loadable = {"weight": Loadable.of(torch.nn.Parameter(torch.empty(6, 4, device="meta")))}
        said[method.__name__] = obstacle(module, loadable, torch.device("cpu"))
        assert module.weight is live and bool((live == 3).all())
        assert set(vars(module)) == fields and vars(module.quant_method) == {}
    assert said.pop("QuantizeMethodBase") == ""
    assert said == {
        "Packs": "values are derived from it after loading",
        "Shuffles": "weight is changed after loading",
        "Remembers": "values are derived from it after loading",
        "Replaces": "weight is changed after loading",
        "Refuses": "the processing after loading cannot be tested: "
        "RuntimeError: no kernel for this",
    }


def test_a_later_trainer_may_want_another_staging(ring: str) -> None:
    client, source = Client(made_engine()), Source()
    beside = []
    for version, staging in enumerate(["out_of_place", "auto", "in_place", "auto"]):
        with sending(ring, client, source, staging=staging) as trainer:
            source.fill(version)
            trainer.send_weights()
            assert serves(client.engine.model, source)
            beside.append((client.engine._model.out_of_place, len(client.engine._model._beside)))
    assert beside == [(True, 2), (True, 2), (False, 0), (False, 0)]


def test_a_standing_source_that_moves_is_noticed(ring: str) -> None:
    source, client = Source(), Client(made_engine())
    with sending(ring, client, source, standing=True) as trainer:
        source.fill(1)
        trainer.send_weights()
        source.tensors["down"].data = torch.ones(16, 8)
        with pytest.raises(rr.InvalidArgumentError, match="'down' has moved"):
            trainer.send_weights()


class Breaks(Source):
    """Raises before its last tensor, while the engine has all that came before."""

    broken = True

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.tensors.items():
            if name == "thin" and self.broken:
                raise OSError("an all-gather failed")
            yield name, tensor


@pytest.mark.parametrize("staging", ["in_place", "out_of_place"])
def test_a_version_that_fails_before_finish(
    ring: str, staging: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, client = Breaks(WIDE), Client(made_engine(WIDE))
    caplog.set_level(logging.ERROR)
    with sending(ring, client, source, staging=staging) as trainer:
        for version in range(2):
            source.broken = False
            source.fill(version)
            trainer.send_weights()
        before = {name: one.clone() for name, one in served(client.engine.model).items()}
        source.broken = True
        source.fill(2)
        with pytest.raises((OSError, rr.RejectedError)):
            trainer.send_weights()
        now = served(client.engine.model)
        if staging == "out_of_place":
            assert all(torch.equal(now[name], one) for name, one in before.items())
            assert "POISONED" not in caplog.text
            assert client.engine._served == 1
        else:
            assert "POISONED: the model holds parts of version 2" in caplog.text
            assert client.engine._served == -1
        source.broken = False
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_an_engine_that_fails_to_put_a_version_in_place_says_so(
    ring: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, client = Source(), Client(made_engine())
    with sending(ring, client, source) as trainer:
        trainer.send_weights()
        model = client.engine._model
        with monkeypatch.context() as patch:
            patch.setattr(model, "_load_whole", lambda: 1 / 0)
            with pytest.raises(rr.RejectedError, match=r"vllm\..*: ZeroDivisionError: "):
                trainer.send_weights()
        assert "POISONED: version 1 was installed only in part" in caplog.text
        assert [one["alive"] for one in rr.describe_weights(ring)[0]["engines"]] == [False]
    with sending(ring, client, source) as trainer:
        source.fill(5)
        trainer.send_weights()
        assert serves(client.engine.model, source)
        assert trainer.version == 2


def test_a_trainer_comes_after_one_that_left_a_session_open(ring: str) -> None:
    source, client = Source(), Client(made_engine())
    with sending(ring, client, source) as trainer:
        source.fill(1)
        trainer.send_weights()
        client.fails["finish"] = ConnectionError("the trainer's machine went away")
        with pytest.raises(ConnectionError):
            trainer.send_weights()
    assert client.active
    with sending(ring, client, source) as trainer:
        source.fill(2)
        trainer.send_weights()
        assert serves(client.engine.model, source)
        # 1 was committed, and never served here.
        assert trainer.version == 2 and client.label == "2"


def test_what_is_refused(ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made_engine(enable_eplb=True)
    with pytest.raises(rr.InvalidArgumentError, match="EPLB"):
        engine.init_transfer_engine(engine.parse_init_info({"ring": ring}))
    engine = made_engine()
    assert not engine.supports_draft_weight_update
    with pytest.raises(rr.InvalidArgumentError, match="out_of_place, in_place"):
        engine.init_transfer_engine(engine.parse_init_info({"ring": ring, "staging": "beside"}))
    with pytest.raises(rr.PeerGoneError, match="init_weight_transfer_engine"):
        engine.start_weight_update()
    asleep = SimpleNamespace(tag="weights", is_asleep=True)
    away = SimpleNamespace(pointer_to_data={1: asleep, 2: SimpleNamespace(tag="kv_cache")})
    monkeypatch.setattr(vllm_fakes.CuMemAllocator, "instance", away)
    client = Client(engine)
    with sending(ring, client, Source()) as trainer:
        engine.device = torch.device("cuda")
        with pytest.raises(rr.ReleasedError, match="wake_up"):
            engine.start_weight_update()
        asleep.is_asleep = False
        engine.start_weight_update()
        engine.device = torch.device("cpu")
        with pytest.raises(rr.InvalidArgumentError, match="do two trainers use"):
            _announce_another(trainer, client)


def _announce_another(trainer: Any, client: Client) -> None:
    client.active = False
    theirs = client.update_weights
    client.update_weights = lambda info: theirs({"version": 99})  # type: ignore[method-assign]
    try:
        trainer.send_weights()
    except rr.RejectedError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


def test_a_fleet_is_called_at_once_and_all_of_it(ring: str) -> None:
    from rollring.integrations.vllm.trainer import FleetClient

    engines = [Client(made_engine(WIDE, rank=rank)) for rank in range(2)]
    fleet, source = FleetClient(engines), Source(WIDE)
    with sending(ring, fleet, source) as trainer:
        source.fill(1)
        trainer.send_weights()
        assert all(serves(one.engine.model, source) for one in engines)
        before = source.tensors["norm"].clone()
        source.fill(2)
        engines[1].fails["update"] = ConnectionError("refused")
        with pytest.raises((ConnectionError, rr.RejectedError)):
            trainer.send_weights()
        for one in engines:  # both serve the old one
            assert torch.equal(one.engine.model.norm.weight, before)
        trainer.send_weights()
        assert all(serves(one.engine.model, source) for one in engines)


def test_an_engine_does_not_wait_for_a_version_that_was_given_up(ring: str) -> None:
    """It is slow, and comes to the version when another one has failed already."""
    from rollring.integrations.vllm.trainer import FleetClient

    slow, other = (Client(made_engine(rank=rank)) for rank in range(2))
    seen: list[BaseException] = []
    update = slow.update_weights

    def late(info: dict[str, Any]) -> None:
        while rr.describe_weights(ring)[0]["state"] != "aborted":
            time.sleep(0.01)
        try:
            update(info)
        except BaseException as error:
            seen.append(error)
            raise

    with sending(ring, FleetClient([slow, other]), Source()) as trainer:
        trainer.send_weights()
        slow.update_weights = late  # type: ignore[method-assign]
        other.fails["update"] = ConnectionError("refused")
        with pytest.raises(ConnectionError):
            trainer.send_weights()
        assert [type(error) for error in seen] == [rr.VersionAbortedError]
        slow.update_weights = update  # type: ignore[method-assign]
        trainer.send_weights()


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_generation_is_paused_while_weights_change(ring: str, staging: str) -> None:
    client, source = Client(made_engine()), Source()
    with sending(ring, client, source, pause="keep", staging=staging) as trainer:
        client.calls.clear()
        trainer.send_weights()
        loading, finish = ["start", "update"], ["finish"]
        if staging == "out_of_place":  # weights loaded beside need no pause
            assert client.calls == [*loading, "pause keep", *finish, "resume"]
        else:
            assert client.calls == ["pause keep", *loading, *finish, "resume"]


def test_an_engine_of_this_process_drops_its_prefix_cache_where_servers_pause(ring: str) -> None:
    """Otherwise answers come from keys and values of the version before."""
    from rollring.integrations.vllm.trainer import InProcessClient

    engine, source = Client(made_engine()), Source()
    theirs = SimpleNamespace(
        init_weight_transfer_engine=lambda info: engine.init_weight_transfer_engine(
            info["init_info"]
        ),
        start_weight_update=engine.start_weight_update,
        update_weights=lambda info: engine.update_weights(info["update_info"]),
        finish_weight_update=engine.finish_weight_update,
        reset_prefix_cache=lambda: engine.calls.append("reset"),
    )
    for pause, staging, wanted in (
        (None, "out_of_place", ["init", "start", "update", "finish"]),
        ("keep", "out_of_place", ["init", "start", "update", "reset", "finish"]),
        ("keep", "in_place", ["init", "reset", "start", "update", "finish"]),
    ):
        engine.calls.clear()
        client = InProcessClient(theirs)
        with sending(ring, client, source, pause=pause, staging=staging) as trainer:
            trainer.send_weights()
        assert engine.calls == wanted


def test_engines_go_on_after_a_failure_unless_one_is_poisoned(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, source = Client(made_engine(WIDE)), Breaks(WIDE)

    def calls_of_a_version() -> list[str]:
        client.calls.clear()
        with contextlib.suppress(OSError, rr.RejectedError, ZeroDivisionError):
            trainer.send_weights()
        return client.calls

    with sending(ring, client, source, pause="keep", staging="in_place") as trainer:
        source.broken = False
        assert calls_of_a_version()[-1] == "resume"
        client.fails["update"] = ConnectionError("refused")
        assert calls_of_a_version()[-1] == "resume"  # nothing of it was loaded
        client.active, source.broken = False, True
        assert "resume" not in calls_of_a_version()
        assert rr.describe_weights(ring)[0]["engines"][0]["state"] == "poisoned"
        source.broken = False
        assert calls_of_a_version()[-1] == "resume"
        with monkeypatch.context() as patch:
            patch.setattr(client.engine._model, "_load_whole", lambda: 1 / 0)
            assert calls_of_a_version()[-1] == "finish"  # put in place in part


def test_a_client_that_cannot_pause_is_refused(ring: str) -> None:
    from rollring.integrations.vllm.trainer import FleetClient, HTTPClient, RollringTrainerInitInfo

    class Theirs:
        def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
            raise AssertionError("it is not asked")

    pausing = HTTPClient("http://localhost:1")
    for client in (Theirs(), FleetClient([pausing, Theirs()])):
        with (
            pytest.raises(rr.UnsupportedError, match="Theirs cannot pause"),
            sending(ring, client, Source(), pause="wait"),
        ):
            pass
    with pytest.raises(rr.InvalidArgumentError, match="'keep', 'wait' or 'abort'"):
        RollringTrainerInitInfo(ring, rank=0, pause="stop")
    with pytest.raises(rr.InvalidArgumentError, match="memory 'direct'.*standing=True"):
        RollringTrainerInitInfo(ring, rank=0, memory="direct")
    source = Source()
    with (
        pytest.raises(rr.RollringError, match="direct"),  # of tensors in host memory
        sending(ring, Client(made_engine()), source, memory="direct", standing=True),
    ):
        pass
    pausing.pause_generation("abort")
    pausing.resume_generation()
    assert pausing.posts == ["pause?mode=abort", "resume"]
