"""The settings of a run as one value, which is written as YAML and has a flag for every field.

Nothing here loads torch: the command line shows all of it in a fraction of a second.
"""

import json
import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import yaml
from jsonargparse import (
    ArgumentParser,
    set_dumper,
    set_loader,
    set_parsing_settings,
)

from softbeam.data.task import Task
from softbeam.data.tasks import EXAMPLES, TASKS, InMemory, Stress
from softbeam.errors import LARGEST_SEED, UserError, check_range, check_threads, reason
from softbeam.models.specs import MODELS, Lstm, Model
from softbeam.objectives import OBJECTIVES
from softbeam.objectives.base import Objective
from softbeam.objectives.costs import COSTS, Cost
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.runtime.allowed import allowed_modules
from softbeam.runtime.devices import check_name
from softbeam.runtime.files import LARGEST_CONFIG, read_input
from softbeam.runtime.plain_yaml import load_plain
from softbeam.schedules import SCHEDULES, Schedule
from softbeam.training.kinds import kind_of
from softbeam.training.searches import FIT, SEARCHES, Greedy, Search, from_method, name_of

P = TypeVar("P", bound=ArgumentParser)
Auto = Literal["auto"]
AUTO: Auto = "auto"  # the value is chosen from the data, or on the machine, when training begins


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Training with one objective.

    What is auto depends on the size of the data: `training.defaults` says how.

    Args:
        objective: what is minimized; a stage without one is left out.
        epochs: passes over the training data at most.
        optimizer: adam or adamw.
        lr: learning rate after warm-up.
        schedule: of the learning rate over the stage.
        warmup: updates over which the learning rate rises from 0; auto is none in a first stage.
        plateau: multiply the learning rate by this after an epoch without a better dev score.
        weight_decay: of adamw.
        clip: largest gradient norm.
        tokens: padded tokens in a batch.
        accumulation: batches in an update.
        patience: stop after this many epochs without a better dev score; auto is never if the
            number of epochs is given.
        score_every: epochs between scores on dev.
    """

    objective: Objective | None = None
    epochs: int | Auto = AUTO
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float | Auto = AUTO
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int | Auto = AUTO
    plateau: float = 1.0
    weight_decay: float = 0.0
    clip: float = 5.0
    tokens: int | Auto = AUTO
    accumulation: int = 1
    patience: int | Auto | None = AUTO
    score_every: int | Auto = AUTO


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run: data, model, stages of training, and how the best weights are chosen on dev.

    Args:
        data: where examples come from.
        model: what is trained.
        pretrain: first stage, cross-entropy.
        finetune: second stage, from the best weights of the first.
        warm_start: folder of another run whose weights replace the first stage.
        select: the search that scores dev.
        seed: of weights, batches and everything random.
        restarts: number of seeds to train; the best on dev is kept.
        minutes: time for all stages together; training ends then with the best weights so far.
        threads: processor threads; auto is OMP_NUM_THREADS, or what a short trial finds faster.
        device: where to train: auto (an accelerator if there is one), cpu, cuda, cuda:1 or mps.
        precision: auto is bfloat16 autocast on accelerators and float32 on the processor.
        log_every: updates between lines of metrics.jsonl.
        checkpoint_every: updates between checkpoints, from which --resume continues.
        skip_nonfinite: updates to leave out, at most, whose loss or gradient is not finite.
        tensorboard: also write TensorBoard events; the older form of --track tensorboard.
        track: also send the figures to wandb (Weights & Biases) or write tensorboard events.
    """

    data: Task = Stress()
    model: Model = Lstm()
    pretrain: Stage = Stage(objective=CrossEntropy())
    finetune: Stage = Stage()
    warm_start: str | None = None
    select: Search = Greedy()
    seed: int = 1
    restarts: int = 1
    minutes: float | None = None
    threads: int | Auto = AUTO
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    log_every: int = 50
    checkpoint_every: int = 500
    skip_nonfinite: int = 0
    tensorboard: bool = False
    track: Literal["wandb", "tensorboard"] | None = field(default=None, metadata={"added": True})

    @property
    def stages(self) -> list[tuple[str, Stage]]:
        """The stages that run, by name."""
        both = [("pretrain", self.pretrain), ("finetune", self.finetune)]
        if self.warm_start is not None:
            both = both[1:] if self.finetune.objective is not None else both[:1]
        return [(name, s) for name, s in both if s.objective is not None and s.epochs != 0]


def in_effect(config: RunConfig) -> RunConfig:
    """Replace the settings that the run does not use by their defaults.

    They are those of stages that do not run, and the weight decay of an optimizer without one.
    """
    used = {
        name: replace(stage, weight_decay=0.0) if stage.optimizer == "adam" else stage
        for name, stage in config.stages
    }
    stages = {"pretrain": Stage(), "finetune": Stage()} | used
    return replace(config, pretrain=stages["pretrain"], finetune=stages["finetune"])


CONFIG, METRICS, SUMMARY = "config.yaml", "metrics.jsonl", "summary.json"  # in a run's folder
MOST_RESTARTS = 1000
CHOSEN = (Task, Model, Search, Objective, Schedule, Cost)  # a file names the class of such a field
OURS = (*TASKS, *MODELS, *SEARCHES.values(), *OBJECTIVES, *SCHEDULES, *COSTS)  # and names no other
OUR_PATH = re.compile(r"""(class_path["']?:\s*["']?)softbeam\.(?:\w+\.)*(\w+)""")
FORMAT = "run"  # what jsonargparse calls the format of configurations


def without_modules(text: str) -> str:
    """Strip the modules from the class paths of softbeam's own classes.

    Files name classes alone, so that they do not depend on where a class is defined. Files written
    before this rule have module paths; they are read in the same way.
    """
    return OUR_PATH.sub(r"\1\2", text)


def load_settings(text: str) -> Any:
    """Read settings, also those that were written in an older form."""
    settings = load_plain(without_modules(text))
    if isinstance(settings, dict) and isinstance(settings.get("select"), dict):
        settings["select"] = from_method(settings["select"])
    for part in settings.values() if isinstance(settings, dict) else ():
        drop_loader(part)
        say_defaults(part)
        say_defaults(part.get("objective") if isinstance(part, dict) else None)
    return settings


def say_defaults(part: Any) -> None:
    """Give the fields that were added since a file was written what runs did without them.

    A recipe's values are not for them: the run in the file had no such field. A file that a run
    wrote has all fields of its time.
    """
    for kind in OURS if isinstance(part, dict) else ():
        given = part.get("init_args")
        if part.get("class_path") == kind.__name__ and isinstance(given, dict):
            every = fields(cast(Any, kind))
            new = {f.name: settings_of(before(f)) for f in every if "added" in f.metadata}
            if {f.name for f in every} - set(new) <= set(given):
                part["init_args"] = new | given


def before(added: Field[Any]) -> Any:
    """What runs did before a field was added: its default, if the field does not say otherwise."""
    return added.metadata.get("before", added.default)


def drop_loader(stage: Any) -> None:
    """Drop the function by which earlier files said how the teacher of Distillation is loaded."""
    try:
        if stage["objective"]["init_args"]["load"] == "softbeam.training.runs.load_run":
            del stage["objective"]["init_args"]["load"]
    except (KeyError, TypeError):
        return


def dump_settings(data: Any) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return without_modules(text)


def our_paths() -> list[str]:
    """The import paths of `OURS`: where each class is defined, and where a package offers it."""
    paths = []
    for kind in OURS:
        parts = kind.__module__.split(".")
        paths += [".".join([*parts[:n], kind.__name__]) for n in range(1, len(parts) + 1)]
    return paths


def only_allowed_imports() -> None:
    """Let values name `OURS` and the modules that are allowed now, and nothing else.

    The settings are jsonargparse's, and last: what was allowed before is denied.
    """
    before = [name for name in ALLOWED_BEFORE if name not in allowed_modules()]
    ALLOWED_BEFORE.update(allowed_modules())
    allowed = [*our_paths(), *allowed_modules()]
    set_parsing_settings(import_path_denylist=["*", *before], import_path_allowlist=allowed)


ALLOWED_BEFORE: set[str] = set()
DENIED = re.compile(r"Importing '([\w.]+)' is not allowed|Expected a dot import path string: (\w+)")


def why(error: BaseException) -> str:
    """Say why settings were refused; of an import that is not allowed, what would allow it."""
    denied = DENIED.search(str(error))
    if denied is None:
        return reason(error)
    path = denied[1] or denied[2]
    module, _, name = path.rpartition(".")
    if module.split(".")[0] in ("", "softbeam"):
        return f"{name} is not a class that a configuration can name"
    trusted = f"if you trust that code, add --allow-module {module}"
    return f"a configuration cannot name {path}, which is not softbeam's; {trusted}"


def run_parser(default: RunConfig, parser: P) -> P:
    """Make the parser with a flag for every field of a run, and a recipe's values as defaults."""
    set_loader(FORMAT, load_settings, exceptions=(yaml.YAMLError,))
    set_dumper(FORMAT, dump_settings)
    parser.parser_mode = FORMAT
    set_parsing_settings(subclasses_enabled=list(CHOSEN))
    parser.add_argument("--config", action="config", help="a config.yaml to start from")
    parser.add_class_arguments(RunConfig, None, default=default)
    return parser


def to_run(parser: ArgumentParser, parsed: Any) -> RunConfig:
    """Convert parsed values to a checked `RunConfig`."""
    try:
        values = parser.instantiate(parsed)
    except (ValueError, TypeError) as error:  # a limit of a class, after the parser's words
        raise UserError(reason(error)) from None
    config = RunConfig(**{f.name: values[f.name] for f in fields(RunConfig)})
    check(config)
    return config


def objective_names() -> dict[str, str]:
    """Map short names to classes of objectives: direct-loss is DirectLoss."""
    names = [kind.__name__ for kind in OBJECTIVES]
    return {re.sub("(?<!^)(?=[A-Z])", "-", name).lower(): name for name in names}


def check(config: RunConfig) -> None:
    """Raises UserError if a setting exceeds a limit that types do not express."""
    for name in ("log_every", "checkpoint_every"):
        check_range(f"--{name.replace('_', '-')}", getattr(config, name), above=0)
    if config.threads != AUTO:
        check_threads(config.threads)
    check_name(config.device)
    check_range("--minutes", config.minutes, above=0)
    check_range("--skip-nonfinite", config.skip_nonfinite, least=0)
    check_range("--seed", config.seed, least=0, most=LARGEST_SEED)
    check_range("--restarts", config.restarts, least=1, most=MOST_RESTARTS)
    last = restart_seeds(config)[-1]
    check_range(f"--restarts {config.restarts}: its last seed", last, most=LARGEST_SEED)
    for name in ("pretrain", "finetune"):
        check_stage(name, getattr(config, name), config.model)
    if config.select.left_to_right != config.model.left_to_right:
        raise UserError(f"--select {name_of(config.select)}: {FIT}")
    if not config.model.left_to_right and not kind_of(config.data).has_end:
        raise UserError("a conditional masked language model has lengths to predict: not for tags")
    if not config.stages:
        raise UserError("nothing to train: both stages have no objective or no epochs")


def restart_seeds(config: RunConfig) -> range:
    """The seeds of the restarts."""
    return range(config.seed, config.seed + 1000 * config.restarts, 1000)


def check_stage(name: str, stage: Stage, model: Model) -> None:
    limits = {
        "above": ("tokens", "accumulation", "lr", "clip", "plateau", "patience", "score_every"),
        "least": ("epochs", "warmup", "weight_decay"),
    }
    for limit, names in limits.items():
        for key in names:
            if (value := getattr(stage, key)) != AUTO:
                check_range(f"--{name}.{key.replace('_', '-')}", value, **{limit: 0})
    if stage.objective is not None and stage.objective.left_to_right != model.left_to_right:
        kinds = f"{type(stage.objective).__name__} is not for {type(model).__name__}"
        raise UserError(f"--{name}.objective: {kinds}")


def settings_of(value: Any, *, whole: bool = True) -> Any:
    """Convert a configuration to JSON's types, with the names of classes that were chosen.

    `from_text` reads the result back to an equal value. A class outside of softbeam is named with
    its module. Unless `whole`, fields that were added later are left out where they have
    the value of before.
    """
    if is_dataclass(value):
        own = {
            f.name: settings_of(getattr(value, f.name), whole=whole)
            for f in fields(value)
            if whole or "added" not in f.metadata or getattr(value, f.name) != before(f)
        }
        chosen = isinstance(value, CHOSEN)
        return {"class_path": path_of(type(value)), "init_args": own} if chosen else own
    if isinstance(value, tuple | list):
        return [settings_of(item, whole=whole) for item in value]
    return str(value) if isinstance(value, Path | str) else value


def differences(before: RunConfig, now: RunConfig) -> str:
    """Name the first two settings in which runs differ: `--pretrain.lr 0.02 (0.01 in the run)`."""
    old, new = flat("", settings_of(before)), flat("", settings_of(now))
    named = [
        f"--{name} {new.get(name, 'not set')} ({old.get(name, 'not set')} in the run)"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    more = [f"{len(named) - 2} more"] if len(named) > 2 else []
    return " and ".join(named[:2] + more)


def flat(prefix: str, settings: Any) -> dict[str, str]:
    """List settings by their flags; a class that was chosen is the value of its own flag."""
    if not isinstance(settings, dict):
        return {prefix: "null" if settings is None else str(settings)}
    if "class_path" in settings:
        return {prefix: settings["class_path"]} | flat(prefix, settings["init_args"])
    parts = [flat(f"{prefix}.{name}".lstrip("."), value) for name, value in settings.items()]
    return {name: value for part in parts for name, value in part.items()}


def path_of(kind: type) -> str:
    ours = kind.__module__.split(".")[0] == "softbeam"
    return kind.__name__ if ours else f"{kind.__module__}.{kind.__qualname__}"


def modules_of(*values: Any) -> set[str]:
    """The modules, outside of softbeam, of the classes that configurations have chosen."""
    kinds = {type(value) for value in values if is_dataclass(value)}
    inside = [getattr(v, f.name) for v in values if is_dataclass(v) for f in fields(v)]
    own = {kind.__module__ for kind in kinds if kind.__module__.split(".")[0] != "softbeam"}
    return own | modules_of(*inside) if inside else own


def to_json(config: RunConfig) -> str:
    """Print a run as one line of JSON: equal runs give equal texts.

    A field that was added to a class later (its metadata say so) is left out if it has the value of
    before, so that the identities of the runs of before do not change.
    """
    return json.dumps(settings_of(config, whole=False), sort_keys=True, ensure_ascii=False)


def to_yaml(config: RunConfig) -> str:
    """Print the whole resolved run; `from_yaml` gives an equal value back."""
    return dump_settings(settings_of(config))


def from_yaml(path: Path) -> RunConfig:
    """Read a run from its file; raises UserError if there is none or it is wrong."""
    if not path.is_file():
        raise UserError(f"{path.parent} is not a run folder: it has no {path.name}")
    check_yaml(path)
    config = _file_run(path, path.read_bytes(), allowed_modules())
    if isinstance(config.data, InMemory) and (path.parent / EXAMPLES).is_file():
        config = replace(config, data=replace(config.data, folder=str(path.parent)))
    return config


def begun(out: Path) -> RunConfig | None:
    """Read the settings of the run in a folder, which --resume continues; None without a run."""
    return from_yaml(out / CONFIG) if (out / CONFIG).is_file() else None


def from_text(text: str) -> RunConfig:
    """Read a run that `to_yaml` or `to_json` has printed."""
    return _text_run(text, allowed_modules())


# Parsing takes a fifth of a second, and grids read the same runs many times: equal files and texts
# are parsed once, as long as the same modules are allowed.


@lru_cache(maxsize=256)
def _file_run(path: Path, content: bytes, modules: tuple[str, ...]) -> RunConfig:
    return parsed_run(str(path), lambda parser: parser.parse_args(["--config", str(path)]))


@lru_cache(maxsize=256)
def _text_run(text: str, modules: tuple[str, ...]) -> RunConfig:
    return parsed_run("the text", lambda parser: parser.parse_string(text))


@cache
def file_parser() -> ArgumentParser:
    """Make the parser of files, once: that takes longer than reading a file."""
    return run_parser(RunConfig(), ArgumentParser(exit_on_error=False))


def parsed_run(what: str, parse: Callable[[ArgumentParser], Any]) -> RunConfig:
    parser = file_parser()
    only_allowed_imports()
    try:
        return to_run(parser, parse(parser))
    except Exception as error:
        raise UserError(f"{what} is not a run configuration: {why(error)}") from None


def check_yaml(path: Path) -> None:
    """Raises UserError if a file cannot be read or holds no YAML mapping."""
    try:
        content = load_plain(read_input(path, LARGEST_CONFIG).decode("utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not a run configuration: {reason(error)}") from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"{path} is not a run configuration: expected a mapping, found a {kind}")
