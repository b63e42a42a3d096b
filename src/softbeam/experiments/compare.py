"""Several ways to train, with several seeds, from the same starts: which is best, how surely."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from softbeam.errors import LARGEST_SEED, UserError, limited
from softbeam.reports import analysis_charts
from softbeam.reports.page import ResultTable, write_report
from softbeam.runtime.grid import ALONE, Workers
from softbeam.training.config import RunConfig, Stage, to_json
from softbeam.training.evaluation import LOWER_IS_BETTER, evaluate_outputs, main_metric, problems
from softbeam.training.evaluation import compare as paired
from softbeam.training.many import train_all
from softbeam.training.runs import load_run

Outputs = list[list[str]]


class Trial(NamedTuple):
    """A way to train, by name."""

    name: str
    config: RunConfig


class Scored(NamedTuple):
    """A trained run's figure on a split, and the outputs it comes from."""

    metric: str
    value: float
    outputs: Outputs


def compare(
    trials: Sequence[Trial],
    seeds: Sequence[int],
    out: Path,
    *,
    split: str = "dev",
    workers: Workers = ALONE,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train every trial with every seed below `out`, score, test each against the first.

    Trials whose first stages are equal share one run of it. Finished runs are kept, stopped ones
    go on: the command can be given again after anything.
    """
    refuse_twins(trials)
    for seed in seeds:
        limited("--seeds", seed, least=0, most=LARGEST_SEED)
    analysis_charts.require(out)
    trials[0].config.data.load().split(split)  # what is wrong is said before anything is trained
    starts = shared_starts(trials)
    rounds: list[dict[str, RunConfig]] = [{}, {}]  # what is started from, what starts from it
    for seed in seeds:
        for trial in starts.values():
            rounds[0][f"{trial.name}-{seed}"] = replace(trial.config, seed=seed)
        for trial in trials:
            config, start = replace(trial.config, seed=seed), starts.get(first_stage(trial.config))
            if start is not None:
                config = replace(config, warm_start=str(out / f"{start.name}-{seed}"))
            rounds[1][f"{trial.name}-{seed}"] = config
    for configs in rounds:
        train_all(configs, out, workers=workers, quiet=quiet)
    scored = {
        trial.name: [score(out / f"{trial.name}-{seed}", split) for seed in seeds]
        for trial in [*starts.values(), *trials]
    }
    task = trials[0].config.data
    references = problems(task.kind, task.load().split(split)).references * len(seeds)
    rows = table_rows(scored, trials[0], references, seeds)
    tables = [ResultTable("Results", [shown(row) for row in rows])]
    write_report([out], out / "report.html", title="comparison", tables=tables)
    return {"split": split, "rows": rows, "report": str(out / "report.html")}


def refuse_twins(trials: Sequence[Trial]) -> None:
    names = [trial.name for trial in trials]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two trials are called {name!r}; name them, as in --try 'name: WORDS'")


def first_stage(config: RunConfig) -> str | None:
    """What decides the weights that a second stage starts from; None if it has no first."""
    if config.warm_start is not None or len(config.stages) < 2:
        return None
    return to_json(start_of(config))


def start_of(config: RunConfig) -> RunConfig:
    """The first stage alone; its dev score is that of a locally normalized model."""
    return replace(config, finetune=Stage(), select=replace(config.select, normalize=True))


def shared_starts(trials: Sequence[Trial]) -> dict[str | None, Trial]:
    """The first stages that trials share, each once, by what identifies them."""
    found: dict[str | None, Trial] = {}
    for trial in trials:
        key = first_stage(trial.config)
        if key is not None and key not in found:
            name = "start" if not found else f"start{len(found) + 1}"
            found[key] = Trial(name, start_of(trial.config))
    return found


def score(folder: Path, split: str) -> Scored:
    """A run's main figure on a split, by the search that chose its weights."""
    run = load_run(folder)
    task = run.config.data
    found, outputs = evaluate_outputs(
        run.model, task.load().split(split), task.kind, run.codecs, run.config.select
    )
    metric = main_metric(task.kind, found)[0]
    return Scored(metric, found[metric], outputs)


def table_rows(
    scored: dict[str, list[Scored]], first: Trial, references: Sequence[Any], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each trial: figures by seed, mean, spread, paired bootstrap against the first.

    The bootstrap draws among the sentences of all seeds, so that its interval covers the noise of
    sentences; the spread over seeds is beside it.
    """
    base = [tokens for one in scored[first.name] for tokens in one.outputs]
    rows = []
    for name, runs in scored.items():
        values = [one.value for one in runs]
        outputs = [tokens for one in runs for tokens in one.outputs]
        row: dict[str, Any] = {
            "trial": name,
            "metric": runs[0].metric,
            "values": dict(zip(map(str, seeds), values, strict=True)),
            "mean": mean(values),
            "spread": stdev(values) if len(values) > 1 else None,
        }
        if name != first.name:
            row["against_first"] = paired(first.config.data.kind, references, outputs, base)
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `table_rows` as a reader wants it."""
    against = row.get("against_first", {})
    metric = row["metric"] + (" (less is better)" if row["metric"] in LOWER_IS_BETTER else "")
    return {
        "trial": row["trial"],
        "metric": metric,
        **{f"seed {seed}": value for seed, value in row["values"].items()},
        "mean": row["mean"],
        "spread": "" if row["spread"] is None else f"{row['spread']:.2f}",
        "against first": f"{against['difference']:+.2f}" if against else "",
        "p": f"{against['p_value']:.3f}" if against else "",
    }


def show(rows: Sequence[dict[str, Any]], split: str) -> None:
    """The table on standard output."""
    table = Table(title=f"{split} split")
    lines = [shown(row) for row in rows]
    for name in lines[0]:
        table.add_column(name, justify="left" if name in ("trial", "metric") else "right")
    for line in lines:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else v for v in line.values()))
    Console(width=max(100, 60 + 12 * len(lines[0]))).print(table)
