"""Reproduce tables and figures by name: `softbeam reproduce table-6.1`.

Importing this module loads no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from softbeam._lazy import lazy
from softbeam.errors import UserError, check_range, need
from softbeam.experiments.order import Order
from softbeam.reports.records import read_record, rounded, write_record
from softbeam.reports.verdicts import verdict_counts
from softbeam.runtime.environment import environment
from softbeam.runtime.files import require_writable, write_text
from softbeam.runtime.grid import ALONE, Workers, grid_folder

if TYPE_CHECKING:
    import torch

    from softbeam.experiments import figure_3_1
    from softbeam.experiments.energies import results as energies
    from softbeam.experiments.samplers import comparisons, results as samplers
    from softbeam.experiments.search_aware import estimates, results as search_aware
else:
    torch = lazy("torch")
    figure_3_1 = lazy("softbeam.experiments.figure_3_1")
    energies = lazy("softbeam.experiments.energies.results")
    samplers = lazy("softbeam.experiments.samplers.results")
    comparisons = lazy("softbeam.experiments.samplers.comparisons")
    search_aware = lazy("softbeam.experiments.search_aware.results")
    estimates = lazy("softbeam.experiments.search_aware.estimates")

TRAINING = {
    "table-3.1": "scheduled sampling, hard and soft, on named entities and translation",
    "table-3.2": "how fast own predictions replace gold",
    "table-4.1": "direct loss and hinge on the soft beam, supertagging",
    "table-4.2": "direct loss and hinge on the soft beam, named entities",
    "table-5.1": "log Z after cross-entropy and after self-normalized training",
    "table-5.2": "local and global soft beams from a cross-entropy start, supertagging",
    "table-5.3": "local and global soft beams from a self-normalized start, supertagging",
    "table-5.4": "local and global soft beams from both starts, translation",
    "table-5.5": "n-gram overlap and length of those translations",
    "table-5.6": "their BLEU by source length",
}
PLANNED = {  # only with the preset full
    "starts": "dev figures of starts by learning rate, before the tables (preset full)",
    "tuning": "dev figures of learning rates, before the tables (preset full)",
    "penalties": "dev figures of self-normalized starts, before the tables (preset full)",
    "dropout": "dev figures of dropout in the search, three seeds (preset full)",
    "beam-sizes": "letters to phonemes by the size of the beam (preset full)",
    "gains": "gains of every task, beside the gap that training could close (preset full)",
}
BEFORE = ("starts", "tuning", "penalties", "dropout")  # what settings are chosen by
DRAWN = {"figure-3.1": "the surface of a loss through argmax, and its relaxations"}
ENERGY_BASED = {
    "table-6.1": "training objectives of energy-based models, by held-out NLL",
    "figure-6.1": "projecting a masked LM's conditionals onto a joint, by training size",
}
SAMPLED = {
    "table-6.2": "Metropolis-Hastings and degenerate Gibbs, proposals of five temperatures",
    "table-6.3": "Metropolis-Hastings and degenerate Gibbs, proposals within five nuclei",
    "table-6.4": "blocks that shrink",
    "table-6.5": "annealing the target",
    "table-6.6": "sampling around the modes, against mask-predict",
    "figure-6.2": "energy and quality by the sweep",
    "figure-6.3": "acceptance of shrinking blocks by the sweep",
    "figure-6.4": "annealing by the sweep",
}
ORDERS = {"sampling-order": "orders of positions, longer chains, and both energies together"}
TEXTS = {"low-energy-texts": "what texts of low energy are, beside those of mask-predict"}
COMPARED = {
    "smoothing": "samplers of models trained with and without label smoothing",
    "distillation": "samplers of translation models trained on raw and on distilled targets",
}
ARMS = {  # models that these targets train; docs/experiments_plan_chapter_6.md
    "words": "letters to phonemes without label smoothing (the preset full)",
    "words-smoothed": "with label smoothing 0.1 (other presets)",
    "phrases": "phrases of three or four words",
    "translation": "Multi30k without label smoothing",
    "distilled": "the same on targets that a Transformer wrote",
    "distilled-smoothed": "these with label smoothing 0.1",
}


class Family(NamedTuple):
    """Targets that are computed in the same way.

    Args:
        targets: what each target shows, by its name.
        make: computes a target, or finds it computed, and returns its record.
        seeds: repetitions if none are asked for.
    """

    targets: Mapping[str, str]
    make: Callable[[str, Order], dict[str, Any]]
    seeds: int = 3


FAMILIES = (
    Family(TRAINING, lambda what, order: search_aware.make(what, order)),
    Family(PLANNED, lambda what, order: search_aware.make(what, order)),
    Family(DRAWN, lambda what, order: figure_3_1.make(what, order)),
    Family(ENERGY_BASED, lambda what, order: energies.make(what, order), seeds=5),
    Family(SAMPLED | ORDERS, lambda what, order: samplers.make(what, order)),
    Family(COMPARED, lambda what, order: comparisons.make_comparison(what, order)),
    Family(TEXTS, lambda what, order: comparisons.make_texts(what, order)),
)
TARGETS = {name: about for family in FAMILIES for name, about in family.targets.items()}
ALL, FULL = "all", "full"
TRAINED = TRAINING | PLANNED
OF_MODELS = SAMPLED | ORDERS | TEXTS  # take --models, --arm
CHAINS = OF_MODELS | COMPARED  # sample from masked models
PRESETS = {
    "cpu": "public data, under four hours for all on two cores",
    "paper": "the published sizes of data, larger models",
    "full": "public data, the arms of docs/experiments_plan.md and its page of chapter 6, days",
    "tiny": "seconds: whether everything works, not what comes out",
}


def prepare(
    *,
    preset: str,
    out: Path,
    seeds: int | None,
    workers: Workers,
    models: Sequence[Path] = (),
    arm: str | None = None,
    judge: Path | None = None,
    only: str = "*",
    quiet: bool,
    accept_changed_inputs: bool = False,
) -> None:
    """Check all targets, then train every run that their tables share.

    Table by table, a run that others start from would leave the other processes idle.
    """
    for what in targets_of(preset):
        check(what, preset, seeds, out, models, arm, judge)
    torch.set_num_threads(1)
    tables = [what for what in targets_of(preset) if what in TRAINED]
    numbers = first_seeds(repetitions(tables[0], seeds, preset))
    order = Order(
        folder=out,
        seeds=numbers,
        preset=preset,
        workers=workers,
        quiet=quiet,
        only=only,
        accept_changed_inputs=accept_changed_inputs,
    )
    with grid_folder(out):
        search_aware.finish(tables, order)


def check(
    what: str,
    preset: str,
    seeds: int | None,
    out: Path,
    models: Sequence[Path] = (),
    arm: str | None = None,
    judge: Path | None = None,
) -> None:
    """Raises UserError if the target cannot be computed with these settings."""
    if what not in TARGETS:
        raise UserError(f"no table or figure {what!r}; there are {ALL}, {', '.join(TARGETS)}")
    if preset not in PRESETS:
        raise UserError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    if (what in PLANNED and preset != FULL) or (preset == FULL and what in DRAWN):
        fitting = f"--preset {FULL}" if what in PLANNED else "--preset cpu"
        raise UserError(f"--preset {preset}: has no {what}; give {fitting}")
    if arm is not None and arm not in ARMS:
        raise UserError(f"--arm {arm}: there are {', '.join(ARMS)}")
    check_range("--seeds", repetitions(what, seeds, preset, arm), least=1)
    if what in CHAINS:
        check_models(what, preset, seeds, models, arm)
    if what in TEXTS:
        comparisons.check_judge(judge, models)
    if what.startswith("figure"):
        need("matplotlib", "report")
    require_writable(out)


def check_models(
    what: str, preset: str, seeds: int | None, models: Sequence[Path], arm: str | None
) -> None:
    """Raises UserError if the target cannot be sampled from these models."""
    if what in COMPARED and (models or arm):
        raise UserError(f"{what}: trains its own arms; leave out --models and --arm")
    if preset == "paper" and what in SAMPLED and not models:
        raise UserError(
            f"with --preset paper, {what} samples from a published model: "
            "convert it to a run with softbeam models convert, and name that run with --models"
        )
    if len(models) > 1 and seeds is not None:
        raise UserError("--seeds: has no use with several --models, which are the repetitions")
    if models and arm:
        raise UserError("--arm: has no use with --models, which are sampled as they are")
    if len({samplers.kind_of(model) for model in models}) > 1:
        raise UserError("--models: are of different kinds of task; give those of one kind")


def repetitions(what: str, seeds: int | None, preset: str, arm: str | None = None) -> int:
    """How often a target is computed: `seeds` times, or as often as its family usually is."""
    if seeds is None and preset == FULL:
        few = arm is not None and arm.startswith(("translation", "distilled"))
        usual = dict.fromkeys(BEFORE, 1) | {"dropout": 3, "distillation": 3}
        usual |= dict.fromkeys(OF_MODELS, 3 if few else 8)
        return usual.get(what, 5)
    return family_of(what).seeds if seeds is None else seeds


def targets_of(preset: str) -> list[str]:
    """The targets that `all` computes with a preset."""
    if preset == FULL:
        return [what for what in TARGETS if what not in BEFORE and what not in DRAWN]
    extra = PLANNED | ORDERS | TEXTS | COMPARED
    return [what for what in TARGETS if what not in extra]


def listed(what: str, *, preset: str, out: Path, seeds: int | None) -> str:
    """List the cells behind a table of trained runs, or behind all, and what is left to do.

    Raises UserError if the target has no such cells.
    """
    tables = [w for w in targets_of(preset) if w in TRAINED] if what == ALL else [what]
    for name in tables:
        check(name, preset, seeds, out)
        check_trained("--list", name)
    numbers = first_seeds(repetitions(tables[0], seeds, preset))
    return estimates.listed(tables, Order(folder=out, seeds=numbers, preset=preset))


def check_trained(flag: str, what: str) -> None:
    """Raises UserError if a target is not a table of trained runs, which a flag is for."""
    if what not in TRAINED:
        raise UserError(f"{flag} {what}: is for tables of trained runs, {', '.join(TRAINED)}")


def family_of(what: str) -> Family:
    return next(family for family in FAMILIES if what in family.targets)


def reproduce(
    what: str,
    *,
    preset: str = "cpu",
    out: Path,
    seeds: int | None = None,
    workers: Workers = ALONE,
    distinct: bool = False,
    models: Sequence[Path] = (),
    arm: str | None = None,
    judge: Path | None = None,
    start: Literal["greedy", "random"] = "greedy",
    quiet: bool = False,
    finished: bool = False,
    only: str = "*",
    accept_changed_inputs: bool = False,
) -> dict[str, Any]:
    """Compute a table or figure, and write `WHAT.json` and `WHAT.txt`; returns the record.

    Records of an arm that is asked for are in a folder of its name below `out`.

    Cells whose results are in the folder, also those of another target, are not computed again.
    Raises UserError if another process writes to the folder, or if data or weights differ from
    those that the results in it were computed with.

    Args:
        what: the target, as "table-6.1".
        preset: the sizes of data and models: cpu, paper, full or tiny.
        out: the folder of results, which targets may share.
        seeds: how many repetitions; None for the target's usual number.
        workers: the processes that compute cells.
        distinct: use each phoneme sequence once (Table 6.1, Figure 6.1).
        models: runs to sample from (Tables 6.2 to 6.6 and their figures): chains of a single one
            are the repetitions, or else the models.
        arm: the models that are trained if none are given; a name of `ARMS`.
        judge: a left-to-right run that scores texts (low-energy-texts).
        start: the first texts of chains.
        quiet: print no progress.
        finished: run nothing; show the rows and claims whose runs are finished (Tables 3.1 to 5.6).
        only: train the runs whose names match, as "ner/*", and show what is finished (these too).
        accept_changed_inputs: go on also if data or weights have changed.
    """
    check(what, preset, seeds, out, models, arm, judge)
    if finished:
        check_trained("--finished", what)
    if only != "*":
        check_trained("--only", what)
    torch.set_num_threads(1)
    count = len(models) if len(models) > 1 else repetitions(what, seeds, preset, arm)
    began, numbers = environment(), first_seeds(count)
    order = Order(
        folder=out,
        seeds=numbers,
        preset=preset,
        workers=workers,
        quiet=quiet,
        distinct=distinct,
        models=models,
        arm=arm or ("words" if preset == FULL else "words-smoothed"),
        part=arm,
        judge=judge,
        start=start,
        finished=finished,
        only=only,
        accept_changed_inputs=accept_changed_inputs,
    )
    shown = order.shown
    with grid_folder(out, [*models, *([judge] if judge else [])]):
        results = family_of(what).make(what, order)
        head = {"target": what, "about": TARGETS[what], "preset": preset, "seeds": numbers}
        record: dict[str, Any] = rounded(head | results | {"environment": began})
        write_text(shown / f"{what}.txt", results["text"] + "\n")
        write_record(shown / f"{what}.json", record)
    return record


def first_seeds(number: int) -> list[int]:
    """The seeds 1, 2, ..., so that a larger number keeps the results of a smaller one."""
    return list(range(1, number + 1))


def totals(records: Sequence[Mapping[str, Any]]) -> str:
    """A line of totals: targets, the different cells behind them with their time, and verdicts."""
    seconds = {cell["key"]: cell["seconds"] or 0 for r in records for cell in r.get("cells", ())}
    counts = verdict_counts(claim for record in records for claim in record["claims"])
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    hours = sum(seconds.values()) / 3600
    return (
        f"{len(records)} targets, {len(seconds)} cells of {hours:.1f} hours of one core; "
        f"claims: {verdicts}"
    )


def claims_in(folder: Path, targets: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """The claims, with verdicts, of the tables and figures in a folder, by target.

    Raises UserError if the folder has no results, or none of one of the given targets.
    """
    claims = {}
    for name in targets or TARGETS:
        if name not in TARGETS:
            raise UserError(f"no table or figure {name!r}; there are {', '.join(TARGETS)}")
        path = folder / f"{name}.json"
        if path.is_file():
            claims[name] = read_record(path)["claims"]
        elif targets:
            raise UserError(f"{folder} has no {name}.json: run softbeam reproduce {name}")
    if not claims:
        raise UserError(f"{folder} has no results: run softbeam reproduce, or give --results")
    return claims
