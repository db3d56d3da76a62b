"""The answers of `rollring view` about rings and files; tests/frameworks has it in a browser."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.view._groups import Groups, advantages, is_flat
from rollring.view._rollout import of_file
from rollring.view._sources import RecordingSource, is_recording
from rollring.view._summary import histogram
from rollring.view._text import pieces
from view_pages import line, page_of_file, page_of_ring, served, three, until, written

__all__ = ["three"]  # a fixture

HOSTILE = "<script>alert(1)</script> \u202egnirts\u202c \ud800 " + "x" * 1_000_000


def test_groups_of_a_file(three: str) -> None:
    with page_of_file(three) as page:
        found = page.ask("groups")
        assert (found["total"], found["matched"]) == (3, 3)
        by_name = {group["instance_id"]: group for group in found["groups"]}
        assert by_name["mixed"]["rewards"] == [0, 1, 0, 1]
        assert by_name["mixed"]["version"] == [3, 4]
        assert by_name["flat"]["flat"] and not by_name["mixed"]["flat"]
        assert by_name["half"]["state"] == "open" and by_name["flat"]["state"] == "finished"
        assert page.ask("groups", revision=found["revision"]) == {
            "revision": found["revision"],
            "same": True,
        }


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"q": "MIX"}, ["mixed"]),
        ({"q": "maths mixed"}, ["mixed"]),
        ({"reward_min": 0.9}, ["flat"]),
        ({"reward_max": 0.5, "sort": "name"}, ["half", "mixed"]),
        ({"tokens_min": 100}, ["half"]),
        ({"tokens_max": 100, "sort": "old"}, ["mixed", "flat"]),
        ({"status": "truncated"}, ["flat"]),
        ({"environment": "maths"}, ["mixed"]),
        ({"version": 4}, ["mixed"]),
        ({"version": 5}, []),
        ({"flat": "1"}, ["flat"]),
        ({"state": "open"}, ["half"]),
        ({"sort": "tokens", "limit": 1}, ["half"]),
        ({"sort": "name", "offset": 2}, ["mixed"]),
        ({"sort": "reward", "limit": 1}, ["flat"]),
    ],
)
def test_filters(three: str, query: dict[str, Any], names: list[str]) -> None:
    with page_of_file(three) as page:
        assert page.names(**query) == names


def test_a_group_and_its_members(three: str) -> None:
    with page_of_file(three) as page:
        found = page.ask("group", group=page.group_of("mixed"))
        members = found["members"]
        assert [one["number"] for one in members] == [0, 1, 2, 3]
        assert members[1]["advantage"] == pytest.approx(0.5 / (np.std([0, 1, 0, 1], ddof=1) + 1e-4))
        assert members[0]["preview"] == "3 4 5 6 7 8 9"
        turns = page.ask("turns", group=page.group_of("mixed"), member=2)
        assert turns["turns"] == [[0, 3, 0], [3, 12, 1]]
        assert turns["ranges"]["policy_version"] == [-1, 3]
        assert turns["columns"]["logprobs"] == "float32[12]"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (7, [-1, -1, -1] + [7] * 7),
        ([[3, 5], [6, 6]], [-1] * 3 + [5] * 3 + [6] * 4),
        (list(range(10)), list(range(10))),
        ([[50, 1], [-1, 2]], [-1] * 10),
        ([1, 2], None),
    ],
)
def test_versions_of_tokens(given: Any, shown: list[int] | None) -> None:
    versions = of_file(line("g", 0, policy_version=given)).versions()
    assert (None if versions is None else versions.tolist()) == shown


def test_a_recording_while_it_is_written(ring: str, producer: rr.Producer, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    with rr.Stash(ring, batch_groups=1) as stash, rr.extras.record(stash, runs):
        push_group(producer, stash, "first")
        source = RecordingSource(runs, Groups(10, 1 << 30, arriving=False))
        with served(source) as page:
            until(lambda: page.names() == ["first"])
            push_group(producer, stash, "second")
            until(lambda: page.names() == ["second", "first"])
            (group, _) = page.ask("groups")["groups"]
            assert (group["state"], group["rewards"]) == ("finished", [0, 1, 0, 1])
            part = page.ask("slice", group=group["id"], member=3)
            assert part["ids"] == list(range(13))
            assert page.ask("state")["kind"] == "recording"
    assert is_recording(runs) and not is_recording(str(tmp_path))


def test_a_prompt_in_several_batches_of_a_recording(ring: str, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    rr.create(f"{ring}-next")
    try:
        for name in (ring, f"{ring}-next"):  # as a run that goes on in a new ring
            with (
                rr.Producer(name) as producer,
                rr.Stash(name, batch_groups=1) as stash,
                rr.extras.record(stash, runs),
            ):
                push_group(producer, stash, "prompt")
    finally:
        rr.remove(f"{ring}-next", force=True)
    with served(RecordingSource(runs, Groups(10, 1 << 30, arriving=False))) as page:
        until(lambda: page.names() == ["prompt", "prompt"])
        assert page.ask("state")["rollouts"] == 8


def test_a_recording_of_a_damaged_batch_and_out_of_reach(
    ring: str, producer: rr.Producer, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with (
        rr.Stash(ring, batch_groups=1) as stash,
        rr.extras.record(stash, runs, file_bytes="1KiB"),  # each batch in a file
    ):
        for name in ("first", "damaged", "third"):
            push_group(producer, stash, name)
        middle = sorted(runs.glob("*.rollouts"))[1]
        content = bytearray(middle.read_bytes())
        content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
        middle.write_bytes(content)
        with served(RecordingSource(str(runs), Groups(10, 1 << 30, arriving=False))) as page:
            until(lambda: page.names() == ["third", "first"])
            assert middle.name in until(lambda: page.ask("state")["problem"])
            away = runs.rename(tmp_path / "away")
            until(lambda: "cannot read the directory" in page.ask("state")["problem"])
            away.rename(runs)
            until(lambda: "cannot read the directory" not in page.ask("state")["problem"])
            push_group(producer, stash, "fourth")
            until(lambda: page.names() == ["fourth", "third", "first"])
            assert middle.name in page.ask("state")["problem"]


def push_group(producer: rr.Producer, stash: rr.Stash, name: str) -> None:
    for member in range(4):
        producer.push(name, **fields_of(member))
    stash.next(PATIENCE).ack()


def test_slices(three: str) -> None:
    with page_of_file(three) as page:
        where = {"group": page.group_of("half"), "member": 1}
        part = page.ask("slice", **where, **{"from": 490, "to": 600})
        assert (part["from"], part["to"], part["tokens"]) == (490, 500, 500)
        assert part["ids"] == list(range(490, 500)) and part["texts"] is None
        assert part["values"]["logprobs"] == [0.0] * 10
        for begin, end in ((-5, 0), (500, 500), (10**12, 5), (700, 800)):
            empty = page.ask("slice", **where, **{"from": begin, "to": end})
            assert empty["ids"] == []
        assert page.ask("find", **where, text="77")["at"] == [77]


def test_a_long_member_is_served_in_slices(tmp_path: Path) -> None:
    count = 131_072
    ids = np.arange(count) % 1000
    with page_of_file(
        written(
            tmp_path / "f.jsonl",
            [
                line(
                    "long",
                    0,
                    token_ids=ids.tolist(),
                    group_size=1,
                    logprobs=[0.0] * count,
                    loss_mask=([0] * 64 + [1] * 64) * (count // 128),
                )
            ],
        )
    ) as page:
        where = {"group": page.group_of("long"), "member": 0}
        turns = page.ask("turns", **where)
        assert (turns["tokens"], turns["all_turns"]) == (count, count // 64)
        seen: list[int] = []
        while len(seen) < count:
            part = page.ask("slice", **where, **{"from": len(seen)})
            assert 0 < len(part["ids"]) <= 4096
            seen += part["ids"]
        assert seen == ids.tolist()


def test_hostile_text_is_data(tmp_path: Path) -> None:
    path = written(
        tmp_path / "f.jsonl",
        [
            line(
                HOSTILE,
                0,
                group_size=1,
                source=HOSTILE,
                messages=[{"role": "user", "content": HOSTILE}],
            )
        ],
    )
    with page_of_file(path) as page:
        (group,) = page.ask("groups")["groups"]
        assert group["instance_id"] == HOSTILE[:300]
        found = page.ask("group", group=group["id"])
        assert found["instance_id"] == HOSTILE[:4000]
        turns = page.ask("turns", group=group["id"], member=0)
        assert all(len(text) <= 4001 for text in turns["columns"].values())
        record = json.loads(page.ask("copy", group=group["id"])["text"])
        assert record["instance_id"] == HOSTILE
        assert record["messages"][0]["content"] == HOSTILE


def test_numbers_that_json_lacks(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring) as page:
        producer.push(
            "odd",
            token_ids=[1, 2],
            logprobs=[float("nan"), float("-inf")],
            reward=float("inf"),
            repetition_id=0,
            group_size=2,
        )
        producer.push("odd", token_ids=[1, 2], reward=float("nan"), repetition_id=1, group_size=2)
        until(lambda: page.ask("state")["rollouts"] == 2)
        group = page.group_of("odd")
        assert page.ask("groups")["groups"][0]["rewards"] == [None, None]
        assert page.ask("group", group=group)["members"][0]["advantage"] is None
        part = page.ask("slice", group=group, member=0)
        assert part["values"]["logprobs"] == [None, None]
        assert page.ask("turns", group=group, member=0)["ranges"] == {}
        first = json.loads(page.ask("copy", group=group)["text"].splitlines()[0])
        assert first["logprobs"] == ["NaN", "-Infinity"]
        assert page.ask("distributions")["reward"] is None


@pytest.mark.parametrize("rewards", [(1e200, -1e200), (1e308, 1e308), (-1.7e308, 1.7e308)])
def test_rewards_that_overflow(tmp_path: Path, rewards: tuple[float, float]) -> None:
    lines = [line("g", i, group_size=2, reward=reward) for i, reward in enumerate(rewards)]
    with page_of_file(written(tmp_path / "f.jsonl", lines)) as page:
        (group,) = page.ask("groups")["groups"]
        assert group["rewards"] == list(rewards)
        assert group["reward"] in (None, 0) and group["spread"] is None
        members = page.ask("group", group=group["id"])["members"]
        flat = rewards[0] == rewards[1]
        assert [one["advantage"] for one in members] == ([0, 0] if flat else [None, None])
        turns = page.ask("turns", group=group["id"], member=0)
        assert turns["advantage"] == members[0]["advantage"]
        shown = page.ask("distributions")["reward"]
        assert (shown["min"], shown["max"], shown["count"]) == (min(rewards), max(rewards), 2)
        assert sum(shown["counts"]) == 2


def test_a_histogram_of_one_value() -> None:
    for value in (0.0, 0.25, -3.0, 2.0**60, 1e308, -1.7e308, np.finfo(np.float64).max):
        found = histogram([value] * 3)
        assert found is not None and sum(found["counts"]) == 3, value
        assert np.all(np.isfinite(found["edges"])), value


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("groups", {"offset": "nan"}),
        ("groups", {"limit": "inf"}),
        ("groups", {"reward_min": "1e999"}),
        ("find", {"text": "\N{SUPERSCRIPT TWO}"}),
        ("find", {"text": "--5"}),
        ("find", {"text": "5" * 5000}),
    ],
)
def test_numbers_that_are_refused(three: str, path: str, query: dict[str, Any]) -> None:
    with page_of_file(three) as page:
        if path == "find":
            query = query | {"group": page.group_of("half"), "member": 0}
        status, why = page.refusal(path, **query)
        assert status == 400 and "number" in why


def test_find_a_number_that_no_token_has(three: str) -> None:
    with page_of_file(three) as page:
        where = {"group": page.group_of("half"), "member": 0}
        for text in ("-1", "9" * 30, "-" + "9" * 30):
            assert page.ask("find", **where, text=text)["at"] == []
        assert page.ask("find", **where, text=" 77 ")["at"] == [77]


def test_a_file_without_versions(tmp_path: Path) -> None:
    with page_of_file(written(tmp_path / "f.jsonl", [line("g", 0)])) as page:
        assert page.ask("groups")["groups"][0]["version"] == [-1, -1]
        assert page.names(version=0) == []


def test_a_ring_while_groups_form(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring) as page, rr.Stash(ring, batch_groups=1) as stash:
        for member in range(2):
            producer.push("live", **fields_of(member))
        with pytest.raises(TimeoutError):
            stash.next(0.05)

        def waits() -> Any:
            groups = page.ask("groups")["groups"]
            return groups and groups[0]["missing"] and groups[0]

        group = until(waits)
        assert (group["state"], group["missing"], group["members"]) == ("open", [2, 3], 2)
        assert "worker" in group["senders"][0]
        facts = page.ask("state")
        assert facts["waiting"][0]["missing"] == [2, 3]
        assert facts["lanes"][0]["producer"] == "worker"
        for member in range(2, 4):
            producer.push("live", **fields_of(member))
        with stash.next(PATIENCE):
            until(lambda: page.ask("groups")["groups"][0]["state"] == "leased")
        until(lambda: page.ask("groups")["groups"][0]["state"] == "finished")
        members = page.ask("group", group=group["id"])["members"]
        assert [one["reward"] for one in members] == [0, 1, 0, 1]
        assert members[0]["producer"] == "worker"


def fields_of(member: int) -> dict[str, Any]:
    return {key: value for key, value in line("", member).items() if key != "instance_id"}


def test_a_ring_that_is_removed_and_made_again(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring) as page:
        producer.push("first", **fields_of(0))
        until(lambda: page.names() == ["first"])
        rr.remove(ring, force=True)
        assert "was removed" in until(lambda: page.ask("state")["problem"])
        assert page.names() == ["first"]  # its records stay
        rr.create(ring, lanes=2, lane_bytes="1MiB")
        with rr.Producer(ring, "second") as other:
            other.push("second", **fields_of(0))
            until(lambda: page.names() == ["second", "first"])
            until(lambda: not page.ask("state")["problem"])
        assert page.ask("state")["run"] == 2


def test_two_runs_with_the_same_groups(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring) as page:
        producer.push("same", **fields_of(0) | {"policy_version": 900, "reward": 0.25})
        until(lambda: page.ask("state")["latest_version"] == 900)
        rr.remove(ring, force=True)
        until(lambda: page.ask("state")["problem"])
        rr.create(ring, lanes=2, lane_bytes="1MiB")
        with rr.Producer(ring, "second") as other:
            other.push("same", **fields_of(1) | {"policy_version": 2, "reward": 0.5})
            until(lambda: page.ask("state")["rollouts"] == 2)
            new, old = page.ask("groups")["groups"]
        assert (new["instance_id"], old["instance_id"]) == ("same", "same")
        assert (new["rewards"], old["rewards"]) == ([0.5], [0.25])
        assert (new["state"], old["state"]) == ("open", "finished")
        assert page.ask("state")["latest_version"] == 2
        assert page.ask("distributions")["staleness"]["max"] == 0


def test_a_ring_that_comes_later() -> None:
    ring = f"test-view-later-{os.getpid()}"
    with page_of_ring(ring) as page:
        assert "waiting for it" in until(lambda: page.ask("state")["problem"])
        rr.create(ring, lanes=1, lane_bytes="1MiB")
        try:
            until(lambda: not page.ask("state")["problem"])
        finally:
            rr.remove(ring, force=True)


def test_a_bounded_number_is_kept(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring, keep=3) as page:
        for number in range(8):
            producer.push(f"g{number}", **fields_of(0) | {"group_size": 1})
        until(lambda: page.ask("state")["rollouts"] == 8)
        assert page.names() == ["g7", "g6", "g5"]
        assert (page.ask("state")["seen"], page.ask("state")["kept"]) == (8, 3)
        assert page.ask("distributions")["members"] == 8
        status, why = page.refusal("group", group="0123456789abcdef")
        assert status == 404 and "--keep" in why


def test_advantages_are_those_of_a_stash(ring: str, producer: rr.Producer) -> None:
    rewards = [0.25, 1.0, -3.0, 0.5]
    with rr.Stash(ring, batch_groups=1) as stash:
        for member, reward in enumerate(rewards):
            producer.push("g", **fields_of(member) | {"reward": reward})
        with stash.next(PATIENCE) as batch:
            assert advantages(list(rewards)) == pytest.approx(batch.groups[0].advantages.tolist())
    assert is_flat([0.1 + 0.2, 0.3]) and not is_flat([0.0, 1e-3])
    assert advantages([1.0, None]) == [0.0, 0.0]


class _Bytes:
    """Tokens are bytes of UTF-8."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


def test_characters_of_several_tokens() -> None:
    ids = list("aé€😀b".encode())
    whole = pieces(_Bytes(), ids, 0, len(ids))
    assert whole == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]
    assert pieces(_Bytes(), ids, 5, 11) == whole[5:]
    broken = pieces(_Bytes(), [0xFF] * 40 + [0x61], 0, 41)
    assert broken is not None and broken[-1].endswith("a")
    assert pieces(None, ids, 0, 3) is None


def test_find_text_whose_lower_case_is_longer(tmp_path: Path) -> None:
    ids = list("\u0130\u0130 ΟΔΟΣ needle".encode())
    path = written(
        tmp_path / "f.jsonl", [line("g", 0, token_ids=ids, logprobs=None, loss_mask=None)]
    )
    with page_of_file(path, tokenizer=_Bytes()) as page:
        where = {"group": page.group_of("g"), "member": 0}
        assert page.ask("find", **where, text="needle")["at"] == [ids.index(ord("n"))]
        assert page.ask("find", **where, text="οδοσ")["at"] == [6]


def test_find_decoded_text(tmp_path: Path) -> None:
    ids = list(b"The answer is 42, the Answer.")
    path = written(
        tmp_path / "f.jsonl", [line("g", 0, token_ids=ids, logprobs=None, loss_mask=None)]
    )
    with page_of_file(path, tokenizer=_Bytes()) as page:
        where = {"group": page.group_of("g"), "member": 0}
        assert page.ask("find", **where, text="answer")["at"] == [4, 22]
        assert "".join(page.ask("slice", **where)["texts"]) == "The answer is 42, the Answer."
