"""Draw what training for the search gains, by the gap that it could close, from a committed table.

`python docs/gains_picture.py`
"""

import json
from pathlib import Path
from statistics import mean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TABLE = Path(__file__).resolve().parents[1] / "results" / "full" / "gains.json"
PICTURE = Path(__file__).resolve().parent / "_static" / "gains.svg"
MORE, MORE_GREEDY = "more training", "more training, greedy"
TREATMENTS = {  # column of the table: its control, label, color, marker
    "own predictions fed, greedy": (MORE_GREEDY, "own predictions fed, greedy", "tab:green", "s"),
    "locally normalized": (MORE, "direct loss, local", "tab:blue", "o"),
    "globally normalized": (MORE, "direct loss, global", "tab:purple", "^"),
    "beam-search optimization": (MORE, "beam-search optimization", "tab:orange", "D"),
}
Row = dict[str, list[float | None]]


def gain(row: Row, column: str, control: str) -> float | None:
    """Return the mean difference to the control over seeds; None if one has no figure."""
    pairs = zip(row.get(column, []), row.get(control, []), strict=False)
    gaps = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    return mean(gaps) if gaps else None


def draw_gains(axes: Axes, rows: dict[str, Row]) -> None:
    """Draw each task at its gap: a mark for the gain of each treatment over its control."""
    tasks = {
        name: mean(gap for gap in row["gap"] if gap is not None)
        for name, row in rows.items()
        if any(gap is not None for gap in row.get("gap", []))
    }
    for column, (control, label, color, marker) in TREATMENTS.items():
        points = [(gap, gain(rows[name], column, control)) for name, gap in tasks.items()]
        found = [(gap, y) for gap, y in points if y is not None]
        axes.plot(*zip(*found, strict=True), marker, color=color, label=label, markersize=7)
    top = axes.get_ylim()[1]
    for name, gap in tasks.items():
        axes.axvline(gap, color="0.9", lw=1, zorder=0)
        label = f"{name}\n(gap {gap:.1f})"
        axes.text(gap, top, label, ha="center", va="bottom", fontsize=8, linespacing=1.3)
    axes.axhline(0, color="0.6", lw=1, zorder=0)
    axes.margins(x=0.15)
    axes.set_xlabel("points lost by own errors: accuracy after gold less accuracy after own labels")
    axes.set_ylabel("gain over as much more\ncross-entropy (points)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)


def draw(out: Path) -> None:
    """Write the picture as SVG, the same bytes every time."""
    rows: dict[str, Row] = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    with rc_context({"svg.hashsalt": "softbeam", "font.size": 10}):
        chart = Figure(figsize=(8.4, 3.8), layout="constrained", facecolor="white")
        draw_gains(chart.subplots(), rows)
        chart.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(PICTURE)
