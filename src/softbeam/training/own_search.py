"""The search that a run was trained for, and changes to it. Nothing here loads torch."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from softbeam.errors import UserError
from softbeam.objectives.base import Objective
from softbeam.runtime.files import Types, read_object, read_rows
from softbeam.schedules import Moment
from softbeam.training.config import METRICS, SUMMARY, RunConfig, objective_names
from softbeam.training.searches import FLAGS, SEARCHES, Beam, Greedy, Search, name_of

NOTHING: Mapping[str, Any] = MappingProxyType({})
ALPHA = (int, float, type(None))
DEV_TYPES: Types = {"kind": str, "stage": str, "epoch": int, "update": int}


def fitting(search: Search, objective: Objective | None) -> Search:
    """Return the search that should choose the weights of an objective.

    An objective with a beam turns greedy search into a beam of its size, and gives a beam search
    its scores, raw or normalized. Otherwise the search stays as it is.
    """
    beam = getattr(objective, "k", None)
    if not isinstance(search, Greedy | Beam) or beam is None:
        return search
    size = {"k": beam} if isinstance(search, Greedy) else {}
    return search.to(Beam, normalize=getattr(objective, "normalize", True), **size)


def own_search(
    folder: Path, config: RunConfig, name: str | None = None, settings: Mapping[str, Any] = NOTHING
) -> Search:
    """Return the search that chose a run's weights, changed as asked.

    What is not given is as in the run: the settings of its own search, then the beam and the alpha
    that it was trained with. Without a name, settings that the own search lacks choose the first
    search that has them: `k` makes a beam search of a greedy one. Raises UserError if there is no
    such search, or if it has no such setting.

    Args:
        folder: of the run.
        config: of the run.
        name: of another search, one of `SEARCHES`.
        settings: fields of the search, and their values.
    """
    own, kind = config.select, type(config.select)
    if name is not None:
        if name not in SEARCHES:
            raise UserError(f"--search {name}: there are {', '.join(SEARCHES)}")
        kind = SEARCHES[name]
    elif not settings.keys() <= names_of(kind):
        able = (s for s in SEARCHES.values() if settings.keys() <= names_of(s))
        kind = next((s for s in able if s().left_to_right == own.left_to_right), kind)
    for setting in settings.keys() - names_of(kind):
        flag = f"--{FLAGS.get(setting, setting)}".replace("_", "-")
        short = next((short for short, s in SEARCHES.items() if s is kind), kind.__name__)
        raise UserError(f"{flag} {settings[setting]}: is no setting of the search {short}")
    if kind is type(own):
        return replace(own, **settings)
    trained = trained_settings(folder, config, names_of(kind) - names_of(type(own)))
    return own.to(kind, **trained | dict(settings))


def names_of(kind: type[Search]) -> set[str]:
    """Return the names of a search's settings."""
    return {f.name for f in fields(kind)}


def trained_settings(folder: Path, config: RunConfig, names: set[str]) -> dict[str, Any]:
    """Return the beam and the alpha that a run was trained with, as far as `names` has them."""
    beam = getattr(config.stages[-1][1].objective, "k", None)
    values = {"k": beam, "alpha": trained_alpha(folder, config) if "alpha" in names else None}
    return {name: value for name, value in values.items() if name in names and value is not None}


def trained_alpha(folder: Path, config: RunConfig) -> float | None:
    """Return the alpha of the last update of the epoch whose weights a run kept.

    None if the run was not trained on a soft beam, or has no summary. Summaries of before do not
    have it, but the log has.
    """
    if not (folder / SUMMARY).is_file():
        return None
    summary = read_object(folder / SUMMARY, "a run's summary", {"epoch": int, "alpha": ALPHA})
    if "alpha" in summary:
        return None if summary["alpha"] is None else float(summary["alpha"])
    return alpha_after(folder, config, summary.get("epoch"))


def alpha_after(folder: Path, config: RunConfig, epoch: int | None) -> float | None:
    """Return the alpha of the last update of an epoch, from the log of a run; None without it."""
    stage, settings = config.stages[-1]
    schedule = getattr(settings.objective, "alpha", None)
    soft = hasattr(settings.objective, "k")
    if schedule is None or not soft or not (folder / METRICS).is_file():
        return None
    for row in read_rows(folder / METRICS, "a row of a run's metrics", DEV_TYPES):
        if (row.get("kind"), row.get("stage"), row.get("epoch")) == ("dev", stage, epoch):
            return float(schedule(Moment(row["epoch"], row["update"] - 1)))
    return None


def search_record(search: Search) -> dict[str, Any]:
    """Return the name and all settings of a search as values that JSON can hold."""
    return {"method": name_of(search)} | asdict(search)


def search_title(search: Search) -> str:
    """Name a search and its settings that matter: beam 3, raw scores."""
    settings = {f.name: getattr(search, f.name) for f in fields(search)}
    shown = [f"{name_of(search)} {settings['k']}" if "k" in settings else name_of(search)]
    for f in fields(search):
        if f.name not in (*COMMON, "k") and settings[f.name] != f.default:
            shown.append(f"{f.name.replace('_', ' ')} {settings[f.name]}")
    return ", ".join(shown)


COMMON = {f.name for f in fields(Search)} | {"alpha"}  # said elsewhere, or seldom of interest


def scores_title(normalize: bool) -> str:
    """Say which scores a search adds up."""
    return "normalized scores" if normalize else "raw scores"


def training_title(folder: Path, config: RunConfig) -> str:
    """Name the last objective of a run, with its beam, its scores and the last alpha."""
    objective = config.stages[-1][1].objective
    short = {kind: name for name, kind in objective_names().items()}
    shown = [short.get(type(objective).__name__, type(objective).__name__)]
    if (beam := getattr(objective, "k", None)) is not None:
        shown = [
            f"{shown[0]}, beam {beam}",
            scores_title(getattr(objective, "normalize", True)),
        ]
    if (alpha := trained_alpha(folder, config)) is not None:
        shown.append(f"alpha {alpha:.4g}")
    return ", ".join(shown)
