"""./dev grpo --engine vllm: a real server samples with weights that it is sent, for some steps, and
its log-probabilities are those of the trainer's model of that version.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rollring as rr
from grpo_runs import EXAMPLE, of_page

pytest.importorskip("vllm")
VLLM = of_page("tests/frameworks/test_vllm_grpo.py", "vllm")
PATIENCE = 900
STEPS = 8


def test_a_server_samples(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), *VLLM, "--steps", str(STEPS), "--workers", "1", "--plain",
         "--json", str(result), "--folder", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    out, errors = process.communicate(timeout=PATIENCE)
    assert result.exists(), out + errors
    # It says 1, too, where so few steps have taught it nothing.
    assert process.returncode in (0, 1), out + errors
    (found,) = json.loads(result.read_text(encoding="utf-8"))["runs"]
    assert found["engine"] == "vllm" and found["steps"] == STEPS
    proof = found["proof"]
    assert proof["holds"] and proof["trained"] == STEPS * 32
    assert not found["deaths"], errors
    assert found["lag_most"] > 0  # tokens are of versions that moved on
    assert 0 < found["reward_start"] < 0.3  # twelve tokens: a twelfth is right by chance
    assert not [name for name in rr.rings() if name.startswith(f"grpo-{process.pid}-")]


def test_logprobs_are_those_of_the_labelled_version(
    tmp_path: Path, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example's own ends of the server, as its trainer and its workers have them."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from engine import Asker, EngineWeights, vllm_server
    from model import Model
    from plan import SERVED, Plan

    torch.manual_seed(3)
    model = Model(SERVED)
    plan = Plan(str(tmp_path), ring, shape=SERVED)
    with vllm_server(plan) as url:
        plan = dataclasses.replace(plan, engine=url)
        weights = EngineWeights(plan, {n: one.detach() for n, one in model.named_parameters()})
        ask = Asker(plan)
        prompts = torch.randint(SERVED.vocabulary, (4, plan.length)).repeat_interleave(8, 0)
        before: Any = None
        for version in range(3):
            with torch.no_grad():
                for one in model.parameters():
                    one.add_(torch.randn_like(one) * 0.1)
            weights.publish(version)
            sampled = ask(prompts.numpy(), 12)
            assert (sampled.versions == version).all()
            theirs = torch.from_numpy(sampled.logprobs)
            ours = logprobs_of(model, prompts, torch.from_numpy(sampled.tokens))
            assert torch.allclose(ours, theirs, atol=1e-3)
            if before is not None:  # another version's would show
                other = logprobs_of(before, prompts, torch.from_numpy(sampled.tokens))
                assert (other - theirs).abs().median() > 0.1
            before = copy.deepcopy(model)
        weights.close()


@torch.no_grad()
def logprobs_of(model: Any, prompts: Any, tokens: Any) -> Any:
    logits, _ = model(torch.cat([prompts, tokens], 1)[:, :-1])
    found = logits[:, prompts.shape[1] - 1 :].log_softmax(-1)
    return found.gather(2, tokens[..., None])[..., 0]
