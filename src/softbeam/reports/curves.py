"""Learning curves of runs on one axis: a second stage is drawn after the stage it started from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softbeam.reports.charts import Curve, Line, color_of, lines_svg
from softbeam.reports.runs import ShownRun

SCHEDULES = {"alpha": "Alpha of the relaxation", "gold": "Probability of feeding gold"}
Trials = Mapping[str, Sequence[ShownRun]]


class Panel(NamedTuple):
    """A chart: its title, the label of its vertical axis, and its curves."""

    title: str
    label: str
    curves: list[Curve]


def learning_curves(trials: Trials) -> list[dict[str, str]]:
    """Charts of all runs by the update: dev metrics, losses, alpha, the probability of gold.

    Objectives have charts of their own, as their losses have different scales. A trial has the
    same colour in all charts.
    """
    runs = [run for group in trials.values() for run in group]
    begins = {id(run): beginning(run, runs) for run in runs}
    colors = {name: color_of(number) for number, name in enumerate(trials)}

    def panel(title: str, label: str, kind: str, name: str, keep: Mapping[str, str]) -> Panel:
        """The curves of a number in those rows of the log that have the fields to keep."""
        curves = []
        for trial, group in trials.items():
            lines = [line_of(run, begins[id(run)], kind, name, keep) for run in group]
            if lines := [line for line in lines if line[0]]:
                curves.append(Curve(trial, lines, colors[trial]))
        return Panel(title, label, curves)

    metrics = {row["metric"]: row["metric"].replace("_", " ") for run in runs for row in run.dev}
    objectives = dict.fromkeys(named(r, row)["objective"] for r in runs for _, row in r.points)
    panels = [
        panel(f"Dev {title}, percent", title, "dev", "value", {"metric": metric})
        for metric, title in metrics.items()
    ]
    panels += [
        panel(f"Training loss, {o}", "loss", "train", "loss", {"objective": o}) for o in objectives
    ]
    panels += [
        panel(f"{title}, {o}", name, "train", name, {"objective": o})
        for name, title in SCHEDULES.items()
        for o in objectives
    ]
    kept = [p for p in panels if p.curves and (p.label not in SCHEDULES or varies(p))]
    marks = {begins[id(run)] for run in runs} | {begins[id(r)] + second_stage(r) for r in runs}
    end = max((x[-1] for p in kept for curve in p.curves for x, _ in curve.lines), default=1)
    return [
        {
            "title": p.title,
            "svg": lines_svg("update", p.label, p.curves, end=end, marks=sorted(marks - {0})),
        }
        for p in kept
    ]


def beginning(run: ShownRun, runs: Sequence[ShownRun]) -> int:
    """The number of updates before a run: those of the run that it started from, if it is shown.

    That run is looked for where the configuration says, and then beside the run, since folders are
    moved together.
    """
    start = run.settings.warm_start
    if not start:
        return 0
    place = Path(run.environment.get("folder", "."), start)
    for wanted in (place, run.folder.with_name(place.name)):
        for other in runs:
            if other is not run and other.folder.resolve() == wanted.resolve():
                return max((x for x, _ in other.points), default=0)
    return 0


def second_stage(run: ShownRun) -> int:
    """The number of updates before the second of two stages; 0 if there is one stage."""
    first, *more = dict.fromkeys(row["stage"] for _, row in run.points) or [""]
    return max(x for x, row in run.points if row["stage"] == first) if more else 0


def line_of(run: ShownRun, begin: int, kind: str, name: str, keep: Mapping[str, str]) -> Line:
    """Updates and values of a number in those rows of a kind that have the fields to keep."""
    rows = [
        (begin + x, row[name])
        for x, row in run.points
        if row["kind"] == kind and name in row and keep.items() <= named(run, row).items()
    ]
    return [x for x, _ in rows], [y for _, y in rows]


def named(run: ShownRun, row: Mapping[str, Any]) -> dict[str, Any]:
    """The metric of a row, and the objective of its stage."""
    return {
        "metric": row.get("metric"),
        "objective": run.objectives.get(row["stage"], row["stage"]),
    }


def varies(panel: Panel) -> bool:
    """True if a curve has two different values."""
    return any(len({*y}) > 1 for curve in panel.curves for _, y in curve.lines)
