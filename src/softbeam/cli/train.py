"""Commands that train: train, compare, sweep."""

import argparse
import re
import shlex
from dataclasses import fields, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from softbeam.cli.parser import parser, say_json, whole_numbers
from softbeam.cli.worker import worker_arguments, workers_of
from softbeam.errors import UserError
from softbeam.runtime import ranks

TRAIN_ALIASES = {"--objective": "--finetune.objective", "--beam": "--finetune.objective.k"}


SHORT_FORMS = """
short forms:
  --objective NAME         --finetune.objective: cross-entropy, self-normalized, scheduled-sampling,
                           two-pass-scheduled-sampling, direct-loss, soft-hinge, hard-hinge,
                           beam-search-optimization, beam-crf, minimum-risk or reinforce, after
                           the first stage
  --beam K                 --finetune.objective.k
  --skip-bad               --data.skip_bad true
"""


COMPARE_HELP = """usage: softbeam compare RECIPE --try TRIAL --try TRIAL … [--seeds 1,2] [any field]

Trains each trial with each seed below --out, from first stages that they share, and prints their
figures with a paired bootstrap against the first. A trial is the name of an objective for the
second stage, or a name and words of `softbeam train`:

  softbeam compare ccg --model.encoder uni --seeds 1,2,3 --try cross-entropy --try direct-loss \\
    --try "global: --objective direct-loss --finetune.objective.normalize false \\
           --select.normalize false"

  --try TRIAL     a way to train; give it at least twice
  --seeds LIST    seeds, 1 if not given
  --split NAME    what is scored: dev or test
  --out DIR       runs/compare-RECIPE; given again, finished runs are kept, stopped ones go on
  --jobs N        processes here, 1 if not given
  --storage URL   a database, from which any number of `softbeam worker` take runs (--study NAME)
  --quiet         no progress
  --json          the figures as a last line of JSON
"""


SWEEP_HELP = """usage: softbeam sweep RECIPE --over FIELD=A,B … [--seeds 1,2] [any field]

Trains a run for every combination of values and every seed below --out, and prints their figures
on dev, best first:

  softbeam sweep ccg --over pretrain.lr=0.001,0.003 --over model.hidden=64,128 --seeds 1,2

  --over FIELD=A,B  a field of the recipe and its values
  --seeds LIST      seeds, 1 if not given
  --out DIR         runs/sweep-RECIPE; given again, finished runs are kept, stopped ones go on
  --jobs N          processes here, 1 if not given
  --storage URL     a database, from which any number of `softbeam worker` take runs (--study NAME)
  --quiet           no progress
  --json            the figures as a last line of JSON
"""


def train(words: list[str]) -> int:
    """Train a model: softbeam train RECIPE [--data.train FILE …] --out RUN"""
    if not words or words[0] in ("-h", "--help"):
        print("usage: softbeam train RECIPE [--out RUN] [any field] (RECIPE --help lists them)\n")
        print(recipe_list())
        return 0
    config, parsed = parse_run("train", words)
    from softbeam.training.many import train as run

    knobs = {"quiet": parsed.quiet, "resume": parsed.resume, "workers": workers_of(parsed)}
    summary = run(config, Path(parsed.out), **knobs)
    if not ranks.first():
        return 0
    show_summary(parsed.out, summary)
    if parsed.json:
        say_json({"run": parsed.out} | summary)
    return 0


def compare(words: list[str]) -> int:
    """Ways to train side by side: softbeam compare RECIPE --try A --try B [--seeds 1,2,3]"""
    if not words or words[0] in ("-h", "--help"):
        print(COMPARE_HELP)
        print(recipe_list())
        return 0
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    own.add_argument("--try", dest="trials", action="append", default=[])
    own.add_argument("--split", default="dev")
    own.add_argument("--out", default=f"runs/compare-{words[0]}")
    parsed, shared, seeds = parse_many(own, words[1:])
    if len(parsed.trials) < 2:
        raise UserError(f"--try was given {len(parsed.trials)} times; a comparison needs two")
    configs = [(name, [words[0], *shared, *more]) for name, more in map(trial, parsed.trials)]
    made = [(name, parse_run("compare", line)[0]) for name, line in configs]
    from softbeam.experiments import compare as comparison

    found = comparison.compare(
        [comparison.Trial(name, config) for name, config in made],
        seeds,
        Path(parsed.out),
        split=parsed.split,
        workers=workers_of(parsed),
        quiet=parsed.quiet,
    )
    print(comparison.as_text(found))
    print(f"report: {found['report']}")
    if parsed.json:
        say_json(found)
    return 0


def sweep(words: list[str]) -> int:
    """Settings side by side: softbeam sweep RECIPE --over pretrain.lr=0.01,0.003 [--seeds 1,2]"""
    if not words or words[0] in ("-h", "--help"):
        print(SWEEP_HELP)
        print(recipe_list())
        return 0
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    own.add_argument("--over", action="append", default=[])
    own.add_argument("--out", default=f"runs/sweep-{words[0]}")
    parsed, shared, seeds = parse_many(own, words[1:])
    if not parsed.over:
        raise UserError("--over is missing: a field and its values, as pretrain.lr=0.01,0.003")
    made = {}
    for chosen in product(*map(values_of, parsed.over)):
        flags = [word for field, value in chosen for word in (f"--{field}", value)]
        name = re.sub(r"[^\w.,=+-]", "_", ",".join("=".join(pair) for pair in chosen))
        if name in made:
            raise UserError(f"--over: two combinations would both be called {name}")
        made[name] = parse_run("sweep", [words[0], *shared, *flags])[0]
    from softbeam.experiments import grid_search as sweeping

    knobs = {"workers": workers_of(parsed), "quiet": parsed.quiet}
    found = sweeping.sweep(made, seeds, Path(parsed.out), **knobs)
    print(sweeping.as_text(found))
    if parsed.json:
        say_json(found)
    return 0


def values_of(text: str) -> list[tuple[str, str]]:
    """`field=a,b` as pairs of the field and each value."""
    field, equals, values = text.partition("=")
    if not equals or not all(values.split(",")):
        raise UserError(f"--over {text}: must be a field and values, as pretrain.lr=0.01,0.003")
    return [(field.strip(), value) for value in values.split(",")]


def parse_many(own: argparse.ArgumentParser, words: list[str]) -> tuple[Any, list[str], list[int]]:
    """The flags of a command that trains many runs, what is left for each run, and the seeds."""
    own.add_argument("--seeds", default="1")
    for flag in ("--quiet", "--json"):
        own.add_argument(flag, action="store_true")
    worker_arguments(own)
    try:
        parsed, shared = own.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    seeds = whole_numbers("--seeds", parsed.seeds)
    if len({*seeds}) < len(seeds):
        raise UserError(f"--seeds {parsed.seeds}: each is given once")
    return parsed, shared, seeds


def recipe_list() -> str:
    from softbeam.training.recipes import RECIPES

    docs = {name: (make.__doc__ or "").splitlines()[0] for name, make in RECIPES.items()}
    return "\n".join(f"  {name:12} {doc}" for name, doc in docs.items())


def parse_run(command: str, words: list[str]) -> tuple[Any, Any]:
    """A recipe's name and flags as a `RunConfig`, and the parsed flags themselves."""
    from softbeam.training.config import check_yaml, run_parser, to_run
    from softbeam.training.recipes import RECIPES

    if words[0] not in RECIPES:
        raise UserError(f"no recipe {words[0]!r}; there are {', '.join(RECIPES)}")
    recipe = with_model(RECIPES[words[0]](), words)
    made = run_parser(recipe, parser(f"{command} {words[0]}", RECIPES[words[0]].__doc__ or ""))
    made.more_help = field_help({"data": recipe.data, "model": recipe.model}) + SHORT_FORMS
    made.add_argument("--out", type=str, default=f"runs/{words[0]}", help="folder of the run")
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="the summary as a last line of JSON")
    made.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    worker_arguments(made)
    made.add_argument("--skip-bad", action="store_true", help="count malformed lines, go on")
    lenient = ["--data.skip_bad", "true"] if "--skip-bad" in words else []
    kept = [TRAIN_ALIASES.get(w, w) for w in words[1:] if w != "--skip-bad"]
    given = [path for before, path in pairwise(kept) if before == "--config"]
    for path in given:
        check_yaml(Path(path))
    try:
        parsed = made.parse_args(class_names(kept) + lenient)
    except UserError as error:
        raise UserError(f"{error} (with {', '.join(given)})" if given else str(error)) from None
    return to_run(made, parsed), parsed


def with_model(recipe: Any, words: list[str]) -> Any:
    """The recipe with the class that --model names, by its own defaults.

    Otherwise it would take over the recipe's fields of the same names: an LSTM's `hidden` is not a
    Transformer's.
    """
    from softbeam.models import specs

    named = [word for before, word in pairwise(words) if before == "--model"]
    kind = getattr(specs, named[-1], None) if named else None
    if not (isinstance(kind, type) and issubclass(kind, specs.Model)):
        return recipe  # the parser says what is wrong
    same = kind in (specs.Model, type(recipe.model))
    return recipe if same else replace(recipe, model=kind())


def trial(text: str) -> tuple[str, list[str]]:
    """`name: words`, or an objective's name alone."""
    name, colon, more = text.partition(":")
    if not re.fullmatch(r"(?!start\d*$)[^\s./\\][^/\\]*", name.strip()):
        limit = "it is a folder's: not empty, without / or \\, not start"
        raise UserError(f"--try {text!r}: its name {name.strip()!r} cannot be used; {limit}")
    try:
        return name.strip(), shlex.split(more) if colon else ["--objective", name.strip()]
    except ValueError as error:  # a quotation that does not end
        raise UserError(f"--try {text!r}: {error}") from None


def class_names(words: list[str]) -> list[str]:
    """`--finetune.objective direct-loss` as jsonargparse knows it: DirectLoss."""
    from softbeam.training.config import objective_names

    named, known = ("--pretrain.objective", "--finetune.objective"), objective_names()
    found = []
    for before, word in zip(["", *words], words, strict=False):
        short = before in named and word.islower() and "." not in word and word != "null"
        if short and word not in known:
            raise UserError(f"no objective {word!r}; there are {', '.join(known)}")
        found.append(known[word] if short else word)
    return found


def field_help(parts: dict[str, Any]) -> str:
    """The flags of the recipe's own classes, one on a line."""
    from docstring_parser import parse

    lines = []
    for prefix, value in parts.items():
        lines.append(f"\nfields of {prefix}, a {type(value).__name__}:")
        documented = {
            p.arg_name: p.description or ""
            for cls in reversed(type(value).__mro__)
            for p in parse(cls.__doc__ or "").params
        }
        for f in fields(value):
            text = " ".join(documented.get(f.name, "").split())
            lines.append(
                f"  {f'--{prefix}.{f.name}':24} {text} (default: {getattr(value, f.name)})"
            )
    return "\n".join([*lines, ""])


def show_summary(out: str, summary: dict[str, Any]) -> None:
    shown = [f"{k} {v:.2f}" for k, v in summary["metrics"].items() if isinstance(v, float)]
    seconds = f"{summary['seconds']:.0f} s"
    print(f"{out}: dev {', '.join(shown)} (epoch {summary['epoch'] + 1}, {seconds})")
