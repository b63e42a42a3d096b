"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4 of the thesis: which chains, and how they are shown.

The thesis samples translations of WMT sentences from a published model; here the model is any run
of a conditional masked language model. Energies are E_local per token, whatever was sampled from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from softbeam.cells import Result, records
from softbeam.claims import Judged, claim_text, judged
from softbeam.config import Cmlm, RunConfig
from softbeam.energy_tables import aligned, number, summary
from softbeam.errors import UserError
from softbeam.grid import Workers, run_grid
from softbeam.recipes import masked_g2p
from softbeam.sampling_experiments import Sampling, compute, weights_of

TEMPERATURES = (2.0, 1.5, 1.0, 0.8, 0.5)
NUCLEI = (1.0, 0.99, 0.95, 0.9, 0.8)
COOLING = (0.02, 0.04, 0.06)
QUALITY = {"translation": "BLEU", "transcription": "token error rate"}
COLORS = {"local": "tab:blue", "raw": "tab:red", "Gibbs": "tab:gray"}

Done = Mapping[Sampling, Result]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much is sampled.

    Args:
        sources: of the test split, by what is sampled.
        full: the same for Table 6.6, whose sources have any length.
        sweeps: of each chain.
        burn_in: of these.
    """

    sources: Mapping[str, int]
    full: Mapping[str, int]
    sweeps: int = 33
    burn_in: int = 7


PRESETS = {
    "cpu": Preset(
        sources={"translation": 16, "transcription": 30},
        full={"translation": 40, "transcription": 100},
    ),
    "paper": Preset(
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


def sampled(result: Result, name: str) -> list[float]:
    """A figure of each repetition, averaged over the sweeps after the burn-in."""
    kept = [line[name] for line in result["sweeps"] if line.get("phase", "sample") == "sample"]
    return [mean(values) for values in zip(*kept, strict=True)]


def best_of(result: Result, name: str, pick: Callable[..., float]) -> list[float]:
    """The best over all sweeps of each repetition."""
    lines = [line[name] for line in result["sweeps"]]
    return [pick(values) for values in zip(*lines, strict=True)]


def label(cell: Sampling) -> str:
    return cell.energy if cell.method == "MH" else cell.method


def averages(done: Done, kind: str, *, what: str, of: Callable[[Sampling], str]) -> str:
    """Tables 6.2 to 6.4: energy, rates and quality after the burn-in."""
    lines = [[what, "sampler", "energy", "novel", "self", "accept", "stuck", QUALITY[kind]]]
    for cell, result in done.items():
        names = ("energy", "novel", "repeated", "accept", "stuck", "quality")
        shown = [number(summary(sampled(result, name)), digits(name)) for name in names]
        lines.append([of(cell), label(cell), *shown])
    return aligned(lines)


def digits(name: str) -> int:
    return 2 if name == "quality" else 3


def annealing(done: Done, kind: str) -> str:
    """Table 6.5: the best over the sweeps, as the thesis has it."""
    lines = [
        ["cooling", "sampler", "energy, best", "accept", f"{QUALITY[kind]}, best", "at the end"]
    ]
    pick = max if kind == "translation" else min
    for cell, result in done.items():
        lines.append(
            [
                f"{cell.cooling}",
                label(cell),
                number(summary(best_of(result, "energy", min))),
                number(summary(sampled(result, "accept"))),
                number(summary(best_of(result, "quality", pick)), 2),
                number(summary(result["sweeps"][-1]["quality"]), 2),
            ]
        )
    return aligned(lines)


def around_modes(done: Done, kind: str) -> str:
    """Table 6.6: quality of the last texts, and of those with the lowest energy on the way."""
    lines = [["", "energy", QUALITY[kind], "lowest energy seen: energy", QUALITY[kind]]]
    first = next(result for result in done.values() if "start" in result)
    lines.append(["start", *pair(first["start"]), "", ""])
    for cell, result in done.items():
        mode = pair(result["mode"]) if "mode" in result else ["", ""]
        lines.append([described(cell), *pair(result["sweeps"][-1]), *mode])
    return aligned(lines)


def pair(line: Mapping[str, Any]) -> list[str]:
    return [number(summary(line["energy"])), number(summary(line["quality"]), 2)]


def described(cell: Sampling) -> str:
    if cell.method == "mask-predict":
        return "mask-predict, one length, 10 iterations"
    return (
        f"degenerate Gibbs, T={cell.temperature}"
        if cell.method == "Gibbs"
        else f"{cell.energy} energy"
    )


# What the thesis says of them


def claims(what: str, done: Done, kind: str) -> list[Judged]:
    """The statements of Sec. 6.6 to 6.8 that a table or figure can decide."""
    both = ("local", "raw")
    if what in ("table-6.2", "table-6.3"):
        return against_gibbs(done, kind, "local")
    if what == "figure-6.2":
        return [one for energy in both for one in against_gibbs(done, kind, energy)]
    if what == "table-6.4":
        return [blocks_move_more(done, energy) for energy in both]
    if what == "table-6.5":
        return [slow_cooling_is_best(done, kind, energy) for energy in both]
    if what == "table-6.6":
        return [one for energy in both for one in against_mask_predict(done, kind, energy)]
    return []


def the(done: Done, **knobs: Any) -> Result:
    """The result of the one cell with these settings."""
    return next(r for c, r in done.items() if all(getattr(c, k) == v for k, v in knobs.items()))


def ahead(a: Sequence[float], b: Sequence[float], sign: int = 1) -> list[float]:
    """By how much a is above b, or below with sign -1, chain by chain."""
    return [sign * (x - y) for x, y in zip(a, b, strict=True)]


def better(kind: str) -> int:
    """The sign of a better quality."""
    return 1 if kind == "translation" else -1


def against_gibbs(done: Done, kind: str, energy: str) -> list[Judged]:
    plain = {"temperature": 1.0, "nucleus": 1.0}
    mh, gibbs = the(done, method="MH", energy=energy, **plain), the(done, method="Gibbs", **plain)
    figures = {"a lower energy": ("energy", -1)}
    figures |= {f"a better {QUALITY[kind]}": ("quality", better(kind))}
    return [
        judged(
            f"MH, {energy}, has {what} than degenerate Gibbs",
            ahead(sampled(mh, name), sampled(gibbs, name), sign),
            source="thesis, Sec. 6.6",
        )
        for what, (name, sign) in figures.items()
    ]


def blocks_move_more(done: Done, energy: str) -> Judged:
    single, blocks = (
        sampled(the(done, method="MH", energy=energy, blocks=b), "novel")
        for b in ("single", "shrinking")
    )
    gaps = [b / a - 2 for a, b in zip(single, blocks, strict=True)]
    claim = f"shrinking blocks at least double the novel rate, {energy}"
    return judged(claim, gaps, source="thesis, Sec. 6.7.3", at_least=True)


def slow_cooling_is_best(done: Done, kind: str, energy: str) -> Judged:
    pick = max if kind == "translation" else min
    slow, fast = (
        best_of(the(done, energy=energy, cooling=c), "quality", pick)
        for c in (COOLING[0], COOLING[-1])
    )
    claim = f"the slowest annealing has the best {QUALITY[kind]}, {energy}"
    return judged(claim, ahead(slow, fast, better(kind)), source="thesis, Sec. 6.8")


def against_mask_predict(done: Done, kind: str, energy: str) -> list[Judged]:
    """The annealed chains' last texts, and the lowest in energy that they saw."""
    gold = the(done, method="mask-predict")["sweeps"][-1]["quality"]
    chains = the(done, method="MH", energy=energy)
    return [
        judged(
            f"annealed MH, {energy}, at least as good as mask-predict, {which}",
            ahead(line["quality"], gold, better(kind)),
            source="thesis, Table 6.6",
            at_least=True,
        )
        for which, line in (("last", chains["sweeps"][-1]), ("lowest", chains["mode"]))
    ]


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
        longest=10_000 if what == "table-6.6" else 20,
    )
    cells = list(dict.fromkeys(CELLS[what](base)))
    results = run_grid(cells, compute, folder, workers=workers, title=what, quiet=quiet)
    done = dict(zip(cells, results, strict=True))
    found = claims(what, done, kind)
    head = (
        f"{what}: {results[0]['sources']} sources of the test split, {chains} chains each, "
        f"{size.sweeps} sweeps ({size.burn_in} burn-in), {start} start; model {run}"
    )
    text = "\n".join([head, "", shown(what, done, kind), "", *map(claim_text, found)]).rstrip()
    files = draw(what, done, kind, folder) if what.startswith("figure") else []
    return {
        "claims": found,
        "cells": records(done.items()),
        "files": [file.name for file in files],
        "text": text,
    }


def kind_of(run: Path) -> str:
    from softbeam.runs import CONFIG, from_yaml

    config = from_yaml(run / CONFIG)
    if config.model.left_to_right:
        raise UserError(f"{run} is no conditional masked language model: train masked-g2p")
    return config.data.kind


def shown(what: str, done: Done, kind: str) -> str:
    if what == "table-6.5":
        return annealing(done, kind)
    if what == "table-6.6":
        return around_modes(done, kind)
    columns: dict[str, tuple[str, Callable[[Sampling], str]]] = {
        "table-6.2": ("temperature", lambda cell: f"{cell.temperature}"),
        "table-6.3": ("nucleus", lambda cell: f"{cell.nucleus}"),
    }
    what_column, of = columns.get(what, ("blocks", lambda cell: cell.blocks))
    return averages(done, kind, what=what_column, of=of)
