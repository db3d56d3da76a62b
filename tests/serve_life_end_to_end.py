#!/usr/bin/env python3
"""How a server for Atropos begins and ends: its ring, its state file, its seat, and its threads.

usage: serve_life_end_to_end.py PATH_OF_ROLLRING
"""
import http.client
import json
import os
import sys
from pathlib import Path

from program import PREFIX, Ring, finish, main, report, run, test
from served import ENV, Server, firsts, group


@test
def the_ring_is_made_where_there_is_none(folder, _):
    name = f"{PREFIX}made"
    with Server(name, folder) as server:
        assert server.ask("GET", "/") == {"message": "AtroposLib API"}
        assert server.ask("GET", "/info") == {"batch_size": -1, "max_token_len": -1}
        assert server.ask("GET", "/batch")["status"] == "error"
        assert server.ask("POST", "/register-env", ENV) == {"status": "wait for trainer to start"}
    out, _ = finish(server.process, 130)
    assert json.loads(out) == {"ring": name, "groups": 0, "batches": 0, "sequences": 0,
                               "handed": 0}, out
    # Nothing has registered and nothing was sent: it goes, and its state with it.
    assert name not in rings() and not (folder / "state.json").exists()
    with Server(name, folder, "--keep") as server:
        pass
    server.says.wait_for(f"ring {name} stays")
    assert name in rings()
    run("rm", name)


@test
def a_new_ring_says_what_it_reserves_and_a_small_one_can_be_asked_for(folder, _):
    name = f"{PREFIX}small"
    with Server(name, folder) as server:
        server.says.wait_for(rf"ring {name} is new.* reserves [0-9.]+ .iB now.*--lane-bytes")
        server.begin([{}], batch_size=4)
        server.post(group(1))
        assert firsts(server.one_batch()) == [1]
        assert report("stat", name)["resident_bytes"] < 160 << 20
        run("rm", "--force", name)
    with Server(name, folder, "--lane-bytes", "1MiB") as server:
        server.begin([{}], batch_size=4)
        server.post(group(1))
        assert firsts(server.one_batch()) == [1]
        assert report("stat", name)["resident_bytes"] < 16 << 20
        status, said = server.raw("POST", "/scored_data", json.dumps(group(1, tokens=60_000)))
        assert status == 413 and b"--lane-bytes" in said, (status, said)
        assert "is new" not in "".join(server.says.lines)
    out, _ = finish(server.process, 130)
    told = json.loads(out)  # the trainer has not asked for another one
    assert (told["batches"], told["sequences"], told["handed"]) == (0, 0, 4), told
    again = ("serve-atropos", name, "--port", 0, "--state", folder / "state.json")
    _, err = run(*again, "--lane-bytes", "2MiB", code=2)
    assert f"ring {name} exists, with lanes of 1 MiB: leave --lane-bytes out" in err, err
    with Server(name, folder, "--lane-bytes", "1MiB"):
        pass
    run("rm", name)


def rings():
    return [entry["ring"] for entry in report("ls")]


@test
def a_ring_with_something_to_go_on_with_stays_and_the_server_says_so(folder, _):
    for begin in (lambda server: server.begin(), lambda server: server.post(group(1))):
        name = f"{PREFIX}stays"
        with Server(name, folder) as server:
            begin(server)
        server.says.wait_for(rf"ring {name} stays and holds .* of memory: .*'rollring rm {name}'")
        run("rm", name)


@test
def a_second_server_is_refused_and_told_who_the_first_is(folder, _):
    with Ring() as ring, Server(ring, folder) as server:
        _, err = run("serve-atropos", ring, "--port", 0, "--state", folder / "two.json", code=1)
        assert f"busy: ring {ring} is already served by another process (pid " \
               f"{server.process.pid})" in err, err
        server.ask("GET", "/status")
        server.kill()
        with Server(ring, folder) as server:  # a dead one does not block the way
            server.ask("GET", "/status")


@test
def a_state_file_that_cannot_be_written_is_told_before_a_ring_is_made(folder, _):
    name = f"{PREFIX}readonly"
    (folder / "file").touch()
    _, err = run("serve-atropos", name, "--port", 0, "--state", folder / "file/state.json", code=1)
    assert "cannot write the state file" in err and "--state" in err, err
    home = {**os.environ, "HOME": "/proc", "XDG_STATE_HOME": ""}
    _, err = run("serve-atropos", name, "--port", 0, code=1, env=home)
    assert "cannot write the state file /proc/" in err and "--state" in err, err
    assert name not in rings()


def pids_group():
    """A cgroup whose processes can be counted and limited; None where none can be made."""
    for base in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        path = Path(base) / f"{PREFIX}pids"
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / "pids.max").exists():
            return path
        path.rmdir()
    return None


@test
def a_visitor_for_whom_there_is_no_thread_is_told_503(folder, _):
    limits = pids_group()
    if limits is None:
        print("skipped: no cgroup with a limit on processes can be made here")
        return
    with Ring() as ring, Server(ring, folder) as server:
        try:
            (limits / "cgroup.procs").write_text(str(server.process.pid))
            first = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            first.request("GET", "/status")
            assert first.getresponse().read()
            (limits / "pids.max").write_text((limits / "pids.current").read_text())
            status, text = server.raw("GET", "/status")
            assert status == 503 and b"cannot start a thread" in text, (status, text)
            first.request("GET", "/status")  # a connected client is served on
            assert first.getresponse().status == 200
            (limits / "pids.max").write_text("max")
            assert server.raw("GET", "/status")[0] == 200
        finally:
            (limits / "pids.max").write_text("max")
            server.kill()
            limits.rmdir()


if __name__ == "__main__":
    sys.exit(main())
