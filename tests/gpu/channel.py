#!/usr/bin/env python3
"""Weight channels on GPUs: a trainer and two engines over each kind of payload memory; and, where
there are two GPUs, two trainer ranks and two engines that find each other by UUID although
CUDA_VISIBLE_DEVICES differs between them, an engine that reads over peer access, and one whose
process does not see the trainer's GPU. Where it is permitted, trainer and engines also run in
namespaces of their own, as containers have them."""

import os
import subprocess
import sys

rollring, peer = sys.argv[1:3]
RING = f"gpu-channel-{os.getpid()}"
# They share /dev/shm, and no process ID, network or /proc.
CONTAINER = [
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--ipc",
    "--net",
    "--uts",
]


def start(role, visible=None, inside=(), **options):
    environment = dict(os.environ)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    return subprocess.Popen([*inside, peer, role, f"--ring={RING}", *arguments], env=environment)


def together(*processes):
    failed = [process.args for process in processes if process.wait(timeout=180) != 0]
    if failed:
        sys.exit(f"failed: {failed}")


def with_ring(scenario, *arguments):
    subprocess.run([rollring, "create", RING, "--lanes", "1", "--lane-bytes", "1MiB"], check=True)
    try:
        scenario(*arguments)
        shown = subprocess.run(
            [rollring, "stat", RING, "--json"], check=True, capture_output=True, text=True
        ).stdout
        if '"policy_version": 5' not in shown and '"policy_version":5' not in shown:
            sys.exit(f"version 5 is not in the ring: {shown}")
    finally:
        subprocess.run([rollring, "rm", "--force", RING], check=True)


def one_gpu(memory):
    together(
        start("trainer", memory=memory, subscribers=3),
        start("engine", name="a", memory=memory),
        start("engine", name="b", memory=memory, delta="true"),
        start("engine", name="c", memory=memory, beside="true"),
    )
    print(f"one GPU, {memory}: a trainer and three engines: in place, by difference, and beside")


def containers(memory):
    options = {"inside": CONTAINER, "memory": memory}
    together(
        start("trainer", subscribers=2, **options),
        start("engine", name="a", **options),
        start("engine", name="b", **options),
    )
    print(f"one GPU, {memory}: a trainer and two engines, each in a container's namespaces")


def may_unshare():
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def two_gpus():
    together(
        start("trainer", "0,1", gpu=0, rank=0, ranks=2, subscribers=2),
        start("trainer", "0,1", gpu=1, rank=1, ranks=2, subscribers=1),
        # Their GPU 1 is the trainers' GPU 0, and the other way round; no rank is named.
        start("engine", "1,0", gpu=1, name="same-as-rank-0"),
        start("engine", "1,0", gpu=0, name="same-as-rank-1"),
        start("engine", "1,0", gpu=0, rank=0, name="peer-of-rank-0"),
    )
    print("two GPUs: two ranks commit together, engines found by UUID, one reads over peer access")


def hidden_from_each_other(memory):
    together(
        start("trainer", "0", memory=memory, subscribers=1),
        start("engine", "1", name="sees-another-gpu", memory=memory),
    )
    print(f"two GPUs, {memory}: a trainer and an engine that see only their own")


def main():
    gpus = subprocess.run([peer, "gpus"], capture_output=True, text=True, check=True)
    count = len(gpus.stdout.split())
    if count == 0:
        print(f"skipped: {gpus.stderr.strip()}")
        sys.exit(77)
    for memory in ("vmm", "legacy_ipc", "host", "direct"):
        with_ring(one_gpu, memory)
    if may_unshare():
        for memory in ("vmm", "host"):
            with_ring(containers, memory)
    else:
        print("namespaces are not permitted: containers are left out")
    if count >= 2:
        with_ring(two_gpus)
        for memory in ("vmm", "legacy_ipc", "host", "direct"):
            with_ring(hidden_from_each_other, memory)
    else:
        print("one GPU: what needs two is left out")


main()
