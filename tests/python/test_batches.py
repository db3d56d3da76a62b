"""A batch shows the pushed values: fields, columns, packed and padded arrays, groups."""

from __future__ import annotations

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group, tokens_of


def test_fields_and_columns_come_as_they_were_sent(ring: str) -> None:
    sent = {
        "visit": 3,
        "repetition_id": 1,
        "group_size": 2,
        "attempt": 4,
        "source_id": -7,
        "status": "truncated",
        "n_prompt": 2,
        "policy_version": 12,
        "reward": 0.25,
        "created_ns": 5,
        "finished_ns": 6,
        "origin": 9,
        "source": "gsm8k",
        "extra": {"difficulty": 3, "ü": [1, None]},
        "messages": [{"role": "user", "content": "2+2?"}],
        "user": b"\0\1",
    }
    with rr.Producer(ring, name="env") as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("a", token_ids=[1, 2, 3], loss_mask=[0, 1, 1], **sent)
        producer.push("a", token_ids=[4], visit=3, repetition_id=0, group_size=2)
        with stash.next(PATIENCE) as batch:
            (group,) = batch.groups
            assert group.key == ("a", 3) and group.size == 2 and len(group) == 2
            first, second = group.members
            assert [first.repetition_id, second.repetition_id] == [0, 1]
            assert first.reward is None and first.source is None and first.extra is None
            for name, value in sent.items():
                if name == "policy_version":
                    name = "policy_version_min"
                assert getattr(second, name) == value, name
            assert second.token_ids.tolist() == [1, 2, 3]
            assert second.loss_mask.dtype == np.uint8 and second.loss_mask.tolist() == [0, 1, 1]
            assert second.logprobs is None and "token_ids" in second.columns
            assert not second.token_ids.flags.writeable
            assert group.rewards.tolist()[1] == 0.25 and np.isnan(group.rewards[0])
            made = second.sequences[0].as_dict(copy=True)
            assert made["extra"] == sent["extra"] and made["token_ids"].tolist() == [1, 2, 3]
            del made
            with pytest.raises(AttributeError, match="neither a column nor a field 'tokens'"):
                _ = second.tokens
            with pytest.raises((ValueError, RuntimeError)):
                second.token_ids.flags.writeable = True
        assert stash.last_step == 0


def test_dtypes_come_and_go(ring: str) -> None:
    name = ring + "-typed"
    numbers = {
        "int8": [-128, 127],
        "uint8": [0, 255],
        "int16": [-32768, 32767],
        "int32": [-(2**31), 7],
        "int64": [-(2**63), 2**63 - 1],
        "float16": [0.5, -65504.0],
        "float32": [0.1, np.inf],
        "float64": [1e300, -0.0],
        "bool": [True, False],
    }
    rr.create(
        name,
        lanes=1,
        lane_bytes="1MiB",
        spill_bytes="1MiB",
        columns={f"c_{dtype}": dtype for dtype in numbers}
        | {
            "c_bf16": "bf16",
            "c_vision": rr.Column("float32", per="record"),
            "c_hidden": rr.Column("float16", dims=(2, 0)),
        },
    )
    try:
        with (
            rr.Producer(name) as producer,
            rr.Stash(name, batch_groups=1, group_size=1, min_size=1) as stash,
        ):
            columns = {f"c_{d}": np.array(v, d) for d, v in numbers.items()}
            hidden = np.arange(12, dtype=np.float16).reshape(2, 2, 3)
            vision = np.ones((3, 5), np.float32)
            producer.push(
                "a",
                token_ids=[1, 2],
                group_size=1,
                c_hidden=hidden,
                c_vision=vision,
                c_bf16=[1.0, -2.5],
                **columns,
            )
            with stash.next(PATIENCE) as batch:
                one = batch.sequences[0]
                for column, array in columns.items():
                    got = one[column]
                    assert got.dtype == array.dtype and np.array_equal(got, array), column
                    assert np.array_equal(batch.packed(column), array)
                assert np.array_equal(one.c_hidden, hidden) and np.array_equal(one.c_vision, vision)
                assert np.array_equal(batch.packed("c_hidden", dtype=np.float64), hidden)
                assert batch.padded("c_hidden", length=4).shape == (1, 4, 2, 3)
                assert one.c_bf16.tolist() == [0x3F80, 0xC020]
                assert batch.packed("c_bf16", dtype="float32").tolist() == [1.0, -2.5]
                with pytest.raises(
                    rr.InvalidArgumentError, match="does not have one row per token"
                ):
                    batch.packed("c_vision")
                del got
    finally:
        rr.remove(name, force=True)


def test_packed_and_padded_are_the_columns(ring: str) -> None:
    lengths = [5, 1, 9, 3]
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=2) as stash:
        for prompt in range(2):
            for member in range(2):
                tokens = tokens_of(prompt, member, lengths[2 * prompt + member])
                producer.push(
                    f"p/{prompt}",
                    token_ids=tokens,
                    repetition_id=member,
                    group_size=2,
                    reward=1.0 * member,
                )
        with stash.next(PATIENCE) as batch:
            whole = [s.token_ids.tolist() for s in batch.sequences]
            assert [len(w) for w in whole] == lengths
            assert batch.packed("token_ids").tolist() == sum(whole, [])
            assert batch.cu_seqlens.dtype == np.int32
            assert batch.cu_seqlens.tolist() == [0, 5, 6, 15, 18] and batch.n_tokens == 18
            for side in ("left", "right"):
                got = batch.padded("token_ids", dtype=np.int64, pad=-1, side=side, multiple_of=4)
                assert got.shape == (4, 12) and got.dtype == np.int64
                for row, tokens in zip(got.tolist(), whole, strict=True):
                    fill = [-1] * (12 - len(tokens))
                    assert row == (fill + tokens if side == "left" else tokens + fill)
            out = np.zeros(18, np.float32)
            assert batch.packed("token_ids", out=out) is out and out.tolist() == sum(whole, [])
            assert batch.packed("token_ids", threads=3).tolist() == sum(whole, [])
            with pytest.raises(rr.InvalidArgumentError, match="no sequence of the batch carries"):
                batch.packed("logprobs")
            with pytest.raises(rr.InvalidArgumentError, match="the requested length of 8"):
                batch.padded("token_ids", length=8)
            with pytest.raises(rr.InvalidArgumentError, match="outside the range of u8"):
                batch.packed("token_ids", dtype="u8")
            with pytest.raises(KeyError, match="no column 'nope'"):
                batch.packed("nope")
            with pytest.raises(ValueError, match="shape"):
                batch.packed("token_ids", out=np.zeros(3, np.int32))
            with pytest.raises(ValueError, match="contiguous"):
                batch.packed("token_ids", out=np.zeros(36, np.int32)[::2])
            advantage = 0.5 / (np.std([0, 1], ddof=1) + 1e-4)
            wanted = advantage * np.array([-1, 1, -1, 1])
            np.testing.assert_allclose(batch.advantages, wanted, rtol=1e-14)
            made = batch.as_dict()
            assert set(made) >= {"token_ids", "cu_seqlens", "rewards", "advantages"}
            for name in batch.common_columns():
                np.testing.assert_array_equal(made[name], batch.packed(name))
            kept = np.zeros_like(made["token_ids"])
            again = batch.as_dict("token_ids", out={"token_ids": kept})
            assert again["token_ids"] is kept
            np.testing.assert_array_equal(kept, made["token_ids"])
            with pytest.raises(ValueError, match="shape"):
                batch.as_dict("token_ids", out={"token_ids": kept[1:]})


def test_missing_columns_have_a_value_or_are_an_error(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("a", token_ids=[1, 2], logprobs=[-1, -2], repetition_id=0, group_size=2)
        producer.push("a", token_ids=[3], repetition_id=1, group_size=2)
        with stash.next(PATIENCE) as batch:
            with pytest.raises(rr.InvalidArgumentError, match="'a', repetition 1.*has no column"):
                batch.packed("logprobs")
            assert batch.packed("logprobs", missing=9).tolist() == [-1.0, -2.0, 9.0]


def test_a_long_batch_is_copied_by_threads(ring: str) -> None:
    length = 1 << 18
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for member in range(3):
            producer.push(
                "a", token_ids=tokens_of(0, member, length), repetition_id=member, group_size=3
            )
        with stash.next(PATIENCE) as batch:
            expected = np.concatenate([tokens_of(0, m, length) for m in range(3)])
            for threads in (0, 1, 2, 7):
                assert np.array_equal(batch.packed("token_ids", threads=threads), expected)
                assert np.array_equal(
                    batch.padded("token_ids", dtype="int64", threads=threads).ravel(), expected
                )


def test_foreign_byte_order_is_turned(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        foreign = np.array([1, 2, 3, 4], ">i4")
        producer.push("a", token_ids=foreign[::2], group_size=2, repetition_id=0)
        producer.push("a", token_ids=foreign, group_size=2, repetition_id=1)
        with stash.next(PATIENCE) as batch:
            assert batch.packed("token_ids").tolist() == [1, 3, 1, 2, 3, 4]
            with pytest.raises(ValueError, match="byte order"):
                batch.packed("token_ids", out=np.zeros(6, ">i4"))


def test_members_of_several_sequences_stay_together(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for member in range(2):
            for part in range(2):
                producer.push(
                    "a",
                    token_ids=[member, part],
                    repetition_id=member,
                    group_size=2,
                    subsequence_index=part,
                    last_subsequence=part == 1,
                    reward=1.0,
                )
        with stash.next(PATIENCE) as batch:
            (group,) = batch.groups
            assert [len(m.sequences) for m in group] == [2, 2]
            assert [s.token_ids.tolist() for s in group[1].sequences] == [[1, 0], [1, 1]]
            with pytest.raises(AttributeError, match="2 sequences"):
                _ = group[0].token_ids


def test_timeouts_and_steps(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        with pytest.raises(TimeoutError, match="0 groups open.*; 1 producer attached"):
            stash.next(0)
        for prompt in range(3):
            send_group(producer, prompt)
        first, second = stash.next(PATIENCE), stash.next(PATIENCE)
        first.ack(10)
        with pytest.raises(rr.InvalidArgumentError):
            second.ack(9)
        second.ack()
        assert stash.last_step == 11
        receipt = stash.next(PATIENCE).receipt()
        assert isinstance(receipt, bytes) and receipt


def test_a_ring_is_described(ring: str) -> None:
    assert ring in rr.rings()
    with rr.Producer(ring, name="env-3") as producer:
        assert rr.describe(ring)["lanes"][0]["oldest_age_s"] is None
        send_group(producer, 1)
        assert rr.describe(ring)["lanes"][0]["oldest_age_s"] >= 0
        stat = rr.describe(ring)
        assert stat["lane_bytes"] == 4 << 20
        assert stat["lanes"][0]["producer"] == "env-3"
        assert rr.stats(ring)["rollring/committed_records"] == 2
        with rr.Stash(ring, batch_groups=1) as stash, stash.next(PATIENCE):
            assert stash.stats(prefix="")["stash/account/leased/records"] == 2
            (group,) = rr.describe_groups(ring)["groups"]
            assert group["instance_id"] == "p/1" and group["state"] == "leased"
    with pytest.raises(rr.RingExistsError):
        rr.create(ring)
    rr.create(ring, exist_ok=True)
    with pytest.raises(rr.RingNotFoundError, match="not found"):
        rr.remove("not-there")
    with pytest.raises(ValueError, match="invalid size"):
        rr.create("x", lane_bytes="64 parsecs")
    with pytest.raises(rr.InvalidArgumentError, match="column"):
        rr.create("x", columns={"Bad Name": "i32"})


def test_a_formula_is_chosen_when_the_stash_is_opened(ring: str) -> None:
    rewards = np.array([0.0, 1.0, 0.5, 0.25])
    for number, (options, deviation) in enumerate((
        ({}, rewards.std(ddof=1) + 1e-4),
        ({"deviation": "population"}, rewards.std() + 1e-4),
        ({"deviation_epsilon": 0.5}, rewards.std(ddof=1) + 0.5),
        ({"deviation": "population", "deviation_epsilon": 0}, rewards.std()),
        ({"advantages": "mean"}, 1.0),
    )):
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1, **options) as stash:
            for member, reward in enumerate(rewards):
                producer.push(
                    f"p/{number}",
                    token_ids=[1],
                    repetition_id=member,
                    group_size=4,
                    reward=float(reward),
                )
            with stash.next(PATIENCE) as batch:
                wanted = (rewards - rewards.mean()) / deviation
                np.testing.assert_allclose(batch.groups[0].advantages, wanted, rtol=1e-13)
    with pytest.raises(rr.InvalidArgumentError, match="deviation_epsilon is -1"):
        rr.Stash(ring, deviation_epsilon=-1.0)
    with pytest.raises(rr.InvalidArgumentError, match="one of sample, population, not 'biased'"):
        rr.Stash(ring, deviation="biased")
