"""Rollouts of verifiers in another process: the real package, and a stand-in for the engine."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verifiers")
pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verifiers.v1 import State, Trace, WireTaskData
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.utils.trace_store import read_episodes

import rollring as rr
from rollring.integrations.verifiers import records
from verifiers_engine import ASSISTANT, END, LONG, MEMBERS, REFUSE, USER, engine, experts

sys.path.append(str(Path(__file__).parents[1]))

import pages

RUNNER = "tests/python/test_verifiers_rollout.py"
pytestmark = pytest.mark.slow  # the other process imports verifiers and transformers
CHILD = Path(__file__).with_name("verifiers_child.py")
PATIENCE = 300.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = {"[UNK]": 0, "<end>": END, "<user>": USER, "<assistant>": ASSISTANT, "count": 4}
    words |= {"to": 5, "long": LONG, "refuse": REFUSE}
    words |= {str(number): 10 + number for number in range(100)}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="<end>")
    fast.chat_template = (
        "{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return str(folder)


def digest(member: rr.Member) -> str:
    samples = [
        (one.token_ids.tolist(), one.loss_mask.astype(bool).tolist(), one.logprobs.tolist())
        for one in member.sequences
    ]
    return hashlib.sha256(json.dumps(samples).encode()).hexdigest()


def saved(folder: Path) -> dict[str, str]:
    """The digests of the traces in a file that verifiers has written."""
    samples: dict[str, list[Any]] = {}
    for episode in read_episodes(folder, Trace[WireTaskData, State, WireAgentConfig]):
        for fields in records(episode, group_size=MEMBERS):
            if "token_ids" in fields:
                columns = (fields["token_ids"], fields["loss_mask"], fields["logprobs"])
                ids, mask, logprobs = map(np.asarray, columns)
                sample = (ids.tolist(), mask.astype(bool).tolist(), logprobs.tolist())
                samples.setdefault(json.loads(fields["extra"])["trace"], []).append(sample)
    return {
        trace: hashlib.sha256(json.dumps(found).encode()).hexdigest()
        for trace, found in samples.items()
    }


# As verifiers_child.py has them; the two that are missing are marks.
KINDS = ("plain", "plain", "fork", "long", "late", "refused", "plain", "turns")

EXPECTED = {  # by kind: status, samples, reward
    "plain": ("completed", 1, 1.0),
    "fork": ("completed", 2, 3.0),
    "long": ("truncated", 1, 1.0),
    "turns": ("completed", 1, 3.0),
}


def check_member(member: rr.Member, turns: list[Any], kind: str) -> None:
    status, samples, reward = EXPECTED[kind]
    assert (member.reward, len(member.sequences)) == (reward, samples)
    # A fork shares its first turn, which is trained in the first branch alone; otherwise the last
    # turn's prompt has all those before.
    trained: set[int] = set()
    for number, one in enumerate(member.sequences):
        prompt, said, logprobs = turns[number + 1] if kind == "fork" else turns[-1]
        assert one.status == status
        assert one.token_ids.tolist() == prompt + said
        assert one.logprobs.tolist()[-len(said) :] == logprobs
        wanted = np.zeros(len(one), bool)
        for turn, (before, made, _) in enumerate(turns):
            if turn not in trained and (prompt + said)[: len(before + made)] == before + made:
                wanted[len(before) : len(before) + len(made)] = True
                trained.add(turn)
        assert one.n_prompt == np.argmax(wanted)
        assert np.array_equal(one.loss_mask.astype(bool), wanted)
        assert one.extra["branch"] == number and one.extra["rewards"] == {"length": reward}
        assert np.array_equal(one.routed_experts, experts(len(one)))


def sent_again(ring: str, groups: int) -> dict[str, str]:
    """The digests of the traces that the page sends of its folder."""
    try:
        pages.execute(RUNNER, "saved", {"run42": ring})
        with rr.Stash(ring, batch_groups=groups) as stash, stash.next(timeout=PATIENCE) as batch:
            members = [member for group in batch.groups for member in group]
            return {one.sequences[0].extra["trace"]: digest(one) for one in members}
    finally:
        rr.remove(ring, force=True, missing_ok=True)


def test_rollouts_of_another_process_become_whole_groups(
    ring: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = 3
    with (
        engine() as (url, asked),
        rr.Stash(ring, batch_groups=1) as stash,
        subprocess.Popen(
            [sys.executable, str(CHILD), ring, url, tokenizer, str(groups), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child,
    ):
        seen: dict[str, str] = {}
        try:
            for _ in range(groups):
                with stash.next(timeout=PATIENCE) as batch:
                    (group,) = batch.groups
                    assert (group.size, len(group)) == (MEMBERS, MEMBERS - 2)
                    for member in group:
                        trace = member.sequences[0].extra["trace"]
                        seen[trace] = digest(member)
                        check_member(member, asked.turns[trace], KINDS[member.repetition_id])
        except (TimeoutError, AssertionError) as fault:
            child.kill()
            pytest.fail(f"{fault}\n{child.communicate()[1]}")
        said, wrong = child.communicate(timeout=PATIENCE)
        assert child.returncode == 0, wrong
        stats = stash.stats()
    rollouts = [json.loads(line) for line in said.splitlines()]
    assert len(rollouts) == groups * MEMBERS
    assert seen == {
        one["trace"]: one["digest"] for one in rollouts if one["kind"] not in ("late", "refused")
    }
    assert len(seen) == groups * (MEMBERS - 2)
    assert saved(tmp_path) == seen
    (tmp_path / "run").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert sent_again(f"{ring}-again", groups) == seen
    assert stats["rollring/stash/account/dropped/failed/records"] == groups * 2, stats
