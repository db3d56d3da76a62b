"""The weights of Nous' torchtitan, against stand-ins with its fields; its ranks are threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rollring as rr
from rollring.integrations import torchtitan
from rollring.integrations.torchtitan import Settings, _weights
from torchtitan_world import Group, World, stand_in

PATIENCE = 60.0


class Sharded:
    """A parameter of which each rank has a part: all ranks of its stage gather it together."""

    def __init__(self, world: World, whole: Any, stage: Group | None) -> None:
        self.world, self.whole, self.stage = world, whole, stage
        self.shape, self.dtype = whole.shape, whole.dtype

    def full_tensor(self) -> Any:
        self.world.meet("full_tensor", group=self.stage)
        return self.whole.clone()


class Adapter:
    """Its names of Hugging Face: one parameter may be several tensors there."""

    def __init__(self, model_args: Any, hf_assets_path: str) -> None:
        assert (model_args, hf_assets_path) == ("args", "assets")

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for name, tensor in state.items():
            if name == "layers.0.experts":
                made |= {
                    f"model.expert.{n}": one.squeeze(0) for n, one in enumerate(tensor.split(1))
                }
            else:
                made[f"model.{name}"] = tensor
        return made


@dataclass
class Trainer:
    """The fields that are read."""

    world: World
    state: dict[str, Any]
    metrics_rank: int = 0
    step: int = 0
    model_args: str = "args"
    device: Any = field(default_factory=lambda: torch.device("cpu"))
    parallel_dims: Any = field(default_factory=lambda: SimpleNamespace(pp_enabled=False))
    urls: list[str] = field(default_factory=list)
    peft: bool = False
    stage: Group | None = None  # the ranks of its pipeline stage
    _pp_local_to_original: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    @property
    def model_parts(self) -> list[Any]:
        named = [
            (name, Sharded(self.world, tensor, self.stage)) for name, tensor in self.state.items()
        ]
        return [SimpleNamespace(named_parameters=lambda: iter(named))]

    @property
    def train_spec(self) -> Any:
        return SimpleNamespace(state_dict_adapter=Adapter)

    @property
    def job_config(self) -> Any:
        model = SimpleNamespace(name="toy", hf_assets_path="assets")
        grpo = SimpleNamespace(sglang_urls=self.urls)
        return SimpleNamespace(model=model, grpo=grpo, peft=SimpleNamespace(enable_peft=self.peft))

    @property
    def data_handler(self) -> Any:
        return SimpleNamespace(server_url="http://localhost:1")

    def send_weights(self) -> None:
        raise AssertionError("its own groups of NCCL were used")


class Trial:
    """Ranks of a trainer whose weights go by ``settings``."""

    def __init__(
        self, patch: pytest.MonkeyPatch, ring: str, ranks: int = 2, **settings: Any
    ) -> None:
        self.world = World(ranks)
        theirs = stand_in(patch, self.world, [])
        self.state = {
            "layers.0._checkpoint_wrapped_module.w": torch.randn(5, 7),
            "layers.0.experts": torch.randn(2, 3, 4),
            "norm": torch.randn(9).to(torch.bfloat16),
        }
        self.program: Any = ModuleType("program")
        self.program.Trainer = type("Trainer", (Trainer,), {"__hash__": Trainer.__hash__})
        self.program.setup_group = self.program.new_group = None
        _weights.take_weights(self.program, theirs, Settings(ring=ring, **settings))
        self.trainers = [self.program.Trainer(self.world, self.state) for _ in range(ranks)]

    def send(self, step: int) -> list[Any]:
        def one(rank: int) -> None:
            self.trainers[rank].step = step
            self.trainers[rank].send_weights()

        return self.world.run(one)

    def named(self) -> dict[str, Any]:
        w, experts, norm = self.state.values()
        halves = {f"model.expert.{n}": experts[n] for n in range(2)}
        return {"model.layers.0.w": w, **halves, "model.norm": norm}


def served(ring: str, versions: list[dict[str, Any]], refuse: int = -1) -> threading.Thread:
    """An engine that keeps its versions, and cannot load version ``refuse``."""

    def serve() -> None:
        with rr.WeightSubscriber(ring, name="engine", timeout=PATIENCE) as channel:
            while True:
                try:
                    update = channel.next(PATIENCE)
                except rr.RollringError:  # the trainer is gone
                    return
                try:
                    with update:
                        found = {name: torch.as_tensor(t).clone() for name, t in update.tensors()}
                        if update.version == refuse:
                            raise ValueError("no room")
                        versions.append(found)  # before the trainer hears of it
                except (ValueError, rr.RollringError):
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOGDIR", str(tmp_path))
    yield tmp_path


def test_every_step_goes_to_engines_under_the_names_of_hugging_face(
    ring: str, monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    versions: list[dict[str, Any]] = []
    engine = served(ring, versions)
    made = Trial(monkeypatch, ring, weights="channel", engines=1)
    assert made.program.setup_group("host", 1, 2, 0) == (None, None)
    assert (logs / "sglang_dtypes.json").read_text() == "{}"  # its trainer waits for that file
    for step in (1, 2):
        for tensor in made.state.values():
            tensor += step
        assert made.send(step) == [None, None]
        expected = {name: tensor.to(torch.bfloat16) for name, tensor in made.named().items()}
        assert set(versions[-1]) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(versions[-1][name].view(torch.bfloat16), tensor), name
    assert not (logs / "sglang_dtypes.json").exists()
    assert rr.stat_ring(ring)["policy_version"] == 2
    made.trainers.clear()  # as at the end of the process
    engine.join(PATIENCE)
    assert not engine.is_alive()


def test_a_folder_of_logs_that_is_not_there_is_named(
    ring: str, monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    monkeypatch.setenv("LOGDIR", str(logs / "none"))
    with pytest.raises(rr.errors.InvalidArgumentError, match="LOGDIR is '.*none'"):
        Trial(monkeypatch, ring, weights="channel")


@pytest.mark.parametrize("written", ["{}", '{"lm_head": "bfloat16"}'])
def test_the_file_that_a_run_left_when_it_died_misleads_no_other(
    ring: str, monkeypatch: pytest.MonkeyPatch, logs: Path, written: str
) -> None:
    """A run with its own groups of NCCL waits for the file, and takes dtypes from it."""
    (logs / "sglang_dtypes.json").write_text(written)
    stand_in(monkeypatch, World(1), [])
    program: Any = ModuleType("torchtitan.grpo_train")
    program.Trainer = type("Trainer", (Trainer,), {"grab_batch": None})
    monkeypatch.setitem(sys.modules, "torchtitan.grpo_train", program)
    torchtitan.install(Settings(ring=ring, rollouts="rest"))
    assert (logs / "sglang_dtypes.json").exists() == (written != "{}")


def test_a_version_that_an_engine_refuses_is_an_error_on_every_rank(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[dict[str, Any]] = []
    served(ring, versions, refuse=2)
    made = Trial(monkeypatch, ring, weights="channel", engines=1, publish_as="")
    assert made.send(1) == [None, None]
    sender, other = made.send(2)
    assert isinstance(sender, rr.errors.RejectedError) and "no room" in str(sender)
    assert isinstance(other, rr.RollringError) and "rank 0 on " in str(other)
    assert rr.stat_ring(ring)["policy_version"] == 1
    assert made.send(3) == [None, None]
    assert len(versions) == 2 and versions[1]["model.layers.0.w"].dtype == torch.float32


def test_a_version_that_fails_before_its_first_tensor_is_an_error_on_every_rank(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others gather all parameters by then, and wait for the rank that sends."""
    made = Trial(monkeypatch, ring, weights="channel")
    assert made.send(1) == [None, None]

    def refuse(*_: Any) -> None:
        raise rr.errors.PeerGoneError("the engine is gone", "peer_gone")

    with monkeypatch.context() as patch:
        patch.setattr(_weights.WeightPublisher, "begin", refuse)
        sender, other = made.send(2)
    assert isinstance(sender, rr.errors.PeerGoneError)
    assert isinstance(other, rr.RollringError) and "the engine is gone" in str(other)
    assert made.send(3) == [None, None]


def test_servers_of_vllm_are_those_of_its_configuration(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class Engine:
        next_version = 5

        def __init__(self, info: Any, client: Any, source: Any) -> None:
            calls.append((info, client, [one.name for one in source.metadata()]))
            self.source = source

        def send_weights(self, version: int) -> None:
            calls.append((version, [name for name, _ in self.source.iter_full()]))

    theirs: Any = ModuleType("rollring.integrations.vllm.trainer")
    theirs.HTTPClient = lambda url: url
    theirs.FleetClient = tuple
    theirs.RollringTrainerInitInfo = lambda ring, **given: {"ring": ring, **given}
    theirs.make_trainer = lambda info, client, source: Engine(info, client, source)
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    made = Trial(monkeypatch, ring, weights="vllm", vllm={"pause": "keep"})
    for trainer in made.trainers:
        trainer.urls = ["localhost:9000", "localhost:9001"]
    assert made.send(1) == [None, None]
    names = list(made.named())
    info = {"ring": ring, "rank": 0, "publish_as": "bfloat16", "device": "cpu", "pause": "keep"}
    assert calls == [
        (
            {**info, "deadline_s": _weights.DEADLINE_S, "shards": False},
            ("http://localhost:9000", "http://localhost:9001"),
            names,
        ),
        (5, names),
    ]


def test_adapters_are_refused_on_every_rank(ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Trial(monkeypatch, ring, weights="channel")
    for trainer in made.trainers:
        trainer.peft = True
    for error in made.send(1):
        assert isinstance(error, rr.RollringError) and "adapters" in str(error)


def staged(made: Trial, counted_from_0: bool) -> None:
    """Two stages, each of two ranks; the rank that sends is the first of the last stage."""
    world = made.world
    first, second = Group([0, 1]), Group([2, 3])
    columns = [Group([0, 2]), Group([1, 3])]
    layer = "layers.0.w" if counted_from_0 else "layers.1.w"
    states = [
        {"embeddings": torch.randn(6, 2), "layers.0.w": torch.randn(5, 7)},
        {layer: torch.randn(5, 7), "norm": torch.randn(9).to(torch.bfloat16)},
    ]
    made.state = {**states[0], "layers.1.w": states[1][layer], "norm": states[1]["norm"]}
    made.trainers = []
    for rank in range(4):
        mesh = SimpleNamespace(get_group=lambda rank=rank: columns[rank % 2])
        dims = SimpleNamespace(pp_enabled=True, get_mesh={"pp": mesh}.__getitem__)
        made.trainers.append(
            made.program.Trainer(
                world,
                states[rank // 2],
                metrics_rank=2,
                parallel_dims=dims,
                stage=[first, second][rank // 2],
                _pp_local_to_original={layer: "layers.1.w"} if rank > 1 else {},
            )
        )


@pytest.mark.parametrize("counted_from_0", [False, True])
def test_the_stages_of_a_pipeline_go_to_engines_as_one_model(
    ring: str, monkeypatch: pytest.MonkeyPatch, counted_from_0: bool
) -> None:
    versions: list[dict[str, Any]] = []
    served(ring, versions, refuse=2)
    made = Trial(monkeypatch, ring, ranks=4, weights="channel", engines=1, publish_as="")
    staged(made, counted_from_0)
    assert made.send(1) == [None] * 4
    # One that fails leaves no stage waiting with its tensors.
    assert all(isinstance(error, rr.RollringError) for error in made.send(2))
    for tensor in made.state.values():
        tensor += 1
    assert made.send(3) == [None] * 4
    assert set(versions[-1]) == {f"model.{name}" for name in made.state}
    for name, tensor in made.state.items():
        found = versions[-1][f"model.{name}"]
        assert torch.equal(found.view(tensor.dtype), tensor), name


def test_stages_whose_names_do_not_tell_them_apart_are_refused(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Trial(monkeypatch, ring, ranks=4, weights="channel")
    staged(made, counted_from_0=True)
    for trainer in made.trainers:
        trainer._pp_local_to_original = {}
    for error in made.send(1):
        assert isinstance(error, rr.RollringError) and "of the same name" in str(error)
