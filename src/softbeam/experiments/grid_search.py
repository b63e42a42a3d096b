"""Train every combination of settings with every seed, and order them by their dev scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from softbeam.errors import LARGEST_SEED, UserError, check_range
from softbeam.runtime.files import require_writable, write_text
from softbeam.runtime.grid import ALONE, Workers, grid_folder
from softbeam.runtime.text_tables import aligned
from softbeam.training.config import RunConfig, in_effect, to_json
from softbeam.training.many import train_all


def sweep(
    configs: Mapping[str, RunConfig],
    seeds: Sequence[int],
    out: Path,
    *,
    workers: Workers = ALONE,
    quiet: bool = False,
    accept_changed_inputs: bool = False,
) -> dict[str, Any]:
    """Train every setting with every seed below `out`, and order them by their dev scores.

    Finished runs are kept and stopped ones resumed, so a sweep can be started again, also with more
    settings. Raises UserError if another process writes to `out`, or if what a run depends on has
    changed and this is not accepted.
    """
    for seed in seeds:
        check_range("--seeds", seed, least=0, most=LARGEST_SEED)
    refuse_twins(configs)
    require_writable(out)
    runs = {
        f"{name}-{seed}": replace(config, seed=seed)
        for name, config in configs.items()
        for seed in seeds
    }
    with grid_folder(out):
        done = train_all(
            runs,
            out,
            workers=workers,
            title="sweep",
            quiet=quiet,
            accept_changed_inputs=accept_changed_inputs,
        )
        summaries = dict(zip(runs, done, strict=True))
        by_setting = {n: {seed: summaries[f"{n}-{seed}"] for seed in seeds} for n in configs}
        rows = [row_of(name, by_seed) for name, by_seed in by_setting.items()]
        rows.sort(key=lambda row: -row["score"])
        result = {"rows": rows, "best": str(out / f"{rows[0]['setting']}-{best_seed(rows[0])}")}
        write_text(out / "sweep.json", json.dumps(result, indent=1) + "\n")
    return result


def refuse_twins(configs: Mapping[str, RunConfig]) -> None:
    """Raises UserError if two settings train the same run, so that a field has no effect."""
    names: dict[str, str] = {}
    for name, config in configs.items():
        twin = names.setdefault(to_json(replace(in_effect(config), seed=0)), name)
        if twin != name:
            raise UserError(
                f"{twin} and {name} train the same run: a field of --over has no effect"
            )


def row_of(name: str, summaries: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """A setting's dev metric: the value of each seed, their mean and their spread."""
    metric = next(iter(summaries.values()))["metric"]
    values = {str(seed): summary["metrics"][metric] for seed, summary in summaries.items()}
    scores = {str(seed): summary["score"] for seed, summary in summaries.items()}
    return {
        "setting": name,
        "metric": metric,
        "values": values,
        "scores": scores,
        "mean": mean(values.values()),
        "spread": stdev(values.values()) if len(values) > 1 else None,
        "score": mean(scores.values()),  # more is better
    }


def best_seed(row: Mapping[str, Any]) -> str:
    scores: Mapping[str, float] = row["scores"]
    return max(scores, key=scores.__getitem__)


def as_text(result: Mapping[str, Any]) -> str:
    """What `sweep` returned, as a table with the best setting first."""
    rows = result["rows"]
    lines = [["setting", f"dev {rows[0]['metric']}"]]
    for row in rows:
        spread = "" if row["spread"] is None else f" ± {row['spread']:.2f}"
        each = "  ".join(f"{value:.2f}" for value in row["values"].values())
        lines.append([row["setting"], f"{row['mean']:.2f}{spread}  ({each})"])
    return f"{aligned(lines)}\nbest: {result['best']}"
