"""Rollouts that a worker parked in the middle, and that another one takes up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._arrays import columns_of
from ._blocks import shown, unpicklable
from .errors import NotLeasedError, RollringError

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from ._producer import Producer


def _as_pushed(core: _core.ParkedRollout) -> dict[str, Any]:
    """The fields as `Producer.push` takes them. The versions are one keyword, if they can be, so
    that a worker with newer ones replaces all of them.
    """
    taken = core.record()
    fields = taken.fields() | columns_of(taken)
    del fields["n_tokens"]
    oldest, newest = fields["policy_version_min"], fields["policy_version_max"]
    if "policy_version" in fields or oldest == newest:
        del fields["policy_version_min"], fields["policy_version_max"]
        if oldest >= 0:
            fields.setdefault("policy_version", oldest)
    return fields


class ParkedRollout:
    """Part of a rollout that a worker parked, and that this process has taken up.

    Its arrays are copies, which may be kept. Leaving the ``with`` block without `done` gives it
    back, as does the end of the process: another worker takes it up then.
    """

    def __init__(self, place: ParkingPlace, core: _core.ParkedRollout) -> None:
        fields = _as_pushed(core)
        self.instance_id: str = fields.pop("instance_id")
        """Of the prompt."""
        self.fields: dict[str, Any] = fields
        """The other fields and columns, as `Producer.push` takes them."""
        self.state = core.state()
        """As it was given to `Producer.park`."""
        self.parked_at = core.parked_ns() * 1e-9
        """Seconds since 1970."""
        self._place = place
        self._core = core
        self._over = ""

    __reduce__ = unpicklable(
        "a parked rollout, which this process has taken,", "give it back, and take it there"
    )

    @shown
    def __repr__(self) -> str:
        return f"<ParkedRollout of {self.instance_id!r}{self._over and ', ' + self._over}>"

    def done(self) -> bool:
        """Call it once the whole record was pushed, or is given up: no other worker takes it up.

        Its file stays until every record is durable that the producer has sent so far. A later
        `Producer.park` or `Producer.take_parked` removes it then.

        Returns:
            Whether the file is gone already.

        Raises:
            NotLeasedError: It was given back.
        """
        if self._over == "given back":
            raise NotLeasedError("this parked rollout was given back", "not_leased")
        self._over = "done"
        return self._place.done(self._core)

    def give_back(self) -> None:
        """Let another worker take it up. No effect after `done`."""
        if not self._over:
            self._over = "given back"
            self._core.give_back()

    def replaced_by(self, park: Callable[[_core.ParkedRollout], None]) -> None:
        """`Producer.park` parks its successor, and it is done."""
        if self._over == "given back":
            raise NotLeasedError("this parked rollout was given back", "not_leased")
        park(self._core)
        self._over = "done"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()


class ParkingPlace:
    """The parked rollouts of a producer's ring."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._core = _core.Parking(producer.ring)
        self._guard = threading.Lock()
        self._waiting: list[tuple[int, _core.ParkedRollout]] = []

    def park(
        self,
        instance_id: str,
        state: Buffer,
        fields: Mapping[str, object],
        replaces: ParkedRollout | None,
    ) -> None:
        self.remove_durable()
        if replaces is None:
            self._core.park(instance_id, fields, state, None)
        else:
            replaces.replaced_by(lambda old: self._core.park(instance_id, fields, state, old))

    def take(self, source_id: int | None) -> ParkedRollout | None:
        self.remove_durable()
        core = self._core.take(source_id)
        return None if core is None else ParkedRollout(self, core)

    def done(self, core: _core.ParkedRollout) -> bool:
        waits_for = (self._producer.stats()["records"], core)
        with self._guard:
            self._waiting.append(waits_for)
        self.remove_durable()
        return waits_for not in self._waiting

    def remove_durable(self) -> None:
        """Remove the files of rollouts that are done, and whose records are durable by now."""
        with self._guard:
            durable = self._producer.durable_records if self._waiting else 0
            while self._waiting and self._waiting[0][0] <= durable:
                self._waiting[0][1].done()
                del self._waiting[0]

    def close(self) -> None:
        with contextlib.suppress(RollringError):  # a file that stays is taken again
            self.remove_durable()
        with self._guard:
            while self._waiting:
                self._waiting.pop()[1].give_back()
