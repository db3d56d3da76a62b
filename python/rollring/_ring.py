"""Rings by name: make, remove, list, check."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from . import _core
from ._arrays import dtype_name
from ._blocks import shown
from .errors import InvalidArgumentError, NoProgressError, ProducerDiedError

_log = logging.getLogger("rollring")

_UNITS = {"": 1, "b": 1}
_UNITS |= {u + s: 1 << 10 * (i + 1) for i, u in enumerate("kmgt") for s in ("", "ib")}


def to_bytes(size: int | str) -> int:
    """Bytes of ``65536`` or ``"256MiB"`` (K, M, G, T are powers of 1024, as in the program)."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", size)
        if match is None or match[2].lower() not in _UNITS:
            raise InvalidArgumentError(
                f"invalid size {size!r}: give a number of bytes, or text such as '256MiB'"
            )
        return int(float(match[1]) * _UNITS[match[2].lower()])
    return size


class Column:
    """A column of a ring's schema, beside the standard ones.

    Args:
        dtype: Of its elements: "int32", "bf16", ``np.float32``, ``torch.bfloat16``, ...
        per: "token" for a row each token, "record" for any number of rows.
        dims: Lengths of the inner dimensions, 3 at most; 0 stands for any length.
    """

    def __init__(self, dtype: object, *, per: str = "token", dims: tuple[int, ...] = ()) -> None:
        if per not in {"token", "record"}:
            raise InvalidArgumentError(f"per is {per!r}: use 'token' or 'record'")
        self.dtype = dtype_name(dtype)
        self.per = per
        self.dims = tuple(dims)

    @shown
    def __repr__(self) -> str:
        return f"Column({self.dtype!r}, per={self.per!r}, dims={self.dims})"


def declared(columns: Mapping[str, Column | object]) -> list[tuple[str, str, bool, list[int]]]:
    """Columns as the compiled half takes them."""
    named = [(n, c if isinstance(c, Column) else Column(c)) for n, c in columns.items()]
    return [(n, c.dtype, c.per == "token", list(c.dims)) for n, c in named]


def create(
    name: str,
    *,
    lanes: int | None = None,
    lane_bytes: int | str | None = None,
    columns: Mapping[str, Column | object] | None = None,
    exist_ok: bool = False,
    spill_bytes: int | str | None = None,
    overflow_dir: str | None = None,
    overflow_bytes: int | str | None = None,
    journal_records: int | None = None,
    group_rows: int | None = None,
    requests: int | None = None,
    request_bytes: int | str | None = None,
    soft_bytes: int | str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    ledger_bytes: int | str | None = None,
    durable: Literal["none", "group", "record"] | None = None,
) -> None:
    """Create a ring.

    Several processes may call it at the same time; one of them creates the ring.

    Args:
        name: Of the ring; its shared-memory object belongs to this user alone.
        lanes: Producers at once, 1 to 4096. Default: 64.
        lane_bytes: Memory of a lane, in bytes or as "64MiB". A record must fit. Taken from
            ``/dev/shm`` when a producer comes. Default: 64 MiB, or less where memory is less.
        columns: More columns by name, each a `Column` or a dtype (then one number a token).
        exist_ok: Accept an existing ring of that name, if it has the options that are given here.
            Options that are not given do not count.
        spill_bytes: The most memory for records of groups that stay incomplete, taken as it is
            used. Default: the memory that the lanes leave.
        overflow_dir: A directory on a disk where the spill may go on.
        overflow_bytes: The most that may lie there.
        journal_records: The most records that one acknowledgement can hold. Default: 65,536.
        group_rows: Groups that may be open at once. Default: 32,768.
        requests: Requests to workers that may be under way at once (`RequestBoard`); 0: none.
            Default: 1,024.
        request_bytes: Of the longest request; 2 MiB by default. Taken from ``/dev/shm`` as it is
            used.
        soft_bytes: When a lane turns back early to stay in cache; 0: chosen for this machine.
        ledger: A directory on a disk, in which the stash keeps each record until a checkpoint has
            it (`Stash.checkpointed`), so that the death of the machine takes none
            (`rollring.extras.restore`).
        ledger_bytes: The most that it may take; 64 GiB by default. The run waits while it is full.
        durable: When a record counts as durable: "group" (default): the disk has it, and many
            records share one wait for the disk; "record": likewise, and no batch has it before;
            "none": it is written, which survives the processes and not the machine.

    Raises:
        RingExistsError: There is a ring of that name, and ``exist_ok`` is false, or the ring
            differs: the text names the first option that does, with both values.
        NotEnoughMemoryError: ``/dev/shm`` has too little.
        InvalidArgumentError: An option is out of its range.
    """
    sizes = {
        "lane_bytes": lane_bytes,
        "spill_bytes": spill_bytes,
        "overflow_bytes": overflow_bytes,
        "request_bytes": request_bytes,
        "soft_bytes": soft_bytes,
        "ledger_bytes": ledger_bytes,
    }
    options: dict[str, Any] = {
        "lanes": lanes,
        "overflow_dir": overflow_dir,
        "journal_records": journal_records,
        "group_rows": group_rows,
        "requests": requests,
        "ledger": None if ledger is None else os.fspath(ledger),
        "durable": durable,
        **{option: None if size is None else to_bytes(size) for option, size in sizes.items()},
    }
    options = {option: value for option, value in options.items() if value is not None}
    if options.get("lane_bytes") == 0:  # which leaves the choice to the library
        raise InvalidArgumentError("lane_bytes is 0 B, must be 1 B to 128 GiB", "invalid_argument")
    if columns:
        options["columns"] = declared(columns)
    try:
        plan = _core.create(name, options)
    except FileExistsError:
        if not exist_ok:
            raise
        _core.expect(name, options)
        return
    if plan["why"]:
        _log.info("%s: %s", name, plan["why"])
    if plan["warning"]:
        _log.warning("%s: %s", name, plan["warning"])


def find_or_create(ring: str, given: Mapping[str, Any], **otherwise: Any) -> None:
    """`create` with ``exist_ok``, for adapters: a ring that is there has to agree with the given
    options (None: not given); ``otherwise`` holds where the ring is made.
    """
    given = {option: value for option, value in given.items() if value is not None}
    try:
        create(ring, **{**otherwise, **given})
    except FileExistsError:
        create(ring, exist_ok=True, **given)


def remove(name: str, *, force: bool = False, missing_ok: bool = False) -> None:
    """Remove a ring and the records in it. Its memory is freed when the last process detaches.

    Args:
        name: Name of the ring.
        force: Remove the ring even while processes are attached.
        missing_ok: Do nothing if there is no such ring.

    Raises:
        BusyError: A live process is attached, and ``force`` is false.
        RingNotFoundError: There is no such ring.
    """
    try:
        _core.remove(name, force)
    except KeyError:
        if not missing_ok:
            raise


def rings() -> list[str]:
    """Names of all rings of this user."""
    return _core.rings()


def check(name: str, stale_after: float, *, waiting: bool = False) -> None:
    """Raise if a run has made no progress for ``stale_after`` seconds or more; from outside.

    Use `Stash.check` in the trainer: it knows since when the trainer has been waiting.

    Args:
        name: Of the ring.
        stale_after: Seconds after which a condition is reported.
        waiting: The trainer has been waiting for a batch for ``stale_after``. Otherwise a complete
            or leased group means that it may be at work.

    Raises:
        ProducerDiedError: A group waits, and a producer that has sent to it died.
        NoProgressError: The trainer has all that was sent, can make no batch of it, and nothing
            comes.
    """
    found = _core.find_trouble(name, stale_after, waiting)
    if found is None:
        return
    trouble = found.pop("trouble")
    kind = ProducerDiedError if trouble == "producer_died" else NoProgressError
    error = kind(found.pop("text"), trouble)
    error.__dict__.update(found)
    raise error
