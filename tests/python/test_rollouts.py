"""Files of rollouts in Python: the values read of each format, and the errors for others."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE

sys.path.append(str(Path(__file__).parents[1]))

import pages  # noqa: E402

PROGRAM = Path(sys.executable).parent / "rollring"
CONVERT = [sys.executable, "-I", "-m", "rollring.rollouts"]
TOKENS = ("tokens", "columns", "prompt", "list")
TEXTS = ("messages", "verl", "verifiers", "trl")


def run(*command: Any, text: str | None = None, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [str(part) for part in command],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done
    return done.stdout, done.stderr


def example(name: str) -> str:
    return run(PROGRAM, "formats", name)[0]


def digest(text: str) -> dict[str, Any]:
    told = json.loads(run(PROGRAM, "produce", "--input", "-", "--digest", "--json", text=text)[0])
    return {key: told[key] for key in ("records", "tokens", "digest")}


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_key_that_looks_like_a_field_is_read_or_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rollring")

    def read(**more: Any) -> tuple[Any, list[str]]:
        caplog.clear()
        row = {"instance_id": "a", "repetition_id": 0, "group_size": 2, "tokens": [1, 2]} | more
        path = write(tmp_path / "rollouts.jsonl", row, row)
        rewards = {fields.get("reward") for fields in rr.read_rollouts(path)}
        told = [one.getMessage().removeprefix(f"{path}: ") for one in caplog.records]
        return rewards.pop(), told

    kept = "'{}' is kept in `extra`: did you mean '{}'?"
    assert read(score=0.5) == (0.5, ["'score' is read as the reward"])
    assert read(score=0.5, reward=1) == (1, [])
    assert read(score=0.5, reward=None) == (0.5, ["'score' is read as the reward"])
    assert read(score=True) == (None, [kept.format("score", "reward")])
    for name in ("scores", "rewards", "return", "Returns", "exact_reward"):
        assert read(**{name: [1]}) == (None, [kept.format(name, "reward")])
        assert read(reward=1, **{name: 2}) == (1, [])
    assert read(old_log_probs=[0, 0], ActionMask=[0, 1], polcy_version=3)[1] == [
        kept.format("old_log_probs", "logprobs"),
        kept.format("ActionMask", "loss_mask"),
        kept.format("polcy_version", "policy_version"),
    ]
    quiet = {"logprobs": [0, 0], "old_log_probs": [0, 0], "attention_mask": [1, 1], "stats": {}}
    assert read(**quiet, advantage=0.5, difficulty=3, my_own_key=None)[1] == []
    _, said = run(
        *CONVERT, write(tmp_path / "scored.jsonl", {"tokens": [1], "n_prompt": 1, "scores": 1})
    )
    assert said.count("did you mean 'reward'?") == 1, said


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer of transformers: each character is a token."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    vocabulary = {chr(code): code for code in range(32, 127)} | {"?unknown": 0, "\n": 10}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="?unknown")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?unknown")
    made.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save_pretrained(folder)
    return str(folder)


def said(record: dict[str, Any], mask: int) -> str:
    """The text of the tokens that are trained on, or of the others."""
    pairs = zip(record["token_ids"], record["loss_mask"], strict=True)
    return "".join(chr(token) for token, bit in pairs if bit == mask)


@pytest.mark.parametrize("name", TOKENS)
def test_the_program_and_python_read_an_example_alike(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rollouts.json"
    path.write_text(example(name), encoding="utf-8")
    direct = json.loads(run(PROGRAM, "produce", "--input", path, "--digest", "--json")[0])
    lines, _ = run(*CONVERT, path)
    assert digest(lines) == {key: direct[key] for key in ("records", "tokens", "digest")}


@pytest.mark.slow
def test_the_pages_line_sends_a_folder_of_text(
    ring: str, tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = f"{ring}-text"  # the page makes it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "model").symlink_to(tokenizer)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump/1.jsonl").write_text(example("messages"), encoding="utf-8")
    (block,) = pages.named("tests/python/test_rollouts.py", "text")
    try:
        run("bash", "-euc", block.text.replace("run42", ring))
        (lane,) = rr.describe(ring)["lanes"]
        assert lane["committed_records"] == example("messages").count("\n")
    finally:
        rr.remove(ring, force=True, missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_an_example_of_text_becomes_lines_for_the_program(
    tmp_path: Path, name: str, tokenizer: str
) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(example(name), encoding="utf-8")
    lines, _ = run(*CONVERT, path, "--tokenizer", tokenizer)
    told = digest(lines)
    assert told["records"] == example(name).count("\n") and told["tokens"] > 0
    _, err = run(*CONVERT, path, code=1)
    assert f"{path}:1: 'token_ids' is missing: the record is text: name a tokenizer" in err
    for record in rr.read_rollouts(str(path), tokenizer):
        assert said(record, 1).rstrip(".") in {"5", "6"} and "2+3" in said(record, 0)
        assert record["reward"] in {0.0, 1.0}


def test_a_conversation_of_several_turns_is_trained_on_where_the_assistant_speaks(
    tmp_path: Path, tokenizer: str
) -> None:
    def say(role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    turns = [say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d")]
    path = write(
        tmp_path / "m.jsonl", {"messages": turns}, {"prompt": turns[:3], "completion": "d"}
    )
    whole, last = rr.read_rollouts(path, tokenizer)
    assert said(whole, 1) == "b.d." and said(whole, 0) == "<user>a.<assistant><user>c.<assistant>"
    assert whole["n_prompt"] == len("<user>a.<assistant>") and whole["messages"] == turns
    assert said(last, 1) == "d" and last["n_prompt"] == len(said(last, 0))


def test_what_verl_and_trl_say_beside_the_text(tmp_path: Path, tokenizer: str) -> None:
    rows = [
        {"input": "q", "output": str(i), "gts": "1", "score": i, "step": step, "acc": True}
        for step in (9, 10)
        for i in range(2)
    ]
    for step in (9, 10):  # as verl names its files
        write(tmp_path / f"{step}.jsonl", *(row for row in rows if row["step"] == step))
    found = list(rr.read_rollouts(str(tmp_path), tokenizer))
    assert [one["visit"] for one in found] == [9, 9, 10, 10]
    assert [one["repetition_id"] for one in found] == [0, 1, 0, 1]
    assert {one["group_size"] for one in found} == {2} and [one["reward"] for one in found][:2] == [
        0,
        1,
    ]
    assert found[0]["extra"] == {"gts": "1", "acc": True}
    path = write(
        tmp_path / "t.jsonl.json",
        {"step": 1, "prompt": "q", "completion": "a", "x_reward": 1.0, "y_reward": None, "n": 3},
    )
    assert next(rr.read_rollouts(path, tokenizer))["reward"] == 1.0
    assert next(rr.read_rollouts(path, tokenizer, rewards=["x_reward", "n"]))["reward"] == 4.0


def test_a_tokenizer_that_makes_nothing_of_the_text_is_refused(tmp_path: Path) -> None:
    class Deaf:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return []

    path = tmp_path / "dump.jsonl"
    path.write_text('{"input": "1+1=", "output": "2", "score": 1.0}\n', encoding="utf-8")
    with pytest.raises(rr.BadRecordError, match=r"dump.jsonl:1: .*\(Deaf\) makes no token of it"):
        list(rr.read_rollouts(str(path), Deaf()))
    path.write_text('{"input": "", "output": "", "score": 1.0}\n', encoding="utf-8")
    assert list(rr.read_rollouts(str(path), Deaf()))[0]["token_ids"] == []


def test_a_rollout_of_verifiers_that_failed_is_a_mark(tmp_path: Path, tokenizer: str) -> None:
    prompt = [{"role": "user", "content": "q"}]
    answer = [{"role": "assistant", "content": "a"}]
    path = write(
        tmp_path / "results.jsonl",
        {
            "example_id": 0,
            "prompt": prompt,
            "completion": answer,
            "reward": 1,
            "is_truncated": True,
        },
        {
            "example_id": 0,
            "prompt": prompt,
            "completion": None,
            "reward": 0,
            "error": {"error": "X"},
        },
    )
    first, failed = rr.read_rollouts(path, tokenizer)
    assert (first["status"], failed["status"]) == ("truncated", "failed")
    assert first["instance_id"] == failed["instance_id"] == "0" and "token_ids" not in failed


def test_packed_and_pretty_files(tmp_path: Path) -> None:
    rows = [{"instance_id": "a", "tokens": [i], "note": ']}{"'} for i in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    texts = {
        "plain": lines.encode(),
        "bom": b"\xef\xbb\xbf\n" + lines.encode(),
        "utf16": lines.encode("utf-16"),
        "gzip": gzip.compress(lines.encode()),
        "list": json.dumps(rows, indent=2).encode(),
        "pretty": "\n".join(json.dumps(row, indent=2) for row in rows).encode(),
    }
    for name, data in texts.items():
        path = tmp_path / name
        path.write_bytes(data)
        found = list(rr.read_rollouts(str(path)))
        assert [one["token_ids"] for one in found] == [[0], [1], [2]], name
        assert [one["repetition_id"] for one in found] == [0, 1, 2], name
        shares = [list(rr.read_rollouts(str(path), shard=(i, 2))) for i in range(2)]
        assert shares[0] == found[::2] and shares[1] == found[1::2], name


def test_what_is_no_file_of_rollouts_is_named(tmp_path: Path) -> None:
    for text, words in (
        (b"", "contains no records"),
        (b"\n \n", "contains no records"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"a.jsonl" + bytes(250) + b"ustar", "a tar archive: unpack it first"),
        (b"\x7fELF\2\1\1\0", "binary data: `rollring formats` shows"),
        (b"prompt,answer\na,b\n", ":1: not JSON: column 1: Expecting value; a record is an obj"),
        (b"\x28\xb5\x2f\xfd\0", "compressed by zstd"),
        (gzip.compress(json.dumps(list(range(5000))).encode())[:200], "damaged or cut off"),
        (b'[{"tokens":[1],"n_prompt":1}\n', "not JSON, or cut off"),
        (b"{}\n", ":1: 'instance_id', 'token_ids' are missing: `rollring formats`"),
        (b'{"prompt_ids":[1]}\n', ":1: 'completion_ids' is missing: `rollring formats`"),
        (b'{"prompt_ids":[]}\n', ":1: 'instance_id', 'completion_ids' are missing: `"),
        (b'{"completion_ids":[1]}\n', ":1: 'prompt_ids' is missing: `rollring formats`"),
        (b'{"input_ids":[1]}\n', ":1: 'instance_id' is missing (or 'n_prompt', which names"),
        (b'{"input_ids":[1],"n_prompt":2}\n', ":1: 'n_prompt' is 2, but the record has 1 tokens"),
        (b'{"response":[1,2],"score":1}\n', "('response' holds token ids: did you mean "),
        (b'{"prompt":[1],"completion":[2]}\n', "did you mean 'prompt_ids'?"),
        (b'{"prompt":"a","completion":"b","output":[1]}\n', "the record is text: name a tok"),
        (b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],'
         b'"response":[1]}\n', "the record is text: name a tokenizer"),
        (b'{"prompt_ids":5}\n', "prompt_ids"),
        (b'{"tokens":[1],"token_ids":[1]}\n', "are both present"),
        (b'{"example_id":[1],"tokens":[1]}\n', "neither text nor an integer"),
        (b'{"instance_id":"a","repetition_id":0,"tokens":[1]}\n'
         b'{"instance_id":"a","tokens":[1]}\n', "number all members of a group, or none"),
    ):  # fmt: skip
        path = tmp_path / "file"
        path.write_bytes(text)
        with pytest.raises(rr.BadRecordError, match="file") as found:
            list(rr.read_rollouts(str(path)))
        assert words in str(found.value), (text, found.value)
    with pytest.raises(FileNotFoundError):
        rr.read_rollouts(str(tmp_path / "none"))


def test_an_array_without_an_answer_is_a_bad_record() -> None:
    from rollring.rollouts._records import Records

    for ids in ([1, 2], []):
        with pytest.raises(rr.BadRecordError, match="row 1: .*'completion_ids'"):
            Records(None, ()).fields("row 1", {"prompt_ids": np.array(ids, np.int64)})


def test_what_is_read_can_be_pushed(ring: str, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(example("columns"), encoding="utf-8")
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        assert producer.push_many(rr.read_rollouts(str(path))) == 1
        with stash.next(PATIENCE) as batch:
            found = batch.sequences[0].as_dict(copy=True)
    row = json.loads(example("columns"))
    assert found["extra"] == {"my_own_key": row.pop("my_own_key")}
    assert found["policy_version_min"] == found["policy_version_max"] == row.pop("policy_version")
    for key, value in row.items():
        got = found[key]
        if hasattr(got, "tolist"):
            assert got.tolist() == pytest.approx(value), key
        else:
            assert got == value, key


def test_the_first_bad_row_is_named_whichever_key_is_bad(tmp_path: Path) -> None:
    """Members are counted by some keys before the others are looked at."""

    class Ones:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [1] if text == "p" or text == "c" else []

    path = tmp_path / "bad.jsonl"
    good = [json.dumps({"prompt": "p", "completion": "c"}) for _ in range(5)]
    torn = json.dumps({"prompt": "x", "completion": "y"})
    path.write_text("\n".join([*good[:2], torn, *good, "{}", ""]), encoding="utf-8")
    with pytest.raises(rr.BadRecordError, match=r"bad\.jsonl:3: "):
        list(rr.read_rollouts(str(path), Ones()))
    good = [json.dumps({"instance_id": "a", "token_ids": [1]}) for _ in range(5)]
    text = json.dumps({"instance_id": "a", "token_ids": "abc"})
    path.write_text("\n".join([*good[:2], text, *good, "{}", ""]), encoding="utf-8")
    with pytest.raises(rr.BadRecordError, match=r"bad\.jsonl:3: 'token_ids' must be a list"):
        list(rr.read_rollouts(str(path)))
