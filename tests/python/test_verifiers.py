"""Episodes of the real verifiers through a ring: whole groups, and not a bit else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verifiers")
pytest.importorskip("transformers")

import verifiers.v1 as vf
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.graph import prepare_turn
from verifiers.v1.types import AssistantMessage, Response, TurnTokens, UserMessage

import rollring as rr
from atropos_servers import TRAINER, ours
from rollring.integrations import trl
from rollring.integrations.verifiers import records
from verifiers_engine import MEMBERS, experts

sys.path.append(str(Path(__file__).parents[1]))

import pages

PATIENCE = 60.0
RUNNER = "tests/python/test_verifiers.py"


def said(prompt: list[int], tokens: list[int], **more: Any) -> Response:
    return Response(
        id="1",
        created=0,
        model="m",
        message=AssistantMessage(content=" ".join(map(str, tokens))),
        finish_reason="stop",
        tokens=TurnTokens(
            prompt_ids=prompt,
            completion_ids=tokens,
            completion_logprobs=[-0.5 - token / 1024 for token in tokens],
            **more,
        ),
    )


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def trace_of(*turns: tuple[list[Any], Response], **fields: Any) -> vf.Trace:
    """A trace whose turns were committed as the interception server does it."""
    made = vf.Trace(
        task=vf.TraceTask(type="T", data=vf.TaskData(prompt="p"), key="task/1"),
        agent=vf.AgentInfo(config=WireAgentConfig(), **fields),
    )
    for prompt, response in turns:
        prepare_turn(made, prompt).commit(response)
    made.is_completed = made.ok = True
    return made


def plain(tokens: int = 3, **fields: Any) -> vf.Trace:
    return trace_of(([user("a")], said([1, 2], [100 + i for i in range(tokens)])), **fields)


def episode_of(*traces: vf.Trace, ok: bool = True, **fields: Any) -> vf.Episode:
    task = vf.TraceTask(type="T", data=vf.TaskData(prompt="p"), key="task/1")
    return vf.Episode(task=task, ok=ok, traces=list(traces), **fields)


def forked() -> vf.Trace:
    """Two leaves that share their first two messages: [1 2] 10 11, and 3 12 or 4 13."""
    first = said([1, 2], [10, 11])
    base = [user("a"), first.message]
    return trace_of(
        ([user("a")], first),
        ([*base, user("b")], said([1, 2, 10, 11, 3], [12])),
        ([*base, user("c")], said([1, 2, 10, 11, 4], [13])),
    )


def test_branches_and_what_their_nodes_lack() -> None:
    trace = forked()
    trace.record_reward("right", 0.5, weight=2.0)
    trace.record_metric("turns", 3)
    sampled = [node for node in trace.nodes if node.sampled]
    sampled[0].reference_logprobs, sampled[1].reference_logprobs = [-1.0, -2.0], None
    sampled[2].advantages = [0.25]
    for node in trace.nodes:
        node.routed_experts = np.full((len(node.token_ids), 2, 3), len(node.token_ids), np.uint8)
    sampled[1].routed_experts = None
    one, two = records(episode_of(trace), group_size=8, repetition_id=5, policy_version=3)
    for index, record in enumerate((one, two)):
        assert record["instance_id"] == "task/1" and record["repetition_id"] == 5
        assert (record["subsequence_index"], record["last_subsequence"]) == (index, index == 1)
        assert (record["policy_version_min"], record["policy_version_max"]) == (3, 3)
        assert (record["reward"], record["group_size"]) == (1.0, 8)
        assert json.loads(record["extra"]) == {
            "trace": trace.id, "agent": "agent", "rewards": {"right": 0.5},
            "metrics": {"turns": 3.0}, "branch": index,
        }  # fmt: skip
    assert one["token_ids"].tolist() == [1, 2, 10, 11, 3, 12]
    assert two["token_ids"].tolist() == [1, 2, 10, 11, 4, 13]
    # 10 and 11 lie in both, and are trained in the first.
    assert (one["loss_mask"].tolist(), one["n_prompt"]) == ([0, 0, 1, 1, 0, 1], 2)
    assert (two["loss_mask"].tolist(), two["n_prompt"]) == ([0, 0, 0, 0, 0, 1], 5)
    at = [-0.5 - token / 1024 for token in (10, 11, 12)]
    assert one["logprobs"].tolist() == [0, 0, at[0], at[1], 0, at[2]]
    # A node that was not scored among others that were has zeros; where none was, no column.
    assert one["ref_logprobs"].tolist() == two["ref_logprobs"].tolist() == [0, 0, -1, -2, 0, 0]
    assert "advantages" not in one and two["advantages"].tolist() == [0, 0, 0, 0, 0, 0.25]
    assert "routed_experts" not in one and two["routed_experts"].shape == (6, 2, 3)


def wide(forks: int) -> vf.Trace:
    """So many answers to as many questions behind one shared answer of 100 tokens."""
    first = said([1, 2], list(range(100, 200)))
    base = [user("a"), first.message]
    shared = [1, 2, *range(100, 200)]
    return trace_of(
        ([user("a")], first),
        *(
            ([*base, user(f"q{fork}")], said([*shared, 3 + fork], [1000 + fork]))
            for fork in range(forks)
        ),
    )


@pytest.mark.parametrize("forks", [1, 2, 7])
def test_each_sampled_token_is_trained_once(forks: int) -> None:
    trace = wide(forks)
    made = records(episode_of(trace), group_size=1)
    assert len(made) == forks
    trained = np.concatenate([one["token_ids"][one["loss_mask"] == 1] for one in made])
    sampled = [*range(100, 200), *(1000 + fork for fork in range(forks))]
    assert sorted(trained.tolist()) == sampled
    assert all(len(one["token_ids"]) == 104 for one in made)  # with the earlier tokens


def test_a_branch_that_has_no_token_of_its_own_is_no_sample() -> None:
    trace = trace_of(([user("a")], said([1, 2], [10, 11])))
    leaf = trace.nodes[-1]
    trace.nodes.append(leaf.model_copy(update={"token_ids": [], "mask": [], "logprobs": []}))
    trace.nodes[-1].parent = len(trace.nodes) - 2
    for more in range(2):  # two leaves behind one answer
        child = trace.nodes[-1].model_copy()
        child.parent = len(trace.nodes) - 2 - more
        trace.nodes.append(child)
    made = records(episode_of(trace), group_size=1)
    assert [one["loss_mask"].tolist() for one in made] == [[0, 0, 1, 1]]
    assert made[0]["last_subsequence"] is True


def test_all_columns_survive_the_ring(ring: str) -> None:
    traces = [forked() for _ in range(MEMBERS)]
    for number, trace in enumerate(traces):
        trace.record_reward("right", number / 4)
        trace.record_metric("turns", 3)
        for node in trace.nodes:
            node.routed_experts = experts(len(node.token_ids))
            if node.sampled:
                node.advantages = [number / 8] * sum(node.mask)
                node.reference_logprobs = [-0.125 * number] * sum(node.mask)
    sent = records(episode_of(*traces), group="g/1", visit=2, group_size=MEMBERS, messages=True)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        assert producer.push_many(sent) == 2 * MEMBERS
        with stash.next(timeout=PATIENCE) as batch:
            (group,) = batch.groups
            assert group.key == ("g/1", 2) and len(group) == MEMBERS
            assert group.rewards.tolist() == [number / 4 for number in range(MEMBERS)]
            sequences = [one for member in group for one in member.sequences]
            got = [one.as_dict(copy=True) for one in sequences]
            made = [
                trl.grpo_fields(one, advantage=0.5, group_id=1, version=3, reward_std=1.0)
                for one in sequences
            ]
    for record, come in zip(sent, got, strict=True):
        for name, value in record.items():
            if isinstance(value, np.ndarray):
                assert come[name].dtype == value.dtype and np.array_equal(come[name], value), name
            elif name == "extra":
                assert come[name] == json.loads(value)
            elif value is not None:
                assert come[name] == value, name
    branches = [branch for trace in traces for branch in trace.branches]
    for branch, record, sample in zip(branches, sent, made, strict=True):  # of TRL's RolloutSample
        assert sample["input_ids"].tolist() == branch.token_ids
        # Of the second branch, the tokens that the first one trains are context.
        trained = [False] * 4 + branch.sampled_mask[4:] if branch.index else branch.sampled_mask
        assert sample["completion_mask"].astype(bool).tolist() == trained
        assert sample["old_log_probs"].tolist() == branch.logprobs
        assert [*sample["prompt"], *sample["completion"]] == record["messages"]
        assert sample["metrics"] == {"reward": record["reward"], "reward_std": 1.0, "turns": 3.0}


@pytest.mark.parametrize("tokens", [2048, 131_072])
def test_long_groups_with_every_default(tokens: int) -> None:
    ring = f"test-verifiers-{tokens}"
    rr.create(ring)
    try:
        random = np.random.default_rng(7)
        traces = []
        for number in range(MEMBERS):
            trace = plain(1)
            node = trace.nodes[-1]
            node.token_ids = random.integers(0, 150_000, tokens).tolist()
            node.mask = [False] * 16 + [True] * (tokens - 16)
            node.logprobs = (-random.random(tokens - 16)).tolist()
            trace.record_reward("right", number % 2)
            traces.append(trace)
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            for number, trace in enumerate(traces):
                producer.push_many(
                    records(episode_of(trace), group_size=MEMBERS, repetition_id=number)
                )
            with stash.next(timeout=PATIENCE) as batch:
                (group,) = batch.groups
                for trace, member in zip(traces, group, strict=True):
                    (branch,) = trace.branches
                    assert member.token_ids.tolist() == branch.token_ids
                    assert member.loss_mask.tolist() == branch.sampled_mask
                    wanted = np.array(branch.logprobs, np.float32)
                    assert np.array_equal(member.logprobs, wanted)
    finally:
        rr.remove(ring, force=True)


def failed(trace: vf.Trace, error: Exception) -> vf.Trace:
    trace.record_error(error)
    return trace


def late(stage: str, ok: bool = True) -> vf.Trace:
    trace = plain()
    trace.record_timeout(stage)
    trace.ok = ok
    return trace


def stopped(condition: str) -> vf.Trace:
    trace = plain()
    trace.stop(condition)
    return trace


def recovered() -> vf.Trace:
    trace = failed(plain(), vf.SandboxError("once"))
    trace.ok = True
    return trace


@pytest.mark.parametrize(
    ("trace", "status", "error"),
    [
        (stopped("agent_completed"), "completed", None),
        (stopped("max_turns"), "truncated", None),
        (stopped("max_total_tokens"), "truncated", None),
        (recovered(), "completed", "SandboxError: once"),
        (failed(plain(), vf.ProviderError("gone")), "failed", "ProviderError: gone"),
        (late("agent"), "timed_out", None),
        (late("setup", ok=False), "timed_out", None),
        (trace_of(), "failed", "the model sampled no token"),
    ],
    ids=["done", "turns", "tokens", "recovered", "error", "late", "late-setup", "empty"],
)
def test_what_became_of_a_trace(trace: vf.Trace, status: str, error: str | None) -> None:
    trace.record_reward("right", 1.0)
    (record,) = records(episode_of(trace, ok=trace.ok))
    trained = status in ("completed", "truncated")
    assert record["status"] == status and record["last_subsequence"]
    assert ("token_ids" in record) == ("reward" in record) == trained
    assert json.loads(record["extra"]).get("error") == error


def test_timeouts_can_be_trained_on() -> None:
    (record,) = records(episode_of(late("agent")), train_on_timeouts=True)
    assert record["status"] == "truncated" and record["token_ids"].tolist() == [1, 2, 100, 101, 102]


def test_the_episodes_of_the_page(ring: str) -> None:
    with rr.Stash(ring, batch_groups=1) as stash:
        for i in range(MEMBERS):
            found = pages.execute(
                RUNNER, "episode", {"run42": ring}, episode=episode_of(plain()), i=i, version=3
            )
            found["producer"].close()
        with stash.next(PATIENCE) as batch:
            (group,) = batch.groups
            assert [one.policy_version_max for one in group] == [3] * MEMBERS


def test_what_failed_is_not_waited_for(ring: str) -> None:
    env = vf.Error(type="EnvError", message="finalize")
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:

        def send(repetition: int, episode: vf.Episode, **more: Any) -> None:
            sent = records(episode, group_size=MEMBERS, repetition_id=repetition, **more)
            producer.push_many(sent)

        send(0, episode_of(plain(), plain()))
        send(2, episode_of(failed(plain(), ValueError("x")), plain(), ok=False))
        send(4, episode_of(ok=False, errors=[env]), members=1)  # no trace at all
        send(5, episode_of(plain(), plain(), ok=False, errors=[env]))  # not judged
        with pytest.raises(TimeoutError):
            stash.next(timeout=0.1)
        send(7, episode_of(ok=False, is_timeout=True, errors=[env]))
        with stash.next(timeout=PATIENCE) as batch:
            (group,) = batch.groups
            assert [member.repetition_id for member in group] == [0, 1, 3]


def test_agents_and_branches_that_are_not_trained_are_left_out() -> None:
    solvers = [plain(name="solver") for _ in range(2)]
    judge, proposer = plain(name="judge", trainable=False), plain(name="proposer")
    episode = episode_of(solvers[0], judge, proposer, solvers[1])
    told = [json.loads(record["extra"])["agent"] for record in records(episode)]
    assert told == ["solver", "proposer", "solver"]
    only = records(episode, agent="solver", members=3)
    assert [record["repetition_id"] for record in only] == [0, 1, 2]
    assert [record["status"] for record in only] == ["completed", "completed", "failed"]
    # A compaction that the program did not go on from: a leaf that is not a sample.
    trace = forked()
    trace.nodes[-1].semantic_parents.append(vf.ParentLink(node=1, type="compaction_attempt"))
    (record,) = records(episode_of(trace))
    assert record["token_ids"].tolist() == [1, 2, 10, 11, 3, 12] and record["last_subsequence"]


def test_keys_versions_and_columns_of_ones_own(ring: str) -> None:
    episode = episode_of(plain(), group=vf.GroupInfo(id="group/7"))
    episode.env.id = "counting"
    episode.record_run(
        vf.TrainRunInfo(
            id="r", work=vf.TrainWorkInfo(step=9, policy=vf.PolicySpan(start=4, end=6))
        )
    )
    node = episode.traces[0].nodes[-1]
    node.entropies = [0.5, 0.25, 0.125]
    wire = vf.WireEpisode.model_validate(episode.model_dump(mode="python"))
    for one in (episode, wire):
        (record,) = records(
            one, source_id=3, columns={"entropies": lambda branch: branch.entropies,
                                       "none": lambda branch: branch.trainer_logprobs}
        )  # fmt: skip
        assert record["instance_id"] == "group/7" and record["source"] == "counting"
        assert (record["policy_version_min"], record["policy_version_max"]) == (4, 6)
        assert record["entropies"] == [0, 0, 0.5, 0.25, 0.125] and "none" not in record
        assert record["source_id"] == 3
    assert records(episode, policy_version=(1, 2))[0]["policy_version_max"] == 2
    assert records(episode, group="mine")[0]["instance_id"] == "mine"


def test_what_cannot_be_sent_is_named() -> None:
    episode = episode_of(plain(), plain())
    with pytest.raises(ValueError, match=f"{episode.id} has 2 traces"):
        records(episode, members=1)
    episode.task.key = None
    with pytest.raises(ValueError, match="group="):
        records(episode)
    relayed = Response(
        id="1", created=0, model="m", message=AssistantMessage(content="x"), finish_reason="stop"
    )
    trace = trace_of(([user("a")], relayed))
    with pytest.raises(ValueError, match=f"{trace.id} has messages of the model without"):
        records(episode_of(trace))


def test_a_trainer_of_atropos_gets_them(ring: str, tmp_path: Path) -> None:
    """Each branch is a sequence of its group; all but the first member have one."""
    with ours(ring, tmp_path) as server, rr.Producer(ring) as producer:
        server.post("/register", {**TRAINER, "batch_size": MEMBERS + 1, "starting_step": 0})
        assert server.get("/batch")["batch"] is None
        for number in range(MEMBERS):
            trace = plain(number + 1) if number else forked()
            trace.record_reward("right", float(number))
            producer.push_many(
                records(
                    episode_of(trace), group_size=MEMBERS, repetition_id=number, messages=True
                )
            )
        batch = None
        while batch is None:
            batch = server.get("/batch")["batch"]
    (group,) = batch
    assert group["tokens"][:2] == [[1, 2, 10, 11, 3, 12], [1, 2, 10, 11, 4, 13]]
    assert group["masks"][:2] == [[-100, -100, 10, 11, -100, 12], [-100] * 5 + [13]]
    assert [chat[-2]["content"] for chat in group["messages"][:2]] == ["b", "c"]
    assert group["scores"] == [0.0, *map(float, range(MEMBERS))]
    for number in range(1, MEMBERS):
        ids = [1, 2, *(100 + i for i in range(number + 1))]
        assert group["tokens"][number + 1] == ids
        assert group["masks"][number + 1] == [-100, -100, *ids[2:]]
        logprobs = np.array(group["inference_logprobs"][number + 1], np.float32)
        assert logprobs.tolist() == [0, 0, *(-0.5 - token / 1024 for token in ids[2:])]
        assert group["messages"][number + 1][0] == {"role": "user", "content": "a"}
