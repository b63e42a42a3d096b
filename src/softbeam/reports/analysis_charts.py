"""Print and draw an analysis of runs (`reports.analysis.analyze`), the runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbeam.reports.charts import figure_of, save_chart
from softbeam.reports.tables import titled_columns
from softbeam.training.kinds import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = (1, 2, 3, 5, 10, 15, 20, 30)  # the steps that the table shows
FEW = 10  # the figure leaves out steps that fewer sentences have
MARKERS = "os^Dv*PX"

Measures = dict[str, Any]  # of one run
Column = dict[str, str]  # label -> cell
Points = tuple[Sequence[float], Sequence[float | None]]


# Text


def as_text(analysis: Mapping[str, Any]) -> str:
    """All tables of an analysis as text, with a run in each column."""
    runs, metric, beam = analysis["runs"], analysis["metric"].replace("_", " "), analysis["beam"]

    def section(title: str, column: Callable[[Measures], Column]) -> str:
        return titled_columns(title, {name: column(run) for name, run in runs.items()})

    lengths = [
        section("length of outputs over references, by beam size", curve("length_ratio", ".3f")),
        section("empty outputs, percent, by beam size", curve("empty")),
    ]
    return "\n\n".join(
        [
            f"{analysis['split']}: {analysis['sentences']} problems of {analysis['task']}",
            section(f"{metric_label(analysis)}, by beam size", curve("value")),
            *(lengths if KINDS[analysis["task"]].has_end else []),
            section("mean model score of the outputs, by beam size", curve("score")),
            section(f"{metric} with raw and with normalized scores, beam {beam}", normalization)
            + "".join(f"\n  {line}" for line in advices(analysis)),
            section(f"gold on the beam of {beam}, percent", gold_on_beam),
            section(f"accuracy after a first error{fed_label(analysis)}, beam {beam}", after_error),
            section(f"{metric_label(analysis)} by source length, beam {beam}", by_length),
            section(f"n-gram overlap, beam {beam}: precision / recall", overlap),
        ]
    )


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def metric_label(analysis: Mapping[str, Any]) -> str:
    better = " (lower is better)" if analysis["lower_is_better"] else ""
    return str(analysis["metric"]).replace("_", " ") + better


def advices(analysis: Mapping[str, Any]) -> list[str]:
    """The advice for each run that is clearly worse with raw or with normalized scores."""
    checks = {name: run["normalization"]["advice"] for name, run in analysis["runs"].items()}
    return [f"{name}: {text}" for name, text in checks.items() if text is not None]


def curve(name: str, form: str = ".2f") -> Callable[[Measures], Column]:
    """A function that reads one measure of each beam size from a run."""
    return lambda run: {f"{p['beam']}": number(p[name], form) for p in run["beam_curve"]}


def normalization(run: Measures) -> Column:
    check = run["normalization"]
    return {
        "raw": number(check["raw"]),
        "normalized": number(check["normalized"]),
        "p-value of the difference": number(check["p_value"], ".3f"),
        "log Z, mean": number(check["log_z_mean"]),
        "log Z, variance": number(check["log_z_variance"]),
        "the other tables use": "normalized" if run["normalize"] else "raw",
    }


def gold_on_beam(run: Measures) -> Column:
    gold = run["gold_on_beam"]
    steps = [row for row in gold["on_beam"] if row["step"] in STEPS]
    return (
        {"stays to the end": number(gold["survived"])}
        | {"of these, the best": number(gold["best_of_survived"])}
        | {name: number(share) for name, share in gold["outcomes"].items()}
        | {"median step of a fall": number(gold["median_step_of_fall"], ".1f")}
        | {f"still there after step {row['step']}": number(row["share"]) for row in steps}
    )


def after_error(run: Measures) -> Column:
    cells = {}
    for row, label in zip(run["after_first_error"], distance_labels(run), strict=True):
        fed = "" if row["gold_fed"] is None else f" ({row['gold_fed']:.2f})"
        cells[label] = f"{number(row['accuracy'])}{fed} of {row['places']:>6,}"
    return cells


def distance_labels(run: Measures) -> list[str]:
    *near, far = [row["distance"] for row in run["after_first_error"]]
    return ["no error yet", *(f"{d} after" for d in near[1:]), f"{far} or more"]


def fed_label(analysis: Mapping[str, Any]) -> str:
    return "" if KINDS[analysis["task"]].has_end else " (and with gold fed)"


def by_length(run: Measures) -> Column:
    rows = run["by_source_length"]
    return {
        label: f"{number(row['value'])} of {row['sentences']:>5,}"
        for label, row in zip(bucket_labels(run), rows, strict=True)
    }


def bucket_labels(run: Measures) -> list[str]:
    """Names of the buckets of source lengths: 1-10, 11-15, ..., 31+."""
    return [bucket_label(row["above"] + 1, row["at_most"]) for row in run["by_source_length"]]


def bucket_label(first: int, last: int | None) -> str:
    if last is None:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"


def sized_labels(run: Measures) -> list[str]:
    """Names of the buckets with their numbers of sentences, since small buckets show no trend."""
    rows = zip(bucket_labels(run), run["by_source_length"], strict=True)
    return [f"{label}\nn = {row['sentences']:,}" for label, row in rows]


def overlap(run: Measures) -> Column:
    rows = {
        f"{row['n']}-grams": f"{number(row['precision'])} / {number(row['recall'])}"
        for row in run["overlap"]
    }
    return rows | {"length ratio": number(run["length_ratio"], ".3f")}


# Figures


class Panel(NamedTuple):
    """A pair of axes, and how its line is read from a run."""

    x_label: str
    y_label: str
    line: Callable[[Measures], Points]
    beside: Callable[[Measures], Points] | None = None  # a second, dashed line
    ticks: Mapping[int, str] | None = None  # labels by position; whole numbers if not given
    log: bool = False
    share: bool = False  # whether the axis reaches from 0 to 100


def panels(analysis: Mapping[str, Any]) -> dict[str, list[Panel]]:
    """The panels of each figure, by file name."""
    first = next(iter(analysis["runs"].values()))
    quality, beam = metric_label(analysis), f"beam {analysis['beam']}"
    beams = {row["beam"]: str(row["beam"]) for row in first["beam_curve"]}
    gold = f"gold still on the beam of {analysis['beam']}, percent"
    fed = None if KINDS[analysis["task"]].has_end else by_distance("gold_fed")
    charts = {
        "beam-curve": [Panel("beam size", quality, by_beam("value"), ticks=beams, log=True)],
        "gold-on-beam": [
            Panel("step", gold, by_step, share=True),
            Panel("tenths of the gold output", "", by_tenth, share=True),
        ],
        "after-first-error": [
            Panel(
                "distance from the first error",
                f"accuracy, {beam}" + (" (dashed: gold fed)" if fed else ""),
                by_distance("accuracy"),
                beside=fed,
                ticks=dict(enumerate(distance_labels(first))),
            )
        ],
        "quality-by-length": [
            Panel(
                "source length",
                f"{quality}\n{beam}",
                by_bucket,
                ticks=dict(enumerate(sized_labels(first))),
            )
        ],
    }
    if not KINDS[analysis["task"]].has_end:
        return charts
    label = "length of outputs over references"
    ratio = Panel("beam size", label, by_beam("length_ratio"), ticks=beams, log=True)
    return charts | {"length-ratio-curve": [ratio]}


def by_beam(name: str) -> Callable[[Measures], Points]:
    return lambda run: column_of(run["beam_curve"], "beam", name)


def by_distance(name: str) -> Callable[[Measures], Points]:
    return lambda run: column_of(run["after_first_error"], "distance", name)


def by_step(run: Measures) -> Points:
    """The share of golds on the beam from step 0 to the last step that enough sentences have."""
    rows = run["gold_on_beam"]["on_beam"]
    enough = [row for row in rows if row["sentences"] >= min(FEW, rows[0]["sentences"])]
    steps, shares = column_of(enough, "step", "share")
    return [0, *steps], [100.0, *shares]


def by_tenth(run: Measures) -> Points:
    gold = run["gold_on_beam"]
    fallen = [0, *accumulate(gold["fell_by_tenth"])]
    return range(11), [100 * (1 - n / len(gold["fell"])) for n in fallen]


def by_bucket(run: Measures) -> Points:
    values = [row["value"] for row in run["by_source_length"]]
    return range(len(values)), values


def column_of(rows: Sequence[Measures], x: str, y: str) -> Points:
    return [row[x] for row in rows], [row[y] for row in rows]


def write_figures(analysis: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every figure as PNG and as SVG; returns their paths."""
    return [
        path
        for name, drawn in panels(analysis).items()
        for path in save_chart(draw(drawn, analysis["runs"]), folder, name)
    ]


def draw(drawn: Sequence[Panel], runs: Mapping[str, Measures]) -> "Figure":
    """A figure of panels side by side with one legend below them."""
    chart, all_axes = figure_of(len(drawn), 6.4 if len(drawn) == 1 else 9.6, 4.2)
    for axes, panel in zip(all_axes, drawn, strict=True):
        for i, (name, run) in enumerate(runs.items()):
            style: dict[str, Any] = {
                "color": f"C{i}",
                "marker": MARKERS[i % len(MARKERS)],
                "ms": 4.5,
            }
            axes.plot(*plottable(panel.line(run)), label=name, lw=1.6, **style)
            if panel.beside is not None:
                axes.plot(*plottable(panel.beside(run)), ls="--", lw=1.0, alpha=0.7, **style)
        dress(axes, panel)
    chart.legend(
        *all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return chart


def plottable(points: Points) -> tuple[list[float], list[float]]:
    """Points whose missing values are drawn as gaps."""
    x, y = points
    return list(x), [nan if value is None else value for value in y]


def dress(axes: "Axes", panel: Panel) -> None:
    """Set a panel's labels, limits and ticks, at whole numbers or at the panel's own places."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    if panel.log:
        axes.set_xscale("log")
    if panel.ticks is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
        axes.xaxis.set_minor_locator(NullLocator())
        first, last = min(panel.ticks), max(panel.ticks)
        axes.set_xlim(*((first / 1.15, last * 1.15) if panel.log else (first - 0.3, last + 0.3)))
    if panel.share:
        axes.set_ylim(-2, 102)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(axis="y", alpha=0.25)
