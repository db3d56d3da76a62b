"""The reward over the steps of every run, as a file in the format of its ending, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CALM, KILLED = "#2c7fb8", "#c0392b"
WINDOW = 10  # steps that a point is the mean of


def draw(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for result in results:
        steps, rewards = smooth(result["curve"])
        killed = bool(result["deaths"])
        axes.plot(
            steps, rewards, color=KILLED if killed else CALM, lw=1.2,
            label=f"{result['transport']}, seed {result['seed']}"
            + (", with kills" if killed else ""),
        )
        for death in result["deaths"]:
            if death["who"] == "trainer":
                axes.axvline(death["step"], color=KILLED, lw=0.6, ls=":")
    axes.set_xlabel("step of the trainer")
    axes.set_ylabel("mean reward")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def smooth(curve: list[list[float]]) -> tuple[list[float], list[float]]:
    """Means of windows: a small file, and a readable line."""
    parts = [curve[at : at + WINDOW] for at in range(0, len(curve), WINDOW)]
    return (
        [part[-1][0] for part in parts],
        [sum(point[2] for point in part) / len(part) for part in parts],
    )
