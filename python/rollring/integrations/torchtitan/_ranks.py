"""Steps that the ranks of a trainer take together, where one of them has the ring."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import RollringError


def distributed() -> Any:
    return importlib.import_module("torch.distributed")


def told(value: Any, source: int) -> Any:
    """The source rank's value, on every rank."""
    found = [value]
    distributed().broadcast_object_list(found, source)
    return found[0]


class Failure:
    """Of one rank, for all to raise: those that did not fail would wait for it in a collective."""

    def __init__(self, error: BaseException) -> None:
        here = distributed().get_rank()
        self.text = f"rank {here} on {socket.gethostname()}: {type(error).__name__}: {error}"
        self.code = getattr(error, "code", "")

    def error(self) -> RollringError:
        return RollringError(self.text, self.code)


@contextmanager
def failing_together(source: int) -> Iterator[None]:
    """Around a block that every rank runs: an error on the source rank is raised on all.

    Raises:
        RollringError: On the others.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    agreed: Failure | None = told(None if failed is None else Failure(failed), source)
    if failed is not None:
        raise failed
    if agreed is not None:
        raise agreed.error()


@contextmanager
def failing_with_any() -> Iterator[None]:
    """Around a block that every rank runs: an error on one of them is raised on all.

    Raises:
        RollringError: On the others; the text names the ranks and their hosts.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    _agree(failed)


def _agree(error: BaseException | None) -> None:
    """Every rank calls it, with the error of its own block.

    Raises:
        BaseException: The rank's own.
        RollringError: On the others; the text names the ranks and their hosts.
    """
    found: list[Any] = [None] * distributed().get_world_size()
    distributed().all_gather_object(found, None if error is None else Failure(error))
    if error is not None:
        raise error
    failures = [one for one in found if one is not None]
    if failures:
        raise RollringError("; ".join(one.text for one in failures), failures[0].code)
