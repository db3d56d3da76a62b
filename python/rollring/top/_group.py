"""A group of the page: its members with their rewards, and the text of one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from ..view._text import Tokenizer
from ._kept import Kept, Row
from ._looks import explained
from ._members import COLUMNS, GONE, MemberRow, member_rows
from ._pane import TextPane
from ._plain import plain_lines
from ._wrap import Pieces


class Reading(NamedTuple):
    """The record whose text is shown. No other record has its serial."""

    member: int
    sequence: int
    serial: int


class Members(DataTable[Text], can_focus=False):
    """The screen has the keys, so that all of them work wherever one looks."""


class GroupScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "member(1)", "Next member"),
        Binding("up,k", "member(-1)", "Member before", show=False),
        Binding("space,pagedown", "page(1)", "Page on"),
        Binding("pageup", "page(-1)", "Page back", show=False),
        Binding("home", "end_of_text(-1)", "Beginning", show=False),
        Binding("end", "end_of_text(1)", "End", show=False),
        Binding("n", "turn(1)", "Next turn"),
        Binding("p", "turn(-1)", "Turn before", show=False),
        Binding("s", "sequence", "Sequence"),
        Binding("enter", "alone", "Text alone"),
        Binding("escape,q,backspace", "back", "Back", key_display="esc"),
    ]
    CSS = """
    #explanation { height: auto; max-height: 30%; padding: 0 1; }
    #members { height: auto; max-height: 40%; border-top: solid $primary; }
    """

    def __init__(
        self,
        kept: Kept,
        row: Row,
        latest: Callable[[], Row | None],
        tokenizer: Tokenizer | None,
        every: float,
    ) -> None:
        super().__init__()
        self.kept, self.row, self.latest = kept, row, latest
        self.tokenizer, self.every = tokenizer, every
        self.name_kept = ""
        self.alone = False  # the text, without the members
        self.shown: list[MemberRow] = []
        self.reading: Reading | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="explanation")
        yield Members(cursor_type="row", zebra_stripes=True, id="members")
        yield TextPane(id="text")
        yield Footer()

    def on_mount(self) -> None:
        self.table().add_columns(*COLUMNS)
        self.set_interval(self.every, self.draw)
        self.draw()

    def on_unmount(self) -> None:
        self.kept.hold("")

    def table(self) -> Members:
        return self.query_one("#members", Members)

    def pane(self) -> TextPane:
        return self.query_one("#text", TextPane)

    def draw(self) -> None:
        """Shows the group as it is now."""
        latest = self.latest()
        self.row = latest if latest is not None else self.row | {"state": GONE, "missing": []}
        if self.row["kept"] != self.name_kept:
            self.name_kept = self.row["kept"]
            self.kept.hold(self.name_kept)
        groups = self.kept.groups
        with groups.lock:
            rows = member_rows(groups.get(self.name_kept), self.row)
        lines = plain_lines(explained(self.row)).replace("\n\n", "\n")
        self.query_one("#explanation", Static).update(Text(lines))
        self._fill(rows)
        self.read()

    def _fill(self, rows: list[MemberRow]) -> None:
        table = self.table()
        before, self.shown = self.shown, rows
        if [one.number for one in before] == [one.number for one in rows]:
            for at, (old, new) in enumerate(zip(before, rows, strict=True)):
                for column, cell in enumerate(new.cells):
                    if cell != old.cells[column]:
                        table.update_cell_at(Coordinate(at, column), Text(cell), update_width=True)
            return
        selected = before[table.cursor_row].number if before else None
        table.clear()
        for row in rows:
            table.add_row(*map(Text, row.cells))
        numbers = [one.number for one in rows]
        if selected in numbers:
            table.move_cursor(row=numbers.index(selected))

    def selected(self) -> MemberRow | None:
        at = self.table().cursor_row
        return self.shown[at] if 0 <= at < len(self.shown) else None

    def read(self, wanted: int | None = None) -> None:
        """Shows the selected member's text: of the sequence that is read, or is wanted now."""
        member, pane = self.selected(), self.pane()
        if member is None or not member.sequences:
            self.reading = None
            pane.say(absence(member), f"member {member.number}" if member is not None else "")
            return
        there = sorted(member.sequences)
        old = self.reading if self.reading and self.reading.member == member.number else None
        sequence = there[-1] if old is None else old.sequence
        if wanted is not None:
            sequence = wanted
        whose = f"member {member.number}"
        if len(there) > 1:
            whose += f", sequence {sequence} of {', '.join(map(str, there))}"
        rollout = member.sequences.get(sequence)
        if old is not None and wanted is None:
            if rollout is None or rollout.serial != old.serial:
                by = f"attempt {member.attempt}"
                pane.say(f"this record is gone: {by} has taken its place (s shows it)", whose)
            else:
                pane.name_it(whose)
        elif rollout is not None:
            self.reading = Reading(member.number, sequence, rollout.serial)
            pane.show(Pieces(rollout, self.tokenizer), whose)

    def action_member(self, step: int) -> None:
        if self.alone:
            self.pane().line(step)
            return
        table = self.table()
        table.move_cursor(row=min(max(0, table.cursor_row + step), max(0, len(self.shown) - 1)))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        member = self.selected()  # rows may have moved since the event was sent
        if self.reading is None or member is None or self.reading.member != member.number:
            self.read()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()

    def action_page(self, pages: int) -> None:
        self.pane().page(pages)

    def action_end_of_text(self, end: int) -> None:
        if end > 0:
            self.pane().end()
        else:
            self.pane().home()

    def action_turn(self, step: int) -> None:
        self.pane().turn(step)

    def action_sequence(self) -> None:
        """The next one, or the record that has taken the place of the one that was read."""
        member = self.selected()
        if member is None or not member.sequences:
            return
        there = sorted(member.sequences)
        old = self.reading
        if old is None or old.sequence not in there:
            self.read(there[-1])
        elif member.sequences[old.sequence].serial != old.serial:
            self.read(old.sequence)
        else:
            self.read(there[(there.index(old.sequence) + 1) % len(there)])

    def action_alone(self) -> None:
        self.alone = not self.alone
        self.table().display = self.query_one("#explanation").display = not self.alone

    def action_back(self) -> None:
        if self.alone:
            self.action_alone()
        else:
            self.dismiss()


def absence(member: MemberRow | None) -> str:
    """Why there is no text of it."""
    if member is None:
        return "no record of this group was read yet"
    why = member.cells[COLUMNS.index("status")]
    if why == "missing":
        return "it has not come yet"
    if why == GONE:
        return "gone: it was released before this page came to it, or it never came"
    return "not read yet"
