"""Tables and figures by name: `softbeam reproduce table-6.1`. Nothing here loads torch at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from softbeam.errors import UserError, limited, need
from softbeam.reports.records import read_record, rounded, write_record
from softbeam.reports.verdicts import verdict_counts
from softbeam.runtime.files import require_writable, write_text
from softbeam.runtime.grid import ALONE, Workers

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
TARGETS = TRAINING | DRAWN | ENERGY_BASED | SAMPLED
ALL = "all"
PRESETS = {
    "cpu": "public data, under four hours for all on two cores",
    "paper": "the published sizes of data, larger models",
    "tiny": "seconds: whether everything works, not what comes out",
}


def prepare(
    *, preset: str, out: Path, seeds: int | None, workers: Workers, run: Path | None, quiet: bool
) -> None:
    """Before every target: what they would stumble over later, and all trained runs at once.

    Table by table, a start that takes long would leave other processes idle each time.
    """
    for what in TARGETS:
        check(what, preset, seeds, out, run)
    import torch

    from softbeam.experiments.search_aware import results as training_results

    torch.set_num_threads(1)
    tables = list(TRAINING)
    numbers = datasets(repetitions(tables[0], seeds))
    training_results.finish(tables, preset, out, seeds=numbers, workers=workers, quiet=quiet)


def check(what: str, preset: str, seeds: int | None, out: Path, run: Path | None) -> None:
    """A UserError for what the target could not be made of."""
    if what not in TARGETS:
        raise UserError(f"no table or figure {what!r}; there are {ALL}, {', '.join(TARGETS)}")
    if preset not in PRESETS:
        raise UserError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    limited("--seeds", repetitions(what, seeds), least=1)
    if what in SAMPLED and preset == "paper" and run is None:
        raise UserError(
            f"{what} of the preset paper samples from a published model: "
            "make a run of it by softbeam models convert, and give that by --run"
        )
    if what.startswith("figure"):
        need("matplotlib", "report")
    require_writable(out)


def repetitions(what: str, seeds: int | None) -> int:
    """Without `seeds`, trained models have three and datasets five."""
    return (5 if what in ENERGY_BASED else 3) if seeds is None else seeds


def reproduce(
    what: str,
    *,
    preset: str = "cpu",
    out: Path,
    seeds: int | None = None,
    workers: Workers = ALONE,
    distinct: bool = False,
    run: Path | None = None,
    start: Literal["greedy", "random"] = "greedy",
    quiet: bool = False,
) -> dict[str, Any]:
    """Compute a target's cells, or find them in the folder, and write `WHAT.json` and `WHAT.txt`.

    What was finished before is not computed again, also if another target left it in the folder.
    """
    check(what, preset, seeds, out, run)
    import torch

    from softbeam.experiments import figure_3_1
    from softbeam.experiments.energies import results as energy_results
    from softbeam.experiments.samplers import results as sampling_results
    from softbeam.experiments.search_aware import results as training_results
    from softbeam.runtime.environment import environment

    torch.set_num_threads(1)
    began, numbers = environment(), datasets(repetitions(what, seeds))
    if what in TRAINING:
        found = training_results.make(
            what, preset, out, seeds=numbers, workers=workers, quiet=quiet
        )
    elif what in DRAWN:
        drawn = [figure_3_1.figure_3_1(out / f"{what}.{form}").name for form in ("png", "svg")]
        found = {"files": drawn, "claims": [], "text": f"{what}: {', '.join(drawn)}"}
    elif what in ENERGY_BASED:
        found = energy_results.make(
            what, preset, out, seeds=numbers, workers=workers, distinct=distinct, quiet=quiet
        )
    else:
        found = sampling_results.make(
            what,
            preset,
            out,
            run=run,
            start=start,
            seeds=numbers,
            workers=workers,
            quiet=quiet,
        )
    head = {"target": what, "about": TARGETS[what], "preset": preset, "seeds": numbers}
    record: dict[str, Any] = rounded(head | found | {"environment": began})
    write_text(out / f"{what}.txt", found["text"] + "\n")
    write_record(out / f"{what}.json", record)
    return record


def datasets(seeds: int) -> Sequence[int]:
    """The seeds 1, 2, ...: more of them keep the first."""
    return list(range(1, seeds + 1))


def totals(records: Sequence[Mapping[str, Any]]) -> str:
    """How much there is: targets, cells that they share and their time, verdicts."""
    seconds = {cell["key"]: cell["seconds"] or 0 for r in records for cell in r.get("cells", ())}
    counts = verdict_counts(claim for record in records for claim in record["claims"])
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    hours = sum(seconds.values()) / 3600
    return (
        f"{len(records)} targets, {len(seconds)} cells of {hours:.1f} hours of one core; "
        f"claims: {verdicts}"
    )


def claims_in(folder: Path, targets: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """The judged claims of the tables and figures in a folder, by target."""
    found = {}
    for name in targets or TARGETS:
        if name not in TARGETS:
            raise UserError(f"no table or figure {name!r}; there are {', '.join(TARGETS)}")
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = read_record(path)["claims"]
        elif targets:
            raise UserError(f"{folder} has no {name}.json: run softbeam reproduce {name}")
    if not found:
        raise UserError(f"{folder} has no results: run softbeam reproduce, or give --results")
    return found
