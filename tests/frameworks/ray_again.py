"""Runs of one name, one after another: the ring is removed and made again, and all of it killed.

Each member of a group comes from another worker, on whichever node. A group's name begins with the
ring that its worker was connected to, and the log of a trainer has that of the trainer's ring: the
oracle of producers and a trainer on one machine (kill_oracle.py) judges each run for itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

import ray_world

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import kill_oracle  # noqa: E402
import rollring as rr  # noqa: E402
from killing import lines, note, opened  # noqa: E402
from ray_engines import Engine, served  # noqa: E402
from ray_kills import Run  # noqa: E402
from ray_weight_trainer import said, weights_log  # noqa: E402
from rollring.integrations.ray import Fabric, connect  # noqa: E402
from rollring.stat import stat_stash  # noqa: E402
from test_ray_runs import leaves_nothing  # noqa: E402

SIZE = kill_oracle.SIZE
WHO = 1_000_000  # tells rings apart, and goes into tokens
ENGINES = 2
CONNECT_S = 10.0
CUT_S = (0.2, 4.0)  # for which a link fails
MARGIN = 40  # groups that workers may have begun since the last look


def make_ring(ring: str) -> None:
    """Replaces an existing one."""
    rr.remove(ring, force=True, missing_ok=True)
    rr.create(ring, lanes=48, lane_bytes="4MiB", spill_bytes="16MiB")


def who_of(ring: str) -> int:
    """The run of a ring, or of a node's ring."""
    _, is_node, rest = ring.partition(".node.")
    ring_id = int(rest.partition(".")[0], 16) if is_node else int(rr.describe(ring)["ring_id"])
    return ring_id % WHO


def log_of(folder: Path, who: int) -> Path:
    """Of the trainers of a run."""
    return folder / f"trainer.{who}"


def sent_log(folder: Path, who: int, member: int) -> Path:
    return folder / f"sent.{who}.{member}"


def sent(log: Path) -> int:
    """How many groups, from the first on."""
    return len(set(lines(log)))


# --- workers and engines --------------------------------------------------------------------------


@ray.remote(max_retries=-1, scheduling_strategy="SPREAD")
def produce(ring: str, member: int, folder: str) -> None:
    """That member of all groups. It connects again when a run is over."""
    stop = Path(folder, "stop")
    while True:
        try:
            with connect(ring, f"member-{member}", timeout=CONNECT_S) as producer:
                push(producer, member, Path(folder), stop)
            return
        except (rr.ClosedError, rr.RingNotFoundError, rr.TimedOutError, rr.PeerGoneError) as error:
            why = f"{type(error).__name__}: {error}"
        with Path(folder, f"why.{member}").open("a") as to:
            to.write(f"{why}\n")


def push(producer: rr.Producer, member: int, folder: Path, stop: Path) -> None:
    """On from where the log ends, up to the group that `stop` names."""
    who = who_of(producer.ring)
    log = sent_log(folder, who, member)
    group, to = sent(log), opened(str(log))
    try:
        while not stop.exists() or group <= int(stop.read_text()):
            tokens = kill_oracle.tokens_of(who, group, member)
            fields: dict[str, Any] = {"repetition_id": member, "group_size": SIZE}
            reward = kill_oracle.reward_of(group, member)
            if (group + member) % 3 == 0:
                with producer.reserve(f"{who}/{group}", tokens=len(tokens), **fields) as draft:
                    draft.token_ids[:] = tokens
                    draft.reward = reward
            else:
                producer.push(f"{who}/{group}", token_ids=tokens, reward=reward, **fields)
            note(to, str(group))
            group += 1
    finally:
        os.close(to)


class EngineOfRuns(Engine):
    """The versions that it serves of one run count for nothing in the next one."""

    who = 0

    def attach_to(self) -> str:
        name = super().attach_to()
        if (who := who_of(name)) != self.who:
            self.who, self.held = who, -1
        return name


@ray.remote(max_retries=-1, scheduling_strategy="SPREAD")
def serve(ring: str, number: int, folder: str) -> None:
    """An engine that writes down which version it serves, and of which run."""
    engine = EngineOfRuns(ring, f"engine-{number}")
    try:
        while not Path(folder, "stop").exists():
            if (served := engine.next()) is None:
                continue
            log = opened(f"{folder}/served.{engine.who}.{number}")
            note(log, "{} {}".format(*served))
            os.close(log)
    finally:
        engine.leave()


# --- the victims


TRAINER = {"trainer": 3, "again": 3, "removed": 2, "fabric": 2}
ACTORS = {"Forwarder": 4, "Receiver": 3, "WeightRelay": 2, "WeightSource": 2}
VICTIMS = {"produce": 6, "serve": 2, "raylet": 1, **ACTORS, **TRAINER}
LOSES = {"raylet", "again", "removed", "fabric"}  # the records sent, or a part of them


class Runs(Run):
    """As `Run`, with more that may happen to the trainer: "again", it is killed, and its successor
    makes the ring again; "removed", the ring is removed under it; "fabric", it is killed, and its
    fabric is closed before the next one. And "link", that of a node or of the head, fails a while.
    """

    def __init__(self, cluster: Any, ring: str, folder: Path, *given: Any) -> None:
        self._anew = True
        self._trainers = 0
        self.ends_of: dict[int, list[int]] = {}
        self.folder = folder
        super().__init__(cluster, ring, folder, "ray_again_trainer.py", *given)

    def arguments(self) -> tuple[str, ...]:
        self._trainers += 1
        how = "anew" if self._anew else "on"
        return (self.cluster.address, self.ring, str(self.folder), str(self._trainers), how)

    def until_it_moves(self) -> None:
        """Some trainer has got something; then a moment that is anybody's guess."""
        seen = self._said()

        def has_moved() -> bool:
            self.check()
            return self._said() > seen

        ray_world.until(has_moved)
        time.sleep(self.draw.random() / 4)

    def _said(self) -> int:
        return sum(log.stat().st_size for log in self.folder.glob("trainer.*[0-9]"))

    def strike(self, what: str) -> None:
        if what in TRAINER:
            self.end_trainer(what)
        elif what == "link":
            self.cut()
        else:
            super().strike(what)

    def cut(self) -> None:
        links = [self.cluster.link, *(machine.link for machine in self.cluster.worker_nodes)]
        link = self.draw.choice(links)
        link.cut()
        threading.Timer(self.draw.uniform(*CUT_S), link.mend).start()
        self.killed["link"] += 1

    def end_trainer(self, what: str) -> None:
        self.check()
        is_ready = (self.folder / f"ready.{self._trainers}").exists()
        if what == "removed":
            rr.remove(self.ring, force=True, missing_ok=True)
        self.trainer.kill()
        self.trainer.wait()
        if what == "fabric":
            with contextlib.suppress(rr.RingNotFoundError):
                Fabric(self.ring, weights=True).close()
        if what == "trainer" and is_ready:
            self._note_end()
        self._anew = self._anew and not is_ready or what != "trainer"
        self.trainer = self.train()
        self.killed[what] += 1

    def _note_end(self) -> None:
        who = who_of(self.ring)
        self.ends_of.setdefault(who, []).append(len(lines(log_of(self.folder, who))))

    def until_ready(self) -> int:
        """The run of the trainer."""
        ray_world.until((self.folder / f"ready.{self._trainers}").exists)
        return who_of(self.ring)

    def end_at(self, who: int) -> set[str]:
        """Workers end. Which groups they have sent then."""
        most = max(sent(sent_log(self.folder, who, member)) for member in range(SIZE))
        last = most + MARGIN + (most + MARGIN + 1) % kill_oracle.BATCH
        hidden = self.folder / "stopping"
        hidden.write_text(str(last))
        hidden.rename(self.folder / "stop")
        ray.get(self.workers, timeout=ray_world.PATIENCE)
        return {f"{who}/{group}" for group in range(last + 1)}

    def until_engines_serve(self, who: int) -> None:
        logs = [self.folder / f"served.{who}.{number}" for number in range(ENGINES)]
        ray_world.until(lambda: all(log.exists() for log in logs))

    def check_all_came(self, who: int, wanted: set[str]) -> None:
        log, ends = log_of(self.folder, who), self.ends_of.get(who, [])
        try:
            kill_oracle.until_all_came(log, ends, wanted, ray_world.PATIENCE)
        except AssertionError:
            print("the oldest groups:", *stat_stash(self.ring)["groups"][:8], sep="\n")
            raise

    def check_runs(self) -> int:
        """That no run has got another's records, or any twice. How many runs there were."""
        logs = list(self.folder.glob("trainer.*[0-9]"))
        for log in logs:
            who = log.name.rpartition(".")[2]
            said_there = lines(log)
            for line in said_there:
                assert all(key.startswith(f"{who}/") for key in line.split()[1:]), line
            kill_oracle.judged(said_there, self.ends_of.get(int(who), []))
        return len(logs)

    def check_engines(self) -> int:
        """Each has served nothing but its run's versions. How many that were."""
        count = 0
        for log in self.folder.glob("served.*"):
            _, who, _ = log.name.split(".")
            versions = said(weights_log(log_of(self.folder, int(who))))
            for version, value in served(log):
                assert value == str(versions[version]), f"{log.name}: version {version}"
                count += 1
        return count


def check_that_runs_stand(
    kind: type[Runs], cluster: Any, folder: Path, victims: dict[str, int], kills: int
) -> None:
    """So many kills, and the last run comes whole."""
    ring = f"again-{os.getpid()}"
    workers = [produce.remote(ring, member, str(folder)) for member in range(SIZE)]
    workers += [serve.remote(ring, number, str(folder)) for number in range(ENGINES)]
    run = kind(cluster, ring, folder, workers, [], victims, kills)
    try:
        run.strike_until_all_are_killed()
        run.end_trainer("again")
        who = run.until_ready()
        run.kills += kills // 6
        run.victims = {what: weight for what, weight in victims.items() if what not in LOSES}
        run.strike_until_all_are_killed()
        run.until_engines_serve(who)
        run.check_all_came(who, run.end_at(who))
        print(f"{run.check_runs()} runs, {run.check_engines()} versions served")
    finally:
        run.close()
        with contextlib.suppress(rr.RollringError):  # so nodes remove their rings
            Fabric(ring, weights=True).close()
        rr.remove(ring, force=True, missing_ok=True)
    ray_world.until(lambda: leaves_nothing(ring))  # actors of earlier runs end by themselves
