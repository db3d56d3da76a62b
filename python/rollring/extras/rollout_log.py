"""Logs a run's rollouts to the dashboard of its training: wandb, trackio, TensorBoard, MLflow.

    rr.log(stash, wandb.run)

None of these modules is imported here: a destination is known by its methods.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..adapters import shown, unpicklable
from ..errors import InvalidArgumentError, RollringError

if TYPE_CHECKING:
    from .. import Batch, Member, Stash

__all__ = ["RolloutLog", "log"]

_LOG = logging.getLogger("rollring")
COLUMNS = ("step", "group", "member", "reward", "advantage", "tokens", "policy_version", "text")
SAMPLE_TOKENS = 4096  # the last ones of a completion: with more, decoding would hold up the trainer

Decode = Callable[[list[int]], str]
Rows = list[list[Any]]


class _Destination(Protocol):
    tables: bool  # takes tables of samples

    def numbers(self, values: Mapping[str, float], step: int) -> None: ...

    def table(self, name: str, rows: Rows, step: int) -> None: ...


class _Wandb:
    """The trainer ends each row of wandb: with a step of ours, wandb would refuse the trainer's
    rows of earlier steps.
    """

    tables = True

    def __init__(self, run: Any, prefix: str) -> None:
        self._run = run
        self._step = f"{prefix}step"
        if hasattr(run, "define_metric"):
            run.define_metric(f"{prefix}*", step_metric=self._step)

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, self._step: step}, commit=False)

    def table(self, name: str, rows: Rows, step: int) -> None:
        made = sys.modules["wandb"].Table(columns=list(COLUMNS), data=rows)
        self._run.log({name: made, self._step: step}, commit=False)


class _Trackio:
    tables = True

    def __init__(self, run: Any) -> None:
        self._run = run

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        made = sys.modules["trackio"].Table(columns=list(COLUMNS), data=rows)
        self._run.log({name: made}, step=step)


class _TensorBoard:
    tables = True

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
        lines += [" | ".join(_cell(value) for value in row) for row in rows]
        self._writer.add_text(name, "\n".join(lines), step)


def _cell(value: object) -> str:
    """Text in a table of Markdown, which shows it as it is."""
    escaped = str(value).replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    return escaped.replace("\n", "<br>")


class _Mlflow:
    tables = True

    def __init__(self, run: Any) -> None:
        self._run = run

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._run.log_metrics(dict(values), step=step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        columns = {column: [row[i] for row in rows] for i, column in enumerate(COLUMNS)}
        self._run.log_table(columns, artifact_file=f"{name}.json")


class _Trainer:
    """A trainer of transformers or TRL: the dashboards of its ``report_to``. The trainer's own
    ``log`` would end averages of TRL before they are complete.
    """

    tables = False

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        trainer = self._trainer
        if not trainer.is_world_process_zero():
            return
        for callback in trainer.callback_handler.callbacks:
            name = type(callback).__name__
            if name == "PrinterCallback" or name.endswith("ProgressCallback"):
                continue  # it would print a line of forty numbers for each batch
            callback.on_log(
                trainer.args,
                trainer.state,
                trainer.control,
                logs={**values, "epoch": trainer.state.epoch or 0.0},
                model=trainer.model,
            )

    def table(self, name: str, rows: Rows, step: int) -> None:
        raise NotImplementedError


class _Function:
    tables = False

    def __init__(self, function: Callable[[dict[str, float], int], object]) -> None:
        self._function = function

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._function(dict(values), step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        raise NotImplementedError


def _destination(to: Any, prefix: str) -> _Destination:
    if to is None:
        raise TypeError("there is no run to log to: start it first (wandb.init(), trackio.init())")
    package = getattr(to, "__name__", None) or type(to).__module__
    package = package.split(".")[0]
    if hasattr(to, "add_scalar"):
        return _TensorBoard(to)
    if hasattr(to, "callback_handler"):
        return _Trainer(to)
    if hasattr(to, "log_metrics") and hasattr(to, "log_table"):
        return _Mlflow(to)
    if package == "wandb" and hasattr(to, "log"):
        return _Wandb(to, prefix)
    if package == "trackio" and hasattr(to, "log"):
        return _Trackio(to)
    if callable(to):
        return _Function(to)
    raise TypeError(
        f"cannot log to {to!r}: expected a run of wandb or trackio, a SummaryWriter, the module "
        "mlflow, a trainer of transformers, or a function of (values, step)"
    )


class _Interval:
    """The batches since the last report."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.waited = 0.0
        self.batches = self.groups = self.flat = self.tokens = 0
        self.rewards: list[np.ndarray[Any, Any]] = []
        self.spreads: list[float] = []
        self.lengths: list[np.ndarray[Any, Any]] = []
        self.lags: list[np.ndarray[Any, Any]] = []

    def add(self, batch: Batch, waited: float, version: int) -> None:
        self.batches += 1
        self.waited += waited
        self.tokens += batch.n_tokens
        self.lengths.append(np.diff(batch.cu_seqlens))
        stamps = batch.policy_versions
        if version >= 0:
            self.lags.append(version - stamps[stamps >= 0])
        for group in batch.groups:
            self.groups += 1
            rewards = group.rewards[~np.isnan(group.rewards)]
            self.rewards.append(rewards)
            if len(rewards):
                self.spreads.append(float(rewards.std()))
                self.flat += bool(np.allclose(rewards, rewards[0], rtol=1e-12, atol=1e-12))

    def values(self) -> dict[str, float]:
        seconds = max(time.monotonic() - self.begun, 1e-9)
        found = {
            "batches": float(self.batches),
            "groups": float(self.groups),
            "sequences": float(sum(map(len, self.lengths))),
            "tokens": float(self.tokens),
            "tokens_per_second": self.tokens / seconds,
            "wait_seconds": self.waited,
            "wait_share": min(1.0, self.waited / seconds),
        }
        found |= _summary("reward", self.rewards, "mean", "std", "min", "max")
        found |= _summary("length", self.lengths, "mean", "min", "max")
        found |= _summary("staleness", self.lags, "mean", "max")
        if self.spreads:
            found["reward/std_in_group"] = float(np.mean(self.spreads))
            found["flat_groups"] = self.flat / len(self.spreads)
        return found


def _summary(name: str, parts: list[np.ndarray[Any, Any]], *kinds: str) -> dict[str, float]:
    """Nothing where there is no value: a dashboard then draws no point."""
    if not parts or not len(whole := np.concatenate(parts)):
        return {}
    return {f"{name}/{kind}": float(getattr(whole, kind)()) for kind in kinds}


class RolloutLog:
    """Made by `log`. Its methods are called by the thread that reads the stash."""

    def __init__(
        self,
        stash: Stash,
        to: list[_Destination],
        *,
        every: int,
        samples: int,
        samples_every: int,
        decode: Decode | None,
        prefix: str,
    ) -> None:
        self._stash = stash
        self._to = to
        self._every = every
        self._samples, self._samples_every = samples, samples_every
        self._decode = decode
        self._prefix = prefix
        self._first = stash.last_acked_step + 1
        self._step = self._first - 1  # of the latest batch
        self._interval = _Interval()
        self._dropped: dict[str, float] = {}
        self._failed: set[int] = set()  # parts that were reported
        self._guard = threading.RLock()  # threads may read a stash by turns

    def flush(self) -> None:
        """Report the batches since the last report, even if they are fewer than ``every``."""
        with self._guard:
            self._or_told(self, self._report)

    def _on_batch(self, batch: Batch, waited: float) -> None:
        with self._guard:
            self._step += 1
            self._or_told(self, lambda: self._take(batch, waited))

    def _or_told(self, part: object, work: Callable[[], None]) -> None:
        """A fault of a log ends neither the training nor the reports to other destinations."""
        try:
            work()
        except Exception as error:
            level = logging.DEBUG if id(part) in self._failed else logging.WARNING
            self._failed.add(id(part))
            # Text: a record of the log that is kept would keep the traceback, and arrays with it.
            _LOG.log(level, "batch %d was not logged: %s", self._step, repr(error))

    def _take(self, batch: Batch, waited: float) -> None:
        self._interval.add(batch, waited, self._stash.policy_version)
        if self._samples and (self._step - self._first) % self._samples_every == 0:
            self._or_told(self._decode, lambda: self._show(batch))
        if self._interval.batches == self._every:
            self._report()

    def _report(self) -> None:
        interval, self._interval = self._interval, _Interval()
        if interval.batches == 0:
            return
        values = interval.values() | self._of_stash()
        named = {self._prefix + name: value for name, value in values.items()}
        for one in self._to:
            self._or_told(one, partial(one.numbers, named, self._step))

    def _show(self, batch: Batch) -> None:
        places = [one for one in self._to if one.tables]
        rows = self._rows(batch) if places else []
        for one in places:
            self._or_told(one, partial(one.table, f"{self._prefix}samples", rows, self._step))

    __reduce__ = unpicklable(
        "a log of rollouts, which follows a stash of this process,", "call rr.log in the trainer"
    )

    @shown
    def __repr__(self) -> str:
        return f"<RolloutLog of {self._stash!r}, batch {self._step}>"

    def _of_stash(self) -> dict[str, float]:
        """The state, and counts since the last report."""
        found = {
            "open_groups": float(self._stash.open_groups),
            "policy_version": float(self._stash.policy_version),
        }
        try:
            all_of = self._stash.stats(prefix="")
        except RollringError:  # the ring was removed: its last batches are still read
            return found
        found["held_bytes"] = all_of["stash/held_bytes"]
        before = "stash/account/dropped/"
        for name, count in all_of.items():
            if name.startswith(before) and name.endswith("/records"):
                reason = name[len(before) : -len("/records")]
                found[f"dropped/{reason}"] = count - self._dropped.get(reason, 0.0)
                self._dropped[reason] = count
        return found

    def _rows(self, batch: Batch) -> Rows:
        members = [(group.instance_id, one) for group in batch.groups for one in group]
        chosen = random.Random(self._step).sample(members, min(self._samples, len(members)))
        return [self._row(group, member) for group, member in chosen]

    def _row(self, group: str, member: Member) -> list[Any]:
        last = member.sequences[-1]
        reward, ids = member.reward, last.token_ids
        return [
            self._step,
            group,
            member.repetition_id,
            float("nan") if reward is None else reward,
            float(member.advantage),
            sum(len(sequence) for sequence in member.sequences),
            last.policy_version_max,
            "" if ids is None else self._text(ids[-SAMPLE_TOKENS:].tolist()),
        ]

    def _text(self, ids: list[int]) -> str:
        return " ".join(map(str, ids[-256:])) if self._decode is None else self._decode(ids)


def log(
    stash: Stash,
    to: Any,
    *,
    every: int = 1,
    samples: int = 4,
    samples_every: int = 50,
    tokenizer: Any = None,
    prefix: str = "rollring/",
) -> RolloutLog:
    """Log the rollouts of each batch that a stash returns, where the training run is logged.

    A destination or a tokenizer that fails is reported once, at WARNING, and the training
    continues; one that hangs holds the trainer up, because reports are made within `Stash.next`.
    The step of a report counts delivered batches, beginning after the last acknowledged step.
    docs/watching.md lists the metrics.

    Args:
        stash: The stash, before its first `Stash.next`; the rules for threads are those of it.
        to: A run of wandb or trackio (or either module), a ``SummaryWriter``, the module mlflow, a
            trainer of transformers or TRL (for the dashboards of its ``report_to``, at its own
            steps), a function of ``(values, step)``, or a list of these.
        every: Number of batches in each report.
        samples: Completions in a table of samples; 0: no table. A trainer and a function get none.
        samples_every: Batches from one table to the next.
        tokenizer: Decodes the samples' last 4,096 tokens (its ``decode``); None: token ids.
        prefix: Prefix of the metrics' names.

    Raises:
        TypeError: There is no way to log to ``to``.
        InvalidArgumentError: ``every`` or ``samples_every`` is below 1.
    """
    if every < 1 or samples_every < 1:
        raise InvalidArgumentError("every and samples_every count batches: at least 1")
    places = to if isinstance(to, (list, tuple)) else [to]
    made = RolloutLog(
        stash,
        [_destination(one, prefix) for one in places],
        every=every,
        samples=samples,
        samples_every=samples_every,
        decode=None if tokenizer is None else tokenizer.decode,
        prefix=prefix,
    )
    stash.on_batch(made._on_batch)
    return made
