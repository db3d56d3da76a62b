"""AReaL's own controller and gateway update a stock vLLM server of another Python, colocated with
an FSDP trainer of AReaL's, on a CPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("areal") is None:
    pytest.skip("AReaL is not installed", allow_module_level=True)
VLLM = os.environ.get("ROLLRING_VLLM_PYTHON", "")
if not VLLM:
    pytest.skip("ROLLRING_VLLM_PYTHON names no Python with vLLM", allow_module_level=True)

from areal_world import World

import httpx
import torch

import pages
from areal_workers import GROUPS, HEADS, VOCABULARY, weights
from python.atropos_servers import free_port
from titan_engine import digests
from vllm_beside import TOKENS, Beside

HIDDEN = 128  # heads of 32
PROMPTS = [[5, 17, 60, 33, 7], [11, 3]]
GIVEN = {"hidden": HIDDEN}


def config() -> dict[str, Any]:
    """Of transformers' Llama, for vLLM, with the shapes of the trainer's model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


class Fronts(World):
    """A pair whose engines are fronts of vLLM servers."""

    def start_front(self, server: Beside) -> None:
        port = free_port()
        (line,) = pages.named("tests/frameworks/test_areal_vllm.py", "front")
        _, *words = line.text.split()
        mine = {"http://localhost:8000": server.url, "9000": str(port)}
        with open(self.folder / f"engine{port}.log", "wb") as log:
            started = subprocess.Popen(
                [sys.executable, *(mine.get(word, word) for word in words)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(started)
        url = f"http://127.0.0.1:{port}"
        self.engines.append(url)
        for _ in range(3000):
            assert started.poll() is None, self.log()
            try:
                httpx.get(f"{url}/health").raise_for_status()
            except httpx.ConnectError:
                signal.sigtimedwait([], 0.1)
                continue
            (self.folder / f"engine{port}").touch()
            return
        raise AssertionError(self.log())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Beside]]:
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "config.json").write_text(json.dumps(config()), encoding="utf-8")
    with ExitStack() as stack:
        made = [Beside(VLLM, str(folder), folder / f"{n}.log", PROMPTS) for n in range(2)]
        yield [stack.enter_context(one) for one in made]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Fronts]:
    made = Fronts(tmp_path)
    yield made
    made.close()


@torch.no_grad()
def likeliest(version: int) -> list[list[int]]:
    """By transformers' model with the version's weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    given = {key: value for key, value in config().items() if key != "architectures"}
    model = LlamaForCausalLM(LlamaConfig(**given))
    state = {name: one.float() for name, one in weights(version, GIVEN).items()}
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown and not [name for name in missing if "rotary" not in name]
    model.eval()
    found = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        found.append(ids[len(prompt) :])
    return found


def serves(server: Beside, version: int) -> bool:
    """In its tokens, and in the bytes of the tensors that its kernels take unpacked."""
    trained = digests({name: one.float() for name, one in weights(version, GIVEN).items()})
    served = {name: one for name, one in server.digests().items() if name in trained}
    assert len(served) >= 5
    are_bytes = served == {name: trained[name] for name in served}
    are_tokens = server.tokens() == likeliest(version)
    assert are_bytes == are_tokens
    return are_bytes


@pytest.mark.parametrize("ranks", [1, 2])
def test_servers_serve_each_version(world: Fronts, servers: list[Beside], ranks: int) -> None:
    for rank in range(ranks):
        world.start("trainer", ranks, rank, **GIVEN)
    used = servers[: 3 - ranks]  # another number than ranks
    for server in used:
        world.start_front(server)
    world.connect()
    for version in range(1, 5):
        result = world.update(version)
        assert result.status == "ok", (result, world.log())
        assert [serves(server, version) for server in used] == [True] * len(used)
    assert not serves(used[0], 3)


def test_a_server_that_is_killed_leaves_the_old_version_to_the_other(
    world: Fronts, servers: list[Beside]
) -> None:
    world.start("trainer", **GIVEN)
    for server in servers:
        world.start_front(server)
    world.connect()
    assert world.update(1).status == "ok", world.log()
    os.killpg(servers[1].process.pid, signal.SIGKILL)
    result = world.update(2)
    assert result.status == "error", result
    assert serves(servers[0], 1)
    # Without it, versions go on.
    world.controller.destroy()
    world.engines.pop()
    world.processes.pop().kill()
    world.connect()
    assert world.update(3).status == "ok", world.log()
    assert serves(servers[0], 3)
