"""Names of fields and options that are nearly right."""

from __future__ import annotations

from typing import Any

import pytest

import rollring as rr


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda ring: rr.Stash(ring, groupsize=8), "groupsize': did you mean group_size"),
        (lambda ring: rr.Stash(ring, dead_line=8), "dead_line': did you mean deadline"),
        (lambda ring: rr.Stash(ring, nonsense=8), "no option 'nonsense'$"),
        (lambda ring: rr.Producer(ring).push("p", tokens=[1]), "'tokens': did you mean token_ids"),
        (
            lambda ring: rr.Producer(ring).push("p", token_ids=[1], groupsize=8),
            "'groupsize': did you mean group_size",
        ),
        (lambda ring: rr.Producer(ring).open_group("p", groupsize=8), "did you mean group_size"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(ring: str, call: Any, meant: str) -> None:
    with pytest.raises(rr.RollringError, match=meant):
        call(ring)
