"""A trainer's rank and an engine, as AReaL's gateway sees them: its own routes and adapters.

    python areal_workers.py trainer|engine '{"port": ...}'

AReaL's FSDP engine and SGLang's scheduler are stand-ins with a toy model; the trainer's is sharded
by FSDP2 over gloo where there are several ranks. `kind` "theirs" has the steps of AReaL's own
colocated adapters on host memory, for the figure beside. tests/gpu/areal has a `Host` on GPUs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

HEADS, GROUPS, VOCABULARY = 4, 2, 64


def services() -> str:
    """The package of AReaL's services, whose name is another one after 1.0.4; AReaL itself, which
    `prepare` has to be ahead of, is not imported.
    """
    spec = importlib.util.find_spec("areal")
    assert spec is not None and spec.origin is not None
    return "areal.v2" if (Path(spec.origin).parent / "v2").is_dir() else "areal.experimental"


AREAL = services()


def shapes(hidden: int, layers: int = 2) -> dict[str, tuple[int, ...]]:
    """Of the trainer's parameters."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    small = hidden * GROUPS // HEADS
    for layer in range(layers):
        for name, rows in {
            "self_attn.q_proj": hidden, "self_attn.k_proj": small, "self_attn.v_proj": small,
            "self_attn.o_proj": hidden, "mlp.gate_proj": 2 * hidden, "mlp.up_proj": 2 * hidden,
        }.items():  # fmt: skip
            found[f"model.layers.{layer}.{name}.weight"] = (rows, hidden)
        found[f"model.layers.{layer}.mlp.down_proj.weight"] = (hidden, 2 * hidden)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{name}.weight"] = (hidden,)
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (VOCABULARY, hidden)}


def weights(version: int, given: dict[str, Any], device: str = "cpu") -> dict[str, torch.Tensor]:
    made = torch.Generator(device).manual_seed(version)
    return {
        name: torch.randn(shape, generator=made, device=device).to(torch.bfloat16)
        for name, shape in shapes(given["hidden"], given.get("layers", 2)).items()
    }


def fused(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As SGLang has them."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        for part, whole in {
            "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
            "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
        }.items():  # fmt: skip
            name = name.replace(f".{part}.", f".{whole}.")
        found[name] = torch.cat([found[name], tensor]) if name in found else tensor
    return found


def module_of(state: dict[str, torch.Tensor]) -> torch.nn.Module:
    top = torch.nn.Module()
    for name, tensor in state.items():
        *path, last = name.split(".")
        at = top
        for step in path:
            if not hasattr(at, step):
                at.add_module(step, torch.nn.Module())
            at = getattr(at, step)
        setattr(at, last, torch.nn.Parameter(tensor.clone(), requires_grad=False))
    return top


class Domain:
    """A memory domain that notes its calls."""

    def __init__(self, **resident: bool) -> None:
        self.resident = resident
        self.calls: list[tuple[float, str, list[str]]] = []

    def tags(self) -> dict[str, dict[str, Any]]:
        return {tag: {"resident": is_so} for tag, is_so in self.resident.items()}

    def _turn(self, call: str, tags: tuple[str, ...], to: bool) -> None:
        assert all(self.resident[tag] != to for tag in tags)
        self.resident.update(dict.fromkeys(tags, to))
        self.calls.append((time.monotonic(), call, list(tags)))

    def release(self, *tags: str, keep: Any = True) -> None:
        self._turn("release", tags, False)

    def resume(self, *tags: str) -> None:
        self._turn("resume", tags, True)


class Host:
    """Of one process: where its model lies, and the domain that releases it."""

    device = "cpu"
    backend = "gloo"
    least_sharded = 2  # ranks from which on the trainer's model is sharded

    def __init__(self, given: dict[str, Any], *tags: str, resident: bool) -> None:
        self.given = given
        self.domain: Any = Domain(**dict.fromkeys(tags, resident))

    def region(self, tag: str) -> contextlib.AbstractContextManager[None]:
        """Its allocations are released with the tag."""
        return contextlib.nullcontext()

    def made(self, model: Any, *tags: str) -> Any:
        """Make the rest that the tags are for, and return the trainer's optimizer."""

    def training_adapter(self, adapter: Any) -> Any:
        """The one that AReaL's routes of a trainer call."""
        return Theirs(adapter, True) if self.given["kind"] == "theirs" else adapter

    def inference_adapter(self, adapter: Any) -> Any:
        """The one that its routes of an engine call."""
        return Theirs(adapter, False) if self.given["kind"] == "theirs" else adapter

    def seen(self) -> dict[str, Any]:
        """Further facts of a worker."""
        return {}


class Theirs:
    """The steps of AReaL's two colocated adapters: pickled handles as text, polls, on the host."""

    def __init__(self, inner: Any, is_trainer: bool) -> None:
        self._inner, self._is_trainer = inner, is_trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def init_colocate_weight_update(self, **told: Any) -> None:
        import httpx

        self._base = f"{told['kv_store_url']}/weight_meta/{told['pair_name']}"
        self._client = httpx.Client(headers={"Authorization": f"Bearer {told['admin_api_key']}"})

    def _poll(self, key: str) -> Any:
        while (answer := self._client.get(f"{self._base}/{key}", timeout=5)).status_code != 200:
            signal.sigtimedwait([], 0.1)
        return answer.json()["value"]

    def _put(self, key: str, value: Any) -> None:
        self._client.put(f"{self._base}/{key}", json={"value": value}, timeout=60)

    def execute_colocate_weight_update(self, version: int) -> None:
        util: Any = importlib.import_module("awex.util.tensor_util")
        mine = self._inner.get_local_shard_parameters()
        if self._is_trainer:
            groups, metadata = util.group_tensors_by_shape_and_dtype(list(mine.values()))
            shared = [one.share_memory_() for one in groups]
            packed = util.ipc_serialize((shared, metadata, list(mine)))
            self._put(f"w{version}", packed.hex())
            self._poll(f"d{version}")
        else:
            packed = bytes.fromhex(self._poll(f"w{version}"))
            shared, metadata, names = util.ipc_deserialize(packed)
            parts = util.reconstruct_tensors_from_groups(shared, metadata)
            for name, tensor in zip(names, parts, strict=True):
                mine[name].copy_(tensor)
            self._put(f"d{version}", True)

    def release_memory(self, tags: Any = None) -> None:
        pass

    resume_memory = release_memory


def dies_in(where: Any, name: str, version: int) -> None:
    """Have the method kill its process when that version of AReaL's is under way."""
    from rollring.integrations.areal._channel import ATTEMPTS

    whole = getattr(where, name)

    def method(self: Any, *given: Any) -> Any:
        if self.version // ATTEMPTS == version:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, *given)

    setattr(where, name, method)


def prepare(host: Host) -> None:
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")
    # It needs Megatron's bridges, which need a GPU; AReaL's routes only ask for the name.
    megatron: Any = ModuleType("areal.engine.megatron_engine")
    megatron.MegatronEngine = type("MegatronEngine", (), {})
    sys.modules[megatron.__name__] = megatron
    import rollring.integrations.areal as areal

    if host.given["kind"] == "rollring":
        areal.install()
        areal.use_domain(host.domain)


# --- the trainer ----------------------------------------------------------------------------------


def fsdp_engine(host: Host) -> Any:
    from areal.engine.fsdp_engine import FSDPEngine
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = host.given.get("world", 1)
    torch.distributed.init_process_group(host.backend)
    mesh = init_device_mesh(host.device, (world,), mesh_dim_names=("dp",))
    model = module_of(weights(0, host.given, host.device))
    with host.region("weights"):
        if world >= host.least_sharded:
            for layer in model.model.layers.children():
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)

    class Engine(FSDPEngine):  # type: ignore[misc]
        data_parallel_world_size = world
        device = torch.device(host.device)
        is_vision_model = False
        dp_rank = rank = torch.distributed.get_rank()
        world_size = world
        world_mesh = mesh
        model_config = SimpleNamespace(tie_word_embeddings=False, model_type="qwen2")

        def __init__(self) -> None:
            self.model = model
            self.optimizer = host.made(model, "optimizer")

    return Engine()


def train(engine: Any, version: int, host: Host) -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    state = weights(version, host.given, host.device)
    for name, parameter in engine.model.named_parameters():
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(state[name], parameter.device_mesh, parameter.placements)
            parameter.data.to_local().copy_(whole.to_local())
        else:
            parameter.data.copy_(state[name])


def trainer(given: dict[str, Any], of: type[Host] = Host) -> None:
    import flask
    from werkzeug.serving import make_server

    host = of(given, "weights", "optimizer", resident=True)
    prepare(host)
    awex: Any = importlib.import_module(f"{AREAL}.training_service.worker.awex")
    made = awex._create_training_adapter
    awex._create_training_adapter = lambda engine: host.training_adapter(made(engine))
    if given.get("dies"):
        import rollring as rr

        dies_in(rr.WeightTransaction, "wait_staged", given["dies"])
    engine = fsdp_engine(host)
    thread = concurrent.futures.ThreadPoolExecutor(1)

    def run_endpoint(name: str, call: Any, return_result: bool = True) -> Any:
        from areal.infra.rpc.serialization import serialize_value

        try:
            result = serialize_value(call()) if return_result else call()
        except Exception as error:
            return flask.jsonify({"error": f"{type(error).__name__}: {error}"}), 500
        return flask.jsonify({"status": "success", "result": result if return_result else None})

    app = flask.Flask("trainer")
    app.register_blueprint(
        awex.create_awex_blueprint(
            flask_module=flask,
            get_engine=lambda: engine,
            submit_to_engine_thread=lambda _, call: thread.submit(call).result(),
            run_endpoint=run_endpoint,
        )
    )

    @app.post("/step/<int:version>")
    def step(version: int) -> Any:
        thread.submit(train, engine, version, host).result()
        return flask.jsonify({})

    @app.get("/calls")
    def calls() -> Any:
        return flask.jsonify(host.domain.calls)

    @app.get("/seen")
    def seen() -> Any:
        return flask.jsonify(thread.submit(host.seen).result())

    server = make_server("127.0.0.1", given["port"], app, threaded=True)
    Path(given["up"]).touch()
    server.serve_forever()


# --- the engine -----------------------------------------------------------------------------------


def scheduler_of(model: torch.nn.Module) -> Any:
    args = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1, "enable_dp_attention": False}
    args |= {"enable_dp_lm_head": False, "moe_dense_tp_size": None, "dist_init_addr": None}
    return SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)),
        server_args=SimpleNamespace(**args),
        tp_rank=0,
    )


def engine(given: dict[str, Any], of: type[Host] = Host) -> None:
    import uvicorn
    from fastapi import FastAPI

    host = of(given, "weights", "kv_cache", resident=False)
    prepare(host)
    theirs: Any = importlib.import_module(f"{AREAL}.weight_update.awex.sglang_adapter")
    if given.get("dies"):
        import rollring as rr

        dies_in(rr.WeightUpdate, "tensors", given["dies"])
    # The package around its routes imports SGLang, and the routes do not.
    around: Any = importlib.util.find_spec(f"{AREAL}.inference_service")
    place = Path(around.origin).parent / "sglang/awex.py"
    spec = importlib.util.spec_from_file_location("areal_awex_routes", place)
    assert spec is not None and spec.loader is not None
    routes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(routes)
    hidden = given["hidden"]
    state = fused(weights(0, given, host.device))
    with host.region("weights"):
        model = module_of(state)
    del state
    host.made(model, "kv_cache")
    model.config = SimpleNamespace(
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, architectures=["Qwen2ForCausalLM"]
    )
    adapter = host.inference_adapter(theirs.AwexSGLangAdapter(scheduler_of(model)))

    class Proxy:
        """A stand-in for its queue to the scheduler, whose bridge calls the adapter."""

        names = {"init_weights_update_group": "init_weight_update_group"}

        def collective_rpc(self, method: str, **told: Any) -> Any:
            name = method.removeprefix("awex_")
            return getattr(adapter, self.names.get(name, name))(**told)

        def collective_rpc_with_result(self, method: str) -> Any:
            from areal.infra.rpc.serialization import serialize_value

            if method == "awex_report_parallelism":
                return adapter.parallelism_strategy
            return serialize_value(adapter.get_weight_metadata())

    app = FastAPI()
    routes.register_awex_endpoints(app, Proxy())

    @app.get("/serves/{version}")
    def serves(version: int) -> bool:
        wanted = fused(weights(version, given, host.device))
        return all(torch.equal(one, wanted[name]) for name, one in model.named_parameters())

    @app.post("/head/{rows}")
    def head(rows: int) -> bool:
        """Another vocabulary: versions do not fit."""
        kept = model.lm_head.weight.data
        zeros = torch.zeros(rows, hidden, dtype=kept.dtype, device=kept.device)
        new = torch.nn.Parameter(zeros, requires_grad=False)
        new.data[: min(rows, len(kept))] = kept[:rows]
        model.lm_head.weight = new
        return True

    @app.get("/calls")
    def calls() -> Any:
        return host.domain.calls

    @app.get("/seen")
    def seen() -> dict[str, Any]:
        return host.seen()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            Path(given["up"]).touch()

    Server(uvicorn.Config(app, host="127.0.0.1", port=given["port"], log_level="error")).run()


if __name__ == "__main__":
    {"trainer": trainer, "engine": engine}[sys.argv[1]](json.loads(sys.argv[2]))
