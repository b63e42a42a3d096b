"""Which law does each sampler draw from? Errors against rows of the model, corrected and not."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from softbeam.reports.charts import color_of, figure_of, image
from softbeam.runtime.files import write_atomic
from softbeam.runtime.text_tables import aligned
from softbeam.sampling.audit import LARGEST_TABLE, audit
from softbeam.sampling.correcting import corrected
from softbeam.sampling.oracles import Oracle
from softbeam.sampling.unmasking import NAMES


class Point(NamedTuple):
    """The error of a sampler with a number of steps, and of passes that correct it."""

    sampler: str
    steps: int
    passes: int
    rows: float  # of the model, for a text
    error: float
    floor: float  # the error of exact draws
    holds: bool


def measure(
    oracle: Oracle,
    *,
    steps: Sequence[int],
    passes: int,
    stride: int,
    draws: int,
    seed: int,
) -> list[Point]:
    """Audit every named sampler with each number of steps, alone and corrected.

    The error is the total variation if all texts can be counted, else that of pairs of neighbours.
    """
    name = "total variation" if oracle.vocab**oracle.time <= LARGEST_TABLE else "pairs"
    points = []
    for sampler, make in NAMES.items():
        for number in steps:
            for more in (0, passes):
                fill = make(number)
                if more:
                    fill = corrected(fill, oracle.energy, passes=more, stride=stride)
                result = audit(fill, oracle, draws=draws, seed=seed)
                figure = next(each for each in result.figures if each.name == name)
                what = (sampler, number, more, result.rows, figure.value, figure.floor)
                points.append(Point(*what, result.holds))
    return points


def as_text(points: Sequence[Point]) -> str:
    """Write the points as a table."""
    head = ["sampler", "steps", "passes", "rows", "error", "law"]
    rows = [
        [p.sampler, f"{p.steps}", f"{p.passes}", f"{p.rows:.1f}", f"{p.error:.4f}"]
        + ["of the model" if p.holds else "ANOTHER"]
        for p in points
    ]
    return aligned([head, *rows], "<>>>><") + f"\nerror of exact draws: {points[0].floor:.4f}"


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw the errors against the rows of the model, both in logarithms."""
    chart, (axes,) = figure_of(1, 6.4, 4.0)
    for number, name in enumerate(NAMES):
        for more, style in ((False, "o--"), (True, "s-")):
            own = [p for p in points if p.sampler == name and bool(p.passes) == more]
            label = f"{name}, corrected" if more else name
            axes.plot(
                [p.rows for p in own],
                [p.error for p in own],
                style,
                color=color_of(number),
                label=label,
                mfc="none" if not more else None,
                lw=1.0,
                ms=5,
            )
    axes.axhline(points[0].floor, color="0.5", lw=1.0, ls=":")
    axes.annotate("exact draws", (0.99, points[0].floor), xycoords=("axes fraction", "data"),
                  ha="right", va="bottom", fontsize="small", color="0.4")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="rows of the model for a text", ylabel="error")
    chart.legend(loc="outside right upper", fontsize="small", frameon=False)
    write_atomic(path, image(chart, path.suffix.removeprefix(".") or "svg"))
