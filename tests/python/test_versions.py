"""Policy versions per token, and the same fields from Python as from JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring import _core

PROGRAM = Path(sys.executable).parent / "rollring"
RUNS = [[0, 3], [2, 4], [4, 5]]
TOKENS = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def stash(ring: str) -> Any:
    with rr.Stash(ring, batch_sequences=1, group_size=1, advantages="none") as opened:
        yield opened


def next_record(stash: rr.Stash) -> dict[str, Any]:
    with stash.next(PATIENCE) as batch:
        return batch.sequences[0].as_dict(copy=True)


def from_json(ring: str, record: dict[str, Any]) -> None:
    line = json.dumps(record)
    command = [str(PROGRAM), "produce", ring, "--input", "-", "-q"]
    subprocess.run(command, input=line + "\n", text=True, check=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    "value",
    [
        RUNS,
        tuple(map(tuple, RUNS)),
        np.array(RUNS),
        np.array(RUNS, np.uint8),
        np.asfortranarray(RUNS),
        [3, 3, 4, 4, 5, 5],
        np.array([3, 3, 4, 4, 5, 5], np.int32),
        [np.int64(3), 3, 4, 4, 5, 5],
    ],
    ids=str,
)
def test_versions_of_tokens_are_runs(producer: rr.Producer, stash: rr.Stash, value: Any) -> None:
    producer.push("p", token_ids=TOKENS, group_size=1, n_prompt=3, policy_version=value)
    got = next_record(stash)
    assert got["policy_version"].tolist() == RUNS
    assert (got["policy_version_min"], got["policy_version_max"]) == (4, 5)


def test_a_number_is_the_version_of_all(producer: rr.Producer, stash: rr.Stash) -> None:
    for visit, value in enumerate((7, np.int64(7))):
        producer.push("p", visit=visit, token_ids=TOKENS, group_size=1, policy_version=value)
        got = next_record(stash)
        assert "policy_version" not in got
        assert (got["policy_version_min"], got["policy_version_max"]) == (7, 7)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([3, 3, 4], "policy_version has 3 numbers, but the record has 6 tokens"),
        ([[0, 3], [9, 4]], "outside the tokens"),
        ([[2, 3], [1, 4]], "not in order"),
        ([[0, 3, 1]], r"runs \[\[start token, version\], ...\]"),
        ([0.5] * 6, "a number per token"),
        ([[0, 2**63]], "policy_version"),
        (["x"] * 6, "policy_version"),
        ("7", "policy_version"),
        ([[0, 3], [1]], "policy_version"),
    ],
    ids=str,
)
def test_what_is_no_version_is_refused(producer: rr.Producer, value: Any, why: str) -> None:
    with pytest.raises(rr.BadRecordError, match=why):
        producer.push("p", token_ids=TOKENS, group_size=1, policy_version=value)


def test_runs_that_are_written_in_place_count(producer: rr.Producer, stash: rr.Stash) -> None:
    columns = {"token_ids": (), "policy_version": (3, 2)}
    with producer.reserve("p", 6, columns, group_size=1) as draft:
        draft["policy_version"][:] = RUNS
    got = next_record(stash)
    assert (got["policy_version_min"], got["policy_version_max"]) == (3, 5)


# Every field and column, as Python and as JSON lines name it.
RECORD: dict[str, Any] = {
    "instance_id": "gsm8k/7",
    "visit": 2,
    "repetition_id": 0,
    "group_size": 1,
    "subsequence_index": 0,
    "last_subsequence": True,
    "attempt": 3,
    "source_id": -4,
    "status": "truncated",
    "n_prompt": 2,
    "policy_version": RUNS,
    "reward": 0.25,
    "created_ns": 5,
    "finished_ns": 6,
    "token_ids": TOKENS,
    "loss_mask": [0, 0, 1, 0, 1, 1],
    "logprobs": [0, 0, -0.5, 0, -0.25, -1],
    "advantages": [0, 0, 1, 2, 3, 4],
    "ref_logprobs": [0, 0, -1, -1, -2, -2],
    "token_rewards": [0, 0, 0, 0, 0, 1],
    "labels": [-100, -100, 3, -100, 5, 6],
    "topk_ids": [[1, 2]] * 6,
    "topk_logprobs": [[-0.5, -1.5]] * 6,
    "routed_experts": [[[1, 2], [3, 0]]] * 6,
    "source": "math",
    "messages": [{"role": "user", "content": "half \ud835"}],
    "generation_params": {"temperature": 0.5},
    "overrides": [1],
    "group_overrides": {"a": None},
    "images": ["https://example.org/1.png"],
    "extra": {"my_own_key": "travels along"},
}
NOT_FROM_BOTH = {"user", "origin"}  # bytes; and the program that wrote the record


def plain(record: dict[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in record.items() if key not in NOT_FROM_BOTH}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in made.items()}


@pytest.mark.parametrize("versions", [RUNS, [3, 3, 4, 4, 5, 5], 4], ids=str)
def test_fields_from_python_and_from_json_are_equal(
    ring: str, producer: rr.Producer, stash: rr.Stash, versions: Any
) -> None:
    record = {**RECORD, "policy_version": versions}
    producer.push(record["instance_id"], **{k: v for k, v in record.items() if k != "instance_id"})
    python = plain(next_record(stash))
    flat = {key: value for key, value in record.items() if key != "extra"}
    from_json(ring, {**flat, **record["extra"], "visit": 3})
    line = plain(next_record(stash))
    for default in ("subsequence_index", "last_subsequence"):  # kept, so that it is printed again
        del line["extra"][default]
    assert line == {**python, "visit": 3}
    shown = {name for name in dir(_core.SequenceView) if not name.startswith("_")}
    made = {"n_tokens", "policy_version_min", "policy_version_max"}
    of_batch = {"columns", "group", "index", "member", "withheld"}
    assert shown <= set(RECORD) | NOT_FROM_BOTH | made | of_batch, "RECORD has not every field"


def test_what_a_queue_gave_can_be_put_again(tmp_path: Path) -> None:
    record = {key: value for key, value in RECORD.items() if key != "extra"}
    options: dict[str, Any] = {"codec": rr.TrajectoryCodec(), "lanes": 4, "lane_bytes": "1MiB"}
    with rr.RingQueue(**options) as queue:
        from_json(queue.name, record)
        first = queue.get(timeout=PATIENCE)
        queue.put({**first, "images": first["images"]})
        again = queue.get(timeout=PATIENCE)
    assert plain(again) == plain(first)
    assert first["policy_version"].tolist() == RUNS


def test_what_a_batch_gave_can_be_pushed_again(producer: rr.Producer, stash: rr.Stash) -> None:
    fields = {key: value for key, value in RECORD.items() if key != "instance_id"}
    producer.push(RECORD["instance_id"], **fields)
    first = next_record(stash)
    for shown in ("group", "member", "withheld", "n_tokens"):  # of the batch, and of the columns
        del first[shown]
    again = {**first, "visit": 9}
    producer.push(again.pop("instance_id"), **again)
    got = next_record(stash)
    assert plain(got) | plain(first) == plain(got) | {"visit": 2}
