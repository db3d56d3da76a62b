"""Real environments of Atropos on our server: by HTTP as they are, and by the ring."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("atroposlib")
pytest.importorskip("transformers")

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import rollring as rr
from atropos_servers import PROGRAM, TRAINER, Server, free_port, ours
from rollring.integrations.atropos import RollringSendMixin

pytestmark = pytest.mark.slow  # each environment imports transformers
CHILD = Path(__file__).with_name("atropos_env.py")
EXAMPLE = Path(__file__).parents[2] / "examples/atropos.sh"
PATIENCE = 300.0  # of four environments that import transformers at once
# (members, groups): none of the sizes divides all others, all of them make five batches of 24.
ENVIRONMENTS = [(8, 6), (3, 8), (4, 6), (2, 12)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return str(folder)


def environment(
    url: str, tokenizer: str, tag: int, size: int, groups: int, *more: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), url, str(size), str(groups), str(tag), tokenizer, *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def environments(url: str, tokenizer: str, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    children = [
        environment(url, tokenizer, tag, size, groups, *more)
        for tag, (size, groups) in enumerate(ENVIRONMENTS)
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()


def next_batch(server: Server, patience: float = PATIENCE) -> list[dict[str, Any]]:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        batch = server.get("/batch")["batch"]
        if batch:
            return list(batch)
        signal.sigtimedwait([], 0.05)
    raise AssertionError(f"no batch came: {server.get('/status')}")


@pytest.mark.parametrize("way", [(), ("ring",)], ids=["http", "ring"])
def test_four_environments_of_different_sizes(
    way: tuple[str, ...], ring: str, tmp_path: Path, tokenizer: str
) -> None:
    with ours(ring, tmp_path) as server:
        server.post("/register", {**TRAINER, "batch_size": 24, "starting_step": 0})
        server.get("/batch")  # the trainer has started
        with environments(server.url, tokenizer, *way):
            seen: Counter[tuple[int, int]] = Counter()
            for _ in range(5):
                batch = next_batch(server)
                assert sum(len(group["tokens"]) for group in batch) == 24
                for group in batch:
                    (head,) = {tuple(ids[:2]) for ids in group["tokens"]}
                    seen[head] += 1
                    size = ENVIRONMENTS[head[0]][0]
                    assert [ids[2] for ids in group["tokens"]] == [1000 + i for i in range(size)]
                    assert group["scores"] == [float(i) for i in range(size)]
                    assert group["inference_logprobs"][0] == [1.0, 1.0, -0.5, -1.0, -1.5]
                    assert isinstance(group["env_id"], int)
    wanted = {(tag, i): 1 for tag, (_, groups) in enumerate(ENVIRONMENTS) for i in range(groups)}
    assert seen == wanted


LIVING, KILLED, ANEW = 0, 1, 2  # tags of environments
SENT_BEFORE = 19  # of groups of 8: at least one is begun and not whole


class Came:
    """The groups that a trainer has received, by their tag and number."""

    def __init__(self) -> None:
        self.members: dict[tuple[int, int], list[int]] = {}

    def take(self, batch: rr.Batch) -> None:
        for group in batch.groups:
            (head,) = {tuple(member.token_ids[:2].tolist()) for member in group}  # not mixed
            assert head not in self.members, "a group came twice"
            self.members[head] = [int(member.token_ids[2]) - 1000 for member in group]
            assert self.members[head] == [member.repetition_id for member in group]

    def of(self, tag: int) -> list[list[int]]:
        return [members for head, members in self.members.items() if head[0] == tag]

    def count(self, tag: int) -> int:
        return sum(map(len, self.of(tag)))


def account(stash: rr.Stash, amount: str) -> int:
    return int(stash.stats()[f"rollring/stash/account/{amount}/records"])


def take_until(done: Callable[[], bool], stash: rr.Stash, came: Came) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, stash.stats()
        try:
            with stash.next(timeout=0.1) as batch:
                came.take(batch)
        except TimeoutError:
            pass


@pytest.mark.parametrize("at_deadline", ["ship", "drop"])
def test_an_environment_that_is_killed_in_a_group(
    at_deadline: str, ring: str, tmp_path: Path, tokenizer: str
) -> None:
    whole, came = list(range(8)), Came()
    children: list[subprocess.Popen[str]] = []
    with ours(ring, tmp_path) as server:
        try:
            server.post("/register", {**TRAINER, "batch_size": 8, "starting_step": 0})
            with rr.Stash(ring, batch_groups=1, min_size=1) as stash:  # the trainer is not theirs
                for tag, groups, *more in ((LIVING, 9), (KILLED, 9, str(SENT_BEFORE))):
                    children.append(
                        environment(server.url, tokenizer, tag, 8, groups, "ring", *map(str, more))
                    )
                assert children[1].wait(PATIENCE) == -signal.SIGKILL, children[1].communicate()
                sent = 9 * 8 + SENT_BEFORE
                take_until(lambda: account(stash, "accepted") == sent, stash, came)
                take_until(lambda: len(came.of(LIVING)) == 9, stash, came)
                assert came.of(LIVING) == [whole] * 9
                assert came.of(KILLED) == [whole] * len(came.of(KILLED))
                left = SENT_BEFORE - 8 * len(came.of(KILLED))
                assert left > 0
                with pytest.raises(rr.ProducerDiedError) as trouble:
                    stash.check(stale_after=1e-3)
                assert trouble.value.pid == children[1].pid
                # It is started again: a new run, and groups of its own.
                children.append(environment(server.url, tokenizer, ANEW, 8, 5, "ring"))
                take_until(lambda: len(came.of(ANEW)) == 5, stash, came)
                assert came.of(ANEW) == [whole] * 5
            # The groups that were cut off, by the rules for a deadline.
            with rr.Stash(
                ring, batch_groups=1, min_size=1, deadline=0.2, at_deadline=at_deadline
            ) as stash:
                dropped, shipped = (left, 0) if at_deadline == "drop" else (0, left)
                take_until(lambda: came.count(KILLED) == SENT_BEFORE - dropped, stash, came)
                take_until(lambda: account(stash, "dropped/deadline") == dropped, stash, came)
                assert account(stash, "shipped") == shipped
            assert server.get("/status")["queue_size"] == 0
        finally:
            for child in children:
                child.kill()
                child.communicate()


GROUPS: list[dict[str, Any]] = [
    {"tokens": [[1, 2, 3], [4, 5, 6]], "masks": [[-100, 2, 3], [-100, -100, 6]],
     "scores": [1.0, 0.25], "advantages": [[0.5] * 3, [-0.5] * 3],
     "ref_logprobs": [[-1.5, -2.5, -3.5], [0.0, -0.25, -1e-8]],
     "messages": [[{"role": "user", "content": "ü🙂\n"}], []],
     "generation_params": {"temperature": 0.7}, "inference_logprobs": [[1.0, -0.5, -2.0]] * 2,
     "overrides": [{"set_advantage_to_zero": True}, {}], "group_overrides": {"group_size": 2},
     "images": [None, ["aGk="]],
     "distill_token_ids": [[[1, 2]] * 3, [[3, 4]] * 3],
     "distill_logprobs": [[[-0.5, -1.5]] * 3] * 2, "instance_id": "whole"},
    {"tokens": [[1, 2]], "masks": [[7, 2]], "scores": [0], "advantages": None,
     "ref_logprobs": None, "overrides": None, "instance_id": "nulls", "mine": {"x": [1, None]}},
    {"tokens": [[1, 2], [3]], "masks": [[-100, -100], [3]], "scores": [1, 2],
     "advantages": [[1, 1, 1], [1]], "distill_token_ids": [[[1], [2, 3]], [[4]]],
     "messages": [[], [{"role": "user", "content": "x"}]], "instance_id": "uneven"},
]  # fmt: skip


class Sender(RollringSendMixin):
    env_id = 5

    def __init__(self, ring: str) -> None:
        self.rollring_ring = ring


def digests(ring: str) -> dict[str, str]:
    """Of each group, all that its records hold but when they came."""
    found: dict[str, str] = {}
    with rr.Stash(ring, batch_groups=1) as stash:
        for _ in GROUPS:
            with stash.next(timeout=PATIENCE) as batch:
                for group in batch.groups:
                    digest = hashlib.sha256()
                    for member in group.members:
                        fields = member.sequences[0].as_dict(copy=True)
                        for moment in ("visit", "created_ns"):
                            assert fields.pop(moment) > 0
                        for name, value in sorted(fields.items()):
                            digest.update(name.encode())
                            if isinstance(value, np.ndarray):
                                digest.update(f"{value.dtype} {value.shape}".encode())
                                digest.update(value.tobytes())
                            else:
                                digest.update(json.dumps(value, default=str).encode())
                    found[group.instance_id] = digest.hexdigest()
    return found


def test_both_ways_make_the_same_records(ring: str, tmp_path: Path) -> None:
    other = ring + "-b"
    rr.create(other, lanes=4, lane_bytes="4MiB", spill_bytes="4MiB")
    try:
        with ours(other, tmp_path) as server:
            for group in GROUPS:
                said = server.post("/scored_data", {**group, "env_id": 5})
                assert said == {"status": "received"}, said
        sender = Sender(ring)
        asyncio.run(sender._send_scored_data_to_api([{**group} for group in GROUPS]))
        assert digests(ring) == digests(other)
    finally:
        rr.remove(other, force=True)


@pytest.mark.parametrize(
    "wrong",
    [{"masks": [[1]]}, {"masks": [[1, 2], [3]]}, {"scores": []}, {"tokens": []}],
    ids=["mask", "masks", "scores", "tokens"],
)
def test_what_is_wrong_is_named_and_not_sent(wrong: dict[str, Any], ring: str) -> None:
    group = {"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0], **wrong}
    with pytest.raises(ValueError, match=f"'{next(iter(wrong))}'"):
        asyncio.run(Sender(ring)._send_scored_data_to_api(group))
    with rr.Stash(ring, batch_groups=1) as stash, pytest.raises(TimeoutError):
        stash.next(timeout=0.1)


def test_a_group_that_waits_for_room_is_sent_to_its_end_and_not_overtaken(ring: str) -> None:
    # In a lane of 4 MiB: 2.4 MB, as much that waits for room, and some bytes for which there is.
    lengths, members, waits = (120_000, 120_000, 8), 4, 1

    async def send() -> None:
        sender = Sender(ring)
        sends = []
        for number, length in enumerate(lengths):
            tokens = np.arange(number, number + length, dtype=np.int32)
            group = {
                "tokens": [tokens] * members,
                "masks": [tokens] * members,
                "scores": [1.0] * members,
                "instance_id": f"p/{number}",
            }
            sends.append(asyncio.ensure_future(sender._send_scored_data_to_api(group)))
            await asyncio.wait(sends[:waits])
            while len(sender._rollring_waiting) < number:  # other tasks run meanwhile
                assert not sends[number].done()
                await asyncio.sleep(0)
        sends[waits].cancel()
        with rr.Stash(ring, batch_groups=1) as stash:
            for number in range(len(lengths)):
                with await asyncio.to_thread(stash.next, timeout=PATIENCE) as batch:
                    assert [group.instance_id for group in batch.groups] == [f"p/{number}"]
                    firsts = [int(one.token_ids[0]) for one in batch.sequences]
                    assert firsts == [number] * members
        await asyncio.wait(sends)
        assert [one.cancelled() for one in sends] == [False, True, False]

    asyncio.run(send())


OWN_ENVIRONMENT = """
import sys

class Mine:
    @classmethod
    def cli(cls):
        print(cls.__name__, cls.__mro__[1].__name__, cls.__mro__[2] is Mine, sys.argv)
"""


def test_run_env_puts_the_mixin_before_the_class(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(OWN_ENVIRONMENT)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), "run-env", *words], cwd=tmp_path, capture_output=True, text=True
        )

    done = run("my_env:Mine", "serve", "--slurm", "false")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Mine RollringSendMixin True ['my_env:Mine', 'serve', '--slurm', 'false']\n"
    )
    for wrong, told in (
        ("my_env", "'my_env' is not MODULE:CLASS"),
        (":Mine", "':Mine' is not MODULE:CLASS"),
        ("my_env:No", "the module my_env has no class No"),
        ("no_env:A", "No module named 'no_env': run rollring run-env in the folder of no_env, or"),
        (
            "no_env.inner:A",
            "No module named 'no_env': run rollring run-env in the folder of no_env, or",
        ),
    ):
        done = run(wrong)
        assert done.returncode == 2, done
        assert done.stderr.startswith("rollring run-env: ") and told in done.stderr, done
    # A fault of the module itself is not one of the command line: it is shown with its place.
    for line, told in (("import no_such_package", "ModuleNotFound"), ("None.x", "Attribute")):
        (tmp_path / "bad_env.py").write_text(f"\n{line}\n")
        done = run("bad_env:A")
        assert done.returncode == 1, done
        assert f"{told}Error: " in done.stderr and 'bad_env.py", line 2' in done.stderr, done


def own_command_line(*words: str, tokenizer: str) -> list[str]:
    # As BaseEnv has it: its words, and settings of the environment's own configuration.
    config = {
        "env.first": "1000",
        "env.group_size": "3",
        "env.total_steps": "2",
        "env.use_wandb": "false",
        "env.tokenizer_name": tokenizer,
        "openai.base_url": "http://127.0.0.1:9/v1",  # never called
        "openai.api_key": "x",
        "openai.model_name": "none",
    }
    settings = [word for name, value in config.items() for word in (f"--{name}", value)]
    return [str(PROGRAM), "run-env", "atropos_cli_env:Counting", *words, *settings]


def test_run_env_serves_by_their_own_command_line(
    ring: str, tmp_path: Path, tokenizer: str
) -> None:
    with ours(ring, tmp_path) as server:
        server.post("/register", {**TRAINER, "batch_size": 6, "starting_step": 0, "num_steps": 2})
        server.get("/batch")  # the trainer has started
        words = ("serve", "--slurm", "false", "--env.rollout_server_url", server.url)
        process = subprocess.Popen(
            own_command_line(*words, tokenizer=tokenizer),
            cwd=CHILD.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            groups: list[dict[str, Any]] = []
            while len(groups) < 6:  # three steps, of which two are asked for
                # Their command line imports for long where a machine is busy.
                groups += next_batch(server, 5 * PATIENCE)
            assert [group["tokens"] for group in groups] == [
                [[1000 + number, member] for member in range(3)] for number in range(6)
            ]
            (lane,) = [
                lane for lane in rr.describe(ring)["lanes"] if "Counting" in lane["producer"]
            ]
            assert lane["pid"] == process.pid and lane["committed_records"] >= 18
            said, _ = process.communicate(timeout=PATIENCE)  # it ends as theirs does
            assert process.returncode == 0, said
        finally:
            process.kill()
            process.communicate()


def test_run_env_processes_into_a_file_as_ever(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "groups.jsonl"
    words = ("process", "--env.data_path_to_save_groups", str(path))
    done = subprocess.run(
        own_command_line(*words, tokenizer=tokenizer),
        cwd=CHILD.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    groups = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [group["tokens"] for group in groups] == [
        [[1000 + number, member] for member in range(3)] for number in range(2)
    ]


def test_the_example_trains_on_an_environments_groups(ring: str, tmp_path: Path) -> None:
    rr.remove(ring)  # it makes its own
    done = subprocess.run(
        ["bash", str(EXAMPLE), ring],
        env={
            **os.environ,
            "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
            "PORT": str(free_port()),
            "TMPDIR": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.findall(r"step (\d): 16 answers", done.stdout) == list("01234"), done.stdout[-4000:]
    assert ring not in rr.rings()
