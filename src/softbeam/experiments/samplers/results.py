"""Records and drawings of Tables 6.2 to 6.6 and Figures 6.2 to 6.4, with verdicts on the claims.

Energies are E_local per token, whichever energy was sampled from; the published energies are sums
over the dataset, in thousands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from softbeam.data.task import KindName
from softbeam.errors import UserError
from softbeam.experiments.order import Order
from softbeam.experiments.samplers.cells import Sampling, compute, sums_of, weights_of
from softbeam.experiments.samplers.claims import claims
from softbeam.experiments.samplers.finished import (
    Chains,
    Done,
    chains_of,
    energies_together,
    rhat_of,
)
from softbeam.experiments.samplers.models import models
from softbeam.experiments.samplers.tables import CELLS, PRESETS, PRINTED
from softbeam.reports.charts import figure_of, save_chart
from softbeam.reports.tables import Published, columns_of, summary, table_text
from softbeam.reports.verdicts import Judged, claim_text, not_judged_text, with_holm
from softbeam.runtime.cells import records
from softbeam.training.config import from_yaml
from softbeam.training.kinds import KINDS
from softbeam.training.metrics import Array
from softbeam.training.runs import CONFIG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RHAT = "R-hat"
LARGEST = 99.0  # R-hat of chains that never move, in place of infinity
COLORS = {"local": "tab:blue", "raw": "tab:red", "Gibbs": "tab:gray"}

Figures = dict[str, dict[str, list[float]]]  # row -> column -> a value for each repetition


class Repetition(NamedTuple):
    """A model that is sampled from, its number of chains, and their seed."""

    model: Path
    chains: int
    seed: int


def make(what: str, order: Order) -> dict[str, Any]:
    """Sample a target's chains, or find them; returns its rows, verdicts, text and files."""
    target = TARGETS[what]
    bases = bases_of(order, any_length=target.any_length)
    kind = kind_of(Path(bases[0].folder))
    done, cells = finish(what, [CELLS[what](base) for base in bases], order)
    files = save_chart(draw(target.panels, done, kind), order.shown, what) if target.panels else []
    rows, stated = target.rows(done, kind), claims(what, done, kind)
    shown = record(what, rows, stated, title_of(order, cells[0]["result"]["sources"]))
    return shown | {"cells": cells, "files": [file.name for file in files]} | repeated(order)


def bases_of(order: Order, *, any_length: bool = False, arm: str | None = None) -> list[Sampling]:
    """The cell of each model that all settings of a target are changes of."""
    size = PRESETS[order.preset]
    chosen = repetitions(order, arm)
    kind = kind_of(chosen[0].model)
    return [
        Sampling(
            folder=str(model),
            weights=weights_of(model),
            start=order.start,
            sweeps=size.sweeps,
            burn_in=size.burn_in,
            chains=chains,
            sources=(size.full if any_length else size.sources)[kind],
            longest=10_000 if any_length else size.longest[kind],
            seed=seed,
        )
        for model, chains, seed in chosen
    ]


def repetitions(order: Order, arm: str | None = None) -> list[Repetition]:
    """The models to sample from: chains of a single one, or else a chain of each."""
    if not order.models:
        trained = zip(models(order, arm), order.seeds, strict=True)
        return [Repetition(model, 1, seed) for model, seed in trained]
    for model in order.models:
        paths = from_yaml(model / CONFIG).data.load().paths
        order.check_files({f"{model}, {role}": path for role, path in paths.items()})
    if len(order.models) == 1:
        return [Repetition(order.models[0], len(order.seeds), 1)]
    return [Repetition(model, 1, seed) for seed, model in enumerate(order.models, 1)]


def repeated(order: Order) -> dict[str, str]:
    """What the repetitions of an order are."""
    return {"repeated": "chains" if len(order.models) == 1 else "models"}


def title_of(order: Order, sources: int) -> str:
    """What was sampled, for the title of a table."""
    size, count = PRESETS[order.preset], len(order.models) or len(order.seeds)
    many = f"{count} models, a chain of each"
    if len(order.models) == 1:
        many = f"model {order.models[0].name}, {len(order.seeds)} chains each"
    return (
        f"{sources} sources of the test split, {many}, "
        f"{size.sweeps} sweeps ({size.burn_in} burn-in), {order.start} start"
    )


def finish(
    what: str, by_model: Sequence[Sequence[Sampling]], order: Order
) -> tuple[dict[Sampling, Chains], list[dict[str, Any]]]:
    """The chains of every setting, by the cell of the first model, and records of all cells."""
    settings = list(zip(*(dict.fromkeys(cells) for cells in by_model), strict=True))
    every = PRESETS[order.preset].second
    others = {
        cell: replace(cell, start=other_start(cell), every=every)
        for setting in settings
        for cell in setting
        if every and cell.method != "mask-predict" and not cell.cooling
    }
    cells = [cell for setting in settings for cell in setting] + list(others.values())
    result = dict(zip(cells, order.results(cells, compute, what), strict=True))
    sums = {cell: sums_of(cell, order.folder) for cell in cells}
    done = {}
    for setting in settings:
        chains = chains_of([result[cell] for cell in setting], [sums[cell] for cell in setting])
        pairs = [(sums[cell], sums[others[cell]]) for cell in setting if cell in others]
        complete = [(a, b) for a, b in pairs if a is not None and b is not None]
        if complete:
            chains = chains._replace(rhat=min(rhat_of(complete, chains.kept), LARGEST))
        done[setting[0]] = chains
    return done, records(result.items(), order.folder)


def other_start(cell: Sampling) -> Literal["greedy", "random"]:
    return "random" if cell.start == "greedy" else "greedy"


def record(what: str, rows: Figures, stated: Sequence[Judged], title: str) -> dict[str, Any]:
    """The rows of a target, the published ones, the verdicts on its claims, and its text."""
    printed = published(what, rows)
    verdicts = with_holm(claim for claim in stated if "rhat" not in claim)
    unmixed = [claim for claim in stated if "rhat" in claim]
    places = {column: digits(column) for column in columns_of(rows)}
    lines = [*map(claim_text, verdicts), *map(not_judged_text, unmixed)]
    text = [f"{what}: {title}", "", table_text(rows, printed, places), "", *lines]
    return {
        "title": title,
        "rows": rows,
        "published": printed,
        "digits": places,
        "claims": verdicts,
        "not_judged": unmixed,
        "text": "\n".join(text).rstrip(),
    }


def kind_of(run: Path) -> KindName:
    """The kind of task of a run; raises UserError if it is no conditional masked LM."""
    config = from_yaml(run / CONFIG)
    if config.model.left_to_right:
        raise UserError(f"{run} is no conditional masked language model: train masked-g2p")
    return config.data.kind


# Rows


def label(cell: Sampling) -> str:
    return cell.energy if cell.method == "MH" else cell.method


def each(values: Array) -> list[float]:
    """The value of every repetition, on all sources."""
    by_repetition: list[float] = values[:, 0].tolist()
    return by_repetition


def averages(name: Callable[[Sampling], str]) -> Callable[[Done, KindName], Figures]:
    """Tables 6.2 to 6.4 and all figures: energy, rates and quality after the burn-in.

    `name` tells the settings of a row apart.
    """

    def rows(done: Done, kind: KindName) -> Figures:
        columns = {"energy": "energy", "novel": "novel", "self": "repeated", "accept": "accept"}
        columns |= {"stuck": "stuck", KINDS[kind].quality: "quality"}
        tested = any(chains.rhat is not None for chains in done.values())
        return {
            f"{name(cell)}, {label(cell)}": {
                c: each(chains.mean(n)) if n in chains.sweeps else [] for c, n in columns.items()
            }
            | ({RHAT: [] if chains.rhat is None else [chains.rhat]} if tested else {})
            for cell, chains in done.items()
        }

    return rows


def annealing(done: Done, kind: KindName) -> Figures:
    """Table 6.5: the best over the sweeps, as the thesis has it."""
    quality, sign = KINDS[kind].quality, KINDS[kind].sign
    return {
        f"{cell.cooling:g} a sweep, {label(cell)}": {
            "energy, best": each(chains.best("energy", -1)),
            "accept": each(chains.mean("accept")),
            f"{quality}, best": each(chains.best("quality", sign)),
            f"{quality}, end": each(chains.sweeps["quality"][-1]),
        }
        for cell, chains in done.items()
    }


def around_modes(done: Done, kind: KindName) -> Figures:
    """Table 6.6: quality of the last texts, and of those with the lowest energy on the way."""
    quality = KINDS[kind].quality

    def row(last: Mapping[str, Array], mode: Mapping[str, Array]) -> dict[str, list[float]]:
        return {
            "energy": each(last["energy"]),
            quality: each(last["quality"]),
            "energy, lowest": each(mode["energy"]) if mode else [],
            f"{quality}, lowest": each(mode["quality"]) if mode else [],
        }

    rows = {"warm start": row(next(c.start for c in done.values() if c.start), {})}
    for cell, chains in done.items():
        last = {name: chains.sweeps[name][-1] for name in ("energy", "quality")}
        rows[mode_row(cell)] = row(last, chains.mode)
    return rows


def mode_row(cell: Sampling) -> str:
    if cell.method == "mask-predict":
        lengths = "one length" if cell.candidates == 1 else f"{cell.candidates} lengths"
        return f"mask-predict, {lengths}, 10 iterations"
    return "degenerate Gibbs, T=0.8" if cell.method == "Gibbs" else f"{cell.energy} energy"


def digits(column: str) -> int:
    """Decimal places of a column."""
    return 3 if column.split(",")[0] in ("energy", "novel", "self", "accept", "stuck", RHAT) else 2


def published(what: str, rows: Figures) -> Published:
    """The thesis's values of the same columns; BLEU never stands in a column of error rates."""
    printed, columns = PRINTED.get(what, {}), columns_of(rows)
    return {name: [printed[name].get(c) for c in columns] for name in rows if name in printed}


# Figures


def draw(panels: Sequence[str], done: Done, kind: KindName) -> "Figure":
    """Lines by the sweep, with a band of one standard deviation over the repetitions."""
    titles = {"energy": "E_local per token", "accept": "accepted", "quality": KINDS[kind].quality}
    chart, all_axes = figure_of(len(panels), 4.0 * len(panels), 3.4)
    burn_in = max(cell.burn_in for cell in done)
    for axes, name in zip(all_axes, panels, strict=True):
        axes.axvspan(0.5, burn_in + 0.5, color="0.93", lw=0)
        for cell, chains in done.items():
            rows = [summary(each(sweep)) for sweep in chains.sweeps[name]]
            middle = [row["mean"] or 0.0 for row in rows]
            spread = [row["spread"] or 0.0 for row in rows]
            sweeps = list(range(1, len(rows) + 1))
            color = COLORS[label(cell)]
            axes.plot(sweeps, middle, color=color, lw=1.5, label=label(cell))
            low, high = ([m + s * d for m, d in zip(middle, spread, strict=True)] for s in (-1, 1))
            axes.fill_between(sweeps, low, high, color=color, alpha=0.2, lw=0)
        axes.set_xlim(0.5, None)
        axes.set_xlabel("sweep")
        axes.set_title(titles[name], fontsize=10)
    first = all_axes[0]
    first.legend(frameon=False, fontsize=8)
    middle_of_burn_in, top = burn_in / 2 + 0.5, 0.98
    first.text(
        middle_of_burn_in, top, "burn-in", transform=first.get_xaxis_transform(),
        ha="center", va="top", fontsize=7, color="0.5",
    )  # fmt: skip
    return chart


class Target(NamedTuple):
    """A table or figure: its rows, the panels of a figure, and whether sources have any length."""

    rows: Callable[[Done, KindName], Figures]
    panels: tuple[str, ...] = ()
    any_length: bool = False


def orders(done: Done, kind: KindName) -> Figures:
    """Orders and lengths of chains, with the correlation of both energies of the last texts."""
    rows = averages(lambda cell: f"{cell.order}, {cell.sweeps} sweeps")(done, kind)
    for row, chains in zip(rows.values(), done.values(), strict=True):
        row["raw with local"] = energies_together(chains)
    return rows


by_blocks = averages(lambda cell: cell.blocks)
TARGETS = {
    "table-6.2": Target(averages(lambda cell: f"T={cell.temperature:g}")),
    "table-6.3": Target(averages(lambda cell: f"nucleus {cell.nucleus:g}")),
    "table-6.4": Target(by_blocks),
    "table-6.5": Target(annealing),
    "table-6.6": Target(around_modes, any_length=True),
    "figure-6.2": Target(by_blocks, panels=("energy", "quality")),
    "figure-6.3": Target(by_blocks, panels=("accept", "energy")),
    "figure-6.4": Target(by_blocks, panels=("accept", "energy", "quality")),
    "sampling-order": Target(orders),
}
