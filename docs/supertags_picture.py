"""Draw supertags at full strength out of a committed table: `python docs/supertags_picture.py`."""

import json
from pathlib import Path
from statistics import mean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TABLE = Path(__file__).resolve().parents[1] / "results" / "full" / "table-4.1.json"
PICTURE = Path(__file__).resolve().parent / "_static" / "supertags.svg"
RAW = "cross-entropy, raw scores"
SHOWN = {  # rows of the table, and their labels
    "more cross-entropy": "more cross-entropy",
    RAW: "cross-entropy, raw scores\n(no training)",
    "direct loss, annealed": "direct loss, local",
    "direct loss, global": "direct loss, global",
    "soft argmax, own predictions fed, raw scores": "own predictions fed,\nraw scores",
    "direct loss, global, after own predictions fed": "the same, then direct\nloss, global",
    "beam-search optimization": "beam-search optimization",
}
PANELS = {  # columns of the table, and their titles
    "hard beam test": "tokens right, beam of 3 (%)",
    "whole sentences test": "whole sentences right (%)",
}


def draw_panel(axes: Axes, column: str, title: str) -> None:
    """Draw a dot for each seed and a bar for the mean; a line at the free baseline."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    for place, name in enumerate(SHOWN):
        values = rows[name][column]
        color = "0.45" if "cross-entropy" in name and "own" not in name else "tab:blue"
        axes.plot(values, [-place] * len(values), "o", color=color, alpha=0.6, markersize=5)
        axes.plot([mean(values)], [-place], "|", color=color, markersize=18, mew=2)
        axes.annotate(
            f"{mean(values):.1f}",
            (max(values), -place),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    axes.axvline(mean(rows[RAW][column]), color="0.8", lw=1, zorder=0)
    axes.set_yticks([-place for place in range(len(SHOWN))], list(SHOWN.values()))
    axes.set_ylim(-len(SHOWN) + 0.4, 0.6)
    axes.margins(x=0.12)
    axes.set_xlabel(title)
    axes.spines[["top", "right"]].set_visible(False)


def draw(out: Path) -> None:
    """Write the picture as SVG, the same bytes every time."""
    with rc_context({"svg.hashsalt": "softbeam", "font.size": 10}):
        chart = Figure(figsize=(8.4, 3.6), layout="constrained", facecolor="white")
        panels = chart.subplots(1, 2, sharey=True)
        for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
            draw_panel(axes, column, title)
        chart.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(PICTURE)
