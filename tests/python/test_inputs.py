"""The inputs of a producer: numbers of many kinds, text, drafts; and its refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE


def only(stash: rr.Stash) -> tuple[rr.Batch, rr.Sequence]:
    batch = stash.next(PATIENCE)
    assert len(batch.sequences) == 1
    return batch, batch.sequences[0]


@pytest.fixture
def one(ring: str) -> Any:
    """A producer, and a stash whose batches are single records."""
    with (
        rr.Producer(ring) as producer,
        rr.Stash(ring, batch_sequences=1, group_size=1, advantages="none") as stash,
    ):
        yield producer, stash


def test_a_draft_is_told_how_it_ended(one: Any) -> None:
    producer, stash = one
    with producer.reserve("a", tokens=8, group_size=1, created_ns=3) as draft:
        draft.token_ids[:5] = range(5)
        draft.shrink(5)
        draft.reward = 0.5
        draft.status = "truncated"
        draft.n_prompt = 2
        draft.finished_ns = 9
        with pytest.raises(rr.BadRecordError, match="n_prompt is 6 of 5 tokens"):
            draft.n_prompt = 6
        with pytest.raises(rr.BadRecordError, match="status"):
            draft.status = "well"
        with pytest.raises(AttributeError, match=r"write into it: draft.token_ids\[:\]"):
            draft.token_ids = np.zeros(5, np.int32)
    batch, sequence = only(stash)
    with batch:
        assert sequence.token_ids.tolist() == [0, 1, 2, 3, 4]
        assert (sequence.reward, sequence.status) == (0.5, "truncated")
        assert (sequence.n_prompt, sequence.created_ns, sequence.finished_ns) == (2, 3, 9)


def test_what_is_not_written_of_a_draft_is_zero(ring: str) -> None:
    with (
        rr.Producer(ring) as producer,
        rr.Stash(ring, batch_sequences=1, group_size=1, advantages="none") as stash,
    ):
        row = np.full(50_000, 7, np.int32)
        for lap in range(50):  # the lane is gone round twice
            producer.push("a", visit=lap, group_size=1, token_ids=row)
            batch, _ = only(stash)
            batch.ack()
        producer.reserve("b", tokens=50_000, columns=("token_ids",), group_size=1).commit()
        batch, sequence = only(stash)
        with batch:
            assert not sequence.token_ids.any()


def test_numbers_of_numpy_are_numbers(one: Any) -> None:
    producer, stash = one
    producer.push(
        "a",
        token_ids=[1],
        group_size=np.int64(1),
        policy_version=np.int64(4),
        reward=np.float32(0.5),
        last_subsequence=np.bool_(True),
        n_prompt=np.uint8(1),
    )
    batch, sequence = only(stash)
    with batch:
        assert (sequence.policy_version_min, sequence.policy_version_max) == (4, 4)
        assert (sequence.reward, sequence.n_prompt) == (0.5, 1)


def test_a_field_of_another_kind_is_refused(one: Any) -> None:
    producer, _ = one
    for field, value in [
        ("policy_version", 1.5),
        ("repetition_id", -1),
        ("repetition_id", 2.5),
        ("reward", "much"),
        ("last_subsequence", "yes"),
        ("n_prompt", 2**32),
    ]:
        with pytest.raises(rr.BadRecordError, match=field):
            producer.push("a", token_ids=[1], **{field: value})


def test_large_and_nested_lists_are_not_cut(ring: str) -> None:
    rr.remove(ring)
    rr.create(
        ring,
        lanes=1,
        lane_bytes="1MiB",
        columns={"hash": "u64", "pair": rr.Column("i32", dims=(2,)), "wide": "i64"},
    )
    with (
        rr.Producer(ring) as producer,
        rr.Stash(ring, batch_sequences=1, group_size=1, advantages="none") as stash,
    ):
        producer.push(
            "a",
            token_ids=[1, 2],
            group_size=1,
            hash=[2**64 - 1, 2**53 + 1],
            pair=[[1, 2], [3, 4]],
            wide=[-(2**63), 2**63 - 1],
        )
        batch, sequence = only(stash)
        with batch:
            assert sequence["hash"].tolist() == [2**64 - 1, 2**53 + 1]
            assert sequence["pair"].tolist() == [[1, 2], [3, 4]]
            assert sequence["wide"].tolist() == [-(2**63), 2**63 - 1]
        for column, value in [
            ("hash", [2**64, 0]),
            ("hash", [-1, 0]),
            ("pair", [[1.5, 2], [3, 4]]),
            ("wide", [2**63, 0]),
        ]:
            with pytest.raises(rr.BadRecordError, match=column):
                producer.push("b", token_ids=[1, 2], group_size=1, **{column: value})


def test_text_that_is_no_json_comes_back_as_it_is(one: Any) -> None:
    producer, stash = one
    producer.push("a", token_ids=[1], group_size=1, extra="hello", messages='[{"role": "user"}]')
    batch, sequence = only(stash)
    with batch:
        assert sequence.extra == "hello"
        assert sequence.messages == [{"role": "user"}]


def test_a_column_that_is_not_there(one: Any) -> None:
    producer, stash = one
    producer.push("a", token_ids=[1], group_size=1)
    batch, sequence = only(stash)
    with batch:
        with pytest.raises(KeyError, match="no column 'x'"):
            sequence["x"]
        with pytest.raises(AttributeError, match="neither a column nor a field 'x'"):
            _ = sequence.x


def test_push_many_says_how_far_it_came(one: Any) -> None:
    producer, stash = one
    record = {"instance_id": "a", "token_ids": [1], "group_size": 1}
    with pytest.raises(rr.BadRecordError) as refused:
        producer.push_many([record, {**record, "visit": 1}, {**record, "reward": "much"}, record])
    assert refused.value.sent == 2
    for visit in range(2):
        batch, sequence = only(stash)
        with batch:
            assert sequence.visit == visit


def test_threads_that_use_a_pickled_producer_first_take_one_lane(ring: str) -> None:
    import pickle

    with rr.Producer(ring) as first:
        copy = pickle.loads(pickle.dumps(first))
        threads = [
            threading.Thread(target=lambda: copy.push("a", token_ids=[1], repetition_id=0))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(lane["state"] == "active" for lane in rr.describe(ring)["lanes"]) == 2
        copy.close()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"deadline": "soon"}, "deadline must be a float, not 'soon'"),
        ({"batch_groups": -1}, "batch_groups must be an integer from 0 to 4294967295, not -1"),
        ({"batch_groups": "x"}, "batch_groups must be an integer from 0 to 4294967295, not 'x'"),
        ({"batch_tokens": "x"}, "batch_tokens must be an integer, 0 or more, not 'x'"),
        ({"count_leased": 7.5}, "count_leased must be True or False, not 7.5"),
        ({"order": 3}, "order must be text, not 3"),
        ({"select": "best"}, "select must be one of first, uniform, not 'best'"),
        ({"source_weights": {"math": 1}}, "source_weights must be an integer, not 'math'"),
        ({"nonsense": 1}, "no option 'nonsense'"),
    ],
)
def test_an_option_that_is_wrong_is_named(ring: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(rr.InvalidArgumentError, match=match):
        rr.Stash(ring, **options)


def test_an_option_of_a_ring_that_is_wrong_is_named(ring: str) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="lanes must be an integer .*, not 'two'"):
        rr.create(f"{ring}-other", lanes="two")  # type: ignore[arg-type]
    with pytest.raises(rr.InvalidArgumentError, match="lane_bytes is 0 B"):
        rr.create(f"{ring}-other", lane_bytes=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rr.create("zz", lane_bytes="5parsec"),
        lambda: rr.Column("f32", per="batch"),
        lambda: rr.Stash("zz", batch_groups=1, batch_tokens=1),
    ],
)
def test_a_wrong_argument_is_an_error_of_rollring(call: Callable[[], object]) -> None:
    with pytest.raises(rr.InvalidArgumentError):
        call()


# Errors within these are caught by their callers.
CAUGHT = ("demo/load.py", "demo/sides.py", "rollouts/_text.py")


def test_no_module_raises_an_error_that_is_not_of_rollring() -> None:
    package = Path(rr.__file__).parent
    bare = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "raise ValueError(" in path.read_text(encoding="utf-8")
    ]
    assert set(bare) <= set(CAUGHT), bare


def test_negative_token_ids_and_a_size_of_zero_travel(one: Any) -> None:
    producer, stash = one
    producer.push("a", group_size=0, token_ids=[-200, 1])
    batch, sequence = only(stash)
    with batch:
        assert sequence.token_ids.tolist() == [-200, 1]


HALF = "half \ud835 of a pair"


@pytest.mark.parametrize("user", (HALF, "text", "", b"bytes", b"\xff"))
def test_user_comes_back_as_it_was_given(one: Any, user: Any) -> None:
    producer, stash = one
    producer.push("a", group_size=1, token_ids=[1], user=user)
    batch, sequence = only(stash)
    with batch:
        assert sequence.user == user


def test_half_of_a_surrogate_pair_travels(one: Any) -> None:
    producer, stash = one
    messages = [{"role": "assistant", "content": HALF}]
    producer.push(
        HALF, group_size=1, token_ids=[1], source=HALF, messages=messages, extra={HALF: HALF},
        overrides=f'{{"text": "{HALF}"}}',
    )  # fmt: skip
    batch, sequence = only(stash)
    with batch:
        assert (sequence.instance_id, sequence.source) == (HALF, HALF)
        assert sequence.messages == messages and sequence.extra == {HALF: HALF}
        assert sequence.overrides == {"text": HALF}


def test_half_of_a_surrogate_pair_names_the_same_in_every_call(ring: str) -> None:
    with rr.Producer(ring, name=HALF) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.open_group(HALF, group_size=2)
        producer.push(HALF, group_size=2, token_ids=[1], reward=0.0)
        producer.push(HALF, group_size=2, token_ids=[1], reward=1.0)
        with stash.next(timeout=30) as batch:
            assert {sequence.instance_id for sequence in batch} == {HALF}
        producer.open_group("other" + HALF, group_size=2)
        assert producer.cancel_group("other" + HALF)
        assert producer.name == HALF
        (lane,) = (lane for lane in rr.describe(ring)["lanes"] if lane["lane"] == producer.lane)
        assert lane["producer"] == HALF


NAMED = (
    rr.create, rr.remove, rr.describe, rr.describe_groups, rr.describe_requests,
    rr.describe_weights, rr.Producer, rr.Stash, rr.Reader, rr.Store,
    lambda name: rr.RequestBoard(name).open(),
    lambda name: rr.WeightPublisher(name, {"w": np.zeros(1)}),
    lambda name: rr.WeightSubscriber(name, {"w": np.zeros(1)}),
)  # fmt: skip


@pytest.mark.parametrize("call", NAMED)
def test_half_of_a_surrogate_pair_is_no_name_of_a_ring(call: Any) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="invalid ring name") as refused:
        call(HALF)
    str(refused.value).encode()  # it can be printed


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logprobs": [None, -0.1]}, ("logprobs", "element 0", "None")),
        ({"token_ids": [1, 2.5]}, ("token_ids", "element 1", "2.5")),
        ({"token_ids": [1, 1 << 31]}, ("token_ids", "element 1", "2147483648")),
        ({"logprobs": [0.0]}, ("logprobs", "1 entries for 2 tokens")),
        (
            {"routed_experts": np.zeros((1, 2, 8), np.uint8)},
            ("routed_experts", "1 entries for 2 tokens"),
        ),
        ({"routed_experts": np.zeros((2, 16), np.uint8)}, ("routed_experts", "has 2 dimensions")),
        ({"topk_logprobs": [[-0.1], [-0.1, -0.2]]}, ("topk_logprobs", "[[-0.1], [-0.1, -0.2]]")),
        ({"loss_mask": [0.0, 1.0]}, ("loss_mask", "element 0", "0.0")),
        ({"loss_mask": np.array([-100, 1])}, ("loss_mask", "range")),
        ({"reward": [1.0]}, ("reward", "[1.0]")),
        ({"reward": "x"}, ("reward must be a float, not 'x'",)),
        ({"n_prompt": -1}, ("n_prompt must be an integer from 0 to 4294967295, not -1",)),
        ({"extra": {1, 2}}, ("extra must be JSON-serialisable: it is a set: {1, 2}",)),
        ({"reward": Odd()}, ("reward", "cannot be shown")),
        ({"finished_ns": 1.5}, ("finished_ns", "1.5")),
        ({"messages": [{"a": [1, Odd()]}]}, ("messages", "[0].a[1]", "Odd")),
        ({"messages": [{(1, 2): 3}]}, ("messages", "[0] has the key (1, 2)")),
        ({"images": [np.zeros(2, np.uint8), Odd()]}, ("images", "image 1", "Odd")),
        ({"images": Odd()}, ("images", "Odd")),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(
    one: Any, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    producer, _ = one
    record = {"instance_id": "a", "token_ids": [1, 2], "group_size": 1}
    with pytest.raises(rr.BadRecordError) as found:
        producer.push_many([record, {**record, **fields}])
    assert found.value.sent == 1
    for word in words:
        assert word in str(found.value), found.value


def test_a_record_without_its_prompt_is_named(one: Any) -> None:
    producer, _ = one
    with pytest.raises(rr.BadRecordError, match="record 0: 'instance_id' is missing") as found:
        producer.push_many([{"token_ids": [1]}])
    assert found.value.sent == 0
    with pytest.raises(rr.BadRecordError, match="the name of a field is text, not 7"):
        producer.push_many([{"instance_id": "a", "token_ids": [1], 7: 8}])


def same_images(found: list[Any], wanted: list[Any]) -> bool:
    def plain(image: Any) -> Any:
        return image if isinstance(image, str) else (str(image.dtype), image.tolist())

    return list(map(plain, found)) == list(map(plain, wanted))


def test_several_images_a_record(one: Any) -> None:
    producer, stash = one
    shots = [np.full((4 + i, 3, 3), i, np.uint8) for i in range(2)]
    depth = np.ones((2, 2), np.float32)
    cases: list[tuple[Any, list[Any]]] = [
        (shots[0], [shots[0]]),
        ([*shots, depth], [*shots, depth]),
        ([b"png", "https://x/y.png"], [np.frombuffer(b"png", np.uint8), "https://x/y.png"]),
        (b"[no list", [np.frombuffer(b"[no list", np.uint8)]),
        ([], []),
        (None, []),
    ]
    for visit, (images, wanted) in enumerate(cases):
        producer.push("a", visit=visit, group_size=1, token_ids=[1], images=images)
        batch, sequence = only(stash)
        with batch:
            assert same_images(sequence.image_list, wanted)
