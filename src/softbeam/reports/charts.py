"""Line charts as SVG text that takes its colours from the page around it."""

import io
from collections.abc import Sequence
from html import escape

Line = tuple[str, Sequence[float], Sequence[float]]  # name, x, y


def lines_svg(across: str, label: str, lines: Sequence[Line]) -> str:
    """A line for each name; few points have markers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    chart = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = chart.add_subplot()
    for number, (name, x, y) in enumerate(lines):
        axes.plot(x, y, label=name, color=f"C{number}", marker="o" if len(x) < 20 else None, ms=3)
    axes.set_xlabel(across)
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    text = io.StringIO()
    chart.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    return svg.replace("#000000", "currentColor").replace(
        "<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1
    )
