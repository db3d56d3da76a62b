"""SGLang's own updaters of weights, of scheduler and model runner, with a toy model behind them.

Its files run as they are in its wheel. Imports that a CPU cannot load have stand-ins; its
serializer and its unpickler are cut out of a file whose other imports are many.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import sys
import tempfile
import types
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rollring._weight_publisher import WeightPublisher, WeightTransaction
from rollring.integrations.sglang import Sender

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
spec = importlib.util.find_spec("sglang")
assert spec is not None and spec.submodule_search_locations
ROOT = Path(spec.submodule_search_locations[0])
CUT_OUT = (
    "SafeUnpickler",
    "MultiprocessingSerializer",
    "dynamic_import",
    "_safe_load_torch_storage",
    "SerializedTensorPayload",
    "_looks_like_pickle_payload",
    "normalize_serialized_named_tensor_payload",
    "normalize_serialized_named_tensor_payloads",
)


def stand_in(name: str, **known: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(known)
    made.__getattr__ = lambda wanted: mock.MagicMock(name=wanted)  # type: ignore[method-assign]
    sys.modules[name] = made
    return made


def package(name: str) -> None:
    """Its modules can be imported, and its __init__ is not run."""
    made = types.ModuleType(name)
    made.__path__ = [str(ROOT.joinpath(*name.split(".")[1:]))]
    sys.modules[name] = made


def cut_out() -> dict[str, Any]:
    path = ROOT / "srt/utils/common.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [
        node
        for node in tree.body
        if getattr(node, "name", "") in CUT_OUT
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in CUT_OUT)
    ]
    space: dict[str, Any] = {"__name__": "sglang.srt.utils.common"}
    head = (
        "from __future__ import annotations\n"
        "import binascii, importlib, io, pickle, pybase64, torch\n"
        "from multiprocessing.reduction import ForkingPickler\n"
        "from typing import *\n"
    )
    exec(head, space)
    exec(compile(ast.Module(kept, []), str(path), "exec"), space)
    return space


class Loader:
    """Of the model loader: the parts that the session has."""

    events: list[str] = []

    @classmethod
    def restore_weights_before_loading(cls, model: Any, device: Any) -> None:
        cls.events.append("restored")

    @classmethod
    def postprocess_weights(cls, model: Any, device: Any) -> None:
        cls.events.append("postprocessed")


common = cut_out()
parallel = types.SimpleNamespace(tp_rank=0, tp_group=types.SimpleNamespace(cpu_group=None))
for name in (
    "sglang",
    "sglang.srt",
    "sglang.srt.managers",
    "sglang.srt.managers.scheduler_components",
    "sglang.srt.model_executor",
    "sglang.srt.model_executor.model_runner_components",
    "sglang.srt.weight_sync",
):
    package(name)
stand_in("sglang.srt.configs.load_config")
stand_in(
    "sglang.srt.model_loader.loader",
    DefaultModelLoader=Loader,
    post_load_weights=lambda model: Loader.events.append("post load"),
)
stand_in("sglang.srt.model_loader.utils")
stand_in("sglang.srt.model_loader.weight_utils")
stand_in("sglang.srt.platforms")
stand_in(
    "sglang.srt.runtime_context",
    get_model=lambda: types.SimpleNamespace(weight_cache_mode="off"),
    get_parallel=lambda: parallel,
)
utils = stand_in("sglang.srt.utils", **{name: common[name] for name in CUT_OUT})
stand_in("sglang.srt.utils.network")
stand_in("sglang.srt.utils.patch_torch")
stand_in("sglang.srt.utils.weight_checker")
stand_in("sglang.kernels.ops.gemm.bf16_fp32", hpc_bf16xfp32_gemm_enabled=lambda: False)
stand_in("sglang.srt.constants")
stand_in("sglang.srt.disaggregation.utils")


class Out(types.SimpleNamespace):
    """Of io_struct: the updater's answer."""


stand_in(
    "sglang.srt.managers.io_struct",
    BeginWeightUpdateReqOutput=Out,
    EndWeightUpdateReqOutput=Out,
    UpdateWeightsFromTensorReqOutput=Out,
)

from sglang.srt.managers.scheduler_components import weight_updater as of_scheduler  # noqa: E402
from sglang.srt.model_executor.model_runner_components import (  # noqa: E402
    weight_updater as of_runner,
)


def published(value: float = 0, rows: int = 64) -> dict[str, torch.Tensor]:
    """As a checkpoint names them."""
    made = {"embed.weight": torch.full((rows, 16), value)}
    for layer in range(3):
        for which, size in (("q", 16), ("k", 8), ("v", 8)):
            made[f"layers.{layer}.{which}_proj.weight"] = torch.full((size, rows), value).bfloat16()
    return {name: tensor.to(DEVICE) for name, tensor in made.items()}


def trained(value: float) -> torch.nn.Module:
    """A trainer's model, whose tensors are named likewise."""
    made = torch.nn.Module()
    made.embed = torch.nn.Embedding(64, 16)
    made.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(3))
    for layer in made.layers:
        for which, size in (("q", 16), ("k", 8), ("v", 8)):
            linear = torch.nn.Linear(64, size, bias=False, dtype=torch.bfloat16)
            setattr(layer, f"{which}_proj", linear)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(value)
    return made.to(DEVICE)


class Model(torch.nn.Module):
    """As SGLang's are: q, k and v lie in one parameter, and load_weights knows where."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(rows, 16, device=DEVICE)
        self.qkv = torch.nn.ParameterList(
            torch.nn.Parameter(torch.empty(32, rows, dtype=torch.bfloat16, device=DEVICE))
            for _ in range(3)
        )
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(-7)
        self.fails_at = ""
        self.dies_at = ""

    def load_weights(self, weights: Any) -> None:
        first = {"q": (0, 16), "k": (16, 24), "v": (24, 32)}
        for name, tensor in weights:
            if self.fails_at and self.fails_at in name:
                raise ValueError(f"{name} is not what I was built for")
            if self.dies_at and self.dies_at in name:
                os.kill(os.getpid(), signal.SIGKILL)
            if name.startswith("embed"):
                self.embed.weight.copy_(tensor)
            else:
                _, layer, which, _ = name.split(".")
                begin, end = first[which[0]]
                self.qkv[int(layer)][begin:end].copy_(tensor)

    def whole(self) -> float:
        value = float(self.embed.weight[0, 0].detach())
        return value if all(bool((p == value).all()) for p in self.parameters()) else -1.0


class Server:
    """The routes that our `Sender` calls, with SGLang's managers behind them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.label: str | None = None
        self.flushed = 0
        if not torch.distributed.is_initialized():
            store = tempfile.mkstemp()[1]
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=0, world_size=1
            )
        updater = of_runner.WeightUpdater(
            tp_rank=0,
            device=DEVICE,
            gpu_id=0,
            model_config=None,
            custom_weight_loaders=["rollring.integrations.sglang.load"],
            get_model=lambda: model,
            update_model_fields=lambda **_: None,
            recapture_cuda_graph=lambda: None,
            get_model_runner=lambda: None,
        )
        runner = types.SimpleNamespace(weight_updater=updater)
        worker = types.SimpleNamespace(
            weight_update_runners=lambda: [("target", runner)],
            deserialize_own_rank=lambda given: common["MultiprocessingSerializer"].deserialize(
                given[parallel.tp_rank]
            ),
        )
        self.manager = of_scheduler.SchedulerWeightUpdaterManager(
            tp_worker=worker,
            draft_worker=None,
            memory_saver_adapter=None,
            flush_cache=self._flush,
            is_fully_idle=lambda: True,
            scheduler=types.SimpleNamespace(record_weight_version_change=self._record),
        )

    def _flush(self, **_: Any) -> bool:
        self.flushed += 1
        return True

    def _record(self, new_version: str | None) -> None:
        self.label = new_version or self.label

    def call(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/update_weight_version":
            self._record(body["new_version"])
            return Out(success=True, message="")
        if path == "/update_weights_from_tensor":
            given = body["serialized_named_tensors"]
            body["serialized_named_tensors"] = common["normalize_serialized_named_tensor_payloads"](
                given
            )
            body = {"torch_empty_cache": False, "weight_version": None, **body}
        return getattr(self.manager, path[1:])(types.SimpleNamespace(**body))

    def state(self) -> dict[str, Any]:
        return {
            "whole": self.model.whole(),
            "label": self.label,
            "flushed": self.flushed,
            "events": list(Loader.events),
            "open": self.manager._session is not None,
        }


def train(ring: str, urls: list[str], version: int, dies: str) -> None:
    """A trainer that is killed when the version is staged, or when it is committed."""
    commit = WeightTransaction.commit

    def dying(transaction: WeightTransaction, timeout: float | None = None) -> Any:
        if dies == "after":
            commit(transaction, timeout)
        os.kill(os.getpid(), signal.SIGKILL)

    WeightTransaction.commit = dying  # type: ignore[method-assign]
    with WeightPublisher(ring, published(version)) as publisher:
        Sender(publisher, urls).update(version, 60.0)


def run(seen: Any, rows: int = 64) -> None:
    """A server in a process of its own, which ends as SGLang's does when its scheduler raises."""
    torch.set_grad_enabled(False)  # as the event loop of its scheduler
    model = Model(rows)
    server = Server(model)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/test":
                model.fails_at = body.get("fails_at", "")
                model.dies_at = body.get("dies_at", "")
                answer, status = server.state(), 200
            else:
                try:
                    done = server.call(self.path, body)
                except Exception as error:
                    print(f"the scheduler raised {error!r}", file=sys.stderr, flush=True)
                    os._exit(3)
                answer = {"success": done.success, "message": done.message}
                status = 200 if done.success else 400
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    seen.send(http.server_address[1])
    http.serve_forever()
