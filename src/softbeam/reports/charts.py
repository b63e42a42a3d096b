"""What all figures share: their look, how they are saved, and line charts for HTML pages."""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbeam.errors import LARGEST_NUMBER, need
from softbeam.reports.drawings import rebuilt
from softbeam.runtime.files import require_writable, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = tuple[Sequence[float], Sequence[float]]  # x, y
COLORS = (  # each can be read on white and on black
    "#2f7fd6", "#d9662b", "#2e9e6b", "#b455b0", "#9a7d0a", "#d4476a", "#5b8f98", "#7a6ce0",
)  # fmt: skip
MOST_NAMES = 10  # beside a chart


class Curve(NamedTuple):
    """Lines of one colour under one name: a run, or the seeds of a trial."""

    name: str
    lines: Sequence[Line]
    color: str


def color_of(number: int) -> str:
    """The colour of the curve with this number, from 0."""
    return COLORS[number % len(COLORS)]


def require_charts(folder: Path) -> None:
    """Raises UserError if matplotlib is missing or the folder cannot be written to.

    Long computations call this before they begin.
    """
    need("matplotlib", "report")
    require_writable(folder)


def figure_of(panels: int, width: float, height: float) -> "tuple[Figure, list[Axes]]":
    """A figure, its size in inches, and its panels side by side, without frames."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(width, height), layout="constrained")
    row: list[Axes] = list(chart.subplots(1, panels, squeeze=False)[0])
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
    return chart, row


def image(chart: "Figure", form: str, *, transparent: bool = False) -> bytes:
    """The content of a file of the given form ("png", "svg", ...); an SVG file has no date."""
    from matplotlib import rc_context

    data = io.BytesIO()
    own: dict[str, Any] = {"metadata": {"Date": None}} if form == "svg" else {}
    own |= {"pil_kwargs": {"compress_level": 1}} if form == "png" else {}  # a tenth larger, at once
    with rc_context({"svg.fonttype": "path"}):  # the look of a text does not depend on its reader
        chart.savefig(data, format=form, dpi=150, transparent=transparent, **own)
    return data.getvalue()


def save_chart(chart: "Figure", folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as SVG; returns both paths."""
    paths = [folder / f"{name}.{form}" for form in ("png", "svg")]
    for path in paths:
        write_atomic(path, image(chart, path.suffix[1:]))
        chart.set_layout_engine(None)  # it has done its work, which takes as long as drawing
    return paths


def drawable(values: Sequence[float]) -> list[float]:
    """The values as floats; a value that no axis can show is NaN, which leaves a gap."""
    return [float(value) if abs(value) < LARGEST_NUMBER else math.nan for value in values]


def readable(name: str) -> str:
    """A file's name as Unicode text: bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def lines_svg(
    across: str,
    label: str,
    curves: Sequence[Curve],
    *,
    end: float | None = None,
    marks: Sequence[float] = (),
) -> str:
    """A line chart as SVG text that takes its colours from the page around it.

    Each curve has one colour and its name at its end. Its lines are thin if there are several, with
    their mean as a thick line. Lines of fewer than 20 points have markers.

    Args:
        across: label of the horizontal axis.
        label: label of the vertical axis.
        curves: what to draw.
        end: where the horizontal axis ends; after the last point if not given.
        marks: places on the horizontal axis that get a faint vertical line.
    """
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False, "font.size": 9.5}):  # a name may have dollar signs
        chart, (axes,) = figure_of(1, 5.0, 2.7)
        for curve in curves:
            draw_curve(axes, curve)
        if end is not None:
            axes.set_xlim(-0.02 * end, 1.02 * end)
        for place in marks:
            axes.axvline(place, color="0.5", lw=0.7, alpha=0.5, ls=":")
        axes.grid(axis="y", color="0.5", alpha=0.2, lw=0.6)
        axes.set_xlabel(across)
        axes.set_ylabel(label)
        label_ends(axes, curves)
        return rebuilt(image(chart, "svg", transparent=True).decode(), "a chart", label)


def draw_curve(axes: "Axes", curve: Curve) -> None:
    """Draw the lines of a curve, and their mean if there are several."""
    several = len(curve.lines) > 1
    drawn = [(line, 0.7, 0.6) if several else (line, 1.6, 1.0) for line in curve.lines]
    for (x, y), width, alpha in [*drawn, *([(mean_line(curve.lines), 1.8, 1.0)] * several)]:
        marker = "o" if len(x) < 20 else "None"
        line = axes.plot(drawable(x), drawable(y), color=curve.color, lw=width, alpha=alpha)[0]
        line.set(marker=marker, markersize=1.5 + width)


def mean_line(lines: Sequence[Line]) -> Line:
    """The mean of lines at the places that all of them have."""
    tables = [dict(zip(*line, strict=True)) for line in lines]
    shared = [x for x in tables[0] if all(x in table for table in tables)]
    return shared, [sum(table[x] for table in tables) / len(tables) for x in shared]


def label_ends(axes: "Axes", curves: Sequence[Curve]) -> None:
    """Write the name of each curve to the right of the chart, at the height where it ends.

    Names are moved apart where they would overlap, and a dotted line leads to each.
    """
    ends = []
    for curve in curves if len(curves) <= MOST_NAMES else ():
        last = [(x[-1], drawable(y)[-1]) for x, y in curve.lines if x]
        place = tuple(sum(numbers) / len(last) for numbers in zip(*last, strict=True))
        if all(map(math.isfinite, place)):
            height = axes.transAxes.inverted().transform(axes.transData.transform(place))
            ends.append((float(height[1]), place, curve))
    ends.sort(key=lambda entry: entry[0])
    for y, (_, place, curve) in zip(apart([e[0] for e in ends], 0.075), ends, strict=True):
        axes.annotate(
            shortened(curve.name), place, (1.03, y), textcoords="axes fraction", va="center",
            color=curve.color, annotation_clip=False, fontsize=9,
            arrowprops={"arrowstyle": "-", "color": curve.color, "alpha": 0.5, "lw": 0.6,
                        "ls": ":", "shrinkA": 1, "shrinkB": 1},
        )  # fmt: skip


def apart(heights: Sequence[float], least: float) -> list[float]:
    """Ascending heights of at most 1, moved as needed for `least` between neighbours."""
    groups: list[tuple[float, int]] = []  # centre and number of heights that touch each other
    for height in heights:
        groups.append((height, 1))
        while len(groups) > 1:
            (low, below), (high, above) = groups[-2:]
            if high - low >= least * (below + above) / 2:
                break
            groups[-2:] = [((low * below + high * above) / (below + above), below + above)]
    moved = [centre + least * (i - (n - 1) / 2) for centre, n in groups for i in range(n)]
    return [min(y, 1 - least * (len(moved) - 1 - i)) for i, y in enumerate(moved)]


def shortened(name: str) -> str:
    """A name that fits beside a chart."""
    text = readable(name)
    return text if len(text) <= 22 else f"{text[:21]}…"
