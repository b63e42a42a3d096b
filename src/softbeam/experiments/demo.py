"""The story on packaged data, in minutes: training for a search, and sampling without a decoder.

A tagger that sees only the past of its input is trained by cross-entropy, and from there in five
ways; a masked language model of short words is sampled by Metropolis-Hastings and by degenerate
Gibbs, where all texts can be listed and the truth is known.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from softbeam.data.batches import pad
from softbeam.data.tasks import Stress
from softbeam.data.vocabulary import MASK, MASKED, PAD, Vocabulary
from softbeam.errors import UserError
from softbeam.models.masked import TransformerMlm
from softbeam.models.specs import Lstm
from softbeam.objectives.base import Objective
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.charts import require_charts
from softbeam.reports.page import write_report
from softbeam.reports.tables import titled_rows
from softbeam.runtime.progress import clock
from softbeam.sampling.chains import Plan, fill_randomly, run
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.schedules import Constant
from softbeam.training.config import RunConfig, Stage
from softbeam.training.evaluation import evaluate
from softbeam.training.loop import train
from softbeam.training.masked_lm import train_mlm
from softbeam.training.recipes import stress
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam, Greedy, Search
from softbeam.types import Kernel, MaskedLM

BEAM = 3
START = "cross-entropy"
SOFT = DirectLoss(k=BEAM)
SECOND: dict[str, Objective] = {
    "more cross-entropy": CrossEntropy(),
    "scheduled sampling": ScheduledSampling(gold=Constant(value=0.75), gold_epochs=0),
    "soft beam, local": SOFT,
    "soft beam, global": replace(SOFT, normalize=False),
}
PHONEMES = 3  # of the words that are sampled: few enough to list all texts
FEWEST = 5  # of such words to learn from

Row = dict[str, Any]


def demo(out: Path, *, words: int, quiet: bool) -> list[Row]:
    """Train, decode, sample, print both tables, write the report, say what is most telling."""
    require_charts(out)
    started = time.monotonic()
    short = short_words(words)
    tagged = taggers(out, words, quiet)
    sampled = samplers(short, quiet)
    print(titled_rows("stress of English words, test split: accuracy in percent", tagged))
    print(
        titled_rows(f"words of {PHONEMES} phonemes: mean energy, with its standard error", sampled)
    )
    page = write_report([out], out / "report.html", title="softbeam demo", table=tagged)
    for line in telling(tagged, sampled):
        print(f"- {line}")
    print(f"report: {page}  ({clock(time.monotonic() - started)})")
    return [*tagged, *sampled]


# Training for a search


def taggers(out: Path, words: int, quiet: bool) -> list[Row]:
    """The start and what follows it, each decoded greedily and with a beam as it was trained."""
    base = stress()
    start = replace(
        base,
        data=Stress(words=words),
        model=Lstm(encoder="uni", embedding=64, hidden=64),
        log_every=5,
    )
    rows = []
    for name, config in {
        START: start,
        **{n: second(start, o, out) for n, o in SECOND.items()},
    }.items():
        if not quiet:
            print(f"{name}, {words:,} words", flush=True)
        folder = out / name.replace(", ", "-").replace(" ", "-")
        train(config, folder, quiet=quiet)
        rows.append({"training": name} | decoded(folder))
    return rows


def second(start: RunConfig, objective: Objective, out: Path) -> RunConfig:
    """Two more epochs from the start's weights."""
    stage = Stage(objective=objective, epochs=2, lr=1e-3, schedule="linear")
    raw = isinstance(objective, DirectLoss) and not objective.normalize
    select = Beam(k=BEAM, normalize=not raw)
    return replace(start, finetune=stage, warm_start=str(out / START), select=select)


def decoded(folder: Path) -> Row:
    loaded = load_run(folder)
    examples = loaded.config.data.load().split("test")
    normalize = loaded.config.select.normalize
    searches: dict[str, Search] = {
        "greedy": Greedy(normalize=normalize),
        f"beam {BEAM}": Beam(k=BEAM, normalize=normalize),
    }
    kind = loaded.config.data.kind
    return {
        name: evaluate(loaded.model, examples, kind, loaded.codecs, search)["accuracy"]
        for name, search in searches.items()
    }


# Sampling without a decoder


class Chains(NamedTuple):
    """Mean energy of independent chains, and how sure it is."""

    mean: float
    error: float


def short_words(words: int) -> list[tuple[str, ...]]:
    """The words of three phonemes among so many of the dictionary; few of them are refused."""
    examples = Stress(words=words).load().split("train")
    found = sorted({e.source for e in examples if len(e.source) == PHONEMES})
    if len(found) < FEWEST:
        has = f"{len(found)} words of {PHONEMES} phonemes are among them, and {FEWEST} are needed"
        raise UserError(f"--words {words}: {has}")
    return found


def samplers(texts: list[tuple[str, ...]], quiet: bool) -> list[Row]:
    """The truth by listing all texts, and two samplers with the same model and proposals."""
    if not quiet:
        print(f"a masked language model of words of {PHONEMES} phonemes", flush=True)
    mlm = phoneme_mlm(texts)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    truth = listed(mlm, energy)
    kernels = {
        "Metropolis-Hastings": fast_metropolis_hastings(energy, propose),
        "degenerate Gibbs": degenerate_gibbs(propose, energy),
    }
    found = {name: sampled(mlm, kernel) for name, kernel in kernels.items()}
    rows: list[Row] = [{"sampler": "all texts listed", "energy": truth, "±": 0.0, "off": 0.0}]
    for name, chains in found.items():
        off = abs(chains.mean - truth) / chains.error
        rows.append({"sampler": name, "energy": chains.mean, "±": chains.error, "off": off})
    return rows


def phoneme_mlm(texts: list[tuple[str, ...]]) -> TransformerMlm:
    """Trained on words of three phonemes."""
    vocabulary = Vocabulary.build([list(text) for text in texts], specials=MASKED)
    numbers = {name: vocabulary.index[name] for name in MASKED}
    torch.manual_seed(1)
    mlm = TransformerMlm(
        len(vocabulary),
        pad_id=numbers[PAD],
        mask_id=numbers[MASK],
        specials=list(numbers.values()),
        width=32,
        layers=2,
        heads=2,
        longest=PHONEMES,
        dropout=0.0,
    )
    table = pad([vocabulary.encode(text) for text in texts])
    rng = Generator().manual_seed(1)
    train_mlm(mlm, table, updates=400, rng=rng, batch=128, learning_rate=3e-3)
    return mlm


@torch.inference_mode()
def listed(mlm: MaskedLM, energy: LocalEnergy) -> float:
    """The mean energy under p(y) ~ exp(-E(y)), over all texts."""
    letters = mlm.allowed.nonzero()[:, 0]
    every: Int[Tensor, "texts time"] = torch.cartesian_prod(*[letters] * PHONEMES)
    values: Float[Tensor, " texts"] = torch.cat([energy(part) for part in every.split(5000)])
    return float((values.double() * (-values.double()).softmax(0)).sum())


@torch.inference_mode()
def sampled(mlm: MaskedLM, kernel: Kernel, *, chains: int = 300, sweeps: int = 200) -> Chains:
    rng = Generator().manual_seed(1)
    free = torch.ones(chains, PHONEMES, dtype=torch.bool)
    start = fill_randomly(torch.full(free.shape, mlm.pad_id), free, mlm.allowed, rng)
    plan = Plan(sweeps=sweeps, burn_in=sweeps // 3)
    records = run(kernel, start, free, plan=plan, rng=rng)
    means = torch.stack([r.state.energy for r in records if r.phase == "sample"]).mean(0)
    return Chains(float(means.mean()), float(means.std() / chains**0.5))


# What is shown


def telling(tagged: list[Row], sampled: list[Row]) -> list[str]:
    """The three numbers."""
    by = {row["training"]: row for row in tagged}
    beam = f"beam {BEAM}"
    soft = max(("soft beam, local", "soft beam, global"), key=lambda name: by[name][beam])
    plain = by["more cross-entropy"]
    added = {name: by[name][beam] - by[name]["greedy"] for name in (soft, "more cross-entropy")}
    exact, mh, gibbs = sampled
    return [
        f"{soft}: {by[soft][beam] - plain[beam]:+.2f} points with a beam over as much more "
        "cross-entropy",
        f"what the beam adds to greedy search: {added[soft]:+.2f} points there, "
        f"{added['more cross-entropy']:+.2f} after cross-entropy",
        f"mean energy, {exact['energy']:.2f}: Metropolis-Hastings is {mh['off']:.1f} standard "
        f"errors off, degenerate Gibbs {gibbs['off']:.1f}",
    ]
