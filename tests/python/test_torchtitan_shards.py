"""Weights of Nous' torchtitan without a gather: stand-ins with its fields, over torch's own FSDP,
replicas and tensor parallelism.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE

torch = pytest.importorskip("torch")

import titan_shard_ranks  # noqa: E402  needs torch
from cut_engines import CutEngines  # noqa: E402  needs torch
from rank_jobs import BEGINS, RankJob  # noqa: E402
from rollring.integrations.torchtitan._shards import rows_between, tensor_of  # noqa: E402

JOB = Path(__file__).parent / "titan_shard_ranks.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "ranks", "publish_as"),
    [("fsdp", 2, "bfloat16"), ("fsdp", 4, ""), ("hsdp", 4, ""), ("tp", 2, ""), ("fsdp_tp", 4, "")],
)
def test_shards_of_every_step_go_to_engines_of_another_cut(
    ring: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    ranks: int,
    publish_as: str,
) -> None:
    """The cuts of the trainer lie within heads, whose rows engines have in another order."""
    monkeypatch.setenv("LOGDIR", str(tmp_path))
    with RankJob(ranks, JOB, ring, way, publish_as):
        dtype = "bf16" if publish_as else "f32"
        engines = CutEngines(ring, titan_shard_ranks.SERVED, dtype, PATIENCE)
        for step in range(1, titan_shard_ranks.VERSIONS + 1):
            assert engines.take() == step
            whole = titan_shard_ranks.Adapter().to_hf(titan_shard_ranks.wanted(step))
            for name, served in engines.whole().items():
                assert torch.equal(served, whole[name].to(served.dtype)), name


@pytest.mark.slow
def test_ranks_have_begun_whose_words_are_on_one_line(tmp_path: Path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(
        f"import os\nif os.environ['RANK'] == '0':\n    print('a {BEGINS}{BEGINS}')\n"
    )
    with RankJob(2, program):
        pass


@pytest.mark.slow
def test_a_parameter_of_several_tensors_is_refused_by_all_ranks(
    ring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGDIR", str(tmp_path))
    with RankJob(2, JOB, ring, "fsdp", "", "split") as job:
        code, said = job.end()
        assert code == 1, said
        assert "UnsupportedError: parameter 'embed.weight' becomes embed.0, embed.1," in said
        assert 'say {"weights": "channel"}, which gathers' in said


@pytest.mark.slow
def test_the_example_has_fsdp_sum_gradients_on_a_cpu() -> None:
    """The trainer divides by the number of tokens itself, and gives FSDP a factor of 1."""
    with RankJob(2, Path(__file__).parent / "titan_sum_ranks.py"):
        pass


class Names:
    """The names of an adapter, for one parameter."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def named(self, name: str, tensor: Any) -> dict[str, Any]:
        return dict(self._made(tensor))


@pytest.mark.parametrize(
    "made",
    [
        lambda tensor: {"experts.0": tensor[0], "experts.1": tensor[1]},
        lambda tensor: {"turned": tensor.T},
        lambda tensor: {"columns": tensor.flip(1)},
    ],
    ids=["several", "transposed", "columns"],
)
def test_a_parameter_that_is_more_than_ordered_by_rows_is_refused(made: Any) -> None:
    with pytest.raises(
        rr.errors.UnsupportedError, match="parameter 'w' becomes .*order of its rows"
    ):
        tensor_of(Names(made), "w", (2, 2))  # type: ignore[arg-type]


def test_a_parameter_that_engines_do_not_know_is_left_out() -> None:
    assert tensor_of(Names(lambda tensor: {}), "w", (2, 2)) is None  # type: ignore[arg-type]


def test_rows_at_equal_distances_are_one_box() -> None:
    order = titan_shard_ranks.by_halves(torch.arange(24)).tolist()
    assert order[:8] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert rows_between(order, 0, 24)[:2] == [(0, 4, 0, 2), (4, 4, 1, 2)]
    # The second head is cut in its middle.
    assert rows_between(order, 12, 24)[:2] == [(10, 2, 0, 2), (14, 2, 1, 2)]
    assert len(rows_between(order, 12, 24)) == 4
    assert rows_between(list(range(5)), 2, 4) == [(2, 2, 0, 1)]
    assert rows_between([3, 2, 1, 0], 0, 4) == [(row, 1, 3 - row, 1) for row in range(4)]
