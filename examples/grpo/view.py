"""The display of a live run: a page on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

import rollring as rr

if TYPE_CHECKING:
    from run import Run

SHADES = " ▁▂▃▄▅▆▇█"
EIGHTH = len(SHADES) - 1  # that many make a full block
CHART_ROWS = 8
RECENT = 20  # rates are means of these steps


def make_view(plain: bool) -> PlainView:
    """By rich, if it is installed and the output is a terminal."""
    if not plain and sys.stdout.isatty():
        try:
            import rich  # noqa: F401
        except ImportError:
            return PlainView()
        return LiveView()
    return PlainView()


def facts(run: Run) -> dict[str, str]:
    """The displayed values, by name."""
    rows = run.steps.rows[-RECENT:]
    if not rows:
        return {"step": f"0 of {run.plan.steps}: torch is being loaded, and no batch has come yet"}
    seconds = rows[-1]["at"] - rows[0]["at"]
    rate = sum(row["tokens"] for row in rows[1:]) / seconds if seconds > 0 else 0.0
    spent = {name: sum(row[name] for row in rows)
             for name in ("waiting", "training", "saving", "publishing")}
    whole = max(1e-9, sum(spent.values()))
    return {
        "step": f"{run.step} of {run.plan.steps}",
        "reward": f"{fmean(row['reward'] for row in rows):.3f}",
        "tokens/s": f"{rate:,.0f}",
        "staleness": f"{fmean(row['lag'] for row in rows):.1f} versions, at most "
                     f"{max(row['lag_most'] for row in rows)}",
        "trainer": ", ".join(f"{name} {part / whole:.0%}" for name, part in spent.items()),
        "version": str(rows[-1]["version"]),
        **transport_facts(run),
        "deaths": ", ".join(f"{d['who']} at step {d['step']}" for d in run.deaths[-4:]) or "none",
    }


def transport_facts(run: Run) -> dict[str, str]:
    """Of the ring, from outside."""
    if run.plan.transport != "ring":
        return {}
    found = rr.stat.stats(run.plan.ring, prefix="")
    groups = rr.stat.stat_stash(run.plan.ring)
    lanes = rr.stat_ring(run.plan.ring)["lanes"]
    return {
        "groups": f"{len(groups['groups'])} wait, {groups['account']['groups']} shipped, "
                  f"{run.groups_dropped + groups['account']['groups_dropped']} dropped",
        "records": f"{found.get('depth_records', 0):,.0f} in lanes, not yet read",
        "stalls": f"{sum(lane['waits'] for lane in lanes):,} times a worker waited for room",
    }


def chart_of(rewards: list[float], steps: int, width: int, height: int) -> list[str]:
    """Columns of blocks from 0 to 1, each the mean of its share of all steps, with axes."""
    columns = max(1, min(steps, width - 5))
    levels = []
    for at in range(columns):
        part = rewards[at * steps // columns : (at + 1) * steps // columns]
        levels.append(round(min(1.0, max(0.0, fmean(part))) * height * EIGHTH) if part else 0)
    lines = []
    for row in reversed(range(height)):
        label = {height - 1: "1.0", 0: "0.0"}.get(row, "")
        blocks = (SHADES[min(EIGHTH, max(0, level - row * EIGHTH))] for level in levels)
        lines.append(f"{label:>3} │" + "".join(blocks).rstrip())
    end = f" {steps} steps"
    return [*lines, "    └" + "─" * max(0, columns - len(end)) + end]


class PlainView:
    """A line every few seconds."""

    EVERY = 5.0

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, run: Run) -> None:
        now = time.monotonic()
        if now < self._next or not run.steps.rows:
            return
        self._next = now + self.EVERY
        found = facts(run)
        parts = [f"{name} {found[name]}" for name in ("step", "reward", "tokens/s", "staleness")]
        print(f"{now - run.began:6.1f} s  " + "  ".join([*parts, f"deaths {len(run.deaths)}"]),
              flush=True)

    def tell(self, result: dict[str, Any]) -> None:
        print(summary(result), flush=True)


class LiveView(PlainView):
    """A page that is redrawn four times a second."""

    EVERY = 0.25

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__()
        self._live = Live(refresh_per_second=4)

    def __enter__(self) -> PlainView:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def show(self, run: Run) -> None:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.EVERY
        width = max(20, self._live.console.width - 4)
        rewards = {row["step"]: row["reward"] for row in run.steps.rows}  # a step's last attempt
        chart = chart_of([*rewards.values()], run.plan.steps, width, CHART_ROWS)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        for name, value in facts(run).items():
            table.add_row(name, value)
        title = (f"GRPO, {run.plan.transport}: seed {run.plan.seed}, "
                 f"{run.plan.workers} workers, {now - run.began:.0f} s")
        curve = Text("\n".join(chart), style="green")
        page = Group(Text("mean reward of a step"), curve, "", table)
        self._live.update(Panel(page, title=title, title_align="left"))

    def tell(self, result: dict[str, Any]) -> None:
        self._live.console.print(summary(result))


def summary(result: dict[str, Any]) -> str:
    """The result of one run, in a few lines."""
    shares = ", ".join(f"{name} {part:.0%}" for name, part in result["trainer_share"].items())
    lines = [
        f"{result['transport']}, seed {result['seed']}: reward {result['reward_start']:.3f} -> "
        f"{result['reward_end']:.3f} ({result['times']:.1f} times; three times after "
        f"{said(result['seconds_to_three_times'])}) in {result['steps']} steps, "
        f"{result['seconds']:.0f} s",
        f"  {result['loop_tokens_per_s']:,.0f} tokens/s through the loop; trainer: {shares}; "
        f"publishing {result['publish_ms']:.1f} ms; staleness {result['lag_mean']:.1f} versions, "
        f"at most {result['lag_most']}",
    ]
    if nodes := result.get("nodes"):
        records = " + ".join(f"{row['records']:,}" for row in nodes)
        lines.append(f"  workers on {len(nodes)} other nodes: {records} records came from there")
    if kills := result["kills"]:
        lines.append(f"  killed: workers {kills['worker']} times, trainer {kills['trainer']} times")
    if proof := result.get("proof"):
        lines.append(
            f"  groups: {proof['sent']:,} sent = {proof['trained']:,} trained + "
            f"{proof['left']:,} left at the end + {proof['dropped']:,} dropped"
            f" + {proof['missing']:,} missing; twice: {len(proof['twice'])}, "
            f"never sent: {len(proof['unknown'])}: "
            + ("it holds" if proof["holds"] else "IT DOES NOT HOLD")
        )
    return "\n".join(lines)


def said(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.0f} s"
