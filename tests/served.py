"""A server for Atropos that a test has started, and the groups that it is sent."""
import contextlib
import http.client
import json
import re
import signal

from program import Lines, ended, start, wait_until

TRAINER = {"wandb_group": "g", "wandb_project": "p", "batch_size": 8, "max_token_len": 2048,
           "checkpoint_dir": "/tmp/c", "save_checkpoint_interval": 10, "starting_step": 0,
           "num_steps": 100}
ENV = {"max_token_length": 2048, "desired_name": "env", "weight": 1.0, "group_size": 4}


class Server:
    """One on a port of its own. Its ring stays."""

    def __init__(self, ring, folder, *options):
        self.process = start("serve-atropos", ring, "--port", 0, "--json",
                             "--state", folder / "state.json", *options)
        self.says = Lines(self.process.stderr)
        self.says.wait_for("http://")
        self.port = int(re.search(r":(\d+)$", self.says.lines[-1].strip())[1])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            ended(self.process, 130)

    def kill(self):
        self.process.kill()
        ended(self.process, -signal.SIGKILL)

    def raw(self, method, path, body=None, **headers):
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(line):
            line.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = line.getresponse()
            return answer.status, answer.read()

    def ask(self, method, path, json_body=None, status=200, **headers):
        body = None if json_body is None else json.dumps(json_body)
        got, text = self.raw(method, path, body, **headers)
        assert got == status, (path, got, text)
        return json.loads(text)

    def post(self, *groups):
        return [self.ask("POST", "/scored_data", group)["status"] for group in groups]

    def begin(self, envs=(), **trainer):
        """The trainer, and then the environments: as theirs do."""
        self.ask("POST", "/register", {**TRAINER, **trainer})
        assert self.batch() is None
        return [self.ask("POST", "/register-env", {**ENV, **env})["env_id"] for env in envs]

    def batch(self):
        return self.ask("GET", "/batch")["batch"]

    def one_batch(self):
        found = []
        wait_until(lambda: found.append(self.batch()) or found[-1], "a batch")
        return found[-1]


def group(first, members=4, tokens=3, **more):
    """One whose every token says which it is."""
    ids = [[first * 1000 + member * 10 + i for i in range(tokens)] for member in range(members)]
    masks = [[-100, *one[1:]] for one in ids]
    return {"tokens": ids, "masks": masks, "scores": [float(i) for i in range(members)], **more}


def firsts(batch):
    return [one["tokens"][0][0] // 1000 for one in batch]
