"""What all figures share: their look, how they are saved, and line charts for HTML pages."""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softbeam.errors import LARGEST_NUMBER, need
from softbeam.reports.drawings import rebuilt
from softbeam.runtime.files import require_writable, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = tuple[str, Sequence[float], Sequence[float]]  # name, x, y


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
    metadata = {"Date": None} if form == "svg" else None
    with rc_context({"svg.fonttype": "path"}):  # the look of a text does not depend on its reader
        chart.savefig(data, format=form, dpi=150, metadata=metadata, transparent=transparent)
    return data.getvalue()


def save_chart(chart: "Figure", folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as SVG; returns both paths."""
    paths = [folder / f"{name}.{form}" for form in ("png", "svg")]
    for path in paths:
        write_atomic(path, image(chart, path.suffix[1:]))
    return paths


def drawable(values: Sequence[float]) -> list[float]:
    """The values as floats; a value that no axis can show is NaN, which leaves a gap."""
    return [float(value) if abs(value) < LARGEST_NUMBER else math.nan for value in values]


def readable(name: str) -> str:
    """A file's name as Unicode text: bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def lines_svg(across: str, label: str, lines: Sequence[Line]) -> str:
    """A line chart as SVG text that takes its colours from the page around it.

    Lines of fewer than 20 points have markers.
    """
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a name may have dollar signs
        chart, (axes,) = figure_of(1, 6.4, 3.2)
        for number, (_, x, y) in enumerate(lines):
            marker = "o" if len(x) < 20 else None
            axes.plot(drawable(x), drawable(y), color=f"C{number}", marker=marker, ms=3)
        axes.set_xlabel(across)
        axes.set_ylabel(label)
        axes.legend(axes.get_lines(), [readable(name) for name, _, _ in lines], frameon=False)
        return rebuilt(image(chart, "svg", transparent=True).decode(), "a chart", label)
