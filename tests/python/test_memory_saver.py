"""The calls of torch_memory_saver over memory domains, without a GPU; test_gpu.py has them with."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import rollring as rr
from memory_fakes import FakeCore, FakeTorch
from rollring import _core
from rollring.extras import memory as _memory
from rollring.extras.memory_saver import MemorySaver, configure_subprocess, torch_memory_saver


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake.module)  # type: ignore[arg-type]
    monkeypatch.setattr(_core, "MemoryDomain", FakeCore)
    monkeypatch.setattr(_memory, "_allocator", lambda: None)
    monkeypatch.setattr(FakeCore, "refuses", set())
    monkeypatch.setattr(FakeCore, "made", [])
    monkeypatch.setattr(FakeCore, "entered", [])
    yield fake
    assert fake.pools == [] and FakeCore.entered == []


@pytest.fixture
def saver(torch: FakeTorch) -> MemorySaver:
    return MemorySaver()


def tag_of(made: Any) -> str:
    return str(made.owner).split(" in ")[0]


def test_the_signatures_are_those_of_torch_memory_saver() -> None:
    """0.0.10's, by name, order and default."""
    theirs = {
        "region": "(tag='default', enable_cpu_backup=False, enable_disk_backup=False, "
        "cpu_backup_backend=None)",
        "cuda_graph": "(cuda_graph, pool=None, stream=None, capture_error_mode='global', "
        "tag='default', enable_cpu_backup=False, cpu_backup_backend=None)",
        "disable": "()",
        "pause": "(tag=None)",
        "resume": "(tag=None)",
        "get_cpu_backup": "(x, zero_copy=False)",
        "set_disk_backup_dir": "(path)",
    }
    for name, signature in theirs.items():
        bare = inspect.signature(getattr(torch_memory_saver, name))
        ours = bare.replace(
            parameters=[one.replace(annotation=one.empty) for one in bare.parameters.values()],
            return_annotation=bare.empty,
        )
        assert str(ours) == signature


def test_what_is_backed_up_comes_back_and_the_rest_is_dropped_in_one_call(
    torch: FakeTorch, saver: MemorySaver
) -> None:
    with saver.region("weights", enable_cpu_backup=True):
        kept = torch.allocate(b"kept")
    with saver.region("weights"):
        dropped = torch.allocate(b"lost")
    with saver.region("kv_cache"):
        cache = torch.allocate(b"cache")
    [core] = FakeCore.made
    saver.pause("weights")
    assert core.calls == [("release", ["weights+cpu"], ["weights"])]
    assert cache.contents == b"cache"
    saver.resume("weights")
    assert core.calls[1:] == [("resume", ["weights", "weights+cpu"])]
    assert kept.contents == b"kept" and dropped.contents == b"????"


def test_without_a_tag_all_that_is_not_paused_is_and_then_an_error_says_so(
    torch: FakeTorch, saver: MemorySaver
) -> None:
    saver.pause()  # there is nothing yet
    saver.resume()
    for tag in ("weights", "kv_cache"):
        with saver.region(tag, enable_cpu_backup=tag == "weights"):
            torch.allocate()
    saver.pause("kv_cache")
    saver.pause()
    [core] = FakeCore.made
    assert core.released == {"kv_cache": False, "weights+cpu": True}
    with pytest.raises(rr.ReleasedError, match="already paused"):
        saver.pause()
    with pytest.raises(rr.ReleasedError, match="weights"):
        saver.pause("weights")
    saver.resume("kv_cache")
    saver.resume()
    assert core.released == {}
    with pytest.raises(rr.ReleasedError, match="not paused"):
        saver.resume()
    with pytest.raises(rr.ReleasedError, match="weights"):
        saver.resume("weights")


def test_a_tag_without_memory_is_named_in_the_log(
    torch: FakeTorch, saver: MemorySaver, caplog: pytest.LogCaptureFixture
) -> None:
    with saver.region("weights"):
        torch.allocate()
    with caplog.at_level(logging.WARNING, "rollring"):
        saver.pause("wieghts")
    assert "wieghts" in caplog.text and "weights" in caplog.text
    assert FakeCore.made[0].calls == []


def test_a_paused_tag_does_not_grow_in_any_kind(torch: FakeTorch, saver: MemorySaver) -> None:
    with saver.region("weights"):
        torch.allocate()
    saver.pause("weights")
    for backup in (False, True):
        with (
            pytest.raises(rr.ReleasedError, match="resume it"),
            saver.region("weights", enable_cpu_backup=backup),
        ):
            pass
        with (
            pytest.raises(rr.ReleasedError, match="resume it"),
            saver.cuda_graph(object(), tag="weights", enable_cpu_backup=backup),
        ):
            pass


def test_the_innermost_region_has_what_is_allocated(torch: FakeTorch, saver: MemorySaver) -> None:
    with saver.region("outer"):
        first = torch.allocate()
        with saver.region("inner"):
            second = torch.allocate()
            with saver.disable():
                third = torch.allocate()
                with saver.region("innermost"):
                    fourth = torch.allocate()
            fifth = torch.allocate()
        with saver.region("outer"):
            sixth = torch.allocate()
        seventh = torch.allocate()
    made = [first, second, third, fourth, fifth, sixth, seventh]
    assert [tag_of(one) for one in made] == [
        "outer", "inner", "torch", "innermost", "inner", "outer", "outer",
    ]  # fmt: skip
    assert first.owner == sixth.owner == seventh.owner  # one pool for each tag
    assert second.owner == fifth.owner


def test_after_an_error_in_a_region_the_outer_one_counts(
    torch: FakeTorch, saver: MemorySaver
) -> None:
    with saver.region("outer"):
        with pytest.raises(ValueError, match="theirs"), saver.region("inner"):
            raise ValueError("theirs")
        assert tag_of(torch.allocate()) == "outer"
    with pytest.raises(rr.InvalidArgumentError, match="region"), saver.disable():
        pass


def test_graphs_of_one_tag_and_pool_share_memory(torch: FakeTorch, saver: MemorySaver) -> None:
    graphs = [object() for _ in range(4)]
    theirs = (7, 7)
    with saver.region("outer"):  # the graph does not allocate from it
        for graph, pool, tag in zip(
            graphs, (None, None, theirs, theirs), ("g", "g", "g", "h"), strict=True
        ):
            with saver.cuda_graph(graph, pool=pool, tag=tag):
                assert tag_of(torch.allocate()) == tag
        assert tag_of(torch.allocate()) == "outer"
    pools = [pool for _, pool in torch.captured]
    assert [graph for graph, _ in torch.captured] == graphs
    assert pools[0] == pools[1] and len(set(pools)) == 3 and theirs not in pools


def test_a_pause_that_fails_on_one_gpu_leaves_no_other_one_paused(
    torch: FakeTorch, saver: MemorySaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for torch.gpu in (0, 1):
        with saver.region("weights", enable_cpu_backup=True):
            made.append(torch.allocate(b"%d" % torch.gpu))
    first, second = FakeCore.made
    assert (first.gpu, second.gpu) == (0, 1)
    real = FakeCore.release

    def release(core: FakeCore, *args: Any) -> Any:
        FakeCore.refuses = {"release"} if core is second else set()
        return real(core, *args)

    monkeypatch.setattr(FakeCore, "release", release)
    with pytest.raises(rr.NotEnoughMemoryError):
        saver.pause("weights")
    assert first.released == second.released == {}
    assert [one.contents for one in made] == [b"0", b"1"]


def test_a_resume_that_fails_can_be_tried_again(torch: FakeTorch, saver: MemorySaver) -> None:
    with saver.region(enable_cpu_backup=True):
        made = torch.allocate(b"kept")
    saver.pause()
    FakeCore.refuses = {"resume"}
    with pytest.raises(rr.NotEnoughMemoryError):
        saver.resume()
    FakeCore.refuses = set()
    saver.resume()
    assert made.contents == b"kept"


def test_pinned_memory_is_kept_or_given_back(torch: FakeTorch, saver: MemorySaver) -> None:
    with saver.region(enable_cpu_backup=True):
        torch.allocate()
    [core] = FakeCore.made
    assert saver.retain_cpu_backup
    saver.pause()
    saver.resume()
    assert ("trim_host",) not in core.calls
    saver.retain_cpu_backup = False
    saver.pause()
    saver.resume()
    assert core.calls[-1] == ("trim_host",)


def test_what_there_is_not_is_refused_by_name(torch: FakeTorch, saver: MemorySaver) -> None:
    def enter(**options: Any) -> None:
        with saver.region(**options):
            pass

    with pytest.raises(rr.UnsupportedError, match="enable_cpu_backup"):
        enter(enable_disk_backup=True)
    with pytest.raises(rr.UnsupportedError, match="pinned"):
        enter(enable_cpu_backup=True, cpu_backup_backend="mmap")
    with pytest.raises(ValueError, match="enable_cpu_backup"):
        enter(cpu_backup_backend="pinned")
    enter(enable_cpu_backup=True, cpu_backup_backend="pinned")
    for tag in ("", "x" * 60, "weights+cpu"):
        with pytest.raises(rr.InvalidArgumentError):
            enter(tag=tag)
    with pytest.raises(rr.UnsupportedError, match="enable_cpu_backup"):
        saver.set_disk_backup_dir("/nowhere")
    with pytest.raises(rr.UnsupportedError, match="fraction"):
        saver.memory_margin_bytes = 1 << 30
    saver.memory_margin_bytes = 0
    saver.hook_mode = "preload"
    assert saver.hook_mode == "torch"
    with pytest.raises(rr.InvalidArgumentError, match="preload"):
        saver.hook_mode = "both"
    with configure_subprocess():
        pass


def test_keep_names_tags_of_the_release(torch: FakeTorch) -> None:
    domain = rr.MemoryDomain(0)
    for tag in ("a", "b"):
        with domain.region(tag):
            torch.allocate()
    with pytest.raises(rr.InvalidArgumentError, match="c"):
        domain.release("a", "b", keep=["a", "c"])
    domain.release("a", "b", keep="b")
    assert FakeCore.made[-1].released == {"a": False, "b": True}
