"""Draw the README's picture out of two committed results: `python docs/first_picture.py`."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parents[1] / "results"
PICTURE = Path(__file__).resolve().parent / "_static" / "first-picture.svg"
TRAINING = {  # rows of Table 4.1
    "cross-entropy": "cross-entropy",
    "more cross-entropy": "as much more\ncross-entropy",
    "direct loss, annealed": "direct loss on\nthe soft beam",
}
SAMPLERS = {  # of Table 6.2: label, color, height of the label
    "local": ("Metropolis–Hastings", "tab:blue", 13),
    "Gibbs": ("accept every proposal", "tab:red", 75),
}
TEMPERATURES = ("0.5", "0.8", "1", "1.5", "2")


def rows(table: str) -> dict[str, Any]:
    """Return the rows of a committed table: lists of values, one for each seed."""
    record: dict[str, Any] = json.loads((RESULTS / f"{table}.json").read_text(encoding="utf-8"))
    return record["rows"]


def draw_training(axes: Axes) -> None:
    """Draw a supertagger's test accuracy with beam 3: a dot for each seed, a bar for the mean."""
    values = [rows("table-4.1")[name]["hard beam test"] for name in TRAINING]
    for place, accuracies in enumerate(values):
        color = "tab:blue" if place == len(values) - 1 else "0.45"
        axes.plot(accuracies, [-place] * len(accuracies), "o", color=color, alpha=0.6)
        axes.plot([mean(accuracies)], [-place], "|", color=color, markersize=22, mew=2)
        axes.text(max(accuracies) + 0.3, -place, f"{mean(accuracies):.1f}", va="center")
    axes.set_yticks([-place for place in range(len(values))], list(TRAINING.values()))
    axes.set_ylim(-len(values) + 0.4, 0.6)
    axes.set_xlim(65.5, 73.5)
    axes.set_xlabel("test accuracy, beam of 3 (%)")
    axes.set_title("Training through the beam: supertags", loc="left")


def draw_sampling(axes: Axes) -> None:
    """Draw errors of sampled transcriptions against the temperature of the proposals."""
    for sampler, (label, color, height) in SAMPLERS.items():
        errors = [
            mean(rows("table-6.2")[f"T={t}, {sampler}"]["token error rate"]) for t in TEMPERATURES
        ]
        axes.plot([float(t) for t in TEMPERATURES], errors, "o-", color=color)
        axes.text(2.06, errors[-1], f"{errors[-1]:.1f}", va="center")
        axes.text(2, height, label, color=color, ha="right", va="center")
    axes.set_xlim(0.4, 2.3)
    axes.set_ylim(0, 82)
    axes.set_xlabel("temperature of the proposals")
    axes.set_ylabel("phoneme errors (%)")
    axes.set_title("Sampling from a masked LM: phonemes", loc="left")


def draw(out: Path) -> None:
    """Write the picture as SVG, the same bytes every time."""
    with rc_context({"svg.hashsalt": "softbeam", "font.size": 10}):
        chart = Figure(figsize=(8.4, 2.9), layout="constrained", facecolor="white")
        left, right = chart.subplots(1, 2)
        draw_training(left)
        draw_sampling(right)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        chart.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(PICTURE)
