"""Our weight sync takes the name that SkyRL registers only if the name is free: tests with
stand-ins for vLLM's factories and SkyRL's registration. tests/frameworks has the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from rollring.integrations.skyrl import weights as skyrl

FACTORY = """
class Engines:
    _registry = {}
    @classmethod
    def register_engine(cls, name, place, class_name=None):
        assert name not in cls._registry
        cls._registry[name] = (place, class_name)
class WeightTransferEngineFactory(Engines):
    _registry = {}
class WeightTransferTrainerFactory(Engines):
    _registry = {}
"""
AS_SKYRL_DOES = """
from vllm.distributed.weight_transfer import factory
for each in (factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory):
    if "skyrl_ipc" not in each._registry:
        each.register_engine("skyrl_ipc", "theirs")
"""
SHOW = """
import json
print(json.dumps([factory.WeightTransferEngineFactory._registry["skyrl_ipc"],
                  factory.WeightTransferTrainerFactory._registry["skyrl_ipc"]]))
"""
OURS = [
    ["rollring.integrations.vllm.engine", "RollringEngine"],
    ["rollring.integrations.skyrl.trainer", "SkyrlTrainer"],
]


def run(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a Python that has these factories as vLLM's."""
    package = folder / "vllm/distributed/weight_transfer"
    package.mkdir(parents=True, exist_ok=True)
    (package / "factory.py").write_text(FACTORY, encoding="utf-8")
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "before",
    [
        "weights.register(); weights.register()",
        "weights.enable(); weights.enable()",  # before vLLM is imported
        "import vllm.distributed.weight_transfer.factory; weights.enable()",
        "weights.plugin()",
    ],
)
def test_who_comes_first_has_the_name(tmp_path: Path, before: str) -> None:
    code = f"from rollring.integrations.skyrl import weights; {before}\n{AS_SKYRL_DOES}{SHOW}"
    done = run(tmp_path, code, ROLLRING_SKYRL="run42")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == OURS


def test_it_is_not_taken_where_it_was_not_asked_for(tmp_path: Path) -> None:
    use = "from rollring.integrations.skyrl import weights; weights.plugin()"
    code = f"{use}\n{AS_SKYRL_DOES}{SHOW}"
    done = run(tmp_path, code, ROLLRING_SKYRL="")
    assert json.loads(done.stdout) == [["theirs", None]] * 2


def test_enabling_imports_nothing_of_vllm(tmp_path: Path) -> None:
    code = (
        "import sys; from rollring.integrations.skyrl import weights; weights.enable(); "
        "print('vllm' in sys.modules)"
    )
    assert run(tmp_path, code, ROLLRING_SKYRL="run42").stdout == "False\n"


def test_coming_too_late_is_an_error(tmp_path: Path) -> None:
    code = f"{AS_SKYRL_DOES}\nfrom rollring.integrations.skyrl import weights; weights.enable()"
    done = run(tmp_path, code, ROLLRING_SKYRL="run42")
    assert done.returncode == 1
    assert "import rollring.integrations.skyrl.weights before SkyRL" in done.stderr


def test_a_job_of_rays_gets_the_call_and_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLRING_SKYRL", "run42")
    made = skyrl.runtime_env({"env_vars": {"NCCL_CUMEM_ENABLE": "0"}, "pip": ["x"]})
    assert made == {
        "env_vars": {"NCCL_CUMEM_ENABLE": "0", "ROLLRING_SKYRL": "run42"},
        "pip": ["x"],
        "worker_process_setup_hook": "rollring.integrations.skyrl.weights.enable",
    }
    assert skyrl.runtime_env(made) == made
    assert skyrl.runtime_env(None)["env_vars"] == {"ROLLRING_SKYRL": "run42"}
    with pytest.raises(rr.InvalidArgumentError, match="worker_process_setup_hook"):
        skyrl.runtime_env({"worker_process_setup_hook": "mine.hook"})


@pytest.mark.parametrize("text", ["", "{", '{"staging": "auto"}'])
def test_a_setting_that_names_no_ring(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ROLLRING_SKYRL", text)
    for call in (skyrl.enable, lambda: skyrl.runtime_env({})):
        with pytest.raises(rr.InvalidArgumentError, match="ROLLRING_SKYRL"):
            call()


def test_under_uv_run_rays_own_hook_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    uv: Any = type(sys)("uv_runtime_env_hook")
    uv._get_uv_run_cmdline = lambda: ["uv", "run"]
    uv.hook = lambda given: {**(given or {}), "py_executable": "uv run"}
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    for name in ("ray._private", "ray._private.runtime_env"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    monkeypatch.setitem(sys.modules, "ray._private.runtime_env.uv_runtime_env_hook", uv)
    monkeypatch.setenv("ROLLRING_SKYRL", '{"ring": "run42", "staging": "in_place"}')
    assert skyrl.runtime_env({})["py_executable"] == "uv run"
    assert skyrl.settings() == {"ring": "run42", "staging": "in_place"}
