"""`rollring serve-atropos` beside the server of atroposlib: its own tests, and its answers."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("atroposlib")
pytest.importorskip("fastapi")

from atropos_servers import FIRST_PORT, TRAINER, Server, free_port, ours, stand_in, theirs

UPSTREAM = ["test_api_compression.py", "test_api_legacy.py", "test_api_messages_handling.py"]


def port_is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def port_8000() -> Iterator[None]:
    """Their tests ask for this port: runs on one machine come to it one after another."""
    path = Path(tempfile.gettempdir()) / f"rollring-port-8000-{os.getuid()}"
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not port_is_free(8000):
            pytest.skip("port 8000 belongs to another program")
        yield


def test_a_port_for_a_server_is_none_that_a_connection_may_take() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    first = int(given.split()[0])
    if first <= FIRST_PORT:
        pytest.skip("all ports of this machine may be a connection's")
    assert all(FIRST_PORT <= free_port() < first for _ in range(20))


@pytest.mark.usefixtures("port_8000")
@pytest.mark.parametrize("name", UPSTREAM)
def test_their_tests_of_the_api_pass(name: str, ring: str, tmp_path: Path) -> None:
    """Unchanged, with our server started instead of theirs."""
    package = importlib.util.find_spec("atroposlib")
    assert package is not None and package.submodule_search_locations is not None
    file = Path(list(package.submodule_search_locations)[0]) / "tests" / name
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
         f"--rootdir={tmp_path}", str(file)],
        env=stand_in(tmp_path, ring),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
    # It was ours that was asked.
    assert (tmp_path / "state.json").exists()


def group(first: int, members: int, **more: Any) -> dict[str, Any]:
    ids = [[first * 100 + member * 10 + i for i in range(3)] for member in range(members)]
    masks = [[-100, *one[1:]] for one in ids]
    scores = [float(i) for i in range(members)]
    return {"tokens": ids, "masks": masks, "scores": scores, **more}


def env(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"max_token_length": 1024, "desired_name": name, "weight": 1.0, "group_size": size,
            **more}


WHOLE = group(
    9, 2, advantages=[[0.5] * 3, [-0.25] * 3], ref_logprobs=[[-1.5] * 3] * 2,
    messages=[[{"role": "user", "content": "ü🙂\n", "reward": None}], []],
    generation_params={"temperature": 0.7}, inference_logprobs=[[1.0, -0.5, -2.0]] * 2,
    overrides=[{"set_advantage_to_zero": True}, {}], group_overrides={"sft": True},
    images=[None, ["aGk="]], env_id=None, distill_token_ids=[[[1, 2]] * 3] * 2,
    distill_logprobs=[[[-0.5, -1.5]] * 3] * 2,
)  # fmt: skip

# In this order. Where their answers are known to lose data there is no question (docs/atropos.md).
LOG: list[tuple[str, str, Any]] = [
    ("GET", "/", None),
    ("GET", "/info", None),
    ("GET", "/wandb_info", None),
    ("GET", "/status", None),
    ("GET", "/batch", None),
    ("GET", "/latest_example", None),
    ("POST", "/register-env", env("early", 4)),
    ("POST", "/register", TRAINER),
    ("POST", "/register-env", env("early", 4)),
    ("GET", "/batch", None),
    ("POST", "/register-env", env("a", 4)),
    ("POST", "/register-env", env("a", 2, weight=3.0)),
    ("POST", "/register-env", env("b", 8)),
    ("GET", "/info", None),
    ("GET", "/wandb_info", None),
    ("POST", "/scored_data", group(1, 4, env_id=0)),
    ("GET", "/batch", None),
    ("POST", "/scored_data", group(2, 4, env_id=0)),
    ("GET", "/status", None),
    ("GET", "/status-env", {"env_id": 0}),
    ("GET", "/status-env", {"env_id": 1}),
    ("GET", "/status-env", {"env_id": 2}),
    ("GET", "/batch", None),
    ("GET", "/batch", None),
    ("POST", "/scored_data", group(3, 2, env_id=0)),  # another size than announced: buffered
    ("POST", "/scored_data", group(4, 2, env_id=0)),
    ("GET", "/status", None),
    ("POST", "/scored_data_list", [group(5, 2, env_id=1), group(6, 1, env_id=1)]),
    ("POST", "/scored_data", group(7, 1, env_id=1)),
    ("GET", "/status", None),
    ("GET", "/batch", None),
    ("POST", "/scored_data", WHOLE),
    ("GET", "/latest_example", None),
    ("POST", "/scored_data_list", [group(10 + i, 2) for i in range(3)]),
    ("GET", "/batch", None),
    ("GET", "/status", None),
    ("POST", "/disconnect-env", {"env_id": 0}),
    ("GET", "/status-env", {"env_id": 1}),
    ("POST", "/scored_data", {"tokens": [[1]]}),
    ("POST", "/scored_data", {**group(1, 1), "messages": [[{"role": "user"}]]}),
    ("POST", "/scored_data_list", group(1, 1)),
    ("POST", "/register", {**TRAINER, "batch_size": "many"}),
    ("POST", "/register-env", {"desired_name": "x"}),
    ("POST", "/disconnect-env", {}),
    ("GET", "/nothing", None),
    ("POST", "/batch", None),
    ("GET", "/scored_data", None),
    ("GET", "/reset_data", None),
    ("GET", "/info", None),
    ("GET", "/status", None),
    ("POST", "/register", TRAINER),
    ("GET", "/batch", None),
    ("POST", "/register-env", env("low", 4, min_batch_allocation=0.5)),
    ("POST", "/register-env", env("high", 4)),
    ("POST", "/scored_data", group(20, 4, env_id=1)),
    ("POST", "/scored_data", group(21, 4, env_id=1)),
    ("GET", "/batch", None),
    ("POST", "/scored_data", group(22, 4, env_id=0)),
    ("GET", "/status-env", {"env_id": 1}),
    ("GET", "/batch", None),
]


def answer(server: Server, method: str, path: str, body: Any) -> tuple[int, Any]:
    got = server.ask(method, path, body)
    if got.status_code != 200:
        return got.status_code, None  # in words of its own
    if path == "/reset_data":
        return 200, got.text
    said = got.json()
    if path == "/register":
        assert isinstance(said.pop("uuid"), int)
    if path == "/batch" and said.get("batch"):
        # The same groups: theirs come by environment where some have a share.
        said["batch"].sort(key=lambda one: one["tokens"])
    if path == "/info" and said["batch_size"] == -1:
        said.pop("max_token_len")  # theirs forgets the one with a reset, and not the other
    return 200, said


def test_the_answers_to_one_log_are_equal(ring: str, tmp_path: Path) -> None:
    with theirs() as their, ours(ring, tmp_path) as our:
        for number, (method, path, body) in enumerate(LOG):
            expected = answer(their, method, path, body)
            assert answer(our, method, path, body) == expected, (number, method, path, body)
