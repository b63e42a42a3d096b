"""Runs as cells of a grid: restarts, comparisons and sweeps, by one process or by many workers.

A run that a worker left unfinished continues from its last checkpoint, whichever worker takes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softbeam.errors import UserError
from softbeam.runtime import inputs, ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.cells import Result, result_path
from softbeam.runtime.files import write_atomic
from softbeam.runtime.grid import ALONE, Workers, run_grid
from softbeam.runtime.progress import note
from softbeam.training.config import (
    AUTO,
    RunConfig,
    from_text,
    modules_of,
    restart_seeds,
    to_json,
)
from softbeam.training.loop import finish, paths_read, train as train_run
from softbeam.training.runs import CONFIG, SUMMARY, files_read, own_files, run_folder
from softbeam.training.threads import from_environment


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run to be trained.

    Args:
        name: of its folder, below the grid's.
        config: its settings, in JSON.
    """

    name: str
    config: str

    def __post_init__(self) -> None:
        if self.name in ("", "..") or self.name != Path(self.name).name:
            raise ValueError(f"name={self.name!r}: must be the name of a folder, not a path")

    def __str__(self) -> str:
        return self.name


def train_planned(cell: Planned, folder: Path) -> Result:
    """Train a run, or continue it; returns its summary."""
    if ranks.first():
        note(str(folder / cell.name))
    return train_cell(cell, folder, quiet=False)


def train_quietly(cell: Planned, folder: Path) -> Result:
    """Train a run as `train_planned` does, without showing progress."""
    return train_cell(cell, folder, quiet=True)


def train_cell(cell: Planned, folder: Path, *, quiet: bool) -> Result:
    """Train or continue a run of a grid; with one thread, if nothing else is said.

    There may be a run on each core, so that a trial of threads would mislead.
    """
    config, out = from_text(cell.config), folder / cell.name
    if config.threads == AUTO and not from_environment() and not (out / CONFIG).is_file():
        config = replace(config, threads=1)
    return train(config, out, resume=True, quiet=quiet)


def train_all(
    configs: Mapping[str, RunConfig],
    out: Path,
    *,
    workers: Workers = ALONE,
    title: str = "runs",
    quiet: bool = False,
    accept_changed_inputs: bool = False,
) -> list[Result]:
    """Train runs and return their summaries by folder name; finished runs are left as they are.

    Raises UserError if what a run in a folder depends on has changed.
    """
    folders = {out / name: config for name, config in configs.items()}
    check_inputs(folders, accept=accept_changed_inputs)
    cells = planned(configs)
    for cell in cells:
        if not (out / cell.name / SUMMARY).is_file():  # removed by hand, to train it again
            result_path(cell, out).unlink(missing_ok=True)
    one_by_one = workers.alone and not quiet  # then each shows its own progress
    with allowing(modules_of(*configs.values())):
        return run_grid(
            cells,
            train_planned if one_by_one else train_quietly,
            out,
            workers=workers,
            title=title,
            quiet=quiet or one_by_one,
        )


def check_inputs(runs: Mapping[Path, RunConfig], *, accept: bool) -> None:
    """Compare what existing runs depend on with their records, in the process that commands.

    Raises UserError if something has changed. With `accept`, the records are brought up to date,
    so that the processes that train the runs find no difference.
    """
    for folder, config in runs.items() if ranks.first() else ():
        if (folder / inputs.NAME).is_file():
            files = files_read(config, config.data.load()) | own_files(folder)
            inputs.check(folder, files, accept=accept)


def planned(configs: Mapping[str, RunConfig]) -> list[Planned]:
    return [Planned(name=name, config=to_json(config)) for name, config in configs.items()]


def train(
    config: RunConfig,
    out: Path,
    *,
    quiet: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_inputs: bool = False,
    workers: Workers = ALONE,
) -> dict[str, Any]:
    """Train a run into a folder; returns its summary.

    With restarts, several seeds are trained, each in a folder of its own, and the best on dev
    becomes the run. `resume` continues what was stopped and leaves what is finished; `overwrite`
    replaces a run that is in the folder.
    """
    if config.restarts == 1:
        return train_run(
            config,
            out,
            quiet=quiet,
            resume=resume,
            overwrite=overwrite,
            accept_changed_inputs=accept_changed_inputs,
        )
    configs = {
        f"restart-{n}": replace(config, seed=seed, restarts=1)
        for n, seed in enumerate(restart_seeds(config))
    }
    with run_folder(out, paths_read(config), resume=resume, overwrite=overwrite) as folder:
        if (folder / CONFIG).is_file() and not (folder / "restart-0").is_dir():
            raise UserError(f"{out} holds a run without restarts; give another folder")
        summaries = train_all(
            configs,
            folder,
            workers=workers,
            title="restarts",
            quiet=quiet,
            accept_changed_inputs=accept_changed_inputs,
        )
        return keep_best(summaries, folder)


def keep_best(summaries: Sequence[Result], out: Path) -> dict[str, Any]:
    """Make the best restart the run."""
    scores = [summary["score"] for summary in summaries]
    winner = max(range(len(scores)), key=scores.__getitem__)
    for file in (out / f"restart-{winner}").iterdir() if ranks.first() else ():
        if file.is_file():
            write_atomic(out / file.name, file.read_bytes())
    return finish(out, summaries[winner] | {"restart": winner, "restart_scores": scores})
