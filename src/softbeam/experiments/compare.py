"""Compare ways to train, with several seeds, from the same starts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from softbeam.errors import LARGEST_SEED, UserError, check_range
from softbeam.reports.charts import require_charts
from softbeam.reports.page import write_report
from softbeam.reports.results import ResultTable, save_tables
from softbeam.reports.runs import corpus_text
from softbeam.reports.tables import titled_rows, with_interval
from softbeam.runtime.allowed import allowing
from softbeam.runtime.grid import ALONE, Workers, grid_folder
from softbeam.training.config import RunConfig, Stage, modules_of, to_json
from softbeam.training.kinds import LOWER_IS_BETTER, kind_of
from softbeam.training.many import train_all
from softbeam.training.own_search import search_title
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam
from softbeam.training.significance import holm

Outputs = list[list[str]]


class Trial(NamedTuple):
    """A way to train, and its name."""

    name: str
    config: RunConfig


class Scored(NamedTuple):
    """A trained run's main metric on a split, and the outputs that were scored.

    `sequences` is the share of outputs without an error, where the task has it. `raw` is the main
    metric of the same beam with raw scores: of a model trained by cross-entropy, what a globally
    normalized search gains without any training. None without a beam.
    """

    metric: str
    value: float
    outputs: Outputs
    sequences: float | None = None
    raw: float | None = None


def compare(
    trials: Sequence[Trial],
    seeds: Sequence[int],
    out: Path,
    *,
    split: str = "dev",
    workers: Workers = ALONE,
    quiet: bool = False,
    accept_changed_inputs: bool = False,
) -> dict[str, Any]:
    """Train every trial with every seed below `out`, score it, and test it against the first.

    Trials with equal first stages share one run of that stage. Finished runs are kept and stopped
    ones resumed, so an interrupted comparison can be started again. Raises UserError if another
    process writes to `out`, or if what a run depends on has changed and this is not accepted.
    """
    refuse_twins(trials)
    for seed in seeds:
        check_range("--seeds", seed, least=0, most=LARGEST_SEED)
    require_charts(out)
    trials[0].config.data.load().split(split)  # raises UserError before anything is trained
    starts = shared_starts(trials)
    rounds: list[dict[str, RunConfig]] = [{}, {}]  # shared starts, then the trials
    for seed in seeds:
        for trial in starts.values():
            rounds[0][f"{trial.name}-{seed}"] = replace(trial.config, seed=seed)
        for trial in trials:
            config, start = replace(trial.config, seed=seed), starts.get(first_stage(trial.config))
            if start is not None:
                config = replace(config, warm_start=str(out / f"{start.name}-{seed}"))
            rounds[1][f"{trial.name}-{seed}"] = config
    with allowing(modules_of(*(trial.config for trial in trials))), grid_folder(out):
        for configs in rounds:
            train_all(
                configs,
                out,
                workers=workers,
                quiet=quiet,
                accept_changed_inputs=accept_changed_inputs,
            )
        scored = {
            trial.name: [score(out / f"{trial.name}-{seed}", split) for seed in seeds]
            for trial in [*starts.values(), *trials]
        }
        task = trials[0].config.data
        corpus = task.load()
        references = kind_of(task).problems(corpus.split(split)).references
        rows = table_rows(scored, trials[0], references, seeds)
        note = (
            f"{corpus_text(corpus.described, split, len(corpus.split(split)))}; each trial is "
            "decoded with the search that chose its weights. Spread: standard deviation of seeds. "
            "With raw scores: the same beam without normalization, which costs no training. "
            f"Against first: the difference to {trials[0].name}, with a 95 % interval and p over "
            "seeds and sentences (one seed: sentences); Holm: p for all trials together."
        )
        tables = [ResultTable(f"Comparison on {split}", readable(rows), note)]
        save_tables(out, "comparison", tables)
        write_report([out], out / "report.html")
    return {
        "split": split,
        "corpus": task.corpus_name or corpus.origin(split),
        "search": search_title(trials[0].config.select),
        "rows": rows,
        "report": str(out / "report.html"),
    }


def refuse_twins(trials: Sequence[Trial]) -> None:
    """Raises UserError if two trials have the same name."""
    names = [trial.name for trial in trials]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two trials are called {name!r}; name them, as in --try 'name: WORDS'")


def first_stage(config: RunConfig) -> str | None:
    """A text that identifies the first of two stages; None if there is no such stage."""
    if config.warm_start is not None or len(config.stages) < 2:
        return None
    return to_json(start_of(config))


def start_of(config: RunConfig) -> RunConfig:
    """The first stage alone, with dev scores of a locally normalized model."""
    return replace(config, finetune=Stage(), select=replace(config.select, normalize=True))


def shared_starts(trials: Sequence[Trial]) -> dict[str | None, Trial]:
    """The different first stages of the trials, by the text that identifies them."""
    starts: dict[str | None, Trial] = {}
    for trial in trials:
        key = first_stage(trial.config)
        if key is not None and key not in starts:
            name = "start" if not starts else f"start{len(starts) + 1}"
            starts[key] = Trial(name, start_of(trial.config))
    return starts


def score(folder: Path, split: str) -> Scored:
    """A run's main metric on a split, with the search that selected its weights."""
    run = load_run(folder)
    evaluation, search = run.evaluate(split), run.config.select
    metric = run.kind.main_metric(evaluation.metrics)[0]
    raw = None
    if isinstance(search, Beam):
        same = evaluation if not search.normalize else None
        raw = (same or run.evaluate(split, replace(search, normalize=False))).metrics[metric]
    sequences = evaluation.metrics.get("sequence_accuracy")
    return Scored(metric, evaluation.metrics[metric], evaluation.outputs, sequences, raw)


def table_rows(
    scored: dict[str, list[Scored]], first: Trial, references: Sequence[Any], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each trial: values by seed, mean, spread, and a test against the first.

    The test is over seeds and sentences (`training.significance.crossed_test`).
    """
    base = [run.outputs for run in scored[first.name]]
    kind = kind_of(first.config.data)
    rows = []
    for name, runs in scored.items():
        values = [run.value for run in runs]
        row: dict[str, Any] = {
            "trial": name,
            "metric": runs[0].metric,
            "values": dict(zip(map(str, seeds), values, strict=True)),
            "mean": mean(values),
            "spread": stdev(values) if len(values) > 1 else None,
            "raw": mean_of(run.raw for run in runs),
            "sequence_accuracy": mean_of(run.sequences for run in runs),
        }
        if name != first.name:
            outputs = [run.outputs for run in runs]
            row["against_first"] = kind.compare(references, outputs, base)._asdict()
        rows.append(row)
    tested = [row["against_first"] for row in rows if "against_first" in row]
    corrected = holm([against["p_value"] for against in tested])
    for against, p_value in zip(tested, corrected, strict=True):
        against["p_holm"] = p_value
    return rows


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if a value is None."""
    numbers = list(values)
    present = [number for number in numbers if number is not None]
    return mean(present) if len(present) == len(numbers) else None


def readable(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `table_rows` with rounded numbers and column titles for people."""
    extra = [key for key in EXTRA if any(row[key] is not None for row in rows)]
    return [
        {
            "trial": row["trial"],
            "metric": metric_title(row["metric"]),
            **{f"seed {seed}": value for seed, value in row["values"].items()},
            "mean": row["mean"],
            "spread": "" if row["spread"] is None else f"{row['spread']:.2f}",
            **{EXTRA[key]: "-" if row[key] is None else row[key] for key in extra},
            **against_first(row),
        }
        for row in rows
    ]


EXTRA = {"raw": "with raw scores", "sequence_accuracy": "whole sentences"}


def metric_title(metric: str) -> str:
    return metric + (" (less is better)" if metric in LOWER_IS_BETTER else "")


def against_first(row: Mapping[str, Any]) -> dict[str, str]:
    """The difference from the first trial and its p-value; empty for the first."""
    against = row.get("against_first", {})
    return {
        "against first": with_interval(against, 2) if against else "",
        "p": f"{against['p_value']:.3f}" if against else "",
        "Holm": f"{against['p_holm']:.3f}" if against else "",
    }


def as_text(found: Mapping[str, Any]) -> str:
    """What `compare` returned, as a table with a line for each trial."""
    title = f"{found['split']} split of {found['corpus']}, {found['search']}"
    table = titled_rows(title, readable(found["rows"]), left=2)
    return "\n".join([table, *remarks(found["rows"])])


def remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader of the table should not overlook: the free baseline, and whole sentences."""
    first = next(row for row in rows if "against_first" not in row)
    sign = -1 if first["metric"] in LOWER_IS_BETTER else 1
    others = [row for row in rows if "against_first" in row]
    tried = [row for row in others if not STARTS.fullmatch(row["trial"])]
    notes = [winner(first, tried, sign)] if len(tried) > 1 else []
    if first["raw"] is not None and sign * first["raw"] > sign * first["mean"]:
        below = [row["trial"] for row in others if sign * row["mean"] <= sign * first["raw"]]
        names = f"; not better than that: {', '.join(below)}" if below else ""
        notes.append(f"{first['trial']} has {first['raw']:.2f} with raw scores, untrained{names}")
    for row in others:
        lost = whole_sentences(first) - whole_sentences(row)
        if lost >= CLEARLY and sign * row["mean"] > sign * first["mean"]:
            remedy = "adding cross-entropy may keep them: --finetune.objective.cross_entropy 1"
            notes.append(f"{row['trial']} has {lost:.2f} fewer whole sentences right; {remedy}")
    return notes


STARTS = re.compile(r"start\d*")  # names of `shared_starts`, which no trial may have


def winner(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]], sign: int) -> str:
    """Say which trial is best, by how much, and whether that is more than chance."""
    best = max(others, key=lambda row: sign * row["mean"])
    tested = best["against_first"]
    if sign * best["mean"] <= sign * first["mean"]:
        return f"best: {first['trial']}, which nothing beats ({first['mean']:.2f})"
    gain = abs(best["mean"] - first["mean"])
    sure = "sure" if tested.get("p_holm", 1.0) < 0.05 else "not sure"
    test = f"{with_interval(tested, 2)}, Holm {tested['p_holm']:.3f}" if tested else "not tested"
    return f"best: {best['trial']}, {gain:.2f} points better than {first['trial']} ({test}: {sure})"


CLEARLY = 1.0  # points of whole sentences


def whole_sentences(row: Mapping[str, Any]) -> float:
    return row["sequence_accuracy"] or 0.0
