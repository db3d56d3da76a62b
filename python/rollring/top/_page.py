"""The page, drawn by textual."""

from __future__ import annotations

import asyncio
import contextlib
import select
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Sparkline, Static

from ..view._text import Tokenizer
from ._group import GroupScreen
from ._kept import KEEP, KEEP_BYTES, Kept
from ._looks import Look, asked, look_at, short, size, span, tokens_per_second
from ._plain import plain_line, plain_lines

ROWS = 200  # of a table, the first ones in its order
CURVE = 120  # looks that the curve remembers

Row = dict[str, Any]
Order = tuple[str, Callable[[Row], Any]]


def terminal_is_gone() -> bool:
    """Whether the terminal is gone, and the page has no reader. A hang-up signal may be ignored, or
    reach no process (a terminal that was opened by a program); reading then fails at once, again
    and again.
    """
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(sys.__stdin__ or 0, 0)  # hang-ups and errors are told in any case
        return bool(poll.poll(0))
    return True


class Explanation(ModalScreen[None]):
    """The requests of a worker."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,backspace", "dismiss", "Close", key_display="esc"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Static(Text(plain_lines(self.text)), id="explanation")
        yield Footer()


class Table(DataTable[Text]):
    """Rows in one of several orders, which keeps the row that the cursor is on."""

    # Here, for those of the screen and of DataTable are not shown in the footer.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "Next table"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]

    def __init__(self, title: str, columns: list[str], orders: list[Order], **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **options)
        self.title, self.titles, self.orders, self.order = title, columns, orders, 0
        self.shown: dict[str, Row] = {}

    def on_mount(self) -> None:
        self.add_columns(*self.titles)

    def sort_otherwise(self) -> None:
        self.order = (self.order + 1) % len(self.orders)

    def show(self, rows: dict[str, Row], cells: Callable[[Row], list[str]]) -> None:
        name, key = self.orders[self.order]
        there = sorted(rows, key=lambda one: key(rows[one]))[:ROWS]
        at = list(self.shown)[self.cursor_row : self.cursor_row + 1]
        self.shown = {one: rows[one] for one in there}
        self.clear()
        for one in there:
            self.add_row(*(Text(plain_line(cell)) for cell in cells(rows[one])), key=one)
        if at and at[0] in self.shown:
            self.move_cursor(row=there.index(at[0]))
        more = f", the first {ROWS}" if len(rows) > ROWS else ""
        self.border_title = f"{self.title}: {len(rows)}, by {name}{more}"


class ExplainedTable(Table):
    """One whose rows open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
    ]


def lane_cells(lane: Row) -> list[str]:
    return [
        str(lane["lane"]),
        lane["producer"][:20],
        "free (died)" if lane["died"] and lane["state"] == "free" else lane["state"],
        short(lane["depth_records"]),
        size(lane["depth_bytes"]),
        span(lane["oldest_age_s"]),
        short(lane["rate"]),
        short(lane["waits"]),
    ]


def group_cells(group: Row) -> list[str]:
    missing = ",".join(str(one) for one in group["missing"])
    return [
        group["instance_id"][:20],
        group["state"],
        f"{group['complete']}/{group['size']}",
        span(group["unchanged_s"]),
        missing if len(missing) <= 12 else missing[:9] + "...",
        ", ".join(group["producers"]),
    ]


def time_unchanged(group: Row) -> tuple[bool, float]:
    """The groups that wait longest first; then the latest of the finished ones."""
    seconds, finished = group["unchanged_s"] or 0, group["state"] == "finished"
    return finished, seconds if finished else -seconds


def worker_cells(worker: Row) -> list[str]:
    return [
        str(worker["seat"]),
        worker["worker"][:20],
        "alive" if worker["alive"] else "not there",
        short(worker["taken"]),
        span(worker["oldest_s"]),
        short(worker["answered"]),
    ]


def engine_cells(engine: Row) -> list[str]:
    behind = engine["committed"] - engine["live_version"]
    return [
        engine["name"][:20],
        engine["state"] if engine["alive"] else "dead",
        "-" if engine["live_version"] < 0 else str(engine["live_version"]),
        "-" if engine["committed"] < 0 else str(behind),
        engine["problem"],
    ]


class Page(App[None]):
    """A ring, looked at again and again from outside."""

    TITLE = "rollring top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #facts { height: auto; max-height: 8; padding: 0 1; }
    #speed { height: 2; padding: 0 1; }
    #rate { width: 22; }
    #curve { width: 1fr; height: 2; }
    Table { height: 1fr; border-top: solid $primary; }
    #workers, #engines { height: auto; max-height: 6; }
    Explanation { align: center middle; }
    Explanation #explanation { width: 90%; max-height: 85%; height: auto; border: round $primary;
        padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
    ]

    def __init__(
        self,
        name: str,
        every: float = 1.0,
        tokenizer: Tokenizer | None = None,
        keep: int = KEEP,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        super().__init__()
        self.ring_name, self.every, self.tokenizer = name, every, tokenizer
        self.kept = Kept(name, keep, keep_bytes)
        self.groups: dict[str, Row] = {}
        self.paused = self.looking = False
        self.last: Look | None = None
        self.rates: dict[int, float] = {}
        self.history: deque[float] = deque(maxlen=CURVE)

    def compose(self) -> ComposeResult:
        yield Static(id="facts")
        with Horizontal(id="speed"):
            yield Static(id="rate")
            yield Sparkline([], id="curve")
        yield Table(
            "lanes",
            ["lane", "producer", "state", "waiting", "pinned", "oldest", "tokens/s", "waits"],
            [
                ("number", lambda lane: lane["lane"]),
                ("tokens/s", lambda lane: -lane["rate"]),
                ("bytes pinned", lambda lane: -lane["depth_bytes"]),
                ("age", lambda lane: -(lane["oldest_age_s"] or 0)),
            ],
            id="lanes",
        )
        yield ExplainedTable(
            "groups",
            ["group", "state", "there", "unchanged", "missing", "from"],
            [
                ("time unchanged", time_unchanged),
                ("name", lambda group: group["instance_id"]),
                ("members there", lambda group: -group["complete"]),
                ("state", lambda group: group["state"]),
            ],
            id="groups",
        )
        yield ExplainedTable(
            "workers",
            ["seat", "worker", "state", "requests", "oldest", "answered"],
            [
                ("seat", lambda worker: worker["seat"]),
                ("time since the request", lambda worker: -(worker["oldest_s"] or 0)),
                ("requests answered", lambda worker: -worker["answered"]),
            ],
            id="workers",
        )
        yield Table(
            "engines",
            ["engine", "state", "serves", "behind", "problem"],
            [
                ("name", lambda engine: engine["name"]),
                ("version", lambda engine: engine["live_version"]),
            ],
            id="engines",
        )
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#groups").border_subtitle = "enter: members"
        self.query_one("#workers").border_subtitle = "enter: explain"
        self.query_one("#groups").focus()  # whose rows open
        if not self.is_headless:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.end_by, number)
        self.kept.start()
        self.set_interval(self.every, self.look)
        self.look()

    def on_unmount(self) -> None:
        self.kept.close()

    def end_by(self, number: int) -> None:
        """As the signal does, but with the terminal as it was."""
        self.exit(return_code=128 + number)

    def action_interrupt(self) -> None:
        self.end_by(signal.SIGINT)

    def look(self) -> None:
        if not self.is_headless:
            if terminal_is_gone():
                self.exit(return_code=1)
            self.follow_window()
        if not self.paused and not self.looking:
            self.looking = True
            self.look_beside()

    def follow_window(self) -> None:
        """The signal of another size can get lost while the page is busy."""
        there = Size(*shutil.get_terminal_size())
        if there != self.screen.size:
            self.post_message(Resize(there, there))

    @work(thread=True)
    def look_beside(self) -> None:
        """In a thread: a stopped publisher makes it wait."""
        found = look_at(self.ring_name)
        groups = self.kept.rows(found)
        self.call_from_thread(self.take, found, groups)

    def take(self, found: Look, groups: dict[str, Row]) -> None:
        self.looking = False
        if found.ring.get("created_ns") != (self.last.ring if self.last else {}).get("created_ns"):
            self.history.clear()  # another ring
        self.rates = tokens_per_second(self.last, found)
        if self.rates:
            self.history.append(sum(self.rates.values()))
        self.last, self.groups = found, groups
        self.draw()

    def draw(self) -> None:
        """Shows the last look once more."""
        # A look that comes back while the page is taken down finds nothing to draw on.
        if self.last is None or not self.query("#facts"):
            return
        facts = plain_lines(facts_of(self.ring_name, self.last))
        self.query_one("#facts", Static).update(Text(facts))
        rate = f"{short(sum(self.rates.values()))} tokens/s"
        self.query_one("#rate", Static).update(Text(rate + ("\nPAUSED" if self.paused else "")))
        self.query_one("#curve", Sparkline).data = list(self.history)
        lanes = {
            str(lane["lane"]): {**lane, "rate": self.rates.get(lane["lane"], 0.0)}
            for lane in self.last.lanes
        }
        self.query_one("#lanes", Table).show(lanes, lane_cells)
        self.query_one("#groups", Table).show(self.groups, group_cells)
        workers = {str(worker["seat"]): worker for worker in self.last.requests.get("workers", [])}
        table = self.query_one("#workers", Table)
        table.display = bool(workers)
        table.show(workers, worker_cells)
        engines = {
            f"{rank['rank']} {number}": {**engine, "committed": rank["committed_version"]}
            for rank in self.last.publishers
            for number, engine in enumerate(rank.get("engines", []))
        }
        table = self.query_one("#engines", Table)
        table.display = bool(self.last.publishers)
        table.show(engines, engine_cells)

    def action_pause(self) -> None:
        self.paused = not self.paused
        self.draw()

    def action_sort(self) -> None:
        if isinstance(self.focused, Table):
            self.focused.sort_otherwise()
            self.draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        table = event.data_table
        if not isinstance(table, Table) or self.last is None:
            return
        row = table.shown.get(str(event.row_key.value))
        if row is not None and table.id == "groups":
            name = str(event.row_key.value)
            self.push_screen(
                GroupScreen(
                    self.kept, row, lambda: self.groups.get(name), self.tokenizer, self.every
                )
            )
        elif row is not None and table.id == "workers":
            self.push_screen(Explanation(asked(row, self.last.requests["under_way"])))


def version_text(version: int) -> str:
    return "none" if version < 0 else str(version)


def facts_of(name: str, look: Look) -> str:
    """The lines above the tables."""
    if not look.ring:
        return f"{name}: {look.problem}"
    ring, stash = look.ring, look.stash
    alive = sum(lane["alive"] for lane in look.lanes)
    died = sum(lane["died"] for lane in look.lanes)
    consumer = f"alive (pid {ring['consumer_pid']})" if ring["consumer_alive"] else "not there"
    pinned = sum(lane["depth_bytes"] for lane in look.lanes)
    account = stash["account"]
    dropped = ", ".join(
        f"{reason} {amount['records']}"
        for reason, amount in account["dropped"].items()
        if amount["records"]
    )
    lines = [
        f"{name}: consumer {consumer}; producers {alive} alive, {died} died, of "
        f"{ring['lane_count']} lanes",
        f"pinned {size(pinned)}, reserved {size(ring['resident_bytes'])}; policy version "
        f"{version_text(ring['policy_version'])}, last step "
        f"{version_text(ring['last_acked_step'])}",
        f"records shipped {short(account['shipped']['records'])}, held "
        f"{short(account['held']['records'])}, dropped: {dropped or 'none'}",
    ]
    if stash["latest_batch"]["sequences"]:
        lines.append(batch_line(stash["latest_batch"]))
    if look.requests["used"]:
        lines.append(requests_line(look.requests))
    for rank in look.publishers:
        lines.append(publisher_line(rank))
    if look.problem:
        lines.append(look.problem)
    return "\n".join(lines)


def batch_line(batch: dict[str, Any]) -> str:
    reward = batch["mean_reward"]
    return (
        f"latest batch: {batch['sequences']:,} sequences, mean length "
        f"{short(batch['tokens'] / batch['sequences'])} tokens, mean reward "
        f"{'-' if reward is None else f'{reward:.3f}'}"
    )


def requests_line(requests: dict[str, Any]) -> str:
    text = f"requests: {short(requests['waiting'])} wait"
    if requests["oldest_waiting_s"] is not None:
        text += f" (the oldest {span(requests['oldest_waiting_s'])})"
    text += f", {short(requests['taken'])} taken, {short(requests['answered'])} answered"
    for key, name in (("given_up", "given up"), ("withdrawn", "withdrawn")):
        if requests[key]:
            text += f", {short(requests[key])} {name}"
    return text if requests["board_alive"] else text + "; no poster is alive"


def publisher_line(rank: dict[str, Any]) -> str:
    text = (
        f"weights, rank {rank['rank']}: {rank['state']}, committed "
        f"{version_text(rank['committed_version'])}"
    )
    if rank["syncs"]:
        times = ", ".join(f"{key} {span(rank['last_sync'][key])}" for key in ("put", "staged"))
        text += f"; last sync: {times}"
    return text
