#!/usr/bin/env python3
"""Wrong use is told in the same words and with the same code everywhere.

usage: usage_end_to_end.py PATH_OF_ROLLRING
"""
import re
import sys

from program import PREFIX, ROOT, Ring, main, report, run, test

COMMANDS = ("create", "size", "rm", "ls", "stat", "doctor", "produce", "consume", "groups",
            "weights", "demo")


@test
def one_prefix_one_hint_and_the_same_code(folder, rollouts):
    """The same mistake has the same code in each command, whatever finds it."""
    spec = ("--synthetic", "groups=1,tokens=5")
    more = {"produce": spec}
    named = ("create", "rm", "stat", "produce", "consume", "groups", "weights")
    mistakes = [(2, ((name, "a/b", *more.get(name, ())) for name in named)),
                (2, ((name, "x", "--no-such-option") for name in COMMANDS)),
                (2, ((name, "x", "y", "z") for name in COMMANDS)),
                (2, ((name,) for name in named)),
                (2, (("create", "x", "--lane-bytes", "64MB"), ("demo", "--lane-bytes", "64MB"),
                     ("create", "x", "--lanes", 0), ("demo", "--producers", 0),
                     ("create", "x", "--lane-bytes", 0), ("demo", "--lane-bytes", 0),
                     ("create", "x", "--group-rows", 0), ("demo", "--group-rows", 0),
                     ("consume", "x", "--group-size", 4, "--max-lag", -3),
                     ("stat", "x", "--watch", "0"), ("groups", "x", "--stuck", "soon"),
                     ("produce", "x", *spec, "--shard", "4/4"),
                     ("produce", "x", "--synthetic", "a"), ("demo", "--synthetic", "a"),
                     ("produce", "x"), (), ("nothing",))),
                (1, ((name, PREFIX + "nowhere") for name in ("rm", "stat", "groups", "weights"))),
                (1, (("consume", PREFIX + "nowhere", "--attach-timeout", 0),
                     ("produce", PREFIX + "nowhere", *spec, "--timeout", 0))),
                (1, (("produce", "x", "--input", folder / "no"), ("demo", "--input", folder / "no"),
                     ("create", "x", "--schema", folder / "no"),
                     ("create", "x", "--overflow", folder / "no"),
                     ("demo", "--overflow", folder / "no"))),
                (1, (("produce", "x", "--input", folder), ("demo", "--input", folder),
                     ("create", "x", "--schema", folder),
                     ("consume", "x", "--output", folder),
                     ("consume", "x", "--group-size", 4, "--output", folder)))]
    for code, cases in mistakes:
        for case in cases:
            out, err = run(*case, code=code)
            assert out == "", (case, out)
            assert re.fullmatch(r"rollring: [a-z_]+: .*\n", err), (case, err)
            assert err.count("--help") == (1 if code == 2 else 0), (case, err)
            assert not re.search(r"\b\d{6,}\b", err.replace(PREFIX, "").replace(str(folder), "")), (
                case, err)
            if code == 2:
                known = case and case[0] in COMMANDS
                see = f"'rollring {case[0]} --help'" if known else "'rollring --help'"
                assert see in err, (case, err)


@test
def pages_name_commands_that_there_are(folder, rollouts):
    out, _ = run("--help")
    known = set(re.findall(r"^  ([a-z-]+) {2,}[A-Z]", out.split("Subcommands:")[1], re.MULTILINE))
    assert {*COMMANDS} <= known, known
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        named = re.findall(r"`rollring ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))
        assert not set(named) - known, (page.name, set(named) - known)


@test
def a_number_is_what_is_written(folder, rollouts):
    """-1 is not the largest number, nor is a larger one than that; the error names the mistake."""
    name = PREFIX + "number"
    spec = ("--synthetic", "groups=1,group-size=2,tokens=5")
    places = [("demo", "--records"), ("demo", "--hold"), ("demo", "--shuffle"),
              ("demo", "--visit"), ("demo", "--repeat"), ("groups", name, "--limit")]
    places += [("produce", "--digest", *spec, option)
               for option in ("--records", "--visit", "--shuffle", "--repeat", "--batch")]
    places += [("consume", name, "--attach-timeout", 0, option)
               for option in ("--records", "--hold", "--hold-seed", "--producers")]
    places += [("consume", name, "--attach-timeout", 0, "--group-size", 4, option)
               for option in ("--batches", "--batch-tokens", "--batch-groups",
                              "--batch-sequences", "--min-size")]
    for place in places:
        for number in ("-1", "-0", "99999999999999999999", "abc", "1.5", "0x10", "+7", " 7"):
            _, err = run(*place[:-1], f"{place[-1]}={number}", code=2)
            assert f"{place[-1]}: '{number}' is not a whole number from 0 to" in err, (place, err)
    for option, number in (("--repeat", 0), ("--batch", 0), ("--rate", -1), ("--rate", "abc"),
                           ("--rate", "nan"), ("--rate", "inf")):
        _, err = run("produce", "--digest", *spec, option, number, code=2)
        assert f"{option}: '{number}' is not a number" in err and len(err) < 150, err
    assert report("produce", "--digest", *spec, "--records", "001")["records"] == 1
    assert report("produce", "--digest", *spec, "--records", 2**64 - 1)["records"] == 2
    made = report("create", name, "--lanes", "010")
    run("rm", name)
    assert made["lanes"] == 10, made


@test
def the_wrong_word_is_named(folder, rollouts):
    for arguments, words in ((("crate",), "unknown command 'crate' (did you mean create?)"),
                             (("dmeo",), "unknown command 'dmeo' (did you mean demo?)"),
                             (("nonsense",), "unknown command 'nonsense' (commands: create, rm, "),
                             (("crate", "x"), "unknown command 'crate'"),
                             (("--nope",), "unknown option '--nope'"),
                             (("--lanes", 5), "unknown option '--lanes'"),
                             (("create", "--nope"), "unknown option '--nope'"),
                             (("create", "r", "--lane=5"),
                              "unknown option '--lane' (did you mean --lanes?)"),
                             (("create", "x", "y", "z"), "unexpected arguments 'y', 'z'"),
                             ((), "a command is required: create, rm, ls, "),
                             (("create",), "NAME is required"),
                             (("ls", "--json=maybe"), "--json: 'maybe' is not valid"),
                             (("create", "r", "--lane-bytes", "5parsec"), "--lane-bytes: "
                              "'5parsec' is not a number of bytes such as 4096 or 64MiB"),
                             (("produce", "r", "--timeout", "x"), "--timeout: 'x' is not a "
                              "duration such as 30s or 500ms")):
        _, err = run(*arguments, code=2)
        assert words in err, (arguments, err)


@test
def a_group_size_that_none_can_have_is_wrong_use(folder, rollouts):
    for size in (0, "x", 65537, 70000, -1, 2**32 + 4):
        for place in (("demo",), ("consume", "x", "--attach-timeout", 0)):
            _, err = run(*place, f"--group-size={size}", code=2)
            assert f"--group-size: '{size}' is neither auto nor a whole number" in err, (place, err)
            assert "1 to 65,536" in err, err
        for place in (("demo",), ("produce", "--digest")):
            _, err = run(*place, "--synthetic", f"group-size={size}", code=2)
            assert "--synthetic: " in err and "group-size" in err, (place, err)
    done = report("demo", "--synthetic", "groups=8,group-size=4,tokens=5", "--group-size", 4)
    assert done["ok"] and done["groups"] == 8, done


@test
def create_shows_what_it_rounded(folder, rollouts):
    name = f"{PREFIX}rounded"
    out, _ = run("create", name, "--lane-bytes", 5000, "--spill-bytes", 9000)
    assert "lanes of 8 KiB (5,000 rounded up to pages)" in out, out
    assert "a spill of 12 KiB (9,000 rounded up to pages)" in out, out
    stat = report("stat", name)
    assert (stat["lane_bytes"], stat["spill_bytes"]) == (8192, 12288), stat
    run("rm", name)
    made = report("create", name, "--lane-bytes", 5000)
    assert made["lane_bytes"] == 8192 and made["spill_bytes"] % 4096 == 0, made
    assert made["chosen"].startswith("spill bytes chosen for the "), made
    run("rm", name)
    assert "pages" not in run("create", name)[0]
    run("rm", name)
    for least in (1, 1000):
        assert report("create", name, "--lane-bytes", least)["lane_bytes"] == 4096
        run("rm", name)


@test
def lanes_without_room_for_a_usual_record_are_warned_of(folder, rollouts):
    name = f"{PREFIX}small"
    for lane_bytes, words in (("5", "of more than 4 KiB fits into a lane (--lane-bytes 5 is in "
                                    "bytes; write a unit, such as 5MiB): `rollring size"),
                              ("16KiB", "of more than 16 KiB fits into a lane: `rollring size")):
        _, err = run("create", name, "--lane-bytes", lane_bytes)
        assert f"warning: no record {words}" in err, err
        run("rm", name)
        assert words in report("create", name, "--lane-bytes", lane_bytes)["warning"]
        run("rm", name)
    assert "fits into" not in run("create", name, "--lane-bytes", "64KiB")[1]
    run("rm", name)


@test
def a_ring_that_is_there_will_do_if_it_has_what_is_given(folder, rollouts):
    name = f"{PREFIX}exists"
    again = ("create", name, "--exist-ok")
    assert report(*again, "--lanes", 3, "--overflow", folder)["created"]
    try:
        assert report(*again) == {"ring": name, "created": False}
        for same in (("--lanes", 3), ("--soft-bytes", 0), ("--overflow", f"{folder}/."),
                     ("--lane-bytes", "64MiB", "--group-rows", 32768)):
            assert "already exists with these options" in run(*again, *same)[0]
        more = folder / "more.json"
        more.write_text('[{"name":"entropy","dtype":"f32","per":"token"}]')
        for option, value, difference in (
                ("--lanes", 4, "lanes is 3, and this call asks for 4"),
                ("--lane-bytes", "1MiB", "lane_bytes is 64 MiB, and this call asks for 1 MiB"),
                ("--spill-bytes", 0, "spill_bytes is 256 MiB, and this call asks for 0 B"),
                ("--journal-records", 9, "journal_records is 65536, and this call asks for 9"),
                ("--group-rows", 9, "group_rows is 32768, and this call asks for 9"),
                ("--requests", 9, "requests is 1024, and this call asks for 9"),
                ("--request-bytes", "1MiB", "request_bytes is 2 MiB, and this call asks for 1 MiB"),
                ("--overflow", "/var/tmp",
                 f"overflow_dir is {folder}, and this call asks for /var/tmp"),
                ("--schema", more,
                 "column 'entropy' is not in its schema, and this call asks for f32 a token")):
            _, err = run(*again, option, value, code=1)
            assert "already_exists" in err and difference in err and "rm" in err, err
        _, err = run("create", name, "--lanes", 3, code=1)
        assert "already_exists" in err, err
    finally:
        run("rm", name)


@test
def a_range_is_that_of_an_option(folder, rollouts):
    """Not of the library's field."""
    with Ring() as ring:
        places = {("create", PREFIX + "range"): (
                      ("--lanes", 0, "--lanes is 0, must be 1 to 4096"),
                      ("--lane-bytes", 0, "--lane-bytes is 0 B, must be 1 B to 128 GiB"),
                      ("--lane-bytes", "129GiB", "--lane-bytes is 129 GiB"),
                      ("--journal-records", 0, "--journal-records is 0, must be 1 to"),
                      ("--group-rows", 0, "--group-rows is 0"),
                      ("--spill-bytes", "129GiB", "--spill-bytes is 129 GiB"),
                      ("--overflow-bytes", 5, "--overflow-bytes is set, but --overflow is not")),
                  ("consume", ring, "--group-size", 4): (
                      ("--deadline", 0, "argument: --deadline must be positive"),
                      ("--min-size", 0, "argument: --min-size must be 1 or more"),
                      ("--max-lag", -2, "argument: --max-lag must be -1"),
                      ("--train-ms", -1, "argument: --train-ms: '-1' must be 0 to 86400000"),
                      ("--no-progress", 0, "argument: --no-progress must be positive"),
                      ("--extra", 65537, "argument: --extra is 65537, at most 65536"),
                      ("--batch-groups", 0, "one of --batch-groups, --batch-seq"))}
        for place, cases in places.items():
            for option, value, words in cases:
                _, err = run(*place, f"{option}={value}", code=2)
                assert words in err, (place, err)
                assert not re.search("[a-z]_[a-z]", err.replace("invalid_argument", "")), err


@test
def the_demo_takes_what_create_does(folder, rollouts):
    told = report("demo", "--synthetic", "groups=20,group-size=4,tokens=100", "--spill-bytes",
                  "1MiB", "--group-rows", 64, "--journal-records", 4096)
    assert told["ok"], told
    _, err = run("demo", "--synthetic", "groups=20,group-size=4,tokens=100", "--group-rows", 8,
                 code=1)
    assert "group_rows" in err or "--group-rows" in err, err


if __name__ == "__main__":
    sys.exit(main())
