"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4 of the thesis: which chains, and how they are shown.

The thesis samples translations of WMT sentences from a published model; here the model is any run
of a conditional masked language model. Energies are E_local per token, whatever was sampled from;
published ones are sums over the dataset, in thousands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from softbeam.cells import records
from softbeam.claims import claim_text
from softbeam.config import Cmlm, RunConfig
from softbeam.errors import UserError
from softbeam.grid import Workers, run_grid
from softbeam.recipes import masked_g2p
from softbeam.sampling_claims import (
    COOLING,
    NUCLEI,
    QUALITY,
    TEMPERATURES,
    Done,
    best_of,
    claims,
    sampled,
)
from softbeam.sampling_experiments import Sampling, compute, weights_of
from softbeam.tables import Published, columns_of, summary, table_text

COLORS = {"local": "tab:blue", "raw": "tab:red", "Gibbs": "tab:gray"}

Figures = dict[str, dict[str, list[float]]]  # row -> column -> a value for each repetition


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much is sampled.

    Args:
        sources: of the test split, by what is sampled.
        full: the same for Table 6.6, whose sources have any length.
        sweeps: of each chain.
        burn_in: of these.
        longest: source words, but for Table 6.6.
    """

    sources: Mapping[str, int]
    full: Mapping[str, int]
    sweeps: int = 33  # thesis, Sec. 6.5: "at least T x 33 proposals"
    burn_in: int = 7  # thesis, Sec. 6.5: "a burn-in period of 7 epochs"
    longest: int = 20  # thesis, Sec. 6.5: "source-side sentences of length upto 20"


PRESETS = {
    "cpu": Preset(  # ours
        sources={"translation": 16, "transcription": 30},
        full={"translation": 40, "transcription": 100},
    ),
    "paper": Preset(  # thesis, Sec. 6.5: "translating the validation and test sets"
        sources={"translation": 10_000, "transcription": 10_000},
        full={"translation": 10_000, "transcription": 10_000},
    ),
    "tiny": Preset(
        sources={"translation": 3, "transcription": 3},
        full={"translation": 3, "transcription": 3},
        sweeps=4,
        burn_in=1,
    ),
}


def default_run(preset: str, out: Path, *, quiet: bool) -> Path:
    """A conditional masked language model of letters to phonemes, trained if it isn't there."""
    from softbeam.train import train

    folder = out / "masked-g2p"
    train(small_run(preset), folder, quiet=quiet, resume=True)
    return folder


def small_run(preset: str) -> RunConfig:
    recipe = masked_g2p()
    if preset != "tiny":
        return recipe
    return replace(
        recipe,
        data=replace(recipe.data, limit=200),
        pretrain=replace(recipe.pretrain, epochs=1),
        model=Cmlm(width=16, layers=1, longest=48),
    )


# Which chains


def table_6_2(base: Sampling) -> list[Sampling]:
    """Proposals of five temperatures."""
    return [replace(one, temperature=t) for t in TEMPERATURES for one in samplers(base)]


def table_6_3(base: Sampling) -> list[Sampling]:
    """Proposals within five nuclei."""
    return [replace(one, nucleus=p) for p in NUCLEI for one in samplers(base)]


def table_6_4(base: Sampling) -> list[Sampling]:
    """Blocks that shrink, beside single sites."""
    each = [replace(base, method="Gibbs"), replace(base, energy="raw"), base]
    return [replace(one, blocks=b) for b in ("single", "shrinking") for one in each]


def table_6_5(base: Sampling) -> list[Sampling]:
    """Three strengths of annealing the target."""
    return [replace(base, energy=e, cooling=c) for e in ("local", "raw") for c in COOLING]


def table_6_6(base: Sampling) -> list[Sampling]:
    """Around the modes, against mask-predict: T = 0.8 for proposals, two forced sweeps."""
    warm = replace(base, temperature=0.8)
    annealed = replace(warm, cooling=0.02, forced=min(2, base.burn_in))
    return [
        replace(warm, method="Gibbs"),
        replace(base, method="mask-predict", sweeps=1, burn_in=0),
        annealed,
        replace(annealed, energy="raw"),
    ]


def samplers(base: Sampling) -> list[Sampling]:
    return [base, replace(base, method="Gibbs")]


def figure_6_2(base: Sampling) -> list[Sampling]:
    """Single sites."""
    return [base, replace(base, energy="raw"), replace(base, method="Gibbs")]


def figure_6_3(base: Sampling) -> list[Sampling]:
    """Shrinking blocks."""
    return [replace(one, blocks="shrinking") for one in figure_6_2(base)]


def figure_6_4(base: Sampling) -> list[Sampling]:
    """Annealed by 0.02 a sweep."""
    return [cell for cell in table_6_5(base) if cell.cooling == COOLING[0]]


# What is shown of them


def label(cell: Sampling) -> str:
    return cell.energy if cell.method == "MH" else cell.method


def averages(done: Done, kind: str, name: Callable[[Sampling], str]) -> Figures:
    """Tables 6.2 to 6.4: energy, rates and quality after the burn-in."""
    columns = {"energy": "energy", "novel": "novel", "self": "repeated", "accept": "accept"}
    columns |= {"stuck": "stuck", QUALITY[kind]: "quality"}
    return {
        f"{name(cell)}, {label(cell)}": {c: sampled(result, n) for c, n in columns.items()}
        for cell, result in done.items()
    }


def annealing(done: Done, kind: str) -> Figures:
    """Table 6.5: the best over the sweeps, as the thesis has it."""
    quality, pick = QUALITY[kind], max if kind == "translation" else min
    return {
        f"{cell.cooling:g} a sweep, {label(cell)}": {
            "energy, best": best_of(result, "energy", min),
            "accept": sampled(result, "accept"),
            f"{quality}, best": best_of(result, "quality", pick),
            f"{quality}, end": result["sweeps"][-1]["quality"],
        }
        for cell, result in done.items()
    }


def around_modes(done: Done, kind: str) -> Figures:
    """Table 6.6: quality of the last texts, and of those with the lowest energy on the way."""
    quality = QUALITY[kind]
    first = next(result for result in done.values() if "start" in result)

    def row(last: Mapping[str, Any], mode: Mapping[str, Any]) -> dict[str, list[float]]:
        return {
            "energy": last["energy"],
            quality: last["quality"],
            "energy, lowest": mode.get("energy", []),
            f"{quality}, lowest": mode.get("quality", []),
        }

    found = {"warm start": row(first["start"], {})}
    for cell, result in done.items():
        found[described(cell)] = row(result["sweeps"][-1], result.get("mode", {}))
    return found


def described(cell: Sampling) -> str:
    if cell.method == "mask-predict":
        return "mask-predict, one length, 10 iterations"
    return "degenerate Gibbs, T=0.8" if cell.method == "Gibbs" else f"{cell.energy} energy"


def digits(column: str) -> int:
    return 3 if column.split(",")[0] in ("energy", "novel", "self", "accept", "stuck") else 2


Triple = tuple[float, float, float]  # energy, novel rate, BLEU


def by_proposal(
    name: str, figures: Mapping[float, tuple[Triple, Triple]]
) -> dict[str, dict[str, float]]:
    """Printed rows of Tables 6.2 and 6.3: the local energy's and degenerate Gibbs's."""
    return {
        f"{name.format(value)}, {who}": {"energy": energy, "novel": novel, "BLEU": bleu}
        for value, both in figures.items()
        for who, (energy, novel, bleu) in zip(("local", "Gibbs"), both, strict=True)
    }


# Rows of the tables as printed: by column, as far as they are there
PRINTED: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "table-6.2": by_proposal(
        "T={:g}",
        {
            2.0: ((12.87, 0.03, 25.91), (32.46, 1.0, 14.53)),
            1.5: ((10.21, 0.05, 24.78), (29.57, 0.97, 10.12)),
            1.0: ((11.13, 0.11, 24.74), (31.12, 0.36, 9.03)),
            0.8: ((9.95, 0.06, 25.84), (21.12, 0.08, 24.77)),
            0.5: ((7.85, 0.03, 27.23), (17.65, 0.04, 26.12)),
        },
    ),
    "table-6.3": by_proposal(
        "nucleus {:g}",
        {
            1.0: ((11.13, 0.11, 24.74), (31.12, 0.36, 9.03)),
            0.99: ((10.65, 0.12, 24.95), (30.12, 0.33, 14.03)),
            0.95: ((10.21, 0.10, 26.15), (28.75, 0.22, 18.04)),
            0.9: ((9.95, 0.07, 27.35), (18.57, 0.10, 23.25)),
            0.8: ((9.85, 0.05, 27.23), (18.23, 0.06, 23.55)),
        },
    ),
    "table-6.4": {
        "single, Gibbs": {"energy": 31.12, "novel": 0.36, "accept": 1.0, "BLEU": 9.03},
        "single, raw": {"novel": 0.11, "accept": 0.9},  # Sec. 6.6
        "single, local": {"energy": 11.13, "novel": 0.13, "accept": 0.91, "BLEU": 24.74},
        "shrinking, Gibbs": {"energy": 31.18, "novel": 0.77, "BLEU": 9.03},
        "shrinking, raw": {"energy": 8.08, "novel": 0.40, "BLEU": 27.12},
        "shrinking, local": {"energy": 8.17, "novel": 0.41, "BLEU": 26.78},
    },
    "table-6.5": {
        f"{cooling:g} a sweep, {who}": {
            "energy, best": energy,
            "accept": accept,
            "BLEU, best": bleu,
        }
        for who, each in {
            "local": {
                0.02: (3277.6, 0.52, 29.16),
                0.04: (3245.65, 0.45, 27.58),
                0.06: (3187.80, 0.41, 26.95),
            },
            "raw": {
                0.02: (3146.4, 0.71, 29.91),
                0.04: (3088.65, 0.62, 28.32),
                0.06: (2146.34, 0.58, 27.21),
            },
        }.items()
        for cooling, (energy, accept, bleu) in each.items()
    },
    "table-6.6": {
        "warm start": {"BLEU": 20.27},
        "degenerate Gibbs, T=0.8": {"BLEU": 27.88},
        "mask-predict, one length, 10 iterations": {"BLEU": 29.27},
        "local energy": {"BLEU": 29.74},
        "raw energy": {"BLEU": 30.12},
    },
}


def figures(what: str, done: Done, kind: str) -> Figures:
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


def draw(what: str, done: Done, kind: str, folder: Path) -> list[Path]:
    """Lines by the sweep, a band of one standard deviation over the repetitions."""
    from matplotlib.figure import Figure

    panels = {
        "figure-6.2": ("energy", "quality"),
        "figure-6.3": ("accept", "energy"),
        "figure-6.4": ("accept", "energy", "quality"),
    }[what]
    titles = {"energy": "E_local per token", "accept": "accepted", "quality": QUALITY[kind]}
    chart = Figure(figsize=(4.0 * len(panels), 3.4), layout="constrained")
    for place, name in enumerate(panels):
        axes = chart.add_subplot(1, len(panels), place + 1)
        burn_in = max(cell.burn_in for cell in done)
        axes.axvspan(0.5, burn_in + 0.5, color="0.93", lw=0)
        for cell, result in done.items():
            rows = [summary(line[name]) for line in result["sweeps"]]
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
        axes.spines[["top", "right"]].set_visible(False)
        if place == 0:
            axes.legend(frameon=False, fontsize=8)
            axes.text(
                burn_in / 2 + 0.5,
                0.98,
                "burn-in",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                fontsize=7,
                color="0.5",
            )
    files = [folder / f"{what}.{suffix}" for suffix in ("png", "svg")]
    for file in files:
        chart.savefig(file, dpi=150, metadata={} if file.suffix == ".png" else {"Date": None})
    return files


# All of it


CELLS = {
    "table-6.2": table_6_2,
    "table-6.3": table_6_3,
    "table-6.4": table_6_4,
    "table-6.5": table_6_5,
    "table-6.6": table_6_6,
    "figure-6.2": figure_6_2,
    "figure-6.3": figure_6_3,
    "figure-6.4": figure_6_4,
}


def make(
    what: str,
    preset: str,
    folder: Path,
    *,
    run: Path | None,
    start: Literal["greedy", "random"],
    chains: int,
    workers: Workers,
    quiet: bool,
) -> dict[str, Any]:
    """A table or figure: its chains, its text, what the thesis claims, and the files drawn."""
    size = PRESETS[preset]
    run = default_run(preset, folder, quiet=quiet) if run is None else run
    kind = kind_of(run)
    base = Sampling(
        folder=str(run),
        weights=weights_of(run),
        start=start,
        sweeps=size.sweeps,
        burn_in=size.burn_in,
        chains=chains,
        sources=(size.full if what == "table-6.6" else size.sources)[kind],
        longest=10_000 if what == "table-6.6" else size.longest,
    )
    cells = list(dict.fromkeys(CELLS[what](base)))
    results = run_grid(cells, compute, folder, workers=workers, title=what, quiet=quiet)
    done = dict(zip(cells, results, strict=True))
    files = draw(what, done, kind, folder) if what.startswith("figure") else []
    head = (
        f"{results[0]['sources']} sources of the test split, {chains} chains each, "
        f"{size.sweeps} sweeps ({size.burn_in} burn-in), {start} start; model {run.name}"
    )
    found = record(what, done, kind, head)
    return found | {"cells": records(done.items(), folder), "files": [file.name for file in files]}


def record(what: str, done: Done, kind: str, title: str) -> dict[str, Any]:
    """What finished chains show, and what they say of the claims."""
    rows = figures(what, done, kind)
    printed, found = published(what, rows), claims(what, done, kind)
    shown = {column: digits(column) for column in columns_of(rows)}
    text = [f"{what}: {title}", "", table_text(rows, printed, shown), "", *map(claim_text, found)]
    return {
        "title": title,
        "repeated": "chains",
        "rows": rows,
        "published": printed,
        "digits": shown,
        "claims": found,
        "text": "\n".join(text).rstrip(),
    }


def kind_of(run: Path) -> str:
    from softbeam.runs import CONFIG, from_yaml

    config = from_yaml(run / CONFIG)
    if config.model.left_to_right:
        raise UserError(f"{run} is no conditional masked language model: train masked-g2p")
    return config.data.kind
