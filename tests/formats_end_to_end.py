#!/usr/bin/env python3
"""Files of rollouts as people have them: every format that is promised, and the errors for others.

usage: formats_end_to_end.py PATH_OF_ROLLRING
"""
import gzip
import json
import re
import sys

import pages
from program import LIMIT_S, PROGRAM, Ring, main, report, run, shell, test

TOKENS = ("tokens", "columns", "prompt", "list")  # read by the program itself
TEXTS = ("messages", "verl", "verifiers", "trl")  # by the Python package, with a tokenizer


def example(name):
    return run("formats", name)[0]


@test
def the_page_has_every_example_as_it_stands(folder, rollouts):
    page = run("formats")[0]
    names = re.findall(r"^([a-z]+)(?:  \(.*\))?$", page, re.MULTILINE)
    assert names == [*TOKENS, "atropos", *TEXTS], names
    for name in names:
        for line in example(name).splitlines():
            assert f"  {line}\n" in page, (name, line)
    _, err = run("formats", "parquet", code=2)
    assert "'parquet' is not a format; there are tokens, columns, prompt" in err, err


@test
def each_example_is_an_input(folder, rollouts):
    for name in TOKENS:
        text = example(name)
        records = len(json.loads(text)) if name == "list" else text.count("\n")
        piped = report("produce", "--input", "-", "--digest", stdin_text=text)
        assert piped["records"] == records and piped["tokens"] > 0, (name, piped)
        path = folder / f"{name}.json"
        path.write_text(text, encoding="utf-8")
        told = report("demo", "--input", path, "--lane-bytes", "1MiB")
        assert told["ok"] and told["sent"] == records and told["open_groups"] == 0, (name, told)
    told = report("produce", "--input", "-", "--digest", "--format", "atropos",
                  stdin_text=example("atropos"))
    assert told["records"] == 2, told
    for name in TEXTS:
        _, err = run("produce", "--input", "-", "--digest", stdin_text=example(name), code=1)
        assert re.search("stdin:1: .* missing: the record is text", err), (name, err)
        assert "python3 -m rollring.rollouts FILE --tokenizer PATH" in err, (name, err)
        assert "prints lines for 'rollring produce RING --input -'" in err, (name, err)


@test
def a_file_has_one_digest_however_it_is_packed(folder, rollouts):
    records = [json.loads(line) for line in rollouts.read_text(encoding="utf-8").splitlines()]
    first = {record["instance_id"] for record in records[:10]}
    records = [record for record in records if record["instance_id"] in first]
    text = "".join(json.dumps(record) + "\n" for record in records)
    wanted = report("produce", "--input", "-", "--digest", stdin_text=text)["digest"]
    pretty = "\n".join(json.dumps(one, indent=1) for one in records)
    for kind, packed in (("bom", b"\xef\xbb\xbf" + text.encode()),
                         ("gzip", gzip.compress(text.encode())),
                         ("list", json.dumps(records, indent=2).encode()),
                         ("pretty", pretty.encode())):
        path = folder / f"packed.{kind}"
        path.write_bytes(packed)
        assert report("produce", "--input", path, "--digest")["digest"] == wanted, kind
    for record in records:
        record["token_ids"] = record.pop("tokens")
        del record["repetition_id"], record["group_size"]
    bare = folder / "bare.jsonl"
    bare.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    told = report("demo", "--input", bare, "--lane-bytes", "1MiB", "--shuffle", 3)
    assert told["ok"] and told["digest_sent"] == wanted, (told, wanted)


@test
def an_input_without_records_is_an_error_and_no_table(folder, rollouts):
    empty = folder / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    with Ring() as ring:
        for command in (("demo",), ("produce", ring), ("produce", "--digest")):
            out, err = run(*command, "--input", empty, code=1)
            assert out == "" and "empty.jsonl: contains no records" in err, (command, out, err)
    _, err = run("produce", "--digest", "--input", "-", stdin_text="", code=1)
    assert "stdin: contains no records" in err, err


@test
def after_an_error_there_is_no_table_of_zeros(folder, rollouts):
    bad = folder / "bad.jsonl"
    bad.write_text('{"tokens":[1]}\n', encoding="utf-8")
    for command in (("demo",), ("produce", "--digest")):
        out, err = run(*command, "--input", bad, code=1)
        assert out == "" and "bad.jsonl:1: 'instance_id' is missing (or 'n_prompt'" in err, err
    told = json.loads(run("demo", "--input", bad, "--json", code=1)[0])
    assert not told["ok"] and told["digest_equal"] is None, told
    # The records sent before the bad one are told.
    bad.write_text('{"instance_id":"a","tokens":[1]}\n{}\n', encoding="utf-8")
    out, _ = run("produce", "--digest", "--input", bad, code=1)
    assert "failed after reading 1 record," in out, out


@test
def an_incomplete_group_is_a_failure(folder, rollouts):
    path = folder / "short.jsonl"
    path.write_text("".join(json.dumps({"instance_id": name, "group_size": 2, "repetition_id": i,
                                        "tokens": [1]}) + "\n"
                            for name, i in (("a", 0), ("a", 1), ("b", 0))), encoding="utf-8")
    out, _ = run("demo", "--input", path, "--lane-bytes", "1MiB", code=1)
    assert "Some groups are incomplete" in out and "equal: yes" in out, out
    told = json.loads(run("demo", "--input", path, "--lane-bytes", "1MiB", "--json", code=1)[0])
    assert (told["ok"], told["groups"], told["open_groups"]) == (False, 1, 1), told


@test
def a_group_size_is_counted_or_asked_for(folder, rollouts):
    path = folder / "unsized.jsonl"

    def write(*names):
        path.write_text("".join(json.dumps({"instance_id": name, "tokens": [1]}) + "\n"
                                for name in names), encoding="utf-8")

    write("a", "b", "a", "b", "a", "b")
    out, err = run("demo", "--input", path, "--lane-bytes", "1MiB")
    assert "every group has 3 members, so it is 3" in err, err
    assert "exactly once and intact" in out, out
    assert err.count("group_size") == 1, err
    write("a", "b", "a", "b", "a")
    _, err = run("demo", "--input", path, "--lane-bytes", "1MiB", code=1)
    assert "the size of the groups in it is 2 to 3: give --group-size" in err, err
    write("a", "b", "a", "b")
    told = report("demo", "--input", path, "--lane-bytes", "1MiB", "--group-size", 2)
    assert told["ok"] and told["groups"] == 2, told
    write("a", "b")  # the rest may be in another file
    run("demo", "--input", path, "--lane-bytes", "1MiB", code=1)
    assert report("demo", "--input", path, "--lane-bytes", "1MiB", "--group-size", 1)["groups"] == 2


@test
def a_key_that_looks_like_a_reward_is_read_or_told(folder, rollouts):
    path = folder / "scored.jsonl"

    def write(key):
        path.write_text("".join(
            json.dumps({"prompt_ids": [1, 2], "response_ids": [3 + i], key: i / 2}) + "\n"
            for i in range(2)), encoding="utf-8")

    write("score")
    out, err = run("demo", "--input", path, "--lane-bytes", "1MiB")
    assert re.search(r"2/2 +0\.250 +-0\.71 +\+0\.71", out), out
    assert err.count("scored.jsonl: 'score' is read as the reward") == 1, err
    write("scores")
    told = "scored.jsonl: kept in `extra`: 'scores' (did you mean 'reward'?)"
    for command in (("demo", "--lane-bytes", "1MiB"), ("produce", "--digest")):
        err = run(*command, "--input", path)[1]
        assert err.count(told) == 1, err
    # Keys of later records, and those of a pipe, are told at the end.
    lines = path.read_text(encoding="utf-8")
    piped = '{"prompt_ids":[1],"response_ids":[3],"reward":1}\n' + lines
    _, err = run("produce", "--input", "-", "--digest", "--group-size", 3, stdin_text=piped)
    assert err.count("stdin: kept in `extra`: 'scores'") == 1, err


@test
def a_demo_names_the_first_bad_line_of_the_file(folder, rollouts):
    """Whichever of its producers met one first."""
    path = folder / "bad.jsonl"
    good = [json.dumps({"instance_id": "a", "tokens": [1]}) for _ in range(40)]
    for first in (1, 3, 8, 39):
        path.write_text("\n".join([*good[:first - 1], *["{}"] * (41 - first)]), encoding="utf-8")
        for shuffle in ((), ("--shuffle", 7)):
            _, err = run("demo", "--input", path, "--lane-bytes", "1MiB", *shuffle, code=1)
            assert re.findall(r"bad\.jsonl:\d+", err) == [f"bad.jsonl:{first}"], err
            assert f"bad.jsonl:{first}: 'instance_id', 'token_ids' are missing" in err, err
    # A record that only the ring refuses is named, too.
    long = json.dumps({"instance_id": "b", "tokens": [1] * 200_000})
    path.write_text("\n".join([*good[:9], long, long]), encoding="utf-8")
    _, err = run("demo", "--input", path, "--lane-bytes", "256KiB", "--group-size", 3, code=1)
    assert re.search(r"bad\.jsonl:1[01]: ", err), err


@test
def half_of_a_surrogate_pair_travels(folder, rollouts):
    line = json.dumps({"instance_id": "a", "repetition_id": 0, "group_size": 1, "tokens": [1, 2],
                       "source": "\udc9c", "messages": [{"content": "half \ud835 of a pair"}]})
    output = folder / "out.jsonl"
    with Ring() as ring:
        run("produce", ring, "--input", "-", stdin_text=line + "\n")
        run("consume", ring, "--records", 1, "--output", output)
    assert json.loads(output.read_text(encoding="utf-8")) == json.loads(line)


@test
def the_commands_of_the_page_work(folder, rollouts):
    (block,) = pages.named("tests/formats_end_to_end.py", "formats")
    (folder / "bin").mkdir()
    (folder / "bin/rollring").symlink_to(PROGRAM)
    process = shell("set -e\n" + block.text, folder)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, (out, err)
    assert "exactly once and intact" in out and "would send 2 records" in out, (out, err)


if __name__ == "__main__":
    sys.exit(main())
