"""Targets that compare arms of models, or look at texts: smoothing, distillation, low energies.

They answer questions of the plan (docs/experiments_plan_chapter_6.md) that no published table has.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from softbeam.data.batches import in_order
from softbeam.data.encoding import encode
from softbeam.data.readers import Example
from softbeam.data.task import KindName
from softbeam.errors import UserError
from softbeam.experiments.order import Order
from softbeam.experiments.samplers.arms import judge_of
from softbeam.experiments.samplers.cells import Sampling, texts_of, words_path
from softbeam.experiments.samplers.claims import BOTH, PLAN, Statements
from softbeam.experiments.samplers.finished import Chains
from softbeam.experiments.samplers.models import trained
from softbeam.experiments.samplers.results import (
    Figures,
    averages,
    bases_of,
    finish,
    kind_of,
    record,
    repeated,
    title_of,
)
from softbeam.experiments.samplers.tables import CELLS
from softbeam.reports.verdicts import Judged, judged
from softbeam.search.decoders import forced_scores
from softbeam.training.config import from_yaml
from softbeam.training.kinds import KINDS
from softbeam.training.metrics import bleu_counts, length_ratio_of, precision_of
from softbeam.training.runs import CONFIG, Run, load_run

# Arms of models


class Side(NamedTuple):
    """One side of a comparison: an arm, and the smoothing that is taken out of its conditionals."""

    arm: str
    unsmooth: float = 0.0


PLAIN, SMOOTH, UNDONE = "smoothing 0", "smoothing 0.1", "smoothing 0.1, unsmoothed"
COMPARED: Mapping[str, Mapping[str, Side]] = {
    "smoothing": {
        PLAIN: Side("words"),
        SMOOTH: Side("words-smoothed"),
        UNDONE: Side("words-smoothed", unsmooth=0.1),
    },
    "distillation": {"raw targets": Side("translation"), "distilled": Side("distilled")},
}
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"energy": "local"},
    {"energy": "raw"},
    {"method": "Gibbs"},
    {"method": "mask-predict"},
)


def make_comparison(what: str, order: Order) -> dict[str, Any]:
    """Sample from the models of several arms with the same samplers, and compare the arms."""
    sides: dict[str, dict[Sampling, Chains]] = {}
    cells: list[dict[str, Any]] = []
    for name, side in COMPARED[what].items():
        bases = [replace(base, unsmooth=side.unsmooth) for base in bases_of(order, arm=side.arm)]
        sides[name], records = finish(what, [samplers_of(base) for base in bases], order)
        cells += records
    kind = kind_of(Path(bases[0].folder))
    rows: Figures = {}
    for name, done in sides.items():
        rows |= averages(lambda cell, name=name: name)(done, kind)  # type: ignore[misc]
    stated = {"smoothing": about_smoothing, "distillation": about_distillation}[what](sides, kind)
    shown = record(what, rows, stated, title_of(order, cells[0]["result"]["sources"]))
    return shown | {"cells": cells, "files": []} | repeated(order)


def samplers_of(base: Sampling) -> list[Sampling]:
    """Metropolis-Hastings with both energies, degenerate Gibbs, and mask-predict."""
    every = [replace(base, **knobs) for knobs in SAMPLERS]
    return [*every[:-1], replace(every[-1], sweeps=1, burn_in=0)]


def about_smoothing(sides: Mapping[str, Mapping[Sampling, Chains]], kind: KindName) -> list[Judged]:
    """Smoothing raises energies and errors of samples; taking it out takes half of that away."""
    told = {name: Statements(done, kind, PLAN) for name, done in sides.items()}
    quality, sign = told[PLAIN].quality
    claims = []
    for knobs in SAMPLERS:
        who = " ".join(knobs.values())
        bad = {name: sign * -each.mean("quality", **knobs) for name, each in told.items()}
        more = told[PLAIN].more
        if who == "mask-predict":
            text = f"{who}: smoothing changes the {quality} by at most {NEAR:g}"
            claims.append(more(text, bad[SMOOTH], bad[PLAIN], within=NEAR))
            continue
        low, high = (told[name].mean("energy", **knobs) for name in (PLAIN, SMOOTH))
        claims += [
            more(f"{who}: smoothing raises the energy", high, low, needs=(knobs,)),
            more(f"{who}: smoothing makes the {quality} worse", bad[SMOOTH], bad[PLAIN]),
            more(
                f"{who}: unsmoothing takes away half of that {quality}",
                bad[SMOOTH] - bad[UNDONE],
                (bad[SMOOTH] - bad[PLAIN]) / 2,
            ),
        ]
    return claims


NEAR = 1.0  # points of quality


def about_distillation(
    sides: Mapping[str, Mapping[Sampling, Chains]], kind: KindName
) -> list[Judged]:
    """Models of distilled targets have the better quality and the lower energy."""
    raw, new = (Statements(done, kind, PLAN) for done in sides.values())
    quality, sign = new.quality
    claims = []
    for knobs in SAMPLERS:
        who = " ".join(knobs.values())
        pairs = [(new.mean(name, **knobs), raw.mean(name, **knobs)) for name in FIGURES]
        needs = () if who == "mask-predict" else (knobs,)
        texts = (f"{who}: distillation lowers the energy", f"{who}: it improves the {quality}")
        for text, (a, b), way in zip(texts, pairs, (-1, sign), strict=True):
            claims.append(new.more(text, a, b, sign=way, needs=needs))
    return claims


FIGURES = ("energy", "quality")


# Texts


def make_texts(what: str, order: Order) -> dict[str, Any]:
    """Describe the texts of lowest energy beside the warm start and mask-predict."""
    bases = bases_of(order, any_length=True)
    by_model = [CELLS[what](base) for base in bases]
    _, cells = finish(what, by_model, order)
    folder = order.judge or trained(order, judge_of(order.arm), [1])[0]
    judge = load_run(folder, device="cpu")
    rows: Figures = {}
    for setting in zip(*by_model, strict=True):
        for name, part in parts_of(setting[0]):
            each = [described(cell, part, judge, order.folder) for cell in setting]
            rows.setdefault(name, joined(each))
    kind = kind_of(Path(bases[0].folder))
    shown = record(
        what, rows, about_texts(rows, kind), title_of(order, cells[0]["result"]["sources"])
    )
    return shown | {"cells": cells, "files": []} | repeated(order)


def check_judge(judge: Path | None, models: Sequence[Path]) -> None:
    """Raises UserError if texts of these models cannot be judged."""
    if judge is None and models:
        raise UserError("low-energy-texts: with --models give --judge RUN, a left-to-right run")
    if judge is not None and not from_yaml(judge / CONFIG).model.left_to_right:
        raise UserError(f"--judge {judge}: is no left-to-right model")


def parts_of(cell: Sampling) -> list[tuple[str, str]]:
    """Names of the rows that show texts of a cell, and which texts."""
    if cell.method == "mask-predict":
        return [(f"mask-predict, {cell.candidates} length{'s' * (cell.candidates > 1)}", "last")]
    if cell.method == "Gibbs":
        return [("warm start", "start"), ("degenerate Gibbs, T=0.8", "last")]
    return [(f"annealed, {cell.energy}, {which}", part) for which, part in LOWEST.items()]


LOWEST = {"last": "last", "lowest": "mode"}


def described(cell: Sampling, part: str, judge: Run, folder: Path) -> dict[str, list[float]]:
    """Figures of a model's texts: quality, repetition, length, precisions, the judge's opinion."""
    path = words_path(cell, folder)
    if not path.is_file():
        raise UserError(f"{path} is missing: remove the result of this cell and run it again")
    words: list[list[str]] = json.loads(path.read_text(encoding="utf-8"))[part]
    texts, count = texts_of(cell), len(words) // cell.chains
    kind, sources = KINDS[texts.kind], [texts.sources[i] for i in texts.owner.tolist()]
    golds = [texts.references[i] for i in texts.owner.tolist()]
    figures: dict[str, list[float]] = {}
    for first in range(0, len(words), count):
        chosen = slice(first, first + count)
        for name, value in figures_of_texts(
            kind.name, sources[chosen], golds[chosen], words[chosen], judge
        ).items():
            figures.setdefault(name, []).append(value)
    return figures


def figures_of_texts(
    kind: KindName,
    sources: Sequence[Sequence[str]],
    golds: Sequence[Sequence[Sequence[str]]],
    words: Sequence[Sequence[str]],
    judge: Run,
) -> dict[str, float]:
    """The figures of one row and repetition."""
    samples = np.asarray(KINDS[kind].samples(golds, words), dtype=float)
    joined_golds = [[" ".join(gold) for gold in accepted] for accepted in golds]
    counts = np.asarray(bleu_counts([" ".join(text) for text in words], joined_golds))
    pairs = [(a, b) for text in words for a, b in zip(text, text[1:], strict=False)]
    figures = {
        KINDS[kind].quality: KINDS[kind].samples_quality(samples),
        "repeated %": 100 * sum(a == b for a, b in pairs) / max(len(pairs), 1),
        "length ratio": length_ratio_of(counts),
    }
    figures |= {f"{n}-grams": precision_of(counts, n) for n in range(1, 5)}
    figures["judge, a token"] = log_probability(judge, sources, words)
    return figures


@torch.no_grad()
def log_probability(
    judge: Run, sources: Sequence[Sequence[str]], words: Sequence[Sequence[str]]
) -> float:
    """The left-to-right model's log-probability of outputs, the end included, for each token."""
    pairs = zip(sources, words, strict=True)
    examples = encode([Example(tuple(s), tuple(w)) for s, w in pairs], judge.codecs)
    judge.model.eval()
    total, count = 0.0, 0
    for _, batch in in_order(examples, tokens=4000):
        log_p = forced_scores(judge.model(batch.source), batch.target).log_softmax(-1)
        chosen = log_p.gather(-1, batch.target[:, :, None])[:, :, 0]
        total += chosen[batch.mask].sum().item()
        count += int(batch.mask.sum())
    return total / max(count, 1)


def joined(each: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """The repetitions of all models, one after the other."""
    return {name: [value for model in each for value in model[name]] for name in each[0]}


def about_texts(rows: Figures, kind: KindName) -> list[Judged]:
    """What the texts of lowest energy are, against mask-predict with one length."""
    predicted = rows["mask-predict, 1 length"]
    stated = (
        ("repeat tokens more often", "repeated %", 1),
        ("are shorter", "length ratio", -1),
        ("have fewer right 4-grams", "4-grams", -1),
        ("are less likely to the left-to-right model", "judge, a token", -1),
    )
    claims = []
    for energy in BOTH:
        texts = rows[f"annealed, {energy}, lowest"]
        for text, column, sign in stated:
            pairs = zip(texts[column], predicted[column], strict=True)
            gaps = [sign * (a - b) for a, b in pairs]
            claim = f"annealed, {energy}: lowest texts {text} than mask-predict's"
            claims.append(judged(claim, gaps, source=PLAN))
    return claims
