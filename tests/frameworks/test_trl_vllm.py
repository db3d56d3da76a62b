"""TRL's AsyncGRPOTrainer with `vllm serve`: rollouts come from the server through a ring, and the
server gets each step's weights over the ring's channel.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("vllm")

import trl_tiny
from vllm_tiny import serving

import requests
from transformers import TrainerCallback

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from trl_load import PATIENCE, SPAWN

sys.path.append(str(Path(__file__).parents[1]))

import pages

RUNNER = "tests/frameworks/test_trl_vllm.py"
STEPS, SIZE, NEW_TOKENS = 4, 4, 6
PROMPT = [7, 9, 11]


def generate(ring: str, url: str) -> None:
    """A rollout worker: groups that the server samples, with the version that it serves."""
    with rr.Producer(ring, "env-0") as producer:
        for number in range(1 << 30):
            engines = [e for rank in rr.describe_weights(ring) for e in rank["engines"]]
            if not engines or engines[0]["live_version"] < 0:
                time.sleep(0.1)
                continue
            members = []
            for member in range(SIZE):
                how = {"temperature": 1.0, "max_tokens": NEW_TOKENS, "logprobs": 0}
                body = {"token_ids": PROMPT, "sampling_params": how}
                answer = requests.post(f"{url}/inference/v1/generate", json=body, timeout=PATIENCE)
                (choice,) = answer.json()["choices"]
                logprobs = [one["logprob"] for one in choice["logprobs"]["content"]]
                members.append(
                    {
                        "instance_id": f"env-0/{number}",
                        "repetition_id": member,
                        "group_size": SIZE,
                        "token_ids": PROMPT + choice["token_ids"],
                        "logprobs": [0.0] * len(PROMPT) + logprobs,
                        "n_prompt": len(PROMPT),
                        "reward": float(sum(choice["token_ids"]) % 7),
                        "policy_version": engines[0]["live_version"],
                    }
                )
            producer.push_many(members)


def likeliest(model: Any, count: int) -> list[int]:
    import torch

    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


class Compares(TrainerCallback):
    """After TRL's own callbacks, which send the weights: the server's answer beside that of the
    model that was sent.
    """

    def __init__(self, server: Any, folder: str) -> None:
        from transformers import Qwen2ForCausalLM

        self._server = server
        self._model = Qwen2ForCausalLM.from_pretrained(folder)  # with attention for a CPU
        self.seen: list[tuple[list[int], list[int]]] = []

    def _compare(self, model: Any) -> None:
        self._model.load_state_dict(model.state_dict())
        served = self._server.ask(PROMPT, NEW_TOKENS)["token_ids"]
        self.seen.append((served, likeliest(self._model, NEW_TOKENS)))

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self._compare(model)

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        self._compare(model)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The folder of a random Qwen2 whose heads have a size that vLLM knows on a CPU."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    folder = tmp_path / "model"
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config.from_pretrained(trl_tiny.save_model(folder), **sizes)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def test_it_trains_with_a_server(ring: str, model: str, tmp_path: Path) -> None:
    with serving(model, tmp_path, 1) as (server,):
        ours = {"run42": ring, "http://localhost:8000": server.url}
        transfer = pages.execute(RUNNER, "servers", ours)["weight_transfer"]
        worker = RingRolloutWorker(ring, versions="publisher")
        compares = Compares(server, model)
        child = SPAWN.Process(target=generate, args=(ring, server.url), daemon=True)
        child.start()
        try:
            trainer = trl_tiny.grpo_trainer(
                model, worker, tmp_path / "run", weight_transfer=transfer, max_steps=STEPS,
                max_staleness=99,
            )  # fmt: skip
            trainer.add_callback(worker.callback())
            trainer.add_callback(compares)
            trainer.train()
        finally:
            child.kill()
            child.join()
        assert transfer.report is not None and transfer.report["version"] == STEPS + 1
    assert all(served == wanted for served, wanted in compares.seen)
    assert len(compares.seen) == STEPS + 1
    losses = [loss for (loss,) in trl_tiny.logs(trainer, "loss")]
    assert len(losses) == STEPS and all(map(math.isfinite, losses)) and len(set(losses)) > 1


def test_the_same_tensors_each_time(ring: str) -> None:
    """The kept parts of the first version go out, and are let go of."""
    import torch

    from rollring.integrations.trl._vllm import _Given

    first = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    source = _Given(first.items())
    assert [(one.name, one.dtype, one.shape) for one in source.metadata()] == [
        ("a", torch.float32, (4,)),
        ("b", torch.bfloat16, (2,)),
    ]
    first["a"].zero_()  # the trainer goes on
    assert [one.tolist() for _, one in source] == [[0.0, 1.0, 2.0, 3.0], [1.0, 1.0]]
    assert list(source) == []
    source.given = [("a", first["a"])]
    assert [name for name, _ in source] == ["a"]
    with pytest.raises(rr.InvalidArgumentError, match="no tensor to send"):
        _Given([])
