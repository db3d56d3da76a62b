"""rr.log with wandb, trackio, TensorBoard's SummaryWriter and MLflow, all without a network."""
import json
import struct
import sys
import threading

import numpy as np
import pytest

import pages
import rollring as rr

RUNNER = "tests/frameworks/test_loggers.py"
BLOCK = 1 << 15


class Words:
    """A tokenizer of words; a page must escape some of them."""

    def decode(self, ids):
        return " ".join({0: "<script>", 1: "a|b", 2: "line\n"}.get(one, f"w{one}") for one in ids)


def push(ring, groups):
    with rr.Producer(ring) as producer:
        for group in range(groups):
            for member in range(4):
                producer.push(f"q{group}", token_ids=np.arange(member + 3, dtype=np.int32),
                              group_size=4, repetition_id=member, reward=member + group / 8)


def train(ring, to, own=lambda step: None, **options):
    """Three batches of a group; the values of each. ``own``: the trainer's own log."""
    seen = []
    push(ring, 3)
    with rr.Stash(ring, batch_groups=1) as stash:
        rr.log(stash, [to, lambda values, step: seen.append((step, values))],
               samples=2, samples_every=2, tokenizer=Words(), **options)
        for step in range(3):
            with stash.next(timeout=10):
                own(step)
    assert [step for step, _ in seen] == [0, 1, 2]
    return [values for _, values in seen]


def rows_of(told):
    assert told["columns"][-1] == "text" and len(told["data"]) == 2, told
    assert all("w3" in row[-1] or "line" in row[-1] for row in told["data"]), told
    return told["data"]


def records(log):
    """Of a file of an offline run: LevelDB's log format, behind a head of seven bytes."""
    at, record = 7, b""
    while at + 7 <= len(log):
        length, kind = struct.unpack("<HB", log[at + 4 : at + 7])
        if kind == 0 or BLOCK - at % BLOCK < 7:  # the rest of a block is too small for a head
            at += BLOCK - at % BLOCK
            continue
        record += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def rows(folder, name):
    """A metric in the rows of an offline run."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = []
    for data in records(next(folder.rglob("*.wandb")).read_bytes()):
        record = internal.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            if name in ("/".join(item.nested_key), item.key):
                found.append(json.loads(item.value_json))
    return found


def test_wandb(ring, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = wandb.init(project="rollring", dir=tmp_path)
    values = train(ring, run, lambda step: run.log({"loss": 1.0 / (step + 1)}, step=step))
    summary = dict(run.summary)
    run.finish()
    wandb.teardown()
    assert rows(tmp_path, "loss") == [1.0, 0.5, 1.0 / 3]  # none was dropped for ours
    # A row with a step of the trainer's is open until its next one: the last report counts.
    assert rows(tmp_path, "rollring/step") == [1, 2]
    means = [one["rollring/reward/mean"] for one in values]
    assert rows(tmp_path, "rollring/reward/mean") == means[1:]
    table = max(tmp_path.rglob("*.table.json"), key=lambda path: path.stat().st_mtime_ns)
    for name, value in values[-1].items():
        assert summary[name] == pytest.approx(value), name
    assert summary["rollring/step"] == 2
    rows_of(json.loads(table.read_text()))


def test_the_page(ring, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    push(ring, 32)

    def end():
        while rr.stat_ring(ring)["last_acked_step"] < 1:
            threading.Event().wait(0.01)
        rr.remove(ring, force=True)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    run = pages.execute(RUNNER, "wandb", {"run42": ring})["run"]
    ending.join(60)
    run.finish()
    sys.modules["wandb"].teardown()
    assert rows(tmp_path, "loss") == [0.5, 0.5]
    assert rows(tmp_path, "rollring/groups") == [16, 16]


def test_trackio(ring, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    run = trackio.init(project="rollring", name="one", embed=False)
    values = train(ring, run)
    trackio.finish()
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    logs = storage.get_logs("rollring", "one")
    for name, value in values[-1].items():
        found = [one[name] for one in logs if name in one]
        assert found[-1] == pytest.approx(value), name
    rows = [one["rollring/samples"] for one in logs if "rollring/samples" in one]
    assert len(rows) == 2 and "w3" in json.dumps(rows), rows


def test_tensorboard(ring, tmp_path):
    writers = pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        values = train(ring, writer)
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    for name, value in values[-1].items():
        points = read.Scalars(name)
        assert points[-1].step == 2 and points[-1].value == pytest.approx(value, rel=1e-6), name
    (tag,) = (tag for tag in read.Tags()["tensors"] if "samples" in tag)
    text = read.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
    assert "&lt;script>" in text and "<script>" not in text and "a&#124;b" in text, text
    assert len(text.splitlines()) == 4, text


def test_mlflow(ring, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    made = mlflow.create_experiment("rollring", artifact_location=str(tmp_path / "artifacts"))
    mlflow.set_experiment(experiment_id=made)
    with mlflow.start_run() as run:
        values = train(ring, mlflow)
        table = mlflow.load_table("rollring/samples.json", run_ids=[run.info.run_id])
    client = mlflow.MlflowClient()
    for name, value in values[-1].items():
        points = client.get_metric_history(run.info.run_id, name)
        assert points[-1].step == 2 and points[-1].value == pytest.approx(value), name
    assert list(table["step"]) == [0, 0, 2, 2] and "text" in table.columns, table
