"""A group of the page: its members with their rewards, and the text of each.

The records come through a tap, which opens with this screen and closes with it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from ..errors import RollringError
from ..view._answers import Answers
from ..view._groups import Groups
from ..view._sources import RingSource
from ..view._text import Tokenizer

KEPT_BYTES = 512 << 20  # of the group's records
SHOWN_TOKENS = 2048  # of a member, at once

Key = tuple[int, int]


class GroupRecords:
    """The records of one group of a ring, as far as they are in memory."""

    def __init__(self, ring: str, key: Key, tokenizer: Tokenizer | None) -> None:
        self._source = RingSource(ring, Groups(1, KEPT_BYTES), only=key)
        self._answers = Answers(self._source, tokenizer)

    def start(self) -> None:
        self._source.start()

    def close(self) -> None:
        self._source.close()

    def members(self) -> list[dict[str, Any]]:
        """Of the group, in order; empty until the first of its records was seen."""
        groups = self._source.groups.all()
        if not groups:
            return []
        found: list[dict[str, Any]] = self._answers.group({"group": groups[-1].name})["members"]
        return found

    def text(self, member: int, sequence: int, begin: int) -> tuple[str, int, int]:
        """Tokens from ``begin`` on, the place after them, and the sequence's number of tokens."""
        (group,) = self._source.groups.all()
        where = {"group": group.name, "member": str(member), "sequence": str(sequence)}
        part = self._answers.slice(where | {"from": str(begin), "to": str(begin + SHOWN_TOKENS)})
        texts = part["texts"]
        text = " ".join(map(str, part["ids"])) if texts is None else "".join(texts)
        return plain_text(text), part["to"], part["tokens"]


def plain_text(text: str) -> str:
    """Without characters that a terminal obeys."""
    return "".join(
        one
        if one.isprintable() or one in "\n\t"
        else f"\N{MATHEMATICAL LEFT ANGLE BRACKET}"
        f"{ord(one):04x}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
        for one in text
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def member_cells(member: dict[str, Any]) -> list[str]:
    low, high = member["version"]
    version = "" if low is None or low < 0 else str(low) if low == high else f"{low} to {high}"
    return [
        str(member["number"]),
        number(member["reward"]),
        number(member["advantage"]),
        f"{member['tokens']:,}",
        member["status"],
        version,
        plain_text(member["producer"])[:20],
        plain_text(member["preview"]).replace("\n", " ")[:60],
    ]


class MemberScreen(ModalScreen[None]):
    """The tokens of a member, a part at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Back"),
        Binding("n", "turn(1)", "Next part"),
        Binding("p", "turn(-1)", "Part before"),
        Binding("s", "sequence", "Next sequence"),
    ]

    def __init__(self, records: GroupRecords, member: dict[str, Any]) -> None:
        super().__init__()
        self.records, self.member = records, member["number"]
        self.sequences: list[int] = member["sequences"]
        self.at = len(self.sequences) - 1
        self.begin = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="opened"):
            yield Static(id="text")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#opened").focus()
        self.show()

    def action_turn(self, parts: int) -> None:
        self.show(self.begin + parts * SHOWN_TOKENS)

    def action_sequence(self) -> None:
        self.at = (self.at + 1) % len(self.sequences)
        self.show()

    def show(self, begin: int = 0) -> None:
        sequence = self.sequences[self.at]
        try:
            text, end, count = self.records.text(self.member, sequence, max(0, begin))
        except RollringError as error:  # replaced by a later attempt
            text, end, count = str(error), 0, 0
        if begin >= count > 0:
            return
        self.begin = max(0, begin)
        self.query_one("#text", Static).update(Text(text))
        opened = self.query_one("#opened")
        whose = f"member {self.member}"
        if len(self.sequences) > 1:
            whose += f", sequence {sequence} of {', '.join(map(str, self.sequences))}"
        opened.border_title = f"{whose}: tokens {self.begin:,} to {end:,} of {count:,}"
        opened.scroll_home(animate=False)


class GroupScreen(ModalScreen[None]):
    """The reason for which a group waits, and its members."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close")]
    COLUMNS = ("member", "reward", "advantage", "tokens", "status", "version", "from", "begins")

    def __init__(self, text: str, records: GroupRecords, every: float) -> None:
        super().__init__()
        self.text, self.records, self.every = text, records, every
        self.shown: list[dict[str, Any]] = []

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="explanation"):
            yield Static(Text(self.text))
            table: DataTable[Text] = DataTable(cursor_type="row", id="members")
            yield table
        yield Footer()

    def on_mount(self) -> None:
        table = self.table()
        table.add_columns(*self.COLUMNS)
        table.border_subtitle = "enter: the member's text"
        table.focus()
        self.records.start()
        self.set_interval(self.every, self.draw)
        self.draw()

    def on_unmount(self) -> None:
        self.records.close()

    def table(self) -> DataTable[Text]:
        return self.query_one("#members", DataTable)

    def draw(self) -> None:
        members = self.records.members()
        if members == self.shown:
            return
        self.shown = members
        table = self.table()
        at = table.cursor_row
        table.clear()
        for member in members:
            table.add_row(*map(Text, member_cells(member)), key=str(member["number"]))
        table.move_cursor(row=at)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        wanted = int(str(event.row_key.value))
        member = next(one for one in self.shown if one["number"] == wanted)
        self.app.push_screen(MemberScreen(self.records, member))
