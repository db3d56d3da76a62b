"""A ring that exists already: whether it will do."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import pytest

import rollring as rr
from rollring.adapters import NUMPY_DTYPES


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        ({"lanes": 4}, "lanes is 8, and this call asks for 4"),
        ({"lane_bytes": "8MiB"}, "lane_bytes is 4 MiB, and this call asks for 8 MiB"),
        ({"spill_bytes": 0}, "spill_bytes is 4 MiB, and this call asks for 0 B"),
        ({"group_rows": 513}, "group_rows is 512, and this call asks for 513"),
        ({"journal_records": 7}, "journal_records is 65536, and this call asks for 7"),
        ({"requests": 0}, "requests is 1024, and this call asks for 0"),
        ({"request_bytes": "1MiB"}, "request_bytes is 2 MiB, and this call asks for 1 MiB"),
        ({"soft_bytes": 4096}, "soft_bytes is .*, and this call asks for 4 KiB"),
        ({"overflow_dir": "/var/tmp"}, "overflow_dir is none, and this call asks for /var/tmp"),
        ({"columns": {"value": "f32"}}, "not in its schema, and this call asks for f32 a token"),
        ({"lanes": 8, "lane_bytes": "5MiB"}, "lane_bytes is 4 MiB"),
    ],
)
def test_a_ring_that_is_there_has_what_is_asked_for(
    ring: str, asked: dict[str, Any], difference: str
) -> None:
    with pytest.raises(rr.RingExistsError, match=difference):
        rr.create(ring, exist_ok=True, **asked)


def test_options_that_are_not_given_do_not_count(ring: str) -> None:
    rr.create(ring, exist_ok=True)
    rr.create(ring, exist_ok=True, lanes=8, lane_bytes=(4 << 20) - 1, soft_bytes=0)
    with pytest.raises(rr.RingExistsError, match="already exists"):
        rr.create(ring, lanes=8)


def test_a_program_hears_how_the_sizes_were_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rollring")
    name = f"test-{os.getpid()}-chosen"
    rr.create(name, lanes=2)
    rr.remove(name)
    (record,) = caplog.records
    assert record.levelno == logging.INFO and record.getMessage().startswith(f"{name}: ")
    caplog.clear()
    rr.create(name, lanes=2, lane_bytes="1MiB", spill_bytes="1MiB")
    rr.remove(name)
    assert caplog.records == []


def test_columns_of_a_ring_that_is_there_are_compared() -> None:
    name = f"test-{os.getpid()}-columns"
    columns = {"value": rr.Column("f32", dims=(2,)), "state": rr.Column("i64", per="record")}
    rr.create(name, columns=columns, lanes=1, lane_bytes="1MiB")
    try:
        rr.create(name, columns=columns, exist_ok=True)
        for other, difference in (
            ({**columns, "value": np.float64}, "column .value. is f32 a token of dims .2., and"),
            ({"state": columns["state"]}, "column 'value' is f32 a token.*, and .* asks for none"),
        ):
            with pytest.raises(rr.RingExistsError, match=difference):
                rr.create(name, columns=other, exist_ok=True)
    finally:
        rr.remove(name, force=True)


def test_every_dtype_makes_a_column(ring: str) -> None:
    assert NUMPY_DTYPES["i64"] is np.dtype("int64") and NUMPY_DTYPES["bf16"] == np.uint16
    rr.remove(ring)
    for some in (list(NUMPY_DTYPES)[::2], list(NUMPY_DTYPES)[1::2]):  # a ring has 32 columns
        rr.create(ring, lanes=1, columns={f"of_{name}": name for name in some})
        rr.remove(ring)
