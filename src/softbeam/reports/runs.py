"""What a page shows of training runs: their results by trial, and commands to go on with them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from softbeam.errors import UserError
from softbeam.objectives.base import Objective
from softbeam.objectives.soft_beam import SoftBeamObjective
from softbeam.reports.charts import readable
from softbeam.reports.records import is_number, many
from softbeam.reports.results import ResultTable
from softbeam.reports.tables import number, summary as mean_and_spread
from softbeam.runtime.files import LARGEST_CONFIG, read_input, read_object
from softbeam.runtime.progress import clock
from softbeam.training.config import CONFIG, RunConfig, from_yaml, objective_names
from softbeam.training.kinds import LOWER_IS_BETTER
from softbeam.training.own_search import scores_title, search_title
from softbeam.training.runs import ENVIRONMENT, METRICS, WEIGHTS, read_metrics, read_summary
from softbeam.training.significance import crossed_test

Row = dict[str, Any]
ENVIRONMENT_TYPES = {
    "command": list,
    "packages": dict,
    "files": dict,
    "examples": dict,
    "started": str,
    "folder": str,
}
NOT_GIVEN, INTERVAL = "–", "95 % interval"
RECIPES = {  # by the kind of the task; a configuration replaces all of their settings
    "tagging": "tagging",
    "transcription": "g2p",
    "translation": "translation",
}


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A run's files, as far as a page shows them."""

    folder: Path
    settings: RunConfig
    config: str  # as its file has it
    summary: Row
    environment: Row
    train: list[Row]  # rows of the log
    dev: list[Row]

    @property
    def name(self) -> str:
        """The name of the folder."""
        return readable(self.folder.name)

    @property
    def trial(self) -> str:
        """The name without the seed, which `compare` puts at its end."""
        return self.name.removesuffix(f"-{self.settings.seed}") or self.name

    @property
    def made_by(self) -> str:
        """The command that made the run, as a shell reads it."""
        return shlex.join(command_of(self))

    @property
    def commands(self) -> dict[str, str]:
        """Commands to go on with, by what they do."""
        return commands(self)

    @property
    def finished(self) -> bool:
        """True if the run has weights."""
        return (self.folder / WEIGHTS).is_file()

    @property
    def soft_beam(self) -> bool:
        """True if a stage was trained on the soft beam."""
        return any(isinstance(s.objective, SoftBeamObjective) for _, s in self.settings.stages)

    @cached_property
    def points(self) -> list[tuple[int, Row]]:
        """The rows of the log with their updates; a second stage continues the first's count."""
        rows = [*self.train, *self.dev]
        offset, placed = 0, []
        for stage in dict.fromkeys([*self.objectives, *(row["stage"] for row in rows)]):
            placed += [(offset + row["update"], row) for row in rows if row["stage"] == stage]
            offset = max((x for x, _ in placed), default=0)
        return placed

    @cached_property
    def objectives(self) -> dict[str, str]:
        """The name of each stage's objective, as `--objective` takes it."""
        return {
            name: objective_name(stage.objective)
            for name, stage in self.settings.stages
            if stage.objective is not None
        }


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


def describe(folder: Path) -> ShownRun:
    """Read what a page shows of a run."""
    rows = read_metrics(folder) if (folder / METRICS).exists() else []
    file = folder / ENVIRONMENT
    what = "a run's environment"
    return ShownRun(
        folder,
        from_yaml(folder / CONFIG),
        read_config(folder / CONFIG),
        read_summary(folder),
        read_object(file, what, ENVIRONMENT_TYPES) if file.exists() else {},
        [row for row in rows if row["kind"] == "train"],
        [row for row in rows if row["kind"] == "dev"],
    )


def read_config(path: Path) -> str:
    try:
        return read_input(path, LARGEST_CONFIG).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def objective_name(objective: Objective) -> str:
    """The short name of an objective; of a class that is not softbeam's, the class's name."""
    kind = type(objective).__name__
    return {name: short for short, name in objective_names().items()}.get(kind, kind)


def trials_of(runs: Sequence[ShownRun]) -> dict[str, list[ShownRun]]:
    """Group runs that differ in their seed alone, by the name of the trial; starts come first.

    A trial of one run has the name of its folder. Where two trials have the same name, the name
    of the folder around them is added.
    """
    groups: dict[tuple[Path, str], list[ShownRun]] = {}
    for run in sorted(runs, key=lambda run: run.settings.warm_start is not None):
        groups.setdefault((run.folder.parent, run.trial), []).append(run)
    named: dict[str, list[ShownRun]] = {}
    for (parent, trial), group in groups.items():
        name = trial if len(group) > 1 else group[0].name
        named[name if name not in named else f"{readable(parent.name)}/{name}"] = group
    return named


# Results


def run_table(trials: Mapping[str, Sequence[ShownRun]]) -> ResultTable:
    """A row for each trial: its result on dev with an interval, and how it came about.

    What is the same for all trials stands in the note.
    """
    rows = [{"training": name} | result_of(runs) for name, runs in trials.items()]
    facts = [facts_of(runs) for runs in trials.values()]
    shared = [key for key in facts[0] if len(facts) > 1 and len({f[key] for f in facts}) == 1]
    rows = [
        row | {key: value for key, value in fact.items() if key not in shared} | cost_of(runs)
        for row, fact, runs in zip(rows, facts, trials.values(), strict=True)
    ]
    same = [f"{key} {facts[0][key]}" for key in shared if facts[0][key] != NOT_GIVEN]
    several = any(len(runs) > 1 for runs in trials.values())
    intervals = "over sentences; of several seeds, of their mean over seeds"
    note = f"Intervals are {intervals if several else 'over sentences'}."
    return ResultTable(
        "Training runs", rows, f"Each with {'; '.join(same)}. {note}" if same else note
    )


def result_of(runs: Sequence[ShownRun]) -> Row:
    """The main metric on dev of the runs of a trial, with an interval if one is known."""
    metric = next((run.summary["metric"] for run in runs if main_value(run) is not None), None)
    values = [value for run in runs if (value := main_value(run)) is not None]
    if metric is None:
        return {"metric": "not finished", "value": NOT_GIVEN, INTERVAL: NOT_GIVEN}
    less = " (less is better)" if metric in LOWER_IS_BETTER else ""
    test = crossed_test(values) if len(runs) > 1 else None
    ends: Any = interval_of(runs[0]) if test is None else list(test.interval)
    right = many(is_number)(ends) and len(ends) == 2
    return {
        "metric": f"{metric.replace('_', ' ')}{less}",
        "value": number(mean_and_spread(values), 2),
        INTERVAL: f"{ends[0]:.2f} to {ends[1]:.2f}" if right else NOT_GIVEN,
    }


def interval_of(run: ShownRun) -> Any:
    """The interval that the log has of the score whose weights were kept; None if it has none."""
    last, value = list(run.objectives)[-1:], main_value(run)
    best = [row for row in run.dev if [row["stage"]] == last and row["value"] == value]
    return best[0].get("interval") if best else None


def main_value(run: ShownRun) -> float | None:
    """The main metric of a finished run."""
    name = run.summary.get("metric")
    value: Any = run.summary.get("metrics", {}).get(name) if isinstance(name, str) else None
    return float(value) if is_number(value) else None


def facts_of(runs: Sequence[ShownRun]) -> dict[str, str]:
    """What a result depends on: split, search, corpus, date."""
    facts, settings = runs[0].environment, runs[0].settings
    search, sizes, name = settings.select, facts.get("examples", {}), settings.data.corpus_name
    files = {"dev": name} if name else facts.get("files", {})
    dates = sorted({run.environment.get("started", "")[:10] for run in runs} - {""})
    return {
        "split": "dev",
        "search": f"{search_title(search)}, {scores_title(search.normalize)}",
        "corpus": corpus_text(files, "dev", sizes.get("dev")) or NOT_GIVEN,
        "date": " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else NOT_GIVEN,
        "seeds": str(len(runs)),
    }


def corpus_text(files: Mapping[str, Any], split: str, size: Any) -> str:
    """The file that a split was read from, and its number of examples.

    Args:
        files: the files of a corpus by split, or by what they hold.
        split: dev, or another split; if it has no file, it is a part of the training file.
        size: the number of examples, if known.
    """
    names = [files[name] for name in (split, "train") if name in files] or [*files.values()]
    names = [" + ".join(Path(part).name for part in str(n).split(" + ")) for n in names]
    return ", ".join([*names[:1], *([f"{size:,} examples"] if isinstance(size, int) else [])])


def cost_of(runs: Sequence[ShownRun]) -> dict[str, str]:
    """The epoch that was best, the parameters, and the time that training took."""
    done = [run.summary for run in runs if is_number(run.summary.get("seconds"))]
    epochs = sorted({summary["epoch"] + 1 for summary in done if "epoch" in summary})
    sizes = {summary["parameters"] for summary in done if "parameters" in summary}
    return {
        "best epoch": ", ".join(map(str, epochs)) or NOT_GIVEN,
        "parameters": ", ".join(f"{size:,}" for size in sorted(sizes)) or NOT_GIVEN,
        "time a run": clock(mean(s["seconds"] for s in done)) if done else NOT_GIVEN,
    }


# Commands


def commands(run: ShownRun) -> dict[str, str]:
    """Commands that work when they are pasted into a terminal, by what they do."""
    folder = str(run.folder.resolve())
    split = "test" if "test" in run.environment.get("examples", {}) else "dev"
    if run.finished:
        config, again = f"{folder}/{CONFIG}", f"{folder}-again"
        given = {
            f"score {split}": ["evaluate", folder, "--split", split],
            "train anew": ["train", RECIPES[run.settings.data.kind], "--config", config]
            + ["--out", again],
        }
    else:
        words = command_of(run)[1:]
        given = {"go on": [*words, "--resume"]} if words[:1] == ["train"] else {}
    place = run.environment.get("folder")
    start = f"cd {shlex.quote(place)} && " if place else ""
    return {what: f"{start}softbeam {shlex.join(words)}" for what, words in given.items()}


def command_of(run: ShownRun) -> list[str]:
    """The words of the command that made the run; the first is the program."""
    words = [str(word) for word in run.environment.get("command", [])]
    return ["softbeam", *words[1:]] if words[:1] == ["__main__.py"] else words
