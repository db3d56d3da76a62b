#!/usr/bin/env python3
"""The bounds of memory, from outside: a small /dev/shm, limits, cgroups: named, or lived with.

usage: memory_end_to_end.py PATH_OF_ROLLRING
"""
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from program import LIMIT_S, PREFIX, PROGRAM, Ring, main, report, run, start, test, with_shm_of

GIB = 1 << 30
MIB = 1 << 20


def limited(*arguments, file_bytes):
    def limit():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    process = start(*arguments, preexec_fn=limit)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


@test
def a_limit_on_file_sizes_is_named_and_leaves_nothing(folder, rollouts):
    name = f"{PREFIX}limited"
    code, _, err = limited("create", name, "--lanes", 64, "--lane-bytes", "64MiB",
                           file_bytes=2 * GIB)
    assert code == 1 and "ulimit -f" in err, (code, err)
    assert name not in run("ls")[0]
    code, out, _ = limited("doctor", "--json", file_bytes=2 * GIB)
    found = {bound["name"]: bound for bound in json.loads(out)["bounds"]}
    assert found["RLIMIT_FSIZE (ulimit -f)"]["total"] == 2 * GIB, found


@test
def a_demo_in_64_mib_of_shared_memory_with_every_default(folder, rollouts):
    for more in ("", "--producers 16", "--producers 64"):
        done = with_shm_of("64m", f"{PROGRAM} demo --json {more}")
        if done is None:
            return
        told = json.loads(done.stdout)
        assert told["ok"] and told["digest_equal"], (more, told, done.stderr)


SERVES = """
import sys
from pathlib import Path
from served import Server, firsts, group

with Server("r", Path(sys.argv[2])) as server:
    server.begin([{}])
    server.post(group(1), group(2))
    assert sorted(firsts(server.one_batch())) == [1, 2]
"""


@test
def a_server_for_atropos_in_64_mib_with_every_default(folder, rollouts):
    script = folder / "serves"
    script.write_text(SERVES, encoding="utf-8")
    with_shm_of("64m", f"PYTHONPATH={Path(__file__).parent} {sys.executable} -B {script} "
                       f"{PROGRAM} {folder}")


@test
def a_ring_in_64_mib_says_what_was_chosen_and_warns(folder, rollouts):
    done = with_shm_of("64m", f"{PROGRAM} create r && {PROGRAM} rm r")
    if done is None:
        return
    assert "64 MiB of /dev/shm" in done.stdout, done
    assert "warning: 64 lanes" in done.stderr and "rollring size" in done.stderr, done


@test
def lanes_that_do_not_fit_a_demo_are_told_of_once(folder, rollouts):
    done = with_shm_of("64m", f"{PROGRAM} demo --producers 64 --lane-bytes 20MiB; test $? = 1")
    if done is None:
        return
    assert len(re.findall("not_enough_shared_memory", done.stderr)) == 1, done.stderr
    assert "64 lanes of 20 MiB" in done.stderr, done.stderr


@test
def one_mib_and_no_inode(folder, rollouts):
    for size in ("1m", "64m,nr_inodes=1"):
        done = with_shm_of(size, f"{PROGRAM} create r; test $? = 1 && ls /dev/shm")
        if done is None:
            return
        assert done.stdout == "" and "rollring: not_enough_shared_memory: " in done.stderr, done
        assert ("inodes" in done.stderr) == ("inodes" in size), done.stderr


def cgroup_of(limit_bytes):
    """A memory cgroup of our own, and the file that a process joins; None where we may not."""
    for base, limit in ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                        (Path("/sys/fs/cgroup"), "memory.max")):
        group = base / f"rollring-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(limit_bytes), encoding="ascii")
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        return group, limit
    print("skipped: no memory cgroup may be made here")
    return None


@test
def a_memory_cgroup_is_an_error_that_names_it_and_no_kill(folder, rollouts):
    made = cgroup_of(48 * MIB)
    if made is None:
        return
    group, limit = made
    try:
        with Ring("--lanes", 4, "--lane-bytes", "64MiB", "--spill-bytes", "1MiB") as ring:
            script = (f"echo $$ > {group}/cgroup.procs && "
                      f"exec {PROGRAM} produce {ring} --synthetic groups=1,tokens=16")
            done = subprocess.run(["sh", "-c", script], text=True, timeout=LIMIT_S,
                                  capture_output=True, check=False)
            assert done.returncode == 1, done
            assert limit in done.stderr and "of 48 MiB" in done.stderr, done.stderr
    finally:
        group.rmdir()


@test
def size_says_what_a_run_needs_and_the_ring_that_follows(folder, rollouts):
    told = report("size", "--producers", 2, "--group", 4, "--tokens", 1000)
    assert told["enough"] and told["lanes"] == 2 and len(told["why"]) == 7, told
    name = f"{PREFIX}sized"
    words = told["create"].replace("NAME", name).split()[1:]
    made = report(*words)
    assert told["at_open_bytes"] > 2 * told["lane_bytes"], told  # of idle producers, too
    try:
        assert made["lane_bytes"] == told["lane_bytes"], (made, told)
        assert made["spill_bytes"] == told["spill_bytes"], (made, told)
        assert made["warning"] is None and made["chosen"] is None, made
    finally:
        run("rm", name)
    text = run("size", "--producers", 2, "--tokens", 1000)[0]
    assert "--shm-size=1g" in text and "sizeLimit: 1Gi" in text, text
    out, _ = run("size", "--producers", 4096, "--tokens", 16 * MIB, code=1)
    assert "too little" in out and "several rings" in out, out


@test
def a_record_that_is_too_long_names_the_size_that_would_do(folder, rollouts):
    load = ("--synthetic", "groups=1,group-size=3,tokens=200000")
    with Ring("--lanes", 2, "--lane-bytes", "1MiB", "--spill-bytes", "1MiB") as ring:
        _, err = run("produce", ring, *load, code=1)
    call = re.search(r"'rollring (size --producers 2 --group 3 --tokens \d+ --token-bytes \d+)'",
                     err)
    assert call, err
    told = report(*call[1].split())
    name = f"{PREFIX}long"
    run(*told["create"].replace("NAME", name).split()[1:])
    try:
        run("produce", name, *load)
    finally:
        run("rm", name)


if __name__ == "__main__":
    sys.exit(main())
