"""A member's text, of any length: the widget lays out the visible lines, and a few pages more."""

from __future__ import annotations

from time import perf_counter

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ._plain import plain_line
from ._wrap import Pieces, Wrapped

SLICE_S = 0.008  # of work between two looks at the keys
TITLE_S = 0.2  # between two of its titles while it works
AHEAD = 2  # pages
BAR = "\N{BOX DRAWINGS HEAVY VERTICAL} "
GIVEN, TRAINED = Style(dim=True), Style(color="green")


class TextPane(ScrollView, can_focus=False):
    """Lines of tokens, or a message in their place."""

    DEFAULT_CSS = """
    TextPane { height: 1fr; scrollbar-size: 0 0; border-top: solid $primary; }
    """

    def __init__(self, **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._tokens: Pieces | None = None
        self._wrapped: Wrapped | None = None
        self._whose = self._message = ""
        self._goal: int | None = None  # a token that is to be the first one shown
        self._goal_line: int | None = None  # the same, of a line
        self._busy = self._waits = False  # in a slice of work; until the next one
        self._title_at = 0.0  # when its progress is to be told

    def show(self, tokens: Pieces, whose: str) -> None:
        self._tokens, self._message = tokens, ""
        self._goal_line = None
        self.name_it(whose)
        self._lay_out()

    def say(self, message: str, whose: str) -> None:
        if (message, whose) == (self._message, self._whose):
            return
        self._tokens = self._wrapped = self._goal = self._goal_line = None
        self._message = plain_line(message)
        self.virtual_size = Size(self.size.width, 1)
        self.name_it(whose)
        self.scroll_home(animate=False)
        self.refresh()

    def name_it(self, whose: str) -> None:
        self._whose = whose
        self._title()

    def page(self, pages: int) -> None:
        self.line(pages * max(1, self.size.height - 1))

    def line(self, lines: int) -> None:
        """Scrolls as soon as the lines are laid out: no key is lost."""
        at = self.scroll_offset.y if self._goal_line is None else self._goal_line
        self._goal, self._goal_line = None, max(0, at + lines)
        self._work()

    def turn(self, step: int) -> None:
        if self._tokens is not None and self._wrapped is not None:
            top = self._goal if self._goal is not None else self._top_token()
            token = self._tokens.turn_from(top, step)
            if token is not None:
                self._go_to(token)

    def home(self) -> None:
        self._go_to(0)

    def end(self) -> None:
        if self._tokens is not None:
            self._go_to(len(self._tokens))

    def on_resize(self, event: events.Resize) -> None:
        width = self.size.width - len(BAR)
        if self._tokens is not None and (self._wrapped is None or self._wrapped.width != width):
            top = self._goal if self._goal is not None else self._top_token()
            self._lay_out(top)
        else:
            self._work()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._work()

    def _lay_out(self, goal: int = 0) -> None:
        if self._tokens is None or self.size.width == 0:  # its size is told later
            return
        self._wrapped = Wrapped(self._tokens, self.size.width - len(BAR))
        self._goal = None
        self.virtual_size = Size(self.size.width, 0)
        self.scroll_to(y=0, animate=False, force=True, immediate=True)
        if self._goal_line is None:
            self._goal = goal
        self._work()

    def _go_to(self, token: int) -> None:
        self._goal, self._goal_line = token, None
        self._work()

    def _wants_more(self) -> bool:
        laid = self._wrapped
        if laid is None or laid.complete:
            return False
        if self._goal is not None and laid.done <= self._goal:
            return True
        first = self.scroll_offset.y if self._goal_line is None else self._goal_line
        if self._goal is not None:
            first = laid.line_of(self._goal)
        return len(laid.lines) < first + (AHEAD + 1) * self.size.height

    def _work(self) -> None:
        """A slice of it; the rest comes after the keys that were pressed meanwhile."""
        laid = self._wrapped
        if self._busy or laid is None:
            return
        self._busy = True
        end = perf_counter() + SLICE_S
        while self._wants_more() and perf_counter() < end:
            laid.more()
        if self._wants_more():
            self._go_on()
        else:
            self._arrive(laid)
        self._busy = False

    def _go_on(self) -> None:
        """Later, without painting: that takes longer than a slice."""
        if perf_counter() >= self._title_at:
            self._title()
        if not self._waits:
            self._waits = True
            self.set_timer(0.001, self._next_slice)

    def _next_slice(self) -> None:
        self._waits = False
        self._work()

    def _arrive(self, laid: Wrapped) -> None:
        self.virtual_size = Size(self.size.width, len(laid.lines))
        line = self._goal_line if self._goal is None else laid.line_of(self._goal)
        self._goal = self._goal_line = None
        if line is not None:
            self.scroll_to(y=line, animate=False, force=True, immediate=True)
        self._title()
        self.refresh()

    def _top_token(self) -> int:
        lines = self._wrapped.lines if self._wrapped is not None else []
        at = self.scroll_offset.y
        return lines[at].token if at < len(lines) else 0

    def _title(self) -> None:
        laid, self._title_at = self._wrapped, perf_counter() + TITLE_S
        if self._tokens is None or laid is None:
            self.border_title = self._whose
            return
        count = len(self._tokens)
        below = self.scroll_offset.y + self.size.height
        end = laid.lines[below].token if below < len(laid.lines) else laid.done
        self.border_title = f"{self._whose}: tokens {self._top_token():,} to {end:,} of {count:,}"
        if self._goal is not None and not laid.complete:
            self.border_title += f", decoding, {100 * laid.done // max(1, count)} %"

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        at = self.scroll_offset.y + y
        lines = self._wrapped.lines if self._wrapped is not None else []
        if self._message:
            return Strip([Segment(self._message if y == 0 else "", base)]).adjust_cell_length(
                width, base
            )
        if at >= len(lines):
            return Strip.blank(width, base)
        line = lines[at]
        style = base + (TRAINED if line.trained else GIVEN)
        bar = BAR if line.trained else " " * len(BAR)
        return Strip([Segment(bar, style), Segment(line.text, style)]).adjust_cell_length(
            width, base
        )
