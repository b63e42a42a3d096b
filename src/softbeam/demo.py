"""The main job on packaged data: train taggers and a transcriber, compare searches, report."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softbeam import charts
from softbeam.config import Lstm, RunConfig, Search
from softbeam.data.tasks import GraphemeToPhoneme, Stress
from softbeam.evaluate import evaluate, main_metric
from softbeam.progress import clock
from softbeam.recipes import g2p, stress
from softbeam.report import write_report
from softbeam.runs import load_run
from softbeam.train import train


def experiments(words: int) -> list[tuple[str, str, RunConfig]]:
    """Task, model and run: what the past alone can do, what the whole input adds."""
    tagger, speller = stress(), g2p()
    past = Lstm(encoder="uni", embedding=64, hidden=64)
    short = replace(speller.pretrain, epochs=8)
    return [
        ("stress", "uni", replace(tagger, data=Stress(words=words), model=past)),
        ("stress", "bi", replace(tagger, data=Stress(words=words))),
        ("g2p", "bi", replace(speller, data=GraphemeToPhoneme(words=words), pretrain=short)),
    ]


def demo(out: Path, *, words: int, quiet: bool) -> list[dict[str, Any]]:
    """Train, decode the test split greedily and with a beam, print the table, write the report."""
    charts.require(out)
    started = time.monotonic()
    rows = []
    for task, model, config in experiments(words):
        folder = out / f"{task}-{model}"
        if not quiet:
            print(f"{task} with a {model}directional encoder, {words:,} words", flush=True)
        train(config, folder, quiet=quiet)
        rows.append({"task": task, "model": model} | compare(folder))
    page = write_report([out], out / "report.html", title="softbeam demo", table=rows)
    show(rows)
    print(f"report: {page}  ({clock(time.monotonic() - started)})")
    return rows


def compare(folder: Path, *, beam: int = 5) -> dict[str, Any]:
    """The main figure on the test split by greedy and by beam search."""
    run = load_run(folder)
    task = run.config.data
    examples = task.load().split("test")
    found: dict[str, Any] = {}
    for name, search in (("greedy", Search()), (f"beam {beam}", Search(method="beam", beam=beam))):
        metrics = evaluate(run.model, examples, task.kind, run.codecs, search)
        metric = main_metric(task.kind, metrics)[0]
        found |= {"metric": metric, name: metrics[metric]}
    return found


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="test split, percent (error rates: less is better)")
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, float) else "left")
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else v for v in row.values()))
    Console().print(table)
