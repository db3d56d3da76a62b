#!/usr/bin/env python3
"""Rollouts as long as those of the field, under default settings: no run stands still (P9).

usage: mission_lengths.py PATH_OF_ROLLRING
"""
import json
import os
import sys

from program import PREFIX, PROGRAM, Ring, finish, main, run, start, test, with_shm_of
from served import Server

LONGEST = "groups=32,group-size=16,tokens=131072"
MIB = 1 << 20


def shipped_whole(groups, *arguments):
    out, err = run("demo", *arguments, "--json")
    told = json.loads(out)
    assert told["ok"] and told["conserved"] and told["digest_equal"], told
    assert told["groups"] == groups and told["groups_partial"] == 0, told
    assert "no progress is possible" not in err, err
    return told


def memory_for(bytes_wanted):
    """In /dev/shm, and in the machine: bytes reserved there are memory."""
    free = os.statvfs("/dev/shm")
    with open("/proc/meminfo", encoding="ascii") as info:
        known = dict(line.split(":") for line in info)
    available = int(known["MemAvailable"].split()[0]) << 10
    return min(free.f_bavail * free.f_frsize, available) > bytes_wanted


@test
def a_demo_of_long_rollouts_with_every_default(folder, rollouts):
    shipped_whole(200, "--synthetic", "groups=200,tokens=65536:131072")
    shipped_whole(200, "--synthetic", "groups=200,tokens=16384:131072", "--lane-bytes", "256MiB")


@test
def long_and_short_rollouts_of_all_groups_mixed(folder, rollouts):
    """Far more than memory holds, in another order from each producer, of lengths that vary."""
    for seed in (1, 2):
        shipped_whole(400, "--synthetic", "groups=400,tokens=2048:131072", "--shuffle", seed)
    shipped_whole(200, "--synthetic", "groups=200,tokens=2048:16384", "--shuffle", 3,
                  "--producers", 2, "--lane-bytes", "4MiB", "--spill-bytes", "16MiB")


@test
def two_producers_and_lanes_of_4_mib(folder, rollouts):
    with Ring("--lanes", 2, "--lane-bytes", "4MiB") as ring:
        trainer = start("consume", ring, "--group-size", "auto", "--until-closed", "--json")
        run("produce", ring, "--synthetic", "groups=200,tokens=2048:4096")
        told = json.loads(finish(trainer)[0])
    assert told["groups"] == 200 and told["groups_partial"] == 0 and told["conserved"], told


@test
def groups_of_16_of_131072_tokens_from_64_producers(folder, rollouts):
    for lane_mib in (16, 64, 256):
        # Lanes that are taken are reserved; the spill grows to a part of them.
        if not memory_for(64 * lane_mib * MIB * 3 // 2):
            print(f"lanes of {lane_mib} MiB: left out, there is too little memory")
            continue
        for seed in (1, 2):
            told = shipped_whole(32, "--producers", 64, "--synthetic", LONGEST, "--shuffle", seed,
                                 "--lane-bytes", f"{lane_mib}MiB")
            assert told["records_shipped"] == 512, told


@test
def groups_of_16_of_131072_tokens_from_64_producers_with_every_default(folder, rollouts):
    if memory_for(64 * 64 * MIB * 3 // 2):
        shipped_whole(32, "--producers", 64, "--synthetic", LONGEST, "--shuffle", 3)
    else:
        print("lanes of 64 MiB: left out, there is too little memory")
    # Groups of 1.2 GB together, where there is 1 GiB.
    done = with_shm_of("1g", f"{PROGRAM} demo --producers 64 --synthetic {LONGEST} --json")
    if done is None:
        return
    told = json.loads(done.stdout)
    assert told["ok"] and told["groups"] == 32 and told["groups_partial"] == 0, told


@test
def groups_of_16_of_131072_tokens_through_a_server_with_every_default(folder, rollouts):
    name = f"{PREFIX}served"
    members, tokens = 16, 131072
    row = list(range(tokens))
    long = {"tokens": [row] * members, "masks": [row] * members, "scores": [0.5] * members,
            "inference_logprobs": [[-0.5] * tokens] * members}
    text = json.dumps(long)
    try:
        with Server(name, folder) as server:
            server.begin(batch_size=2 * members, max_token_len=2 * tokens)
            for _ in range(4):
                status, said = server.raw("POST", "/scored_data", text)
                assert status == 200, said
            for _ in range(2):
                batch = server.one_batch()
                for key, value in long.items():
                    assert [one[key] for one in batch] == [value] * 2, key
    finally:
        run("rm", name, "--force")


if __name__ == "__main__":
    sys.exit(main())
