"""Flags of `train` that follow from others, and their order: dev is searched as in training."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from softbeam.cli.parser import options
from softbeam.errors import UserError
from softbeam.objectives import OBJECTIVES
from softbeam.training.config import RunConfig, load_settings
from softbeam.training.searches import SEARCHES, Beam, Greedy

OBJECTIVE = "--finetune.objective"


def implied_search(words: list[str], files: list[str], recipe: Any) -> list[str]:
    """Add the flags by which dev is searched as the objective searches, unless they are given.

    --finetune.objective.k (--beam) also sets the beam of the search on dev. An objective with a
    beam makes a beam search of a recipe's greedy one. Scores on dev are raw or normalized as in
    the objective.

    Args:
        words: the command line without short forms; class names are written out.
        files: those of --config.
        recipe: whose search counts if neither the words nor the files choose one.
    """
    given = dict(options(words))
    objective = next((o for o in OBJECTIVES if o.__name__ == given.get(OBJECTIVE)), None)
    defaults = {f.name: f.default for f in fields(objective)} if objective else {}
    beam = given.get(f"{OBJECTIVE}.k", defaults.get("k"))
    normalize = given.get(f"{OBJECTIVE}.normalize", defaults.get("normalize"))
    search = chosen_search(given, files)
    first: list[str] = []
    if search is None:
        search = type(recipe.select).__name__
        if search == Greedy.__name__ and beam is not None:
            search, first = Beam.__name__, ["--select", Beam.__name__, "--select.k", str(beam)]
    kind = next((kind for kind in SEARCHES.values() if kind.__name__ == search), None)
    settings = {f.name for f in fields(kind)} if kind else set()  # None: a class of the user's
    last: list[str] = []
    if f"{OBJECTIVE}.k" in given and "k" in settings and "--select.k" not in given:
        last += ["--select.k", str(beam)]
    if normalize is not None and settings and "--select.normalize" not in given:
        last += ["--select.normalize", str(normalize).lower()]
    return first + words + last


def without_objective(words: list[str], files: list[str], recipe: Any) -> list[str]:
    """Give --beam to the search on dev if there is no objective, or one without a beam.

    Raises UserError if another setting of an objective is given without an objective.
    """
    given = dict(options(words))
    named = given.get(OBJECTIVE) or type_name(recipe.finetune.objective)
    in_files = any((settings_in(path, "finetune") or {}).get("objective") for path in files)
    beam = f"{OBJECTIVE}.k"
    for flag in given:
        if flag.startswith(f"{OBJECTIVE}.") and flag != beam and not (named or in_files):
            raise UserError(f"{flag} {given[flag]}: give the objective too, --objective NAME")
    plain = {o.__name__ for o in OBJECTIVES if "k" not in {f.name for f in fields(o)}}
    if beam not in given or (named not in plain if named else in_files):
        return words
    pairs = zip(["", *words], words, strict=False)
    rest = [word for before, word in pairs if beam not in (before, word)]
    return ["--select", Beam.__name__, *rest, "--select.k", given[beam]]


def classes_first(words: list[str]) -> list[str]:
    """Put a flag that chooses a class before the flags of its fields, which the parser expects."""
    ordered = [*words]
    for flag, value in options(words):
        nested = [i for i, word in enumerate(ordered) if word.startswith(f"{flag}.")]
        pairs = [*zip(ordered, ordered[1:], strict=False)]
        if nested and (flag, value) in pairs and nested[0] < (at := pairs.index((flag, value))):
            del ordered[at : at + 2]
            ordered[nested[0] : nested[0]] = [flag, value]
    return ordered


def type_name(objective: object | None) -> str | None:
    """Return the name of an objective's class; None if there is no objective."""
    return None if objective is None else type(objective).__name__


def settings_in(path: str, name: str) -> Any:
    """Return a part of the settings in a file."""
    return load_settings(Path(path).read_text(encoding="utf-8")).get(name)


def chosen_search(given: dict[str, str], files: list[str]) -> str | None:
    """Return the class of the search that a command line or else a file names; None if none."""
    chosen = None
    for path in files:
        select = settings_in(path, "select")
        chosen = select.get("class_path", chosen) if isinstance(select, dict) else chosen
    return given.get("--select", chosen)


def same_beam(lines: list[list[str]], configs: list[RunConfig]) -> list[RunConfig]:
    """Give the trials of a comparison the first beam among them, unless they have words for it."""
    beams = [config.select.k for config in configs if isinstance(config.select, Beam)]
    return [
        replace(config, select=config.select.to(Beam, k=beams[0]))
        if beams and isinstance(config.select, Greedy | Beam) and not names_beam(line)
        else config
        for line, config in zip(lines, configs, strict=True)
    ]


def names_beam(line: list[str]) -> bool:
    """Tell whether a command line chooses the beam of the search on dev."""
    flags = {word.partition("=")[0] for word in line}
    return not flags.isdisjoint(("--beam", f"{OBJECTIVE}.k", "--select", "--select.k"))
