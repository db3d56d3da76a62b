"""The answers of the page's server, as data for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import __version__
from ..errors import InvalidArgumentError, NotFoundError
from ..rollouts import images_of
from ._groups import Group, Groups, Member
from ._images import shown_image
from ._query import chosen, paged
from ._rollout import Rollout, plain
from ._sources import Source
from ._summary import distributions
from ._text import Tokenizer, pieces

SLICE = 4_096  # tokens of an answer, at most
PREVIEW = 160  # tokens of a member among others
TURNS = 5_000
FOUND = 1_000
CUT = 4_000  # characters of a field

Query = Mapping[str, str]


class Answers:
    def __init__(self, source: Source, tokenizer: Tokenizer | None) -> None:
        self._source = source
        self._groups: Groups = source.groups
        self.kept = source.groups
        self._tokenizer = tokenizer
        self.paths = {
            "/api/state": self.state,
            "/api/groups": self.groups,
            "/api/group": self.group,
            "/api/slice": self.slice,
            "/api/turns": self.turns,
            "/api/find": self.find,
            "/api/image": self.image,
            "/api/distributions": self.distributions,
        }

    def state(self, query: Query) -> dict[str, Any]:
        groups, source = self._groups, self._source
        with groups.lock:
            return {
                "version": __version__,
                "kind": source.kind,
                "name": source.name,
                "problem": source.problem,
                "decoded": self._tokenizer is not None,
                "revision": groups.revision,
                "rollouts": groups.rollouts,
                "seen": groups.seen,
                "kept": groups.seen - groups.dropped,
                "bytes": groups.nbytes,
                "latest_version": groups.latest_version,
                **source.facts(),
            }

    def groups(self, query: Query) -> dict[str, Any]:
        """Groups that pass the filters; none if the page has this ``revision``."""
        with self._groups.lock:
            revision = self._groups.revision
            if query.get("revision") == str(revision):
                return {"revision": revision, "same": True}
            # The state of all groups would take most of the time, and only a filter needs it.
            groups = self._groups.all()
            whole = bool(query.get("state"))
            lines = [self._line(group) if whole else group.summed() for group in groups]
            matched = chosen(lines, query)
            offset, page = paged(matched, query)
            if not whole:
                page = [self._line(self._group({"group": line["id"]})) for line in page]
        return {
            "revision": revision,
            "total": len(lines),
            "matched": len(matched),
            "offset": offset,
            "groups": page,
            "environments": sorted({line["environment"] for line in lines})[:100],
            "statuses": sorted({status for line in lines for status in line["statuses"]}),
        }

    def _line(self, group: Group) -> dict[str, Any]:
        return group.summed() | self._source.state_of(group)

    def _group(self, query: Query) -> Group:
        found = self._groups.get(query.get("group", ""))
        if found is None:
            raise NotFoundError(
                "this group is not kept (any more): the page keeps the latest ones (--keep)",
                "not_found",
            )
        return found

    def _sequence(self, query: Query) -> tuple[Group, Member, Rollout]:
        group = self._group(query)
        with self._groups.lock:
            member = group.members.get(_whole(query, "member"))
            if member is None:
                raise NotFoundError("this group has no such member", "not_found")
            index = _whole(query, "sequence", -1)
            rollout = member.last if index < 0 else member.sequences.get(index)
        if rollout is None:
            raise NotFoundError("this member has no such sequence", "not_found")
        if _whole(query, "serial", rollout.serial) != rollout.serial:
            raise NotFoundError(
                "this record was replaced by another one of its member", "not_found"
            )
        return group, member, rollout

    def group(self, query: Query) -> dict[str, Any]:
        group = self._group(query)
        with self._groups.lock:
            line = self._line(group)
            members, weights = group.in_order(), group.advantages()
        made = {
            "instance_id": group.first.instance_id[:CUT],
            "members": [
                self._member(member, weight)
                for member, weight in zip(members, weights, strict=True)
            ],
        }
        return {"group": line, **made}

    def _member(self, member: Member, advantage: float | None) -> dict[str, Any]:
        last = member.last
        begin = int(last.fields["n_prompt"] or 0)
        ids = last.ids[begin : begin + PREVIEW].tolist()
        texts = pieces(self._tokenizer, ids, 0, len(ids))
        return {
            "number": member.number,
            "attempt": member.attempt,
            "sequences": sorted(member.sequences),
            "reward": plain(member.reward),
            "advantage": advantage,
            "tokens": member.tokens,
            "status": str(last.fields["status"]),
            "producer": last.producer,
            "version": [last.fields["policy_version_min"], last.fields["policy_version_max"]],
            "preview": "".join(texts) if texts is not None else " ".join(map(str, ids)),
        }

    def slice(self, query: Query) -> dict[str, Any]:
        """Tokens [from, to) of a sequence, with their text and the columns to colour by.

        Here, in `find` and in `image`, a ``serial`` that `turns` gave refuses another record in its
        place.
        """
        _, _, rollout = self._sequence(query)
        count = len(rollout.ids)
        begin = min(max(0, _whole(query, "from", 0)), count)
        end = min(max(begin, _whole(query, "to", count)), count, begin + SLICE)
        before = max(0, begin - 64)
        ids = rollout.ids[before:end].tolist()
        texts = pieces(self._tokenizer, ids, begin - before, len(ids))
        return {
            "from": begin,
            "to": end,
            "tokens": count,
            "ids": ids[begin - before :],
            "texts": texts,
            "values": {
                name: plain(column[begin:end]) for name, column in rollout.per_token().items()
            },
        }

    def turns(self, query: Query) -> dict[str, Any]:
        """A sequence's fields, its columns, and its runs of equal loss mask."""
        group, member, rollout = self._sequence(query)
        with self._groups.lock:
            advantage = dict(zip(sorted(group.members), group.advantages(), strict=True))
            sequences, members = sorted(member.sequences), sorted(group.members)
        columns = rollout.per_token()
        runs = rollout.turns()
        ranges = {
            name: [float(finite.min()), float(finite.max())]
            for name, column in columns.items()
            if len(finite := column[np.isfinite(column.astype(np.float64))])
        }
        return {
            "serial": rollout.serial,
            "sequences": sequences,
            "members": members,
            "images": len(images_of(rollout.columns.get("images"))),
            "tokens": len(rollout.ids),
            "n_prompt": rollout.fields["n_prompt"] or 0,
            "sequence": rollout.fields["subsequence_index"] or 0,
            "advantage": advantage[member.number],
            "fields": {
                name: plain(value) for name, value in rollout.fields.items() if value is not None
            },
            "columns": {name: _described(value) for name, value in rollout.columns.items()},
            "ranges": ranges,
            "turns": runs[:TURNS],
            "all_turns": len(runs),
        }

    def image(self, query: Query) -> dict[str, Any]:
        """An image of a sequence, by its ``index``."""
        _, _, rollout = self._sequence(query)
        return shown_image(rollout, _whole(query, "index", 0))

    def find(self, query: Query) -> dict[str, Any]:
        """Tokens at which a text begins, or an ID where there is no tokenizer."""
        _, _, rollout = self._sequence(query)
        wanted = query.get("text", "")
        if not wanted:
            return {"at": []}
        ids = rollout.ids
        if self._tokenizer is None:
            try:
                number = int(wanted)
            except ValueError:
                raise InvalidArgumentError(
                    "without --tokenizer, search for the number of a token"
                ) from None
            there = abs(number) < 1 << 31
            return {"at": np.flatnonzero(ids == number)[:FOUND].tolist() if there else []}
        texts = pieces(self._tokenizer, ids.tolist(), 0, len(ids)) or []
        texts, wanted = [_lower(text) for text in texts], _lower(wanted)
        whole, ends = "".join(texts), np.cumsum([len(text) for text in texts])
        at: list[int] = []
        place = whole.find(wanted)
        while place >= 0 and len(at) < FOUND:
            at.append(int(np.searchsorted(ends, place, "right")))
            place = whole.find(wanted, place + 1)
        return {"at": at}

    def distributions(self, query: Query) -> dict[str, Any]:
        return distributions(self._groups, self._source, query.get("axis", ""))


def _whole(query: Query, name: str, otherwise: int | None = None) -> int:
    text = query.get(name, "")
    if not text and otherwise is not None:
        return otherwise
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"{name} is a whole number, not '{text[:40]}'") from None


def _lower(text: str) -> str:
    """By characters: a token's text becomes the same as it does within the whole text."""
    return text.lower() if text.isascii() else "".join(map(str.lower, text))


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    text = str(plain(value))
    return text if len(text) <= CUT else text[:CUT] + "\N{HORIZONTAL ELLIPSIS}"
