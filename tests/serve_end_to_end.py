#!/usr/bin/env python3
"""A server for Atropos from end to end: groups in by HTTP, batches out, with any process killed.

In the build `tsan` its threads are watched: a race ends the server with another exit code.

usage: serve_end_to_end.py PATH_OF_ROLLRING
"""
import gzip
import json
import os
import signal
import socket
import sys
import threading

from program import Ring, main, report, run, test, wait_until
from served import ENV, TRAINER, Server, firsts, group

KEYS = ["tokens", "masks", "scores", "advantages", "ref_logprobs", "messages",
        "generation_params", "inference_logprobs", "overrides", "group_overrides", "images",
        "env_id", "distill_token_ids", "distill_logprobs"]


@test
def all_fourteen_fields_come_back(folder, _):
    whole = group(
        1, 2, advantages=[[0.5] * 3, [-0.5] * 3], ref_logprobs=[[-1.5] * 3, [0.0] * 3],
        messages=[[{"role": "user", "content": "ü🙂\n", "reward": None}], []],
        generation_params={"temperature": 0.7}, inference_logprobs=[[1.0, -0.5, -2.0]] * 2,
        overrides=[{"set_advantage_to_zero": True}, {}], group_overrides={"sft": True},
        images=[None, ["aGk="]], env_id=None, distill_token_ids=[[[1, 2]] * 3] * 2,
        distill_logprobs=[[[-0.5, -1.5]] * 3] * 2)
    assert sorted(whole) == sorted(KEYS)
    plain = group(2, 2)
    # More advantages than tokens: their own tests send it, and it is not ours to mend.
    odd = group(3, 2, advantages=[[1, 1, 1, 1], [0, 0, 0, 0]], mine={"x": [1]})
    with Ring() as ring, Server(ring, folder) as server:
        server.begin(batch_size=6)
        server.post(whole, plain, odd)
        latest = server.ask("GET", "/latest_example")
        got = server.one_batch()
        assert got[0] == whole, got[0]
        assert got[1] == {**dict.fromkeys(KEYS), **plain}, got[1]
        assert got[2] == {**dict.fromkeys(KEYS), **odd}, got[2]
        assert latest == {key: odd.get(key) for key in KEYS}, latest


@test
def sizes_that_do_not_divide_each_other_make_batches(folder, _):
    with Ring() as ring, Server(ring, folder) as server:
        server.begin(batch_size=24)
        server.post(*[group(i, 8) for i in range(2)], *[group(i, 3) for i in range(10, 30)],
                    group(2, 8))
        sizes = [sorted(len(one["tokens"]) for one in server.one_batch()) for _ in range(3)]
        assert all(sum(one) == 24 for one in sizes), sizes
        assert server.batch() is None
        assert server.ask("GET", "/status")["current_step"] == 3


@test
def parts_of_a_group_wait_for_each_other(folder, _):
    with Ring() as ring, Server(ring, folder) as server:
        (env,) = server.begin([{"group_size": 4}], batch_size=4)
        answers = [server.ask("POST", "/scored_data", group(i, 2, env_id=env)) for i in range(2)]
        assert answers == [{"status": "buffered", "buffer_size": 2},
                           {"status": "buffered", "buffer_size": 0}], answers
        assert firsts(server.one_batch()) == [0, 1]
        several = server.ask("POST", "/scored_data_list",
                             [group(5, 4, env_id=env), group(6, 1, env_id=env)])
        assert several == {"status": "received", "groups_processed": 2, "buffered": 1,
                           "last_buffer_size": 1}, several


@test
def environments_get_their_share(folder, _):
    with Ring() as ring, Server(ring, folder) as server:
        ids = server.begin([{"min_batch_allocation": 0.5}, {}], batch_size=8)
        server.post(*[group(i, env_id=ids[1]) for i in range(3)])
        assert server.batch() is None  # half of it is the first one's
        server.post(group(7, env_id=ids[0]))
        assert firsts(server.one_batch()) == [0, 7]
        status = server.ask("GET", "/status-env", {"env_id": ids[1]})
        assert (status["queue_size"], status["unallocated_fraction"]) == (2, 0.5), status
        assert server.ask("POST", "/disconnect-env", {"env_id": ids[0]}) == {"status": "success"}
        assert firsts(server.one_batch()) == [1, 2]


@test
def a_batch_is_acknowledged_by_asking_for_the_next(folder, _):
    with Ring() as ring, Server(ring, folder) as server:
        server.begin()
        server.post(*[group(i) for i in range(6)])
        assert firsts(server.one_batch()) == [0, 1]
        # The trainer dies and returns: it gets its batch.
        server.ask("POST", "/register", TRAINER)
        assert firsts(server.one_batch()) == [0, 1]
        assert firsts(server.one_batch()) == [2, 3]
        # It asks, and is gone before it reads the answer.
        line = socket.create_connection(("127.0.0.1", server.port))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        line.close()
        assert firsts(server.one_batch()) == [4, 5]
        assert server.batch() is None
        assert server.ask("GET", "/status") == {"current_step": 3, "queue_size": 0}


@test
def nothing_received_is_lost_with_the_server(folder, _):
    with Ring() as ring:
        server = Server(ring, folder)
        (env,) = server.begin([{}])
        server.post(*[group(i, env_id=env) for i in range(5)])
        assert firsts(server.one_batch()) == [0, 1]
        # Killed between writing an answer and noting that, it would hand it out again.
        noted = folder / "state.json"
        wait_until(lambda: json.loads(noted.read_text())["receipts"], "the note of what it has")
        server.kill()
        # The same trainer and environment go on without a new registration.
        with Server(ring, folder) as again:
            assert again.ask("GET", "/info")["batch_size"] == 8
            assert again.ask("GET", "/status")["current_step"] == 1
            again.post(group(5, env_id=env))
            assert firsts(again.one_batch()) == [2, 3]  # and its batch is not trained on twice
            assert firsts(again.one_batch()) == [4, 5]
            again.post(group(6, env_id=env))
            again.kill()
        with Server(ring, folder) as third:
            third.ask("POST", "/register", TRAINER)  # a new trainer: it gets the last one's batch
            third.post(group(7, env_id=env))
            assert firsts(third.one_batch()) == [4, 5]
            assert firsts(third.one_batch()) == [6, 7]
        # Of another ring, the state is invalid.
        with Ring() as other, Server(other, folder) as fresh:
            assert fresh.ask("GET", "/info")["batch_size"] == -1


@test
def a_group_that_was_cut_off_comes_whole_or_not_at_all(folder, _):
    with Ring("--lanes", 2, "--lane-bytes", "1MiB") as ring:
        server = Server(ring, folder)
        server.begin()
        text = json.dumps(group(1, 8, tokens=9000))
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(f"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
                     .encode() + text[:5000].encode())
        server.post(group(2))
        server.kill()
        line.close()
        with Server(ring, folder) as again:
            again.post(group(3))
            assert firsts(again.one_batch()) == [2, 3]


@test
def a_full_ring_holds_the_answer_and_loses_nothing(folder, _):
    with Ring("--lanes", 2, "--lane-bytes", "1MiB") as ring, Server(ring, folder) as server:
        server.begin(batch_size=16)
        answers = []
        total = 60

        def send():
            for i in range(total):
                answers.extend(server.post(group(i, 8, tokens=2000)))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        wait_until(lambda: not_growing(answers), "a sender that waits")
        assert len(answers) < total
        got = []
        while len(got) < total:
            got += firsts(server.one_batch())
        sender.join(60)
        assert answers == ["received"] * total
        assert got == list(range(total)), got


def not_growing(answers):
    """Nothing was answered for a while that is long beside an answer's."""
    before = len(answers)
    signal.sigtimedwait([], 0.5)
    return before == len(answers) and before > 0


@test
def a_sender_that_waits_too_long_is_told(folder, _):
    with Ring("--lanes", 2, "--lane-bytes", "1MiB") as ring, \
            Server(ring, folder, "--hold", "100ms") as server:
        server.begin(batch_size=800)
        answer = None
        for i in range(100):
            status, text = server.raw("POST", "/scored_data", json.dumps(group(i, 8, tokens=2000)))
            if status != 200:
                answer = json.loads(text)["detail"][0]["msg"]
                break
        assert status == 503 and "is full" in answer, answer
        assert "do not fill a batch of 800" in answer, answer
        status, text = server.raw("POST", "/scored_data", json.dumps(group(1, 8, tokens=40000)))
        assert status == 413 and b"--lane-bytes" in text, (status, text)
        # Other questions are answered meanwhile, and a new start is possible.
        assert server.raw("GET", "/reset_data") == (200, b"Reset successful")
        server.begin()
        server.post(group(1), group(2))
        assert firsts(server.one_batch()) == [1, 2]


@test
def a_further_lane_is_taken_although_no_trainer_asks(folder, _):
    with Ring("--lanes", 128, "--lane-bytes", "1MiB") as ring, \
            Server(ring, folder, "--hold", "10s") as server:
        server.begin(batch_size=32)
        for i in range(12):  # three in a lane
            assert server.post(group(i, 16, tokens=2048)) == ["received"]
        got = []
        while len(got) < 12:
            got += firsts(server.one_batch())
        assert got == list(range(12)), got


@test
def a_sender_that_no_lane_has_room_for_is_told(folder, _):
    """The sequences before it fill a batch, which the trainer does not ask for."""
    with Ring("--lanes", 8, "--lane-bytes", "512KiB") as ring, \
            Server(ring, folder, "--hold", "100ms") as server:
        server.begin(batch_size=24)
        sent = []
        while len(sent) < 100:
            body = json.dumps(group(len(sent), 8, tokens=2000))
            status, text = server.raw("POST", "/scored_data", body)
            if status != 200:
                break
            sent.append(len(sent))
        answer = json.loads(text)["detail"][0]["msg"]
        assert status == 503 and "is full" in answer, (status, text)
        assert "do not fill" not in answer, answer
        got = firsts(server.one_batch())
        got += firsts(server.one_batch())  # the first one is done with
        server.post(group(len(sent), 8, tokens=2000))
        sent.append(len(sent))
        while len(got) < len(sent) // 3 * 3:
            got += firsts(server.one_batch())
        assert got == sent[:len(got)], got


@test
def a_list_that_is_posted_again_is_not_sent_twice(folder, _):
    with Ring("--lanes", 2, "--lane-bytes", "256KiB") as ring, \
            Server(ring, folder, "--hold", "100ms") as server:
        server.begin(batch_size=16)
        groups = [group(i, 8, tokens=500) for i in range(20)]
        taken = []

        def post():
            status, _ = server.raw("POST", "/scored_data_list", json.dumps(groups))
            taken.append(server.ask("GET", "/status")["queue_size"])
            return status

        assert post() == 503 and post() == 503, "there is room for all"
        assert 0 < taken[0] == taken[1] < 20, taken
        got = []
        wait_until(lambda: got.extend(firsts(server.batch() or [])) or post() == 200, "room")
        while len(got) < 20:
            got += firsts(server.one_batch())
        assert got == list(range(20)), got
        # It was answered: the same list is a new one.
        server.ask("POST", "/scored_data_list", groups[:2])
        server.ask("POST", "/scored_data_list", groups[:2])
        assert firsts(server.one_batch() + server.one_batch()) == [0, 1, 0, 1]
        # One that can never be taken does not send those before it again and again.
        endless = [*groups[:2], group(1, 8, tokens=40000)]
        for _ in range(3):
            assert server.ask("POST", "/scored_data_list", endless, status=413)
        assert server.ask("GET", "/status")["queue_size"] == 2


@test
def everything_at_once(folder, _):
    """Lanes are added while others are sent into, and everything is asked for meanwhile."""
    senders, lists, size = 4, 6, 5
    with Ring("--lanes", 16, "--lane-bytes", "64KiB") as ring, Server(ring, folder) as server:
        server.begin(batch_size=8)
        stop = threading.Event()
        wrong = []

        def guarded(work):
            try:
                work()
            except AssertionError as error:
                wrong.append(error)

        def send(number):
            server.ask("POST", "/register-env", ENV)
            for i in range(lists):
                first = (number * lists + i) * size
                groups = [group(first + k, 4, tokens=200) for k in range(size)]
                server.ask("POST", "/scored_data_list", groups[:-1])
                server.post(groups[-1])

        def look():
            while not stop.is_set():
                for path in ("/status", "/latest_example", "/info", "/wandb_info"):
                    server.ask("GET", path)

        works = [lambda number=number: send(number) for number in range(senders)] + [look, look]
        threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        got = []
        while len(got) < senders * lists * size and not wrong:
            got += firsts(server.one_batch())
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not wrong, wrong
        assert sorted(got) == list(range(senders * lists * size))
        lanes = [one for one in report("stat", ring)["lanes"] if one["committed_records"] > 0]
        assert len(lanes) > 2, lanes


@test
def gzip_is_taken_and_a_bomb_is_not(folder, _):
    with Ring() as ring, Server(ring, folder, "--max-body", "1MiB") as server:
        server.begin()
        for i in range(2):
            body = gzip.compress(json.dumps(group(i)).encode())
            status, text = server.raw("POST", "/scored_data", body, Content_Encoding="gzip")
            assert (status, json.loads(text)) == (200, {"status": "received"})
        assert firsts(server.one_batch()) == [0, 1]
        bomb = gzip.compress(b" " * (64 << 20))
        assert server.raw("POST", "/scored_data", bomb, Content_Encoding="gzip")[0] == 413
        for broken in (b"no gzip", body[:-9], body + b"x"):
            got = server.raw("POST", "/scored_data", broken, Content_Encoding="gzip")
            assert got == (400, b"Invalid gzip payload"), got
        assert server.raw("POST", "/scored_data", b" " * (2 << 20))[0] == 413


@test
def what_is_wrong_is_named_and_nothing_of_it_is_taken(folder, _):
    good = group(1)
    cases = [
        ("{", "key in quotes"), ("[]", "object"), ("{}", "tokens"), ("\xff", ""),
        (json.dumps({**good, "masks": None}), "masks"),
        (json.dumps({**good, "tokens": [[1], 2, [3], [4]]}), "tokens"),
        (json.dumps({**good, "tokens": [[2**40]] * 4}), "tokens"),
        (json.dumps({**good, "masks": [[1]] * 4}), "masks"),
        (json.dumps({**good, "scores": [1.0]}), "scores"),
        (json.dumps({**good, "messages": [[{"role": "user"}]] * 4}), "content"),
        ("[" * 100000, "nested"),
    ]
    with Ring() as ring, Server(ring, folder) as server:
        server.begin()
        for body, named in cases:
            status, text = server.raw("POST", "/scored_data", body.encode("latin-1"))
            assert status == 422 and named in json.loads(text)["detail"][0]["msg"], (body, text)
        several = json.dumps([good, {**good, "masks": []}])
        assert server.raw("POST", "/scored_data_list", several)[0] == 422
        assert server.ask("GET", "/status")["queue_size"] == 0
        server.ask("POST", "/register", {**TRAINER, "batch_size": "many"}, status=422)
        server.ask("POST", "/register-env", {**ENV, "group_size": 0}, status=422)
        server.ask("GET", "/status-env", {"env_id": 7}, status=404)
        server.ask("GET", "/nothing", status=404)
        server.ask("GET", "/scored_data", status=405)
        with socket.create_connection(("127.0.0.1", server.port)) as line:
            line.sendall(b"\0\1\2 nonsense\r\n\r\n")
            assert b" 400 " in line.recv(4096)
        server.post(good, group(2))
        assert firsts(server.one_batch()) == [1, 2]


@test
def a_port_in_use_is_told_with_the_option_for_another(folder, _):
    with Ring() as ring, Server(ring, folder) as server:
        port = server.port
        _, err = run("serve-atropos", f"{ring}b", "--port", port, code=1)
        assert f"port {port}: Address already in use; choose another port with --port N" in err, err
        _, err = run("metrics", "--listen", f"127.0.0.1:{port}", code=1)
        assert "in use; choose another port with --listen ADDRESS:PORT" in err, err


@test
def elsewhere_it_asks_for_a_token(folder, _):
    with Ring() as ring:
        _, err = run("serve-atropos", ring, "--host", "0.0.0.0", "--port", 0, code=2,
                     env={k: v for k, v in os.environ.items() if k != "ROLLRING_TOKEN"})
        assert "--token" in err, err
        with Server(ring, folder, "--host", "0.0.0.0", "--token", "secret") as server:
            for wrong in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "secret"}):
                assert server.raw("GET", "/info", **wrong)[0] == 401, wrong
            server.ask("GET", "/info", Authorization="Bearer secret")


@test
def records_of_others_make_batches_too(folder, _):
    lines = "".join(json.dumps({"instance_id": f"q{g}", "repetition_id": i, "group_size": 4,
                                "tokens": [g, i], "loss_mask": [0, 1], "reward": i}) + "\n"
                    for g in range(2) for i in range(4))
    with Ring() as ring, Server(ring, folder) as server:
        server.begin()
        run("produce", ring, "--input", "-", stdin_text=lines)
        got = server.one_batch()
        assert sorted(one["tokens"][0] for one in got) == [[0, 0], [1, 0]], got
        assert got[0]["masks"][1][0] == -100 and got[0]["scores"] == [0, 1, 2, 3], got


if __name__ == "__main__":
    sys.exit(main())
