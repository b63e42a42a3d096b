"""A run's folder for others: what is needed to decode with it, and a model card."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from softbeam.data import catalogue
from softbeam.data.tasks import InMemory
from softbeam.errors import UserError
from softbeam.runtime.files import write_text
from softbeam.training import cards
from softbeam.training.cards import Facts, Figure
from softbeam.training.config import CONFIG, METRICS, SUMMARY, RunConfig, Stage, modules_of
from softbeam.training.kinds import kind_of
from softbeam.training.own_search import search_title, trained_alpha, training_title
from softbeam.training.run_files import (
    ENVIRONMENT,
    SOURCE,
    TARGET,
    WEIGHTS,
    read_environment,
    read_metrics,
    read_summary,
)

COPIED = (CONFIG, WEIGHTS, SOURCE, TARGET, SUMMARY, METRICS)
KEPT = (*COPIED, ENVIRONMENT, cards.README)  # in a folder for others
PRIVATE = ("command", "folder", "files")  # of the environment: paths of the machine
TASKS = {"tagging": "token-classification", "translation": "translation"}  # as the hub has them
NOTE = "The figure on dev chose the weights, and so is too good."


def exported_in(folder: Path) -> str | None:
    """Say whether a folder is an exported run; None if it holds anything else."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    whole = {CONFIG, WEIGHTS, cards.README} <= names <= {*KEPT}
    return "an exported run" if whole else None


def copy_run(folder: Path, out: Path) -> None:
    """Copy what a run needs to be loaded; raises UserError if its training has not finished."""
    if not (folder / SUMMARY).is_file():
        raise UserError(f"{folder} has no {SUMMARY}: its training has not finished")
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    recorded = read_environment(folder)
    public = {name: value for name, value in recorded.items() if name not in PRIVATE}
    public["files"] = files_of(recorded)
    write_text(out / ENVIRONMENT, json.dumps(public, indent=1) + "\n")


def recorded_figure(folder: Path, config: RunConfig) -> Figure | None:
    """Return the figure on dev that chose a run's weights, with the interval that was recorded."""
    figures = read_summary(folder).get("metrics")
    if not figures:
        return None
    kind = kind_of(config.data)
    metric, signed = kind.main_metric(figures)
    value = kind.sign * signed
    rows = read_metrics(folder) if (folder / METRICS).is_file() else []
    ends = [r["interval"] for r in rows if r.get("value") == value and "interval" in r]
    sizes = read_environment(folder).get("examples", {})
    low_high = (float(ends[-1][0]), float(ends[-1][1])) if ends else None
    return Figure(metric, value, "dev", corpus_of(folder, config), low_high, sizes.get("dev"))


def run_card(
    folder: Path,
    config: RunConfig,
    figures: Sequence[Figure],
    *,
    name: str,
    license: str | None,
    repo_id: str | None,
    warning: str | None,
) -> ModelCard:
    """Make the card of a run from its records.

    Args:
        folder: of the run.
        config: of the run.
        figures: to be shown.
        name: of the model.
        license: of the model, as the hub names it, such as apache-2.0.
        repo_id: where it will be on the hub.
        warning: that the run is no better than counting, if so.
    """
    kind = kind_of(config.data).name
    facts = Facts(
        about=f"A model for {kind}, trained with softbeam: {training_title(folder, config)}.",
        data=data_facts(folder, config),
        training=training_facts(folder, config),
        search=search_facts(folder, config),
        figures=figures,
        note="\n\n".join(filter(None, [cards.INTERVALS, NOTE, warning])),
        use=use_of(config, repo_id),
        versions=version_facts(folder),
        objectives=[s.objective for _, s in config.stages if s.objective is not None],
    )
    return cards.card(
        facts,
        name=name,
        task=TASKS.get(kind),
        license=license,
        library_name="softbeam",
        tags=[kind],
    )


def data_facts(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Name the corpus, its licence and the sizes of its splits."""
    entry = catalogue.CORPORA.get(config.data.corpus_name or "")
    counts = read_environment(folder).get("examples", {})
    return {
        "corpus": corpus_of(folder, config),
        "title": None if entry is None else entry.title,
        "licence of the corpus": None if entry is None else entry.licence,
    } | {f"{split} examples": f"{count:,}" for split, count in counts.items()}


def corpus_of(folder: Path, config: RunConfig) -> str:
    """Name the corpus of the catalogue, or the files."""
    if isinstance(config.data, InMemory):
        return "examples given in Python"
    files = dict.fromkeys(files_of(read_environment(folder)).values())
    return config.data.corpus_name or ", ".join(files) or type(config.data).__name__


def files_of(recorded: dict[str, Any]) -> dict[str, str]:
    """The names of the files of each split, without the folders of the machine."""
    return {split: name_only(files) for split, files in recorded.get("files", {}).items()}


def name_only(files: str) -> str:
    """The names of files that are joined by a plus, without the folders of this machine."""
    return " + ".join(Path(part).name for part in files.split(" + "))


def training_facts(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Describe the model, and the stages of its training."""
    summary = read_summary(folder)
    parameters = summary.get("parameters")
    stages = {f"stage {name}": stage_title(stage) for name, stage in config.stages}
    return {
        "model": cards.short(config.model),
        "parameters": None if parameters is None else f"{parameters:,}",
        "seed": config.seed,
    } | stages


def stage_title(stage: Stage) -> str:
    """Name the objective of a stage, its settings and the optimizer."""
    assert stage.objective is not None
    how = f"{stage.optimizer}, learning rate {stage.lr}, epochs {stage.epochs} at most"
    return f"`{cards.short(stage.objective)}`, {how}. {cards.about(stage.objective)}"


def search_facts(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Describe the search of the last objective, and the one that chose the weights."""
    alpha, beam = trained_alpha(folder, config), getattr(config.select, "k", 1)
    return {
        "trained for": training_title(folder, config),
        "search that chose the weights, and of `run.decode`": search_title(config.select),
        "beam size": beam,
        "scores": "normalized" if config.select.normalize else "raw (globally normalized)",
        "alpha": "none (a hard search)" if alpha is None else f"{alpha:.4g}",
    }


def version_facts(folder: Path) -> dict[str, Any]:
    """List the versions that a run was trained with."""
    recorded = read_environment(folder)
    packages: dict[str, Any] = recorded.get("packages", {})
    return {"python": recorded.get("python"), "commit": recorded.get("commit")} | packages


def use_of(config: RunConfig, repo_id: str | None) -> str:
    """Write the Python that decodes with a run."""
    modules = sorted(modules_of(config))
    allowed = f", allow_modules={modules!r}" if modules else ""
    where = '"."' if repo_id is None else f'snapshot_download("{repo_id}")'
    lines = ["import softbeam", ""]
    if repo_id is not None:
        lines.insert(1, "from huggingface_hub import snapshot_download")
    loading = f"run = softbeam.load_run({where}{allowed})"
    loading += "  # the path of this folder" if repo_id is None else ""
    return "\n".join([*lines, loading, DECODING])


DECODING = """for outputs in run.decode(["a line of input", "and another"]):
    print(*outputs[0].tokens)"""
