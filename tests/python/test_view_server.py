"""The server and the command of `rollring view`."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.view._groups import Groups
from rollring.view._server import page_files
from rollring.view._sources import FileSource
from view_pages import Page, line, page_of_file, page_of_ring, served, three, written

__all__ = ["three"]  # a fixture


# --- the server ---


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("nothing", {}, 404),
        ("group", {"group": "x"}, 404),
        ("turns", {"group": "MIXED", "member": 99}, 404),
        ("turns", {"group": "MIXED", "member": "x"}, 400),
        ("slice", {"group": "MIXED", "member": 0, "sequence": 7}, 404),
        ("slice", {"group": "MIXED", "member": 0, "from": "x"}, 400),
        ("groups", {"reward_min": "much"}, 400),
        ("find", {"group": "MIXED", "member": 0, "text": "word"}, 400),
    ],
)
def test_refusals(three: str, path: str, query: dict[str, Any], status: int) -> None:
    with page_of_file(three) as page:
        if query.get("group") == "MIXED":
            query = query | {"group": page.group_of("mixed")}
        got, why = page.refusal(path, **query)
        assert got == status and why


def test_headers_and_hosts(three: str) -> None:
    with page_of_file(three) as page:
        for path in ("/", "/app.js", "/view.css", "/api/state"):
            status, headers, content = page.get(path)
            assert status == 200 and content
            assert headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert headers["X-Content-Type-Options"] == "nosniff"
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            status, _, _ = page.get("/api/groups", {"Host": host})
            assert status == 403, host
        assert page.get("/api/groups", {"Host": f"localhost:{page.server.port}"})[0] == 200
        for path in ("/view/_server.py", "/page/../_server.py", "/%2e%2e/_server.py"):
            assert page.get(path)[0] == 404


def raw(page: Page, request: str) -> tuple[int, str]:
    """Status and error of a request that urllib does not send."""
    with socket.create_connection(("127.0.0.1", page.server.port), PATIENCE) as one:
        one.sendall(request.encode())
        answer = http.client.HTTPResponse(one)
        answer.begin()
        return answer.status, json.loads(answer.read())["error"]


def test_addresses_that_are_none(three: str, capfd: pytest.CaptureFixture[str]) -> None:
    with page_of_file(three) as page:
        status, why = raw(page, "GET /api/state HTTP/1.1\r\nHost: [\r\n\r\n")
        assert status == 403 and "own address" in why
        status, why = raw(page, "GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 400 and "bad address" in why
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("odd", ["NaN", "many digits", "loop"])
def test_an_answer_without_a_form_as_json(
    three: str, odd: str, capfd: pytest.CaptureFixture[str]
) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with page_of_file(three) as page:
        kept = {"NaN": float("nan"), "many digits": 10**5000, "loop": loop}[odd]
        page.server.paths["/api/odd"] = lambda query: kept
        status, why = page.refusal("odd")
        assert status == 500 and "no form as JSON" in why
    assert capfd.readouterr().err == ""


def test_no_file_of_the_page_names_another_host() -> None:
    folder = Path(rr.__file__).parent / "view/page"
    allowed = "http://www.w3.org/2000/svg"  # a name, which nothing loads
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8").replace(allowed, "")
        assert "://" not in text and "innerHTML" not in text, file


def test_the_page_asks_for_all_of_its_modules_at_once() -> None:
    """A module is found late if only another one names it."""
    files = page_files()
    named = set(re.findall(r'(?:href|src)="([a-z]+\.js)"', files["/"][1].decode()))
    assert named == {path[1:] for path in files if path.endswith(".js")}


def test_a_token(three: str) -> None:
    with page_of_file(three) as open_page:
        assert open_page.get("/api/state")[0] == 200
    with served(FileSource(three, Groups(10, 1 << 30), None), token="secret") as page:
        assert page.get("/")[0] == 200  # holds nothing of the run
        assert page.get("/api/state")[0] == 401
        assert page.get("/api/state", {"Authorization": "Bearer secre"})[0] == 401
        assert page.get("/api/state", {"Authorization": "Bearer secret"})[0] == 200


def test_a_copied_record_is_the_record(tmp_path: Path) -> None:
    numbers = {"logprobs": [0.0, "NaN", "-Infinity"], "reward": "Infinity"}
    given = line("one", 0, token_ids=[1, 2, 3], n_prompt=1, loss_mask=[0, 1, 1], big=2**70 + 1)
    given |= numbers | {"fraction": 0.1 + 0.2, "meta": {"deep": [2**53 + 1, None, "\ud800"]}}
    with page_of_file(written(tmp_path / "one.jsonl", [given])) as page:
        group = page.group_of("one")
        found = page.ask("copy", group=group, member=0)
        assert found["left_out"] == []
        copied = json.loads(found["text"])
        assert {name: copied[name] for name in given} == given
        assert page.ask("copy", group=group, member=1)["text"] == ""


def test_a_copy_names_what_a_line_cannot_hold(ring: str) -> None:
    with page_of_ring(ring) as page, rr.Producer(ring, "one") as producer:
        experts = np.full((2, 1, 1), 300, np.uint16)
        columns = {"images": np.ones((2, 2), np.uint16), "routed_experts": experts}
        fields = {"repetition_id": 0, "group_size": 1, "reward": 1.0, "extra": {"own": 2**60 + 1}}
        producer.push("g", token_ids=[1, 2], n_prompt=1, **fields, **columns)
        page.wait(page.names)
        found = page.ask("copy", group=page.group_of("g"))
        assert found["left_out"] == ["images"]
        copied = json.loads(found["text"])
        assert copied["routed_experts"] == [[[300]], [[300]]]
        assert copied["own"] == 2**60 + 1 and "extra" not in copied


# --- the command ---


def start(*arguments: str, token: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollring.view", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROLLRING_TOKEN": token},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(three: str, number: signal.Signals) -> None:
    with start(three, "--port", "0", "--json") as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", said["port"]), PATIENCE):
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_token_for_other_addresses(three: str) -> None:
    with start(three, "--port", "0", "--host", "0.0.0.0", "--json") as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert len(address.partition("#token=")[2]) >= 32
        process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("token", ["secret", "a+b/c&d#e%41=f?g"])
def test_a_token_of_the_environment(three: str, token: str) -> None:
    with start(three, "--port", "0", "--json", token=token) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        written = address.partition("#token=")[2]
        assert unquote(written) == token and re.fullmatch("[A-Za-z0-9%]+", written)
        process.send_signal(signal.SIGINT)


def test_a_token_that_no_header_holds(three: str) -> None:
    for token in ("two words", "pass\N{LATIN SMALL LETTER E WITH ACUTE}", "tab\t"):
        with start(three, "--port", "0", token=token) as process:
            out, err = process.communicate(timeout=PATIENCE)
            assert (process.returncode, out) == (2, "") and "the token has" in err


def test_a_name_without_a_file_and_a_ring() -> None:
    name = f"test-view-typo-{os.getpid()}.jsonl"
    with start(name, "--port", "0", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["source"] == name
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert err == f"rollring view: there is no file {name}; waiting for a ring {name}\n"


def test_wrong_use(three: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = [
            ((three, "--port", port), 1, "another --port"),
            ((str(tmp_path / "none.jsonl"),), 2, "there is no file"),
            (("bad name!",), 2, "no ring has such a name"),
            (("",), 2, "no ring has such a name"),
            ((three, "--tokenizer", str(tmp_path / "none")), 2, "no such file or folder"),
            ((three, "--keep", "0"), 2, "--keep"),
            ((three, "--port", "70000"), 2, "--port"),
        ]
        for arguments, status, text in cases:
            with start(*arguments) as process:
                out, err = process.communicate(timeout=PATIENCE)
                assert (process.returncode, out) == (status, ""), err
                assert text in err and "Traceback" not in err


def test_a_bad_file_is_told_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(line("good", 0)) + "\nno json\n", encoding="utf-8")
    with page_of_file(str(path)) as page:
        assert "bad.jsonl:2" in page.ask("state")["problem"]
        assert page.names() == ["good"]


def test_many_pages_at_once(three: str) -> None:
    with page_of_file(three) as page:
        sockets = [
            socket.create_connection(("127.0.0.1", page.server.port), PATIENCE) for _ in range(64)
        ]
        try:
            for one in sockets:
                one.sendall(b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for one in sockets:
                assert one.recv(64).startswith(b"HTTP/1.1 200")
        finally:
            for one in sockets:
                one.close()
