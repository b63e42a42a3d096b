"""Train a run by one call: from a recipe or a configuration, on files or on lists in memory."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from softbeam.data.task import Pair
from softbeam.data.tasks import EXAMPLES, InMemory
from softbeam.errors import UserError
from softbeam.objectives.base import Objective
from softbeam.runtime import ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.files import write_text
from softbeam.runtime.grid import ALONE, Workers
from softbeam.training import many
from softbeam.training.config import CONFIG, RunConfig, begun, check, from_yaml, modules_of
from softbeam.training.own_search import fitting
from softbeam.training.recipes import RECIPES
from softbeam.training.runs import Run, load_run, run_folder, runs_read


def train(
    recipe: str | RunConfig,
    out: str | Path,
    *,
    objective: Objective | None = None,
    seed: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_inputs: bool = False,
    quiet: bool = False,
    examples: Iterable[Pair] | None = None,
    dev: Iterable[Pair] | None = None,
    test: Iterable[Pair] | None = None,
    workers: Workers = ALONE,
    **overrides: Any,
) -> Run:
    """Train a run into a folder; returns it, ready to decode.

        tagger = train("tagging", out="runs/x", examples=[(["the", "cat"], ["D", "N"]), ...])
        tagger.decode(["the cat"])[0][0].tokens

    The same settings give the same weights. Raises UserError if the settings do not fit, and if
    the folder is not empty and neither `resume` nor `overwrite` is set.

    Args:
        recipe: name of a recipe, or a whole configuration.
        out: folder of the run.
        objective: of the second stage. If it has a beam, so has the search that scores dev, unless
            `select` or a whole configuration is given.
        seed: of weights, batches and everything random.
        resume: continue from the last checkpoint in the folder; a finished run stays as it is.
        overwrite: replace a run in the folder as soon as the new one is complete.
        accept_changed_inputs: resume also if data or start weights have changed since.
        quiet: show no progress.
        examples: pairs of words and tags, or of source and target, instead of the recipe's data:
            a list, a generator, a dataset or any other iterable. Each side is a sequence of tokens,
            or a text of tokens with spaces between. The folder of the run keeps them, so that it
            works without the program that made them.
        dev: pairs for the choice of the best weights; without them a tenth of the examples is held
            out, and of very few none.
        test: pairs for `Run.evaluate("test")`.
        workers: processes that train the restarts.
        overrides: other fields of the configuration, such as `model` or `select`.
    """
    out = Path(out)
    config = config_of(recipe)
    if resume and isinstance(recipe, str):
        with allowing(modules_of(*overrides.values())):
            config = begun(out) or config
    if unknown := overrides.keys() - {f.name for f in fields(RunConfig)}:
        names = ", ".join(f.name for f in fields(RunConfig))
        raise TypeError(f"train has no argument {min(unknown)!r}; a configuration has {names}")
    if seed is not None:
        overrides["seed"] = seed
    config = replace(config, **overrides)
    if objective is not None:
        config = replace(config, finetune=replace(config.finetune, objective=objective))
        if isinstance(recipe, str) and "select" not in overrides:
            config = replace(config, select=fitting(config.select, objective))
    if examples is None and (dev is not None or test is not None):
        raise TypeError("dev and test are for examples in memory; give examples too")
    with ExitStack() as stack:
        folder = out
        if examples is not None:
            splits = {"train": examples, "dev": dev, "test": test}
            opened = run_folder(out, runs_read(config).values(), resume=resume, overwrite=overwrite)
            folder = stack.enter_context(opened)
            config = with_examples(config, folder, splits)
        check(config)
        many.train(
            config,
            folder,
            quiet=quiet,
            resume=resume,
            overwrite=overwrite,
            accept_changed_inputs=accept_changed_inputs,
            workers=workers,
        )
    with ranks.joined():
        ranks.wait()  # until the first process has written everything
    run = load_run(out, device=config.device, allow_modules=modules_of(config))
    if ranks.first() and (warning := run.warning()):
        print(warning, file=sys.stderr, flush=True)  # also if progress is not shown
    return run


def with_examples(
    config: RunConfig, folder: Path, splits: Mapping[str, Iterable[Pair] | None]
) -> RunConfig:
    """Write examples to the folder of their run, and return the configuration that reads them.

    Raises UserError if the folder holds a run on other examples.
    """
    data, text = InMemory.of(folder, config.data.kind, splits)
    with allowing(modules_of(config)):
        before = from_yaml(folder / CONFIG).data if (folder / CONFIG).is_file() else data
    if before != data:
        raise UserError(f"{folder} holds a run on other examples; give another folder")
    write_text(folder / EXAMPLES, text)
    return replace(config, data=data)


def config_of(recipe: str | RunConfig) -> RunConfig:
    """Return the configuration of a recipe; raises UserError if there is no such recipe."""
    if isinstance(recipe, RunConfig):
        return recipe
    if recipe not in RECIPES:
        raise UserError(f"no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    return RECIPES[recipe]()
