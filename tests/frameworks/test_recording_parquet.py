"""A recording as a table of pandas and datasets, and its rows as rollouts again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

PATIENCE = 60.0


@pytest.fixture
def ring() -> Iterator[str]:
    name = f"test-{os.getpid()}-parquet"
    rr.create(name, lanes=4, lane_bytes="4MiB", columns={"entropy": rr.Column("f32")})
    yield name
    rr.remove(name, force=True, missing_ok=True)


def sent(number: int, member: int) -> dict[str, Any]:
    length = 4 + number + member
    fields: dict[str, Any] = {
        "token_ids": np.arange(length, dtype=np.int32),
        "loss_mask": np.arange(length) % 2 == 1,
        "logprobs": -np.arange(length, dtype=np.float32),
        "reward": None if member == 1 else number + member / 4,
        "policy_version": number,
        "extra": {"number": number, "text": "\u00e9\u2028</script>"},
    }
    if number == 1:
        fields |= {
            "entropy": np.ones(length, np.float32),
            "routed_experts": np.full((length, 2, 3), member, np.uint8),
            "user": b"\0\xff",
        }
    return fields


def test_a_table_has_a_row_for_each_sequence(ring: str, tmp_path: Path) -> None:
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, tmp_path / "run"),
    ):
        advantages = []
        for number in range(3):
            for member in range(3):
                producer.push(
                    f"p/{number}", repetition_id=member, group_size=3, **sent(number, member)
                )
            with stash.next(PATIENCE) as batch:
                advantages += batch.advantages.tolist()
    path = tmp_path / "run.parquet"
    assert rr.open_recording(tmp_path / "run").to_parquet(path) == 9
    table = pandas.read_parquet(path)
    assert table["step"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table["advantage"].tolist() == advantages
    assert table["instance_id"].tolist() == [f"p/{i}" for i in range(3) for _ in range(3)]
    for row, given in zip(
        table.to_dict("records"), (sent(i, m) for i in range(3) for m in range(3)), strict=True
    ):
        assert np.array_equal(row["token_ids"], given["token_ids"])
        assert np.array_equal(row["logprobs"], given["logprobs"])
        assert (
            np.isnan(row["reward"]) if given["reward"] is None else row["reward"] == given["reward"]
        )
        assert json.loads(row["extra"]) == given["extra"]
        if "entropy" in given:
            assert np.array_equal(row["entropy"], given["entropy"])
            shape = row["shape of routed_experts"]
            assert np.array_equal(row["routed_experts"].reshape(shape), given["routed_experts"])
            assert row["user"] == b"\0\xff"
        else:
            assert row["entropy"] is None and row["user"] is None
    datasets = pytest.importorskip("datasets")
    again = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert again["batch"][:] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
