"""Files of rollouts with a bad line: Python's message is that of `rollring produce`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE

PROGRAM = Path(sys.executable).parent / "rollring"
BAD_LINE, ROWS = 5, 8
BLOB = {"dtype": "u8", "shape": [3, 1, 1], "base64": "AAAA"}
JOINED = {"tokens": None, "n_prompt": None, "logprobs": None, "prompt_ids": [1]}

BAD: list[dict[str, Any]] = [
    {"tokens": [1, 2.5, 3]},
    {"tokens": ["a", 1, 2]},
    {"tokens": [1, True, 2]},
    {"tokens": [1, 2**40, 2]},
    {"tokens": [[1], [2]]},
    {"tokens": "abc"},
    {"tokens": None},
    {"logprobs": [0]},
    {"logprobs": [1e300, 0, 0]},
    {"logprobs": [0, True, 0]},
    {"logprobs": [[0], [0], [0]]},
    {"n_prompt": 9},
    {"n_prompt": True},
    {"n_prompt": -1},
    {"status": "bogus"},
    {"status": 3},
    {"status": ["completed"]},
    {"reward": "high"},
    {"reward": True},
    {"loss_mask": [0, 7, 1]},
    {"loss_mask": [0, -7, 1]},
    {"loss_mask": [0, [7], 1]},
    {"repetition_id": -1},
    {"visit": "a"},
    {"group_size": 99_999_999},
    {"subsequence_index": 70_000},
    {"last_subsequence": 1},
    {"source_id": "x"},
    {"source": 5},
    {"created_ns": 1.5},
    {"instance_id": ""},
    {"instance_id": 5},
    {"policy_version": "a"},
    {"policy_version": True},
    {"policy_version": [1, 2]},
    {"policy_version": [[1]]},
    {"policy_version": [[5, 1]]},
    {"policy_version": [[1, 1], [0, 2]]},
    {"labels": [1, 2, "x"]},
    {"topk_ids": [1, 2, 3]},
    {"topk_ids": [[1], [1, 2], [1]]},
    {"topk_logprobs": [[1], ["x"], [1]]},
    {"routed_experts": [[[1]]]},
    {"routed_experts": [[[1]], [[1]], [[0.5]]]},
    {"routed_experts": [[[1]], [[1], [2]], [[1]]]},
    {"routed_experts": [[[1], [1]], [[1], [2, 3]], [[1], [1]]]},
    {"routed_experts": {"dtype": "u8"}},
    {"routed_experts": BLOB | {"more": 1}},
    {"routed_experts": BLOB | {"base64": "AAA="}},
    {"routed_experts": BLOB | {"shape": [1, 1, 3]}},
    {"example_id": "", "instance_id": None},
    JOINED | {"completion_ids": [1, 0.5]},
    JOINED | {"completion_ids": {"a": 1}},
    JOINED | {"completion_ids": [1, 2], "n_prompt": 2},
    JOINED | {"completion_ids": [1, 2], "completion_logprobs": [0]},
    JOINED | {"completion_ids": [1, 2], "completion_mask": [0, 2]},
    JOINED | {"completion_ids": [1, 2], "logprobs": [0, 0, 0, 0]},
]
GOOD: list[dict[str, Any]] = [
    {"reward": "NaN"},
    {"reward": float("inf")},
    {"logprobs": ["NaN", 0, float("-inf")]},
    {"logprobs": [3.4028235e38, 0, 0]},
    {"loss_mask": [True, False, 1]},
    {"loss_mask": []} | {"tokens": [], "n_prompt": 0, "logprobs": []},
    {"user": {"a": 1}, "images": 5, "messages": "abc"},
    {"routed_experts": BLOB},
    {"policy_version": [[0, -3], [2, 5]]},
    {"policy_version": [1, 1, 2]},
    {"visit": 2**64 - 1},
    {"status": "failed", "tokens": None, "logprobs": None, "n_prompt": 0},
    JOINED | {"completion_ids": [1, 2], "logprobs": [0, 0], "loss_mask": [0, 1, 1]},
]


def rows_with(values: dict[str, Any]) -> list[dict[str, Any]]:
    row = {"tokens": [1, 2, 3], "n_prompt": 1, "logprobs": [0, 0.5, -1], "reward": 1}
    rows = [{"instance_id": f"p{i // 4}", **row} for i in range(ROWS)]
    rows[BAD_LINE - 1] = rows[BAD_LINE - 1] | values
    return rows


def write(path: Path, rows: list[Any]) -> str:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)


def said_by_produce(path: str) -> str:
    """The error, without the count of records; empty: there is none."""
    done = subprocess.run(
        [PROGRAM, "produce", "--input", path, "--digest"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    mark = "rollring: bad_record: "
    said = [line for line in done.stderr.splitlines() if line.startswith(mark)]
    assert len(said) == done.returncode, done
    return said[0].removeprefix(mark) if said else ""


def shown(values: dict[str, Any]) -> str:
    return json.dumps(values)


@pytest.mark.parametrize("values", BAD, ids=shown)
def test_a_bad_value_is_named_with_its_line_as_produce_names_it(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    path = write(tmp_path / "bad.jsonl", rows_with(values))
    read = []
    with pytest.raises(rr.BadRecordError, match=rf"bad\.jsonl:{BAD_LINE}: ") as found:
        for record in rr.read_rollouts(path):
            read.append(record)
    assert len(read) == BAD_LINE - 1
    assert said_by_produce(path).startswith(str(found.value)), found.value


@pytest.mark.parametrize("values", GOOD, ids=shown)
def test_an_unusual_value_is_taken_as_produce_takes_it(
    ring: str, tmp_path: Path, values: dict[str, Any]
) -> None:
    path = write(tmp_path / "good.jsonl", rows_with(values))
    assert said_by_produce(path) == ""
    with rr.Producer(ring) as producer:
        assert producer.push_many(rr.read_rollouts(path)) == ROWS


LATER = ["torn", json.dumps({"instance_id": "p1", "tokens": "abc"}), "{}", "5"]


@pytest.mark.parametrize("later", LATER)
def test_the_first_bad_line_is_named_and_the_records_before_it_arrive(
    ring: str, tmp_path: Path, later: str
) -> None:
    rows: list[Any] = rows_with({"reward": "high"})
    rows[BAD_LINE + 1] = later
    path = write(tmp_path / "bad.jsonl", rows)
    records = rr.read_rollouts(path, group_size=4)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        with pytest.raises(rr.BadRecordError, match=r"bad\.jsonl:5: 'reward' must") as found:
            producer.push_many(records)
        assert found.value.sent == BAD_LINE - 1
        with stash.next(PATIENCE) as batch:
            assert [one.instance_id for one in batch.sequences] == ["p0"] * 4


def test_a_torn_line_is_named_with_its_column_alone(tmp_path: Path) -> None:
    rows: list[Any] = rows_with({})
    rows[BAD_LINE - 1] = json.dumps(rows[BAD_LINE - 1])[:30]
    path = write(tmp_path / "bad.jsonl", rows)
    with pytest.raises(rr.BadRecordError, match=r"bad\.jsonl:5: not JSON: column \d+: ") as found:
        list(rr.read_rollouts(path))
    assert "line" not in str(found.value).rpartition(":5:")[2]
    rows[BAD_LINE - 1] = "[" * 100_000
    with pytest.raises(rr.BadRecordError, match=r"bad\.jsonl:5: not JSON: "):
        list(rr.read_rollouts(write(tmp_path / "bad.jsonl", rows)))


@pytest.mark.parametrize("torn", ['"reward": }', '"reward": 1,', '"reward": "high"}', None])
def test_an_element_of_a_list_is_named_with_its_line(tmp_path: Path, torn: str | None) -> None:
    """Those before it are good."""
    text = json.dumps(rows_with({}), indent=2)
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line == "  {"]
    at = starts[BAD_LINE - 1]
    end = next(i for i in range(at, len(lines)) if lines[i].startswith("  }"))
    if torn is None:
        lines[end - len("reward")] = "["
    else:
        lines[end - 1] = torn
        lines[end] = "," if torn.endswith("}") else lines[end]
    path = tmp_path / "bad.json"
    path.write_text("\n".join(lines), encoding="utf-8")
    read = []
    place = rf"bad\.json:{at}: element {BAD_LINE} of the list: "
    with pytest.raises(rr.BadRecordError, match=place) as found:
        for record in rr.read_rollouts(str(path)):
            read.append(record)
    assert len(read) == BAD_LINE - 1, found.value


def test_a_list_without_its_comma_or_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    row = json.dumps(rows_with({})[0])
    for text, good in ((f"[{row} {row}]", 1), (f"[{row}", 1), (f"[{row},", 1), (f"[{row},]", 1)):
        path.write_text(text, encoding="utf-8")
        read = []
        with pytest.raises(rr.BadRecordError, match=r"bad\.json:1: .*not JSON, or cut off"):
            for record in rr.read_rollouts(str(path)):
                read.append(record)
        assert len(read) == good, text
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(rr.BadRecordError, match="contains no records"):
        rr.read_rollouts(str(path))


def test_an_error_of_the_rings_the_line_too(tmp_path: Path, ring: str) -> None:
    """Its schema is not known where the file is read."""
    rr.remove(ring)
    rr.create(ring, columns={"mine": "i32"})
    path = write(tmp_path / "bad.jsonl", rows_with({"mine": [1]}))
    with (
        rr.Producer(ring) as producer,
        pytest.raises(
            rr.BadRecordError, match=r"bad\.jsonl:5: .*mine.*has 1 entries for 3 tokens"
        ) as found,
    ):
        producer.push_many(rr.read_rollouts(path, columns=["mine"]))
    assert found.value.sent == BAD_LINE - 1


def test_a_record_that_was_read_is_pushed_by_its_keys(ring: str, tmp_path: Path) -> None:
    path = write(tmp_path / "good.jsonl", rows_with({})[:4])
    one, two, three, four = rr.read_rollouts(path)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push(**one)
        producer.push_later(**two)
        asyncio.run(producer.push_async(**three))
        wanted = four.pop("token_ids")
        with producer.reserve(**four, tokens=len(wanted)) as draft:
            draft.token_ids[:] = wanted
        with stash.next(PATIENCE) as batch:
            assert [one.instance_id for one in batch.sequences] == ["p0"] * 4
        with pytest.raises(TypeError, match="instance_id"):
            producer.push(token_ids=[1])


@pytest.mark.parametrize(
    ("module", "packages"),
    [
        ("pyarrow.parquet", "pyarrow"),
        ("datasets", "datasets"),
        ("transformers", "transformers jinja2"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, packages: str
) -> None:
    """The command needs no clone: an installation from a wheel has none."""
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/state.json").write_text("{}")
    (tmp_path / "dump.parquet").write_bytes(b"PAR1PAR1")
    write(tmp_path / "text.jsonl", [{"prompt": "a", "completion": "b"}])
    inputs = {"pyarrow.parquet": "dump.parquet", "datasets": "saved", "transformers": "text.jsonl"}
    tokenizer = "model/" if module == "transformers" else None
    with pytest.raises(rr.BadRecordError) as found:
        list(rr.read_rollouts(str(tmp_path / inputs[module]), tokenizer=tokenizer))
    assert str(found.value).endswith(f": run '{sys.executable} -m pip install {packages}'")
