"""Write one self-contained HTML page about tables, claims, runs, beams and chains.

`softbeam report PATH…` takes run folders, folders of runs, folders of `reproduce`, files of
samples and tables of `mutants`.
"""

import json
import re
import shlex
import time
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2

from softbeam import __version__
from softbeam.errors import check_range, need
from softbeam.reports.charts import readable
from softbeam.reports.curves import learning_curves
from softbeam.reports.drawings import drawing
from softbeam.reports.heat_maps import mutants
from softbeam.reports.records import figures, place, read_record
from softbeam.reports.results import read_tables
from softbeam.reports.runs import ShownRun, describe, find_runs, run_table, trials_of
from softbeam.reports.samples import chains
from softbeam.reports.soft_beams import layout, pictures
from softbeam.reports.tables import Pair, columns_of, pairs
from softbeam.reports.verdicts import verdict_counts
from softbeam.runtime.files import write_text
from softbeam.schedules import LARGEST_ALPHA
from softbeam.training.runs import METRICS

HERE = Path(__file__).parent
STYLE = (HERE / "report.css").read_text(encoding="utf-8")
VIEWS = (HERE / "views.js").read_text(encoding="utf-8")  # what the playground's page has, too
SCRIPT = VIEWS + (HERE / "report.js").read_text(encoding="utf-8")
RECORDS = ("table-*.json", "figure-*.json")  # files that `reproduce` writes


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    title: str = "",
    beams: int = 1,
    sentences: Sequence[int] = (),
) -> Path:
    """Write a page about runs, records and samples; all text in it is escaped. Returns its path.

    Args:
        paths: run folders, folders of runs or of `reproduce`, files of samples (.jsonl), and
            tables of `mutants` (.csv).
        out: the file to write.
        title: title of the page; that of the folder's own tables if not given.
        beams: how many runs get pictures of their soft beams.
        sentences: numbers, from 1, of the dev sentences whose beams are drawn; a few short ones if
            not given.
    """
    need("matplotlib", "report")
    files = [path for path in paths if path.suffix == ".jsonl"]
    tabled = [path for path in paths if path.name.endswith((".csv", ".csv.gz"))]
    folders = [path for path in paths if path not in [*files, *tabled]]
    records = [record for folder in folders for record in read_records(folder)]
    titles, tables = zip(*map(read_tables, folders), strict=True) if folders else ((), ())
    runs = [
        describe(folder) for folder in find_runs(folders, needed=not (files or tabled or records))
    ]
    trials, sampled = trials_of(runs), [chains(path) for path in files]
    scored = [mutants(path) for path in tabled]
    page = template("report.html.jinja").render(
        title=title or (titles[0] if len(paths) == 1 and any(titles) else "softbeam"),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=__version__,
        tables=[
            *chain.from_iterable(tables),
            *([run_table(trials)] if runs else []),
            *(file["table"] for file in [*sampled, *scored]),
        ],
        records=records,
        several=len({record["folder"] for record in records}) > 1,
        totals=verdict_counts(claim for record in records for claim in record["claims"]),
        runs=runs,
        seeds=len(trials) < len(runs),
        curves=learning_curves(trials),
        beams=drawn_beams(runs, beams, sentences),
        sampled=sampled,
        scored=scored,
        policy=policy(STYLE, SCRIPT),
        style=STYLE,
        script=SCRIPT,
        data=as_script({"samples": [file["texts"] for file in sampled]}),
    )
    write_text(out, page)
    return out


def template(name: str) -> jinja2.Template:
    """A template of this folder; all text that it is given is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined
    ).get_template(name)


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
        record["command"] = shlex.join(record["environment"].get("command", []))
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
    runs: Sequence[ShownRun], most: int, sentences: Sequence[int]
) -> list[dict[str, Any]]:
    """Pictures of the soft beams of at most `most` runs; runs trained on them come first."""
    alphas = {id(run): [row["alpha"] for row in run.train if "alpha" in row] for run in runs}
    able = [run for run in runs if run.settings.model.left_to_right and run.finished]
    able.sort(key=lambda run: (not run.soft_beam, not alphas[id(run)]))
    beams = []
    for run in able[:most]:
        alpha = (alphas[id(run)] or [1.0])[-1]
        check_range(f"{run.folder / METRICS}: the last alpha", alpha, above=0, most=LARGEST_ALPHA)
        drawn = [
            both.soft._asdict()
            | {"drawn": layout(both.soft), "hard": layout(both.hard), "share": both.share}
            for both in pictures(run.folder, alpha=alpha, sentences=sentences)
        ]
        beams.append({"run": run.name, "alpha": alpha, "sentences": drawn})
    return beams
