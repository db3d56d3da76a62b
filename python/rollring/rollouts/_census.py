"""Counts the groups of a file, to number members and to infer group sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Group:
    members: int = 0
    last: int = 0
    numbers: set[int] = field(default_factory=set)
    counted: bool = False
    sized: bool = False


class Census:
    """Counts the members of groups in the order of the file, as the program `rollring` does."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], _Group] = {}

    def take(self, fields: dict[str, Any]) -> int:
        """The number of a record: its own, or how many members its group had before."""
        group = self._groups.setdefault(_key(fields), _Group())
        group.sized |= bool(fields.get("group_size"))
        number = fields.get("repetition_id")
        if number is not None:
            group.last = int(number)
            group.numbers.add(group.last)
            group.members = max(group.members, len(group.numbers))
        else:
            group.counted = True
            if not fields.get("subsequence_index") or group.members == 0:
                group.last = group.members
                group.members += 1
        return group.last

    def mixed(self, fields: dict[str, Any]) -> bool:
        """Whether only some members of its group are numbered."""
        group = self._groups[_key(fields)]
        return bool(group.numbers) and group.counted

    def common_size(self) -> int | None:
        """Members of each group without a size; None if the file leaves it open."""
        unsized = [group for group in self._groups.values() if not group.sized]
        sizes = {group.members for group in unsized}
        elsewhere = any(g.numbers and max(g.numbers) != g.members - 1 for g in unsized)
        return None if len(sizes) != 1 or sizes == {1} or elsewhere else sizes.pop()

    def sizes(self) -> str:
        sizes = {group.members for group in self._groups.values() if not group.sized} or {0}
        return f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else str(max(sizes))


def _key(fields: dict[str, Any]) -> tuple[str, int]:
    return fields["instance_id"], int(fields.get("visit") or 0)
