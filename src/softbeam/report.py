"""Run folders to one self-contained HTML page: results, learning curves, settings."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from softbeam.errors import UserError, need
from softbeam.files import read_object, write_text
from softbeam.runs import CONFIG, METRICS, read_metrics, read_summary

TEMPLATE = Path(__file__).with_name("report.html.jinja")


def write_report(
    folders: Sequence[Path], out: Path, *, title: str = "softbeam", table: Sequence[Any] = ()
) -> Path:
    """The page about all runs in the folders; text in it is escaped. Returns its path."""
    need("matplotlib", "report")
    runs = [describe(folder) for folder in find_runs(folders)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title, runs=runs, table=list(table), curves=curves(runs)
    )
    write_text(out, page)
    return out


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders themselves, or the runs directly inside each folder."""
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / CONFIG).is_file() else sorted(folder.glob("*/" + CONFIG))
        runs = [path if path.is_dir() else path.parent for path in inside]
        if not runs:
            raise UserError(f"{folder} holds no run: no {CONFIG} in it or one level below")
        found.extend(runs)
    return found


def describe(folder: Path) -> dict[str, Any]:
    """What the page shows of a run."""
    rows = read_metrics(folder) if (folder / METRICS).exists() else []
    file = folder / "environment.json"
    types = {"command": list, "packages": dict, "files": dict}
    return {
        "name": folder.name,
        "config": read_config(folder / CONFIG),
        "summary": read_summary(folder),
        "environment": read_object(file, "a run's environment", types) if file.exists() else {},
        "train": [r for r in rows if r["kind"] == "train"],
        "dev": [r for r in rows if r["kind"] == "dev"],
    }


def read_config(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def curves(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures of all runs against updates: training loss, and each metric on dev, as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    loss = [(r["name"], *series(r["train"], "loss")) for r in runs if r["train"]]
    made = [("Training loss", "loss", loss)]
    for metric in sorted({r["dev"][0]["metric"] for r in runs if r["dev"]}):
        rows = [r for r in runs if r["dev"] and r["dev"][0]["metric"] == metric]
        lines = [(r["name"], *series(r["dev"], "value")) for r in rows]
        made.append((f"Dev {metric.replace('_', ' ')}, percent", metric, lines))
    return [{"title": t, "svg": figure(label, lines)} for t, label, lines in made if lines]


def series(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Values against the updates of the whole run: a second stage goes on where the first ended."""
    x: list[int] = []
    offset, stage = 0, rows[0]["stage"]
    for row in rows:
        if row["stage"] != stage:
            offset, stage = x[-1], row["stage"]
        x.append(offset + row["update"])
    return x, [row[name] for row in rows]


def figure(label: str, lines: Sequence[tuple[str, list[int], list[float]]]) -> str:
    """A line chart as SVG text that takes its colours from the page."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = chart.add_subplot()
    for number, (name, x, y) in enumerate(lines):
        axes.plot(x, y, label=name, color=f"C{number}", marker="o" if len(x) < 20 else None, ms=3)
    axes.set_xlabel("update")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    text = io.StringIO()
    chart.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    return svg.replace("#000000", "currentColor").replace(
        "<svg ", f'<svg role="img" aria-label="{label}" ', 1
    )
