"""Chains of translations: what Tables 6.2 to 6.6 are made of (thesis, Sec. 6.5 to 6.8).

A cell holds all chains of one setting: a chain for each source, several times. Its result has, for
each sweep and each of the repetitions, the energy per token, the rates and the quality.
"""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Generator, Tensor

from softbeam import metrics
from softbeam.cells import Result
from softbeam.chains import ConstantBlocks, LinearBlocks, Plan, Record, fill_randomly, run
from softbeam.data.batches import collate
from softbeam.data.readers import Example
from softbeam.data.tasks import Kind
from softbeam.energy import LocalEnergy, RawEnergy
from softbeam.errors import UserError
from softbeam.evaluate import Problems, encode, problems
from softbeam.fast_sampling import SiteCache, fast_metropolis_hastings
from softbeam.kernels import degenerate_gibbs
from softbeam.mask_predict import likeliest_lengths, mask_predict
from softbeam.ops import length_mask
from softbeam.proposals import MaskedConditionals, ReducibleWarning
from softbeam.runs import WEIGHTS, Run, load_run
from softbeam.schedules import Linear
from softbeam.types import Kernel, MaskedLM

FLOOR = 0.05  # of the target's temperature, which would otherwise fall below 0

Method = Literal["MH", "Gibbs", "mask-predict"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """All chains of one setting, or mask-predict.

    Args:
        folder: of the run, a conditional masked language model.
        weights: a hash of its weights: other weights are another cell.
        method: Metropolis-Hastings, degenerate Gibbs, or mask-predict with one length.
        energy: what Metropolis-Hastings samples from.
        temperature: of the proposals.
        nucleus: of the proposals, as in the thesis.
        blocks: one site, or blocks that shrink from half the text to one site.
        cooling: what is subtracted from the target's temperature after each sweep.
        start: random tokens, or all positions predicted at once.
        forced: sweeps at the start that accept everything.
        sweeps: how many, with the burn-in.
        burn_in: sweeps that no average counts.
        chains: repetitions.
        sources: the first so many of the test split ...
        longest: ... with at most so many words.
        seed: of everything random.
    """

    folder: str
    weights: str
    method: Method = "MH"
    energy: Literal["local", "raw"] = "local"
    temperature: float = 1.0
    nucleus: float = 1.0
    blocks: Literal["single", "shrinking"] = "single"
    cooling: float = 0.0
    start: Literal["random", "greedy"] = "random"
    forced: int = 0
    sweeps: int = 33
    burn_in: int = 7
    chains: int = 5
    sources: int = 100
    longest: int = 20
    seed: int = 1

    def __str__(self) -> str:
        name = f"{self.method} {self.energy}" if self.method == "MH" else self.method
        knobs = {"temperature": 1.0, "nucleus": 1.0, "blocks": "single", "cooling": 0.0}
        other = [f"{k} {getattr(self, k)}" for k, v in knobs.items() if getattr(self, k) != v]
        return ", ".join([name, *other, *(["greedy start"] if self.start == "greedy" else [])])


class Texts(NamedTuple):
    """What is sampled: a source and a length for each row, repetition by repetition."""

    run: Run
    mlm: MaskedLM  # bound to the sources
    owner: Int[Tensor, " rows"]
    real: Bool[Tensor, "rows time"]
    references: list[list[tuple[str, ...]]]

    @property
    def kind(self) -> Kind:
        return self.run.config.data.kind

    def by_chain(self, values: Shaped[Tensor, " rows"]) -> Shaped[Tensor, "chains sources"]:
        return values.unflatten(0, (-1, len(self.references)))

    def per_token(self, energy: Float[Tensor, " rows"]) -> list[float]:
        """The energy of each repetition, all sources together, over their tokens."""
        total, tokens = self.by_chain(energy).sum(-1), self.by_chain(self.real.sum(-1)).sum(-1)
        found: list[float] = (total / tokens).tolist()
        return found

    def quality(self, tokens: Int[Tensor, "rows time"]) -> list[float]:
        """BLEU, or for transcriptions the token error rate, of each repetition."""
        codec = self.run.codecs.target
        texts = [
            codec.decode(row[mask].tolist()) for row, mask in zip(tokens, self.real, strict=True)
        ]
        n = len(self.references)
        parts = [texts[i : i + n] for i in range(0, len(texts), n)]
        return [quality(self.kind, part, self.references) for part in parts]


def quality(
    kind: Kind,
    predicted: Sequence[Sequence[str]],
    references: Sequence[Sequence[Sequence[str]]],
) -> float:
    """One figure in percent: more is better for translations, less for transcriptions."""
    if kind == "transcription":
        return float(metrics.error_rates(predicted, references)["token_error_rate"])
    golds = [[" ".join(tokens) for tokens in one] for one in references]
    return float(metrics.bleu([" ".join(tokens) for tokens in predicted], golds)["score"])


def weights_of(folder: Path) -> str:
    """A hash of a run's weights."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{folder} is not a finished run: it has no {WEIGHTS}")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@cache
def opened(folder: str, weights: str) -> tuple[Run, Problems]:
    """A run and the problems of its test split, read once for all cells of a process."""
    loaded = load_run(Path(folder))
    return loaded, problems(loaded.config.data.kind, loaded.config.data.load().split("test"))


@torch.no_grad()
def texts_of(cell: Sampling) -> Texts:
    """The sources of the test split, each with its likeliest length, as often as there are chains.

    An unfinished chain of another length is another chain: no kernel changes a length.
    """
    loaded, (sources, references) = opened(cell.folder, cell.weights)
    short = [i for i, source in enumerate(sources) if len(source) <= cell.longest]
    short = short[: cell.sources]
    examples = [Example(tuple(sources[i]), ()) for i in short]
    mlm = loaded.model(collate(encode(examples, loaded.codecs)).source)
    lengths = likeliest_lengths(mlm.length_scores, 1)[:, 0].repeat(cell.chains)
    return Texts(
        loaded,
        mlm,
        torch.arange(len(short)).repeat(cell.chains),
        length_mask(lengths, int(lengths.max())),
        [references[i] for i in short],
    )


def compute(cell: Sampling, folder: Path) -> Result:
    """`sample` as the work of a grid, whose folder it does not need."""
    return sample(cell)


@torch.no_grad()
def sample(cell: Sampling) -> Result:
    """The chains of a cell, sweep by sweep; of mask-predict one line."""
    texts = texts_of(cell)
    local = LocalEnergy(texts.mlm, owner=texts.owner)
    if cell.method == "mask-predict":
        tokens, _ = mask_predict(texts.mlm, texts.real.sum(-1), texts.owner, iterations=10)
        line = {"energy": texts.per_token(local(tokens)), "quality": texts.quality(tokens)}
        return {"kind": texts.kind, "sources": len(texts.references), "sweeps": [line]}
    rng = torch.Generator().manual_seed(cell.seed)
    start = first_texts(cell, texts, rng)
    lines, modes = [], Modes(start, torch.full(texts.owner.shape, float("inf")))
    for record in records(cell, texts, start, rng):
        tokens = record.state.tokens
        of_target = cell.method == "MH" and cell.energy == "local"
        energy = record.state.energy if of_target else local(tokens)
        modes = modes.seen(tokens, record.state.energy if cell.method == "MH" else energy)
        lines.append(line_of(record, texts, energy))
    return {
        "kind": texts.kind,
        "sources": len(texts.references),
        "start": {"energy": texts.per_token(local(start)), "quality": texts.quality(start)},
        "sweeps": lines,
        "mode": {
            "energy": texts.per_token(local(modes.tokens)),
            "quality": texts.quality(modes.tokens),
        },
    }


class Modes(NamedTuple):
    """The text of lowest energy that each chain has seen."""

    tokens: Int[Tensor, "rows time"]
    energy: Float[Tensor, " rows"]

    def seen(self, tokens: Int[Tensor, "rows time"], energy: Float[Tensor, " rows"]) -> "Modes":
        better = energy < self.energy
        return Modes(
            torch.where(better[:, None], tokens, self.tokens),
            torch.where(better, energy, self.energy),
        )


def line_of(record: Record, texts: Texts, energy: Float[Tensor, " rows"]) -> dict[str, Any]:
    """The figures of one sweep, each for every repetition."""
    counts = [texts.by_chain(count).sum(-1) for count in record.counts]
    proposals, accepted, repeated, novel, stuck = counts
    rates = {"accept": accepted, "repeated": repeated, "novel": novel, "stuck": stuck}
    return {
        "sweep": record.sweep,
        "phase": record.phase,
        "temperature": record.temperature,
        "energy": texts.per_token(energy),
        "quality": texts.quality(record.state.tokens),
    } | {name: (count / proposals).tolist() for name, count in rates.items()}


def first_texts(cell: Sampling, texts: Texts, rng: Generator) -> Int[Tensor, "rows time"]:
    """Random tokens, the same for every setting, or all positions predicted at once."""
    if cell.start == "greedy":
        return mask_predict(texts.mlm, texts.real.sum(-1), texts.owner, iterations=1)[0]
    empty = torch.full(texts.real.shape, texts.mlm.pad_id)
    return fill_randomly(empty, texts.real, texts.mlm.allowed, rng)


def records(
    cell: Sampling, texts: Texts, start: Int[Tensor, "rows time"], rng: Generator
) -> Iterable[Record]:
    """The sweeps of the cell's kernel."""
    with warnings.catch_warnings():  # a nucleus is the thesis's; `stuck` counts what it costs
        warnings.simplefilter("ignore", ReducibleWarning)
        propose = MaskedConditionals(
            texts.mlm, owner=texts.owner, temperature=cell.temperature, nucleus=cell.nucleus
        )
    energy = (LocalEnergy if cell.energy == "local" else RawEnergy)(texts.mlm, owner=texts.owner)
    gibbs = degenerate_gibbs(propose, unwatched)
    cache = SiteCache()

    def kernel(temperature: float) -> Kernel:
        if cell.method == "Gibbs":
            return gibbs
        early = 4 if cell.energy == "local" else None  # the chain is the same, rejections cheaper
        return fast_metropolis_hastings(
            energy, propose, temperature=temperature, cache=cache, sites_a_round=early
        )

    plan = Plan(
        sweeps=cell.sweeps,
        burn_in=cell.burn_in,
        forced=cell.forced,
        blocks=ConstantBlocks() if cell.blocks == "single" else LinearBlocks(),
        temperature=Linear(start=1.0, slope=-cell.cooling, floor=FLOOR),
    )
    warm_up = degenerate_gibbs(propose, energy) if cell.forced else None
    return run(kernel, start, texts.real, plan=plan, rng=rng, warm_up=warm_up)


def unwatched(tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
    """No energy: degenerate Gibbs needs none, and once a sweep is enough to watch it."""
    return torch.zeros(len(tokens))
