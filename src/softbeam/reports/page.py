"""Write one self-contained HTML page about tables, claims, runs, beams and chains.

`softbeam report PATH…` takes run folders, folders of runs, folders of `reproduce`, and files of
samples.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from softbeam.errors import UserError, check_range, need
from softbeam.objectives.soft_beam import SoftBeamObjective
from softbeam.reports.charts import lines_svg, readable
from softbeam.reports.drawings import drawing
from softbeam.reports.records import figures, place, read_record
from softbeam.reports.samples import chains
from softbeam.reports.soft_beams import layout, pictures
from softbeam.reports.tables import Pair, columns_of, pairs
from softbeam.reports.verdicts import verdict_counts
from softbeam.runtime.files import LARGEST_CONFIG, read_input, read_object, write_text
from softbeam.schedules import LARGEST_ALPHA
from softbeam.training.config import from_yaml
from softbeam.training.runs import CONFIG, METRICS, WEIGHTS, read_metrics, read_summary

TEMPLATE, STYLE, SCRIPT = (
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("report.html.jinja", "report.css", "report.js")
)
SCHEDULES = {"alpha": "Alpha of the relaxation", "gold": "Probability of feeding gold"}
RECORDS = ("table-*.json", "figure-*.json")  # files that `reproduce` writes


class ResultTable(NamedTuple):
    """Rows of results under a title, with a note that explains the columns."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    title: str = "softbeam",
    tables: Sequence[ResultTable] = (),
    beams: int = 1,
    sentences: Sequence[int] = (),
) -> Path:
    """Write a page about runs, records and samples; all text in it is escaped. Returns its path.

    Args:
        paths: run folders, folders of runs or of `reproduce`, and files of samples (.jsonl).
        out: the file to write.
        title: title of the page.
        tables: tables of results, shown first.
        beams: how many runs get pictures of their soft beams.
        sentences: numbers, from 1, of the dev sentences whose beams are drawn; a few short ones if
            not given.
    """
    need("matplotlib", "report")
    files = [path for path in paths if path.suffix == ".jsonl"]
    folders = [path for path in paths if path not in files]
    records = [record for folder in folders for record in read_records(folder)]
    runs = [describe(folder) for folder in find_runs(folders, needed=not (files or records))]
    sampled = [chains(path) for path in files]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(TEMPLATE).render(
        title=title,
        tables=tables,
        records=records,
        several=len({record["folder"] for record in records}) > 1,
        totals=verdict_counts(claim for record in records for claim in record["claims"]),
        runs=runs,
        curves=curves(runs),
        beams=drawn_beams(runs, beams, sentences),
        sampled=sampled,
        policy=policy(STYLE, SCRIPT),
        style=STYLE,
        script=SCRIPT,
        data=as_script({"samples": [file["texts"] for file in sampled]}),
    )
    write_text(out, page)
    return out


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy: this style, this script, images inside the page, nothing else."""
    hashes = [
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (style, script)
    ]
    parts = ["default-src 'none'", f"style-src {hashes[0]}", f"script-src {hashes[1]}"]
    return "; ".join([*parts, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def as_script(value: Any) -> str:
    """JSON that is safe inside a script element, whatever its texts contain."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of tables and figures in a folder, with what the page shows of them."""
    files = [path for pattern in RECORDS for path in folder.glob(pattern)]
    files.sort(key=place)
    records = [read_record(path) for path in files]
    for path, record in zip(files, records, strict=True):
        name = path.stem.capitalize().replace("-", " ")
        record |= {"anchor": anchor(path), "name": name, "folder": readable(folder.name)}
        record |= {
            "about": record.get("about", ""),
            "counts": verdict_counts(record["claims"]),
        }
        record["environment"] = record.get("environment") or {}
        record["cells_shown"] = table_cells(record) if "published" in record else {}
        record["columns"] = columns_of(record["rows"]) if "published" in record else []
        record["figures"] = figures(record)
        names = [Path(file).name for file in record.get("files") or []]
        record["svgs"] = [drawing(folder / name) for name in names if name.endswith(".svg")]
    return records


def table_cells(record: dict[str, Any]) -> dict[str, list[Pair]]:
    return pairs(record["rows"], record["published"], record["digits"])


def anchor(path: Path) -> str:
    """A name for links to a record, different for records of different folders."""
    return re.sub(r"[^\w-]+", "-", f"{path.parent.name}-{path.stem}")


def drawn_beams(
    runs: Sequence[dict[str, Any]], most: int, sentences: Sequence[int]
) -> list[dict[str, Any]]:
    """Pictures of the soft beams of at most `most` runs; runs trained on them come first."""
    able = [run for run in runs if run["left_to_right"] and run["finished"]]
    able.sort(key=lambda run: (not run["soft_beam"], "alpha" not in run["schedules"]))
    beams = []
    for run in able[:most]:
        alpha = run["schedules"].get("alpha", ([], [1.0]))[1][-1]
        check_range(
            f"{run['folder'] / METRICS}: the last alpha", alpha, above=0, most=LARGEST_ALPHA
        )
        drawn = [
            picture._asdict() | {"drawn": layout(picture)}
            for picture in pictures(run["folder"], alpha=alpha, sentences=sentences)
        ]
        beams.append({"run": run["name"], "alpha": alpha, "sentences": drawn})
    return beams


def find_runs(folders: Sequence[Path], *, needed: bool = True) -> list[Path]:
    """The folders that are runs, and the runs directly inside the others.

    Raises UserError if a folder holds no run and `needed` is true.
    """
    every: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / CONFIG).is_file() else sorted(folder.glob("*/" + CONFIG))
        runs = [path if path.is_dir() else path.parent for path in inside]
        if not runs and needed:
            raise UserError(f"{folder} holds no run: no {CONFIG} in it or one level below")
        every.extend(runs)
    return every


def describe(folder: Path) -> dict[str, Any]:
    """What the page shows of a run."""
    rows = read_metrics(folder) if (folder / METRICS).exists() else []
    file = folder / "environment.json"
    types = {"command": list, "packages": dict, "files": dict}
    train = [r for r in rows if r["kind"] == "train"]
    config, settings = read_config(folder / CONFIG), from_yaml(folder / CONFIG)
    return {
        "name": readable(folder.name),
        "folder": folder,
        "finished": (folder / WEIGHTS).is_file(),
        "left_to_right": settings.model.left_to_right,
        "soft_beam": any(isinstance(s.objective, SoftBeamObjective) for _, s in settings.stages),
        "schedules": schedules(train),
        "config": config,
        "summary": read_summary(folder),
        "environment": read_object(file, "a run's environment", types) if file.exists() else {},
        "train": train,
        "dev": [r for r in rows if r["kind"] == "dev"],
    }


def read_config(path: Path) -> str:
    try:
        return read_input(path, LARGEST_CONFIG).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def curves(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Charts of all runs by the update: loss, metrics on dev, alpha, the probability of gold."""
    loss = [(r["name"], *series(r["train"], "loss")) for r in runs if r["train"]]
    charts = [("Training loss", "loss", loss)]
    for metric in sorted({r["dev"][0]["metric"] for r in runs if r["dev"]}):
        rows = [r for r in runs if r["dev"] and r["dev"][0]["metric"] == metric]
        lines = [(r["name"], *series(r["dev"], "value")) for r in rows]
        charts.append((f"Dev {metric.replace('_', ' ')}, percent", metric, lines))
    for name, title in SCHEDULES.items():
        lines = [(r["name"], *r["schedules"][name]) for r in runs if name in r["schedules"]]
        charts.append((title, name, lines))
    return [{"title": t, "svg": lines_svg("update", y, lines)} for t, y, lines in charts if lines]


def schedules(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """Alpha and the probability of gold by the update, if training logged them."""
    logs = {}
    for name in SCHEDULES:
        logged = [row for row in rows if name in row]
        if logged:
            logs[name] = series(logged, name)
    return logs


def series(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Updates and values over the whole run; a second stage continues the count of the first."""
    x: list[int] = []
    offset, stage = 0, rows[0]["stage"]
    for row in rows:
        if row["stage"] != stage:
            offset, stage = x[-1], row["stage"]
        x.append(offset + row["update"])
    return x, [row[name] for row in rows]
