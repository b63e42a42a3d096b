"""Both halves of the library on packaged data, in minutes: training for a search, and sampling.

A tagger says a word while it is typed: it labels each letter with the sounds it spells, and sees
only the letters so far. From a cross-entropy start it is trained on in four ways, by as many
updates each. A masked language model of short words is sampled by Metropolis-Hastings and by
degenerate Gibbs; all its texts can be listed, so that the truth is known.
"""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from softbeam.data.batches import pad
from softbeam.data.readers import Example
from softbeam.data.tasks import LetterSounds, Stress
from softbeam.data.vocabulary import MASK, MASKED, PAD, Vocabulary
from softbeam.errors import UserError
from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.objectives.base import Objective
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.charts import require_charts
from softbeam.reports.page import write_report
from softbeam.reports.results import ResultTable, save_tables
from softbeam.reports.tables import titled_rows, with_interval
from softbeam.runtime.devices import device_of
from softbeam.runtime.grid import grid_folder
from softbeam.runtime.progress import clock
from softbeam.sampling.chains import Plan, fill_randomly, run_chains
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.schedules import Constant, Exponential
from softbeam.training.config import RunConfig
from softbeam.training.evaluation import evaluate_outputs
from softbeam.training.kinds import KINDS, kind_of
from softbeam.training.loop import train
from softbeam.training.masked_lm import train_mlm
from softbeam.training.recipes import letter_sounds
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam, Greedy, Search
from softbeam.types import Kernel, MaskedLM

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much the demo trains and samples.

    Args:
        words: dictionary words to train the taggers on.
        tokens: padded letters in a batch of the first stage.
        epochs: passes over the words in the second stage.
        chains: independent chains of each sampler.
        sweeps: passes of each chain over its text; the first third is burn-in.
        held_out_words: dictionary words in each of dev and test.
    """

    words: int
    tokens: int
    epochs: int
    chains: int
    sweeps: int
    held_out_words: int = 1000


FULL = Size(words=8000, tokens=500, epochs=3, chains=300, sweeps=200)
QUICK = Size(words=4000, tokens=400, epochs=2, chains=100, sweeps=60)

BEAM = 3
GREEDY, NORMALIZED, RAW = "greedy", f"beam {BEAM}", f"beam {BEAM} raw"
SEARCHES: dict[str, Search] = {
    GREEDY: Greedy(),
    NORMALIZED: Beam(k=BEAM),
    RAW: Beam(k=BEAM, normalize=False),
}
START, MORE, GLOBAL = "cross-entropy", "more cross-entropy", "soft beam, global"
SOFT = DirectLoss(k=BEAM, alpha=Exponential(start=2.0, growth=1.4))
SECOND: dict[str, Objective] = {
    MORE: CrossEntropy(),
    "scheduled sampling": ScheduledSampling(
        feedback="hard_argmax", gold=Constant(value=0.0), gold_epochs=0
    ),
    "soft beam, local": SOFT,
    GLOBAL: replace(SOFT, normalize=False),
}
SAMPLED_WORDS = 8000  # dictionary words, from which the masked language model has the short ones
PHONEMES = 3  # of those: few enough to list all texts
FEWEST = 5  # of those to learn from


def demo(out: Path, *, size: Size, quiet: bool, device: str = "auto") -> dict[str, list[Row]]:
    """Train, decode and sample; print and write the tables; say what they show and what to do next.

    Trainings that are finished are kept, so that a demo which was stopped goes on. Returns the rows
    of the tables `accuracy`, `differences` and `sampling`. The taggers are trained on the device;
    the masked model is so small that it runs on the CPU.
    """
    device_of(device)
    require_charts(out)
    started = time.monotonic()
    with grid_folder(out):
        short = short_words()
        test = letters_of(size).load().split("test")
        decoded = decode_all(out, size, test, quiet, device)
        rows = {
            "accuracy": [accuracy(name, outputs) for name, outputs in decoded.items()],
            "differences": differences(decoded, test),
            "sampling": samplers(short, size, quiet),
        }
        tables = tables_of(rows, len(test))
        for table in tables:
            print(titled_rows(table.title, table.rows), fill(table.note, 100), "", sep="\n")
        save_tables(out, "softbeam demo", tables)
        page = write_report([out], out / "report.html")
    for line in conclusions(rows):
        print(f"- {line}")
    print(f"report: {page}  ({clock(time.monotonic() - started)})", "what next:", sep="\n")
    for line in what_next(out):
        print(f"  {line}")
    return rows


# Training for a search


class Decoded(NamedTuple):
    """What a search gives on the test words: figures, and the labels of each word."""

    metrics: dict[str, Any]
    outputs: list[list[str]]


def decode_all(
    out: Path, size: Size, test: Sequence[Example], quiet: bool, device: str
) -> dict[str, dict[str, Decoded]]:
    """Train the start and what follows it; decode the test words with each search."""
    recipe = letter_sounds()
    start = replace(
        recipe,
        data=letters_of(size),
        pretrain=replace(recipe.pretrain, tokens=size.tokens),
        finetune=replace(recipe.finetune, epochs=size.epochs),
        threads=1,
        device=device,
        log_every=5,
    )
    configs = {START: start} | {n: second_stage(start, o, out) for n, o in SECOND.items()}
    decoded = {}
    for name, config in configs.items():
        if not quiet:
            print(f"{name}, {size.words:,} words", flush=True)
        folder = folder_of(out, name)
        train(config, folder, quiet=quiet, resume=True)
        loaded = load_run(folder, device=device)
        decoded[name] = {
            named: Decoded(
                *evaluate_outputs(loaded.model, test, kind_of(config.data), loaded.codecs, search)
            )
            for named, search in SEARCHES.items()
        }
    return decoded


def letters_of(size: Size) -> LetterSounds:
    """Return the task of the taggers."""
    return LetterSounds(words=size.words, held_out_words=size.held_out_words)


def second_stage(start: RunConfig, objective: Objective, out: Path) -> RunConfig:
    """Set up a second stage from the start's weights, the same for every objective."""
    raw = isinstance(objective, DirectLoss) and not objective.normalize
    return replace(
        start,
        finetune=replace(start.finetune, objective=objective),
        warm_start=str(folder_of(out, START)),
        select=SEARCHES[RAW if raw else NORMALIZED],
    )


def folder_of(out: Path, name: str) -> Path:
    """Return the folder of the run of this name."""
    return out / name.replace(", ", "-").replace(" ", "-")


def accuracy(name: str, decoded: Mapping[str, Decoded]) -> Row:
    """Make the row of a training: letters right by search, then whole words right by beam."""
    words = {NORMALIZED: "words", RAW: "words raw"}
    return (
        {"training": name}
        | {search: found.metrics["accuracy"] for search, found in decoded.items()}
        | {title: decoded[k].metrics["sequence_accuracy"] for k, title in words.items()}
    )


def differences(decoded: Mapping[str, Mapping[str, Decoded]], test: Sequence[Example]) -> list[Row]:
    """Compare each second stage with more cross-entropy over test words.

    `as trained`: each with the scores that it was trained for; `both raw`: both with raw scores.
    """
    kind = KINDS[LetterSounds.kind]
    references = kind.problems(test).references

    def above(name: str, search: str, other: str) -> Row:
        ours, theirs = decoded[name][search].outputs, decoded[MORE][other].outputs
        return kind.compare(references, [ours], [theirs])._asdict()

    return [
        {
            "training": name,
            "as trained": above(name, RAW if name == GLOBAL else NORMALIZED, NORMALIZED),
            "both raw": above(name, RAW, RAW),
        }
        for name in SECOND
        if name != MORE
    ]


# Sampling without a decoder


class Chains(NamedTuple):
    """Mean energy of independent chains, and its standard error."""

    mean: float
    error: float


def short_words() -> list[tuple[str, ...]]:
    """Return the distinct words of three phonemes in a sample of the dictionary.

    Raises UserError if they are too few to learn from.
    """
    examples = Stress(words=SAMPLED_WORDS).load().split("train")
    short = sorted({e.source for e in examples if len(e.source) == PHONEMES})
    if len(short) < FEWEST:
        needed = f"the demo needs {FEWEST}"
        raise UserError(f"{len(short)} words of the dictionary have {PHONEMES} phonemes: {needed}")
    return short


def samplers(texts: list[tuple[str, ...]], size: Size, quiet: bool) -> list[Row]:
    """Compare the true mean energy with two samplers of the same model and proposals."""
    if not quiet:
        print(f"a masked language model of words of {PHONEMES} phonemes", flush=True)
    mlm = phoneme_mlm(texts)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    truth = listed(mlm, energy)
    kernels = {
        "Metropolis-Hastings": fast_metropolis_hastings(energy, propose),
        "degenerate Gibbs": degenerate_gibbs(propose, energy),
    }
    rows: list[Row] = [{"sampler": "all texts listed", "energy": truth, "±": 0.0, "off": 0.0}]
    for name, kernel in kernels.items():
        chains = sampled(mlm, kernel, chains=size.chains, sweeps=size.sweeps)
        off = abs(chains.mean - truth) / chains.error
        rows.append({"sampler": name, "energy": chains.mean, "±": chains.error, "off": off})
    return rows


def phoneme_mlm(texts: list[tuple[str, ...]]) -> TransformerMlm:
    """Train a masked language model on words of three phonemes."""
    vocabulary = Vocabulary.build([list(text) for text in texts], specials=MASKED)
    numbers = {name: vocabulary.index[name] for name in MASKED}
    torch.manual_seed(1)
    mlm = TransformerMlm(
        len(vocabulary),
        TransformerShape(width=32, layers=2, heads=2, longest=PHONEMES, dropout=0.0),
        pad_id=numbers[PAD],
        mask_id=numbers[MASK],
        specials=list(numbers.values()),
    )
    table = pad([vocabulary.encode(text) for text in texts])
    rng = Generator().manual_seed(1)
    train_mlm(mlm, table, updates=400, rng=rng, batch=128, learning_rate=3e-3)
    return mlm


@torch.inference_mode()
def listed(mlm: MaskedLM, energy: LocalEnergy) -> float:
    """Return the mean energy under p(y) ~ exp(-E(y)), over all texts."""
    letters = mlm.allowed.nonzero()[:, 0]
    every: Int[Tensor, "texts time"] = torch.cartesian_prod(*[letters] * PHONEMES)
    values: Float[Tensor, " texts"] = torch.cat([energy(part) for part in every.split(5000)])
    return float((values.double() * (-values.double()).softmax(0)).sum())


@torch.inference_mode()
def sampled(mlm: MaskedLM, kernel: Kernel, *, chains: int, sweeps: int) -> Chains:
    """Run independent chains from random texts, and average the energy after burn-in."""
    rng = Generator().manual_seed(1)
    free = torch.ones(chains, PHONEMES, dtype=torch.bool)
    start = fill_randomly(torch.full(free.shape, mlm.pad_id), free, mlm.allowed, rng)
    plan = Plan(sweeps=sweeps, burn_in=sweeps // 3)
    records = run_chains(kernel, start, free, plan=plan, rng=rng)
    means = torch.stack([r.state.energy for r in records if r.phase == "sample"]).mean(0)
    return Chains(float(means.mean()), float(means.std() / chains**0.5))


# What is shown


def tables_of(rows: Mapping[str, Sequence[Row]], words: int) -> list[ResultTable]:
    """Give the rows titles, and notes that explain their columns."""
    return [
        ResultTable(
            "Training for a search: say a word while it is typed",
            rows["accuracy"],
            f"Percent of letters right by search, then of whole words right, among {words:,} test "
            f"words. The tagger sees only the letters so far. Raw: the beam adds up scores before "
            f"the softmax, as the training of {GLOBAL!r} does; otherwise, log-probabilities.",
        ),
        ResultTable(
            f"How much more is right than after {MORE}",
            [
                {k: v if isinstance(v, str) else with_interval(v, 1) for k, v in row.items()}
                for row in rows["differences"]
            ],
            "Points of letters right, with 95 % intervals over test words (one seed); as many "
            "updates each. As trained: each is decoded with the scores it was trained for. "
            "docs/results/beyond.md says why this task was chosen.",
        ),
        ResultTable(
            f"Sampling from a masked language model: words of {PHONEMES} phonemes",
            rows["sampling"],
            "Mean energy of the samples, its standard error, and by how many of these it is off "
            "the truth, which is known as all texts can be listed.",
        ),
    ]


def conclusions(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """Say in sentences what the tables show of the soft beam and of the samplers."""
    right = {row["training"]: row for row in rows["accuracy"]}
    gain = next(row for row in rows["differences"] if row["training"] == GLOBAL)
    free = right[MORE][RAW] - right[MORE][NORMALIZED]
    unclear = "" if gain["both raw"]["interval"][0] > 0 else "; no clear gain"
    _, mh, gibbs = rows["sampling"]
    return [
        f"{GLOBAL}: {with_interval(gain['as trained'], 1)} points above {MORE}, each decoded as it "
        "was trained",
        f"of these, {free:+.1f} need no training: {MORE} gains them when it is decoded with raw "
        f"scores; with raw scores for both, {with_interval(gain['both raw'], 1)}{unclear}",
        f"whole words right, both raw: {right[GLOBAL]['words raw']:.1f} % after {GLOBAL}, "
        f"{right[MORE]['words raw']:.1f} % after {MORE}",
        f"mean energy: Metropolis-Hastings is {mh['off']:.1f} standard errors off the truth, "
        f"degenerate Gibbs {gibbs['off']:.1f}",
    ]


def what_next(out: Path) -> list[str]:
    """List commands to try next; those after the first two download data or a model."""
    best, other = (shlex.quote(str(folder_of(out, name))) for name in (GLOBAL, MORE))
    return [
        f"echo knowledge | softbeam decode {best} --input -",
        f"softbeam evaluate {best} --split test --against {other}",
        "softbeam train ccg --model.encoder uni --objective direct-loss --beam 3 --out runs/ccg",
        "softbeam sample --mlm sapiens-vh --text 'EVQLVESGGG[MASK][MASK]QPGG' --out vh.jsonl",
        "softbeam report runs/ccg vh.jsonl --out report.html",
    ]
