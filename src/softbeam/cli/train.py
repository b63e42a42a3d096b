"""Commands that train: train, compare, sweep."""

import argparse
import os
import re
import shlex
import textwrap
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli import ladder, train_mlm
from softbeam.cli.help_pages import COMPARE_HELP, SWEEP_HELP
from softbeam.cli.implied import classes_first, implied_search, same_beam, without_objective
from softbeam.cli.parser import (
    Parser,
    accept_argument,
    field_docs,
    nearest,
    options,
    overwrite_argument,
    parser,
    say_json,
    split_flag,
    whole_numbers,
)
from softbeam.cli.recipe_flags import COMMAND_FLAGS, nested_flags
from softbeam.cli.stages import stage_aliases
from softbeam.cli.workers import worker_arguments, workers_of
from softbeam.data.parallel import Translation
from softbeam.errors import UserError
from softbeam.models import specs
from softbeam.runtime import ranks
from softbeam.training.config import (
    begun as begun_in,
    check_yaml,
    objective_names,
    only_allowed_imports,
    run_parser,
    to_run,
)
from softbeam.training.recipes import RECIPES
from softbeam.training.searches import SEARCHES

if TYPE_CHECKING:
    from softbeam.experiments import compare as comparison, grid_search as sweeping
    from softbeam.reports import headroom
    from softbeam.training import api, baselines
else:
    api, baselines = lazy("softbeam.training.api"), lazy("softbeam.training.baselines")
    comparison = lazy("softbeam.experiments.compare")
    sweeping = lazy("softbeam.experiments.grid_search")
    headroom = lazy("softbeam.reports.headroom")

TRAIN_ALIASES = {
    "--objective": "--finetune.objective",
    "--search": "--select",
    "--beam": "--finetune.objective.k",
}  # and implied_search
PARALLEL = {  # a TSV of both sides is given as the files of other tasks are
    "--data.train": "--data.source",
    "--data.dev": "--data.dev_source",
    "--data.test": "--data.test_source",
}


def short_forms() -> str:
    """Write the part of the help that explains short forms, with all objectives and searches."""
    return "\n".join(
        [
            "",
            "short forms:",
            *explained("--objective NAME", "--finetune.objective: ", objective_names()),
            *explained("--search NAME", "--select, the search that scores dev: ", SEARCHES),
            f"  {'--epochs, --lr':24} of the first stage that runs: --pretrain.epochs and .lr, or",
            f"  {'--batch-tokens':24} --finetune.… after --warm-start; padded tokens a batch",
            f"  {'--beam K':24} --finetune.objective.k, and --select beam --select.k K",
            f"  {'--skip-bad':24} --data.skip_bad true",
            f"  {'--allow-module NAME':24} let settings name classes of a module of your own",
            "",
        ]
    )


def explained(flag: str, text: str, names: Iterable[str]) -> list[str]:
    """Write a flag and its choices, wrapped to the width of the help."""
    whole = f"  {flag:24} {text}{', '.join(names)}"
    return textwrap.wrap(whole, 100, subsequent_indent=" " * 27, break_on_hyphens=False)


def train(words: list[str]) -> int:
    """Run `softbeam train`."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: softbeam train RECIPE [--out RUN] [any field] (RECIPE --help lists them)\n")
        print(recipe_list())
        print(f"  {train_mlm.NAME:12} {train_mlm.ABOUT}")
        return 0
    if words[0] == train_mlm.NAME:
        return train_mlm.train_mlm(words[1:])
    config, parsed = parse_run("train", words)
    run = api.train(
        config,
        parsed.out,
        quiet=parsed.quiet,
        resume=parsed.resume,
        overwrite=parsed.overwrite,
        accept_changed_inputs=parsed.accept_changed_inputs,
        workers=workers_of(parsed),
    )
    if not ranks.first():
        return 0
    show_summary(parsed.out, run.summary)
    gain = headroom.headroom(run, "dev")
    if gain is not None:
        print(headroom.as_text("dev", gain))
    if parsed.json:
        say_json({"run": parsed.out} | run.summary | {"headroom": gain})
    return 0


def asks_for_help(words: list[str]) -> bool:
    """Tell whether a command line asks for help, before or after its recipe."""
    return not words or not {"-h", "--help"}.isdisjoint(words)


def compare(words: list[str]) -> int:
    """Run `softbeam compare`."""
    if asks_for_help(words):
        print(COMPARE_HELP)
        print(recipe_list())
        return 0
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    own.add_argument("--try", dest="trials", action="append", default=[])
    own.add_argument("--preset", default=None)
    own.add_argument("--split", default="dev")
    own.add_argument("--out", default=f"runs/compare-{words[0]}")
    parsed, shared = parse_many(own, words[1:])
    if parsed.preset is not None:
        parsed.trials = [*ladder.standard(parsed.preset, words[0]), *parsed.trials]
        parsed.seeds = parsed.seeds or ladder.SEEDS
    if len(parsed.trials) < 2:
        raise UserError(f"--try was given {len(parsed.trials)} times; a comparison needs two")
    lines = [(name, [words[0], *shared, *more]) for name, more in map(trial, parsed.trials)]
    configs = [parse_run("compare", line)[0] for _, line in lines]
    configs = same_beam([line for _, line in lines], configs)
    result = comparison.compare(
        [comparison.Trial(name, config) for (name, _), config in zip(lines, configs, strict=True)],
        seeds_of(parsed.seeds, configs, [line for _, line in lines]),
        Path(parsed.out),
        split=parsed.split,
        workers=workers_of(parsed),
        quiet=parsed.quiet,
        accept_changed_inputs=parsed.accept_changed_inputs,
    )
    print(comparison.as_text(result))
    print(f"report: {result['report']}")
    if parsed.json:
        say_json(result)
    return 0


def sweep(words: list[str]) -> int:
    """Run `softbeam sweep`."""
    if asks_for_help(words):
        print(SWEEP_HELP)
        print(recipe_list())
        return 0
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    own.add_argument("--over", action="append", default=[])
    own.add_argument("--out", default=f"runs/sweep-{words[0]}")
    parsed, shared = parse_many(own, words[1:])
    if not parsed.over:
        raise UserError("--over is missing: a field and its values, as pretrain.lr=0.01,0.003")
    axes = [values_of(text) for text in parsed.over]
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise UserError("--over: a field is given twice; write all its values after one --over")
    lines = {}
    for chosen in product(*axes):
        flags = [word for field, value in chosen for word in (f"--{field}", value)]
        name = re.sub(r"[^\w.,=+-]", "_", ",".join("=".join(pair) for pair in chosen))
        if name in lines:
            raise UserError(f"--over: two combinations would both be called {name}")
        lines[name] = [words[0], *shared, *flags]
    configs = {name: parse_run("sweep", line)[0] for name, line in lines.items()}
    seeds = seeds_of(parsed.seeds, list(configs.values()), list(lines.values()))
    knobs = {name: parsed.__dict__[name] for name in ("quiet", "accept_changed_inputs")}
    result = sweeping.sweep(configs, seeds, Path(parsed.out), workers=workers_of(parsed), **knobs)
    print(sweeping.as_text(result))
    if parsed.json:
        say_json(result)
    return 0


def values_of(text: str) -> list[tuple[str, str]]:
    """Split `field=a,b` into pairs of the field and each value."""
    field, equals, values = text.partition("=")
    if not equals or not all(values.split(",")):
        raise UserError(f"--over {text}: must be a field and values, as pretrain.lr=0.01,0.003")
    return [(field.strip(), value) for value in values.split(",")]


def parse_many(own: argparse.ArgumentParser, words: list[str]) -> tuple[Any, list[str]]:
    """Parse the flags of a command that trains many runs; returns the words of each run too."""
    check_utf8(words)
    own.add_argument("--seeds", default=None)
    for flag in ("--quiet", "--json"):
        own.add_argument(flag, action="store_true")
    worker_arguments(own)
    accept_argument(own)
    try:
        parsed, shared = own.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    if "--overwrite" in shared:
        raise UserError("--overwrite: finished runs in --out are kept; remove it to train anew")
    return parsed, shared


def seeds_of(given: str | None, configs: list[Any], lines: list[list[str]]) -> list[int]:
    """Return the seeds of --seeds, else the one seed of all configurations.

    Raises UserError if --seeds would replace a seed on a command line, or the seeds differ.
    """
    own = sorted({config.seed for config in configs})
    listed = ",".join(map(str, own))
    if len(own) > 1:
        raise UserError(f"the runs have different seeds: give --seeds {listed} instead")
    if given is None:
        return own
    if any(word.partition("=")[0] == "--seed" for line in lines for word in line):
        raise UserError(f"--seeds {given} replaces --seed {listed}: give one of the two")
    seeds = whole_numbers("--seeds", given)
    if len({*seeds}) < len(seeds):
        raise UserError(f"--seeds {given}: each is given once")
    return seeds


def check_utf8(words: list[str]) -> None:
    """Raises UserError if a word is not UTF-8: the files of a run could not hold it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"{word[:60]!r} is not UTF-8; rename the file or folder") from None


def recipe_list() -> str:
    docs = {name: (make.__doc__ or "").splitlines()[0] for name, make in RECIPES.items()}
    return "\n".join(f"  {name:12} {doc}" for name, doc in docs.items())


def parse_run(command: str, words: list[str]) -> tuple[Any, Any]:
    """Parse a recipe's name and flags into a `RunConfig`; returns the parsed flags too."""
    check_utf8(words)
    if words[0] not in RECIPES:
        near = nearest(words[0], RECIPES)
        raise UserError(f"no recipe {words[0]!r}; there are {', '.join(RECIPES)}{near}")
    begun = started(command, words)
    recipe = with_model(begun or RECIPES[words[0]](), words)
    flags = recipe_parser(command, words[0], recipe)
    only_allowed_imports()
    lenient = ["--data.skip_bad", "true"] if "--skip-bad" in words else []
    kept = [word for word in words[1:] if word != "--skip-bad"]
    given = [path for flag, path in options(kept) if flag == "--config"]
    for path in given:
        check_yaml(Path(path))
    aliases = TRAIN_ALIASES | stage_aliases(kept, given)
    aliases |= PARALLEL if isinstance(recipe.data, Translation) else {}
    kept = [part for word in kept for part in without_alias(word, aliases)]
    for flag, value in options(kept):  # the parser opens files in place of nested settings
        if os.path.exists(value) and not (os.path.isfile(value) or os.path.isdir(value)):
            raise UserError(f"{flag} {value}: it is not a regular file")
    kept = classes_first(class_names(kept))
    try:
        kept = without_objective(kept, given, recipe)
        kept = implied_search(kept, given, recipe) if begun is None else kept
        parsed = flags.parse_args(kept + lenient)
    except UserError as error:
        raise UserError(f"{error} (with {', '.join(given)})" if given else str(error)) from None
    return to_run(flags, parsed), parsed


def without_alias(word: str, aliases: dict[str, str]) -> list[str]:
    """Write a flag in its long form; `--beam=3` becomes two words."""
    flag, *value = split_flag(word)
    return [aliases[flag], *value] if flag in aliases else [word]


def started(command: str, words: list[str]) -> Any:
    """Read the settings of the run that --resume continues; flags only have to repeat them."""
    if command != "train" or "--resume" not in words:
        return None
    outs = [value for flag, value in options(words) if flag == "--out"]
    return begun_in(Path(outs[-1] if outs else f"runs/{words[0]}"))


@cache
def recipe_parser(command: str, name: str, recipe: Any) -> Parser:
    """Make the parser of a recipe, once for all runs of a sweep."""
    flags = run_parser(recipe, parser(f"{command} {name}", RECIPES[name].__doc__ or ""))
    flags.more_help = field_help({"data": recipe.data, "model": recipe.model}) + short_forms()
    flags.more_flags = [*TRAIN_ALIASES, *PARALLEL, *COMMAND_FLAGS, *nested_flags(recipe)]
    if command == "train":  # the flags of one command, not of each run of a comparison or sweep
        flags.add_argument("--out", type=str, default=f"runs/{name}", help="folder of the run")
        flags.add_argument("--quiet", action="store_true", help="no progress")
        flags.add_argument("--json", action="store_true", help="the summary as a last line of JSON")
        overwrite_argument(flags)
        accept_argument(flags)
        worker_arguments(flags)
    flags.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    flags.add_argument("--skip-bad", action="store_true", help="count malformed lines, go on")
    return flags


def with_model(recipe: Any, words: list[str]) -> Any:
    """Give a recipe the model class that --model names, with the defaults of that class.

    Otherwise the class would get the recipe's values of fields with the same name: an LSTM's
    `hidden` is not a Transformer's.
    """
    named = [word for before, word in pairwise(words) if before == "--model"]
    kind = getattr(specs, named[-1], None) if named else None
    if not (isinstance(kind, type) and issubclass(kind, specs.Model)):
        return recipe  # the parser says what is wrong
    same = kind in (specs.Model, type(recipe.model))
    return recipe if same else replace(recipe, model=kind())


def trial(text: str) -> tuple[str, list[str]]:
    """Parse `name: words`, or an objective's name alone."""
    name, colon, more = text.partition(":")
    if not re.fullmatch(r"(?!start\d*$)[^\s./\\][^/\\]*", name.strip()):
        limit = "it is a folder's: not empty, without / or \\, not start"
        raise UserError(f"--try {text!r}: its name {name.strip()!r} cannot be used; {limit}")
    try:
        return name.strip(), shlex.split(more) if colon else ["--objective", name.strip()]
    except ValueError as error:  # a quotation that does not end
        raise UserError(f"--try {text!r}: {error}") from None


NULL = ("null", "none")


def class_names(words: list[str]) -> list[str]:
    """Translate short names of objectives and searches: direct-loss is DirectLoss."""
    objectives = ("objective", objective_names())
    searches = ("search", {name: kind.__name__ for name, kind in SEARCHES.items()})
    short = dict.fromkeys(("--pretrain.objective", "--finetune.objective"), objectives)
    short["--select"] = searches
    translated = []
    for before, word in zip(["", *words], words, strict=False):
        if before in short and word.islower() and "." not in word and word not in NULL:
            what, names = short[before]
            if word not in names:
                raise UserError(f"no {what} {word!r}; there are {', '.join(names)}")
            word = names[word]
        translated.append(word)
    return translated


def field_help(parts: dict[str, Any]) -> str:
    """List the flags of the recipe's own classes, one on a line."""
    lines = []
    for prefix, value in parts.items():
        lines.append(f"\nfields of {prefix}, a {type(value).__name__}:")
        documented = field_docs(type(value))
        for f in fields(value):
            text = documented.get(f.name, "")
            lines.append(
                f"  {f'--{prefix}.{f.name}':24} {text} (default: {getattr(value, f.name)})"
            )
    return "\n".join([*lines, ""])


def show_summary(out: str, summary: dict[str, Any]) -> None:
    shown = [f"{k} {v:.2f}" for k, v in summary["metrics"].items() if isinstance(v, float)]
    seconds = f"{summary['seconds']:.0f} s"
    print(f"{out}: dev {', '.join(shown)} (epoch {summary['epoch'] + 1}, {seconds})")
    if summary.get("baselines"):
        print(baselines.as_text("dev", summary["baselines"]))
