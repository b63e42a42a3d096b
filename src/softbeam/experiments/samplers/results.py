"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4 of finished chains, with verdicts on what is claimed.

Energies are E_local per token, whatever was sampled from; published ones are sums over the dataset,
in thousands.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from softbeam.data.tasks import Kind
from softbeam.errors import UserError
from softbeam.experiments.samplers.cells import Sampling, compute, sums_of, weights_of
from softbeam.experiments.samplers.claims import QUALITY, Chains, Done, chains_of, claims
from softbeam.experiments.samplers.models import models
from softbeam.experiments.samplers.tables import CELLS, PRESETS, PRINTED
from softbeam.reports.charts import figure_of, save_chart
from softbeam.reports.tables import Published, columns_of, summary, table_text
from softbeam.reports.verdicts import claim_text
from softbeam.runtime.cells import records
from softbeam.runtime.grid import Workers, run_grid
from softbeam.training.metrics import Array

COLORS = {"local": "tab:blue", "raw": "tab:red", "Gibbs": "tab:gray"}

Figures = dict[str, dict[str, list[float]]]  # row -> column -> a value for each repetition


def make(
    what: str,
    preset: str,
    folder: Path,
    *,
    run: Path | None,
    start: Literal["greedy", "random"],
    seeds: Sequence[int],
    workers: Workers,
    quiet: bool,
) -> dict[str, Any]:
    """A table or figure: its chains, its text, what the thesis claims, and the files drawn.

    A repetition is a chain of the given run, or else a model with a chain.
    """
    size = PRESETS[preset]
    if run is None:
        found = models(preset, seeds, folder, workers=workers, quiet=quiet)
        chosen = [(model, 1, seed) for model, seed in zip(found, seeds, strict=True)]
        repeated = f"{len(seeds)} models, a chain of each"
    else:
        chosen, repeated = [(run, len(seeds), 1)], f"model {run.name}, {len(seeds)} chains each"
    kind = kind_of(chosen[0][0])
    bases = [
        Sampling(
            folder=str(model),
            weights=weights_of(model),
            start=start,
            sweeps=size.sweeps,
            burn_in=size.burn_in,
            chains=chains,
            sources=(size.full if what == "table-6.6" else size.sources)[kind],
            longest=10_000 if what == "table-6.6" else size.longest,
            seed=seed,
        )
        for model, chains, seed in chosen
    ]
    done, cells = finish(what, bases, folder, workers=workers, quiet=quiet)
    files = draw(what, done, kind, folder) if what.startswith("figure") else []
    head = (
        f"{cells[0]['result']['sources']} sources of the test split, {repeated}, "
        f"{size.sweeps} sweeps ({size.burn_in} burn-in), {start} start"
    )
    made = record(what, done, kind, head)
    made["repeated"] = "models" if run is None else "chains"
    return made | {"cells": cells, "files": [file.name for file in files]}


def finish(
    what: str, bases: Sequence[Sampling], folder: Path, *, workers: Workers, quiet: bool
) -> tuple[dict[Sampling, Chains], list[dict[str, Any]]]:
    """The chains of every setting, under the cell of the first model, and all cells."""
    by_model = [list(dict.fromkeys(CELLS[what](base))) for base in bases]
    settings = list(zip(*by_model, strict=True))
    cells = [cell for setting in settings for cell in setting]
    results = run_grid(cells, compute, folder, workers=workers, title=what, quiet=quiet)
    result = dict(zip(cells, results, strict=True))
    done = {
        setting[0]: chains_of([result[c] for c in setting], [sums_of(c, folder) for c in setting])
        for setting in settings
    }
    return done, records(result.items(), folder)


def record(what: str, done: Done, kind: Kind, title: str) -> dict[str, Any]:
    """What finished chains show, and what they say of the claims."""
    rows = figures(what, done, kind)
    printed, found = published(what, rows), claims(what, done, kind)
    shown = {column: digits(column) for column in columns_of(rows)}
    text = [f"{what}: {title}", "", table_text(rows, printed, shown), "", *map(claim_text, found)]
    return {
        "title": title,
        "rows": rows,
        "published": printed,
        "digits": shown,
        "claims": found,
        "text": "\n".join(text).rstrip(),
    }


def kind_of(run: Path) -> Kind:
    from softbeam.training.runs import CONFIG, from_yaml

    config = from_yaml(run / CONFIG)
    if config.model.left_to_right:
        raise UserError(f"{run} is no conditional masked language model: train masked-g2p")
    return config.data.kind


# What is shown of them


def label(cell: Sampling) -> str:
    return cell.energy if cell.method == "MH" else cell.method


def each(values: Array) -> list[float]:
    """Of every repetition, on all sources."""
    found: list[float] = values[:, 0].tolist()
    return found


def averages(done: Done, kind: Kind, name: Callable[[Sampling], str]) -> Figures:
    """Tables 6.2 to 6.4: energy, rates and quality after the burn-in."""
    columns = {"energy": "energy", "novel": "novel", "self": "repeated", "accept": "accept"}
    columns |= {"stuck": "stuck", QUALITY[kind]: "quality"}
    return {
        f"{name(cell)}, {label(cell)}": {c: each(chains.mean(n)) for c, n in columns.items()}
        for cell, chains in done.items()
    }


def annealing(done: Done, kind: Kind) -> Figures:
    """Table 6.5: the best over the sweeps, as the thesis has it."""
    quality, sign = QUALITY[kind], 1 if kind == "translation" else -1
    return {
        f"{cell.cooling:g} a sweep, {label(cell)}": {
            "energy, best": each(chains.best("energy", -1)),
            "accept": each(chains.mean("accept")),
            f"{quality}, best": each(chains.best("quality", sign)),
            f"{quality}, end": each(chains.sweeps["quality"][-1]),
        }
        for cell, chains in done.items()
    }


def around_modes(done: Done, kind: Kind) -> Figures:
    """Table 6.6: quality of the last texts, and of those with the lowest energy on the way."""
    quality = QUALITY[kind]

    def row(last: Mapping[str, Array], mode: Mapping[str, Array]) -> dict[str, list[float]]:
        return {
            "energy": each(last["energy"]),
            quality: each(last["quality"]),
            "energy, lowest": each(mode["energy"]) if mode else [],
            f"{quality}, lowest": each(mode["quality"]) if mode else [],
        }

    found = {"warm start": row(next(c.start for c in done.values() if c.start), {})}
    for cell, chains in done.items():
        last = {name: chains.sweeps[name][-1] for name in ("energy", "quality")}
        found[described(cell)] = row(last, chains.mode)
    return found


def described(cell: Sampling) -> str:
    if cell.method == "mask-predict":
        return "mask-predict, one length, 10 iterations"
    return "degenerate Gibbs, T=0.8" if cell.method == "Gibbs" else f"{cell.energy} energy"


def digits(column: str) -> int:
    return 3 if column.split(",")[0] in ("energy", "novel", "self", "accept", "stuck") else 2


def figures(what: str, done: Done, kind: Kind) -> Figures:
    """The rows of a table, or of a figure's averages."""
    if what == "table-6.5":
        return annealing(done, kind)
    if what == "table-6.6":
        return around_modes(done, kind)
    names: dict[str, Callable[[Sampling], str]] = {
        "table-6.2": lambda cell: f"T={cell.temperature:g}",
        "table-6.3": lambda cell: f"nucleus {cell.nucleus:g}",
    }
    return averages(done, kind, names.get(what, lambda cell: cell.blocks))


def published(what: str, rows: Figures) -> Published:
    """The printed figures of the same columns; BLEU is nowhere beside an error rate."""
    printed, columns = PRINTED.get(what, {}), columns_of(rows)
    return {name: [printed[name].get(c) for c in columns] for name in rows if name in printed}


# Figures


def draw(what: str, done: Done, kind: Kind, folder: Path) -> list[Path]:
    """Lines by the sweep, a band of one standard deviation over the repetitions."""
    panels = {
        "figure-6.2": ("energy", "quality"),
        "figure-6.3": ("accept", "energy"),
        "figure-6.4": ("accept", "energy", "quality"),
    }[what]
    titles = {"energy": "E_local per token", "accept": "accepted", "quality": QUALITY[kind]}
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
    return save_chart(chart, folder, what)
