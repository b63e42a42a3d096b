"""Sample the chains of translations behind Tables 6.2 to 6.6 (thesis, Sec. 6.5 to 6.8).

A cell holds all chains of one setting: for each repetition, a chain for each source. Its result
has, for each sweep and repetition, the energy per token, the rates and the quality. These are
quotients of sums over sources; a file beside the result keeps the terms of each source, for tests
that resample sources.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Generator, Tensor

from softbeam.data.batches import collate
from softbeam.data.encoding import encode
from softbeam.data.readers import Example
from softbeam.data.task import KindName
from softbeam.errors import UserError
from softbeam.runtime.cells import LATER, Result, key
from softbeam.runtime.files import write_atomic, write_text
from softbeam.sampling.chains import (
    ConstantBlocks,
    LinearBlocks,
    Plan,
    Record,
    fill_randomly,
    run_chains,
)
from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.sampling.fast import SiteCache, fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs
from softbeam.sampling.masked_search import likeliest_lengths, mask_predict, mask_predict_decode
from softbeam.sampling.proposals import MaskedConditionals, ReducibleWarning
from softbeam.sampling.unsmoothing import Unsmoothed
from softbeam.schedules import Linear
from softbeam.tensors import length_mask
from softbeam.training import metrics
from softbeam.training.kinds import KINDS, Problems
from softbeam.training.runs import WEIGHTS, Run, load_run
from softbeam.types import Kernel, MaskedLM

FLOOR = 0.05  # lowest temperature of the target, which would otherwise fall below 0

RATES = ("accept", "repeated", "novel", "stuck")  # shares of the proposals

Method = Literal["MH", "Gibbs", "mask-predict"]
Array = metrics.Array
Sums = dict[str, Array]  # by chain and source


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """All chains of one setting, or mask-predict.

    Args:
        folder: folder of the run, a conditional masked language model.
        weights: a hash of its weights; other weights make another cell.
        method: Metropolis-Hastings, degenerate Gibbs, or mask-predict.
        energy: the energy that Metropolis-Hastings samples from.
        temperature: temperature of the proposals.
        nucleus: nucleus of the proposals, as in the thesis.
        blocks: one site, or blocks that shrink from half the text to one site.
        cooling: how much the target's temperature falls after each sweep.
        start: random tokens, or all positions predicted at once.
        forced: sweeps at the start that accept everything.
        sweeps: number of sweeps, burn-in included.
        burn_in: sweeps that averages leave out.
        chains: number of repetitions.
        sources: number of sources of the test split, spread evenly over it (it may be sorted).
        longest: most words of a source.
        seed: seed of everything random.
        order: the order of the positions in a sweep.
        candidates: lengths that mask-predict tries; the text with the best mean score is kept.
        unsmooth: the label smoothing that is taken out of the model's conditionals.
        every: every which of the sources is sampled.
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
    order: Literal["random", "sequential"] = field(default="random", metadata=LATER)
    candidates: int = field(default=1, metadata=LATER)
    unsmooth: float = field(default=0.0, metadata=LATER)
    every: int = field(default=1, metadata=LATER)

    def __str__(self) -> str:
        name = f"{self.method} {self.energy}" if self.method == "MH" else self.method
        knobs = {"temperature": 1.0, "nucleus": 1.0, "blocks": "single", "cooling": 0.0}
        knobs |= {"order": "random", "candidates": 1, "unsmooth": 0.0}
        other = [f"{k} {getattr(self, k)}" for k, v in knobs.items() if getattr(self, k) != v]
        return ", ".join([name, *other, *(["greedy start"] if self.start == "greedy" else [])])


class Ends(NamedTuple):
    """Some texts of all chains, by name: their sums, and their words."""

    sums: dict[str, Sums]
    words: dict[str, list[list[str]]]


class Texts(NamedTuple):
    """The texts to sample: a source and a length for each row, repetition by repetition."""

    run: Run
    mlm: MaskedLM  # bound to the sources
    owner: Int[Tensor, " rows"]
    real: Bool[Tensor, "rows time"]
    references: list[list[tuple[str, ...]]]
    length_scores: Float[Tensor, "sources longest"]
    sources: list[tuple[str, ...]]

    @property
    def kind(self) -> KindName:
        return self.run.config.data.kind

    def by_chain(self, values: Tensor) -> Array:
        """A number for each row, as an array of repetitions and sources."""
        array: Array = values.unflatten(0, (-1, len(self.references))).double().numpy()
        return array

    def words(self, tokens: Int[Tensor, "rows time"]) -> list[list[str]]:
        """The texts as words."""
        rows = zip(tokens, self.real, strict=True)
        return [self.run.codecs.target.decode(row[mask].tolist()) for row, mask in rows]

    def sums(self, tokens: Int[Tensor, "rows time"], energy: Float[Tensor, " rows"]) -> Sums:
        """The terms of each text in the energy per token and in the quality."""
        golds = [self.references[source] for source in self.owner.tolist()]
        quality = KINDS[self.kind].samples(golds, self.words(tokens))
        counts = torch.tensor(quality, dtype=torch.float64)
        parts = {"energy": energy, "tokens": self.real.sum(-1), "quality": counts}
        return {name: self.by_chain(part) for name, part in parts.items()}

    def ends(self, texts: Mapping[str, Int[Tensor, "rows time"]]) -> Ends:
        """The sums of texts by name, with raw energies as well, and their words."""
        local, raw = (kind(self.mlm, owner=self.owner) for kind in (LocalEnergy, RawEnergy))
        sums = {
            name: self.sums(tokens, local(tokens)) | {"raw": self.by_chain(raw(tokens))}
            for name, tokens in texts.items()
        }
        return Ends(sums, {name: self.words(tokens) for name, tokens in texts.items()})


def figures_of(kind: KindName, sums: Sums, weights: Array) -> dict[str, Array]:
    """Energy per token, rates and quality over all sources, as arrays `... chains draws` by name.

    Args:
        kind: which quality: BLEU of translations, token error rate of transcriptions.
        sums: arrays `... chains sources` by name; the quality's counts have a further, last axis.
        weights: an array `draws sources`: how often each source counts.
    """
    quality = KINDS[kind].samples_quality
    counts = np.einsum("...sk,ds->...dk", sums["quality"], weights)
    other = {name: x for name, x in sums.items() if name != "quality"}
    total = {name: np.einsum("...s,ds->...d", x, weights) for name, x in other.items()}
    values = {"energy": total["energy"] / total["tokens"]}
    values["quality"] = np.apply_along_axis(lambda row: quality(row[None]), -1, counts)
    return values | {name: total[name] / total["proposals"] for name in RATES if name in sums}


def weights_of(folder: Path) -> str:
    """A hash of a run's weights."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{folder} is not a finished run: it has no {WEIGHTS}")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@cache
def open_run(folder: str, weights: str) -> tuple[Run, Problems]:
    """A run and the problems of its test split, read once for all cells of a process."""
    loaded = load_run(folder, device="cpu")
    return loaded, loaded.problems("test")


@torch.no_grad()
def texts_of(cell: Sampling) -> Texts:
    """The sources of the test split with their likeliest lengths, repeated for each chain.

    Lengths are fixed, as no kernel changes a length.
    """
    loaded, (sources, references) = open_run(cell.folder, cell.weights)
    short = [i for i, source in enumerate(sources) if len(source) <= cell.longest]
    n = min(cell.sources, len(short))
    short = [short[i * len(short) // n] for i in range(0, n, cell.every)]
    examples = [Example(tuple(sources[i]), ()) for i in short]
    mlm = loaded.model(collate(encode(examples, loaded.codecs)).source)
    lengths = likeliest_lengths(mlm.length_scores, 1)[:, 0].repeat(cell.chains)
    return Texts(
        loaded,
        Unsmoothed(mlm, cell.unsmooth) if cell.unsmooth else mlm,
        torch.arange(len(short)).repeat(cell.chains),
        length_mask(lengths, int(lengths.max())),
        [references[i] for i in short],
        mlm.length_scores,
        [sources[i] for i in short],
    )


def compute(cell: Sampling, folder: Path) -> Result:
    """Sample a cell of a grid, and keep the sums by source and some texts in the grid's folder."""
    result, sums, words = sample(cell)
    arrays = {f"{part} {name}": x for part, each in sums.items() for name, x in each.items()}
    small = {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in arrays.items()}
    write_atomic(sums_path(cell, folder), save(small))
    write_text(words_path(cell, folder), json.dumps(words, ensure_ascii=False) + "\n")
    return result


def sums_path(cell: Sampling, folder: Path) -> Path:
    return folder / "chains" / f"{key(cell)}.safetensors"


def words_path(cell: Sampling, folder: Path) -> Path:
    """The file of some texts of a cell: the start, the last and the lowest, chain by chain."""
    return folder / "chains" / f"{key(cell)}.texts.json"


def sums_of(cell: Sampling, folder: Path) -> dict[str, Sums] | None:
    """The sums by source of a cell's sweeps, start and mode; None if the file is missing."""
    path = sums_path(cell, folder)
    if not path.is_file():
        return None
    sums: dict[str, Sums] = {}
    try:
        arrays = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not a file of sums ({error}); remove it") from None
    for full, x in arrays.items():
        part, name = full.split()
        sums.setdefault(part, {})[name] = x.astype(np.float64)
    return sums


@torch.no_grad()
def sample(cell: Sampling) -> tuple[Result, dict[str, Sums], dict[str, list[list[str]]]]:
    """Sample the chains of a cell; returns a line for each sweep, sums by source, and some texts.

    Mask-predict has one line. The sums are those of `sweeps`, with sweeps as the first axis, of the
    `start`, of the `mode` and of the `last` texts.
    """
    texts = texts_of(cell)
    if cell.method == "mask-predict":
        heads: list[dict[str, Any]] = [{}]
        texts, tokens = predicted(cell, texts)
        ends = texts.ends({"last": tokens})
        moments = [ends.sums["last"]]
    else:
        heads, moments, ends = sample_sweeps(cell, texts)
    lines = [head | values_of(texts.kind, sums) for head, sums in zip(heads, moments, strict=True)]
    result: Result = {"kind": texts.kind, "sources": len(texts.references), "sweeps": lines}
    shown = {name: sums for name, sums in ends.sums.items() if name != "last"}
    result |= {name: values_of(texts.kind, sums) for name, sums in shown.items()}
    sweeps = {name: np.stack([sums[name] for sums in moments]) for name in moments[0]}
    return result, {"sweeps": sweeps} | ends.sums, ends.words


def predicted(cell: Sampling, texts: Texts) -> tuple[Texts, Int[Tensor, "rows time"]]:
    """Predict a text for each row by mask-predict; rows then have the lengths of these texts."""
    if cell.candidates == 1:
        lengths = texts.real.sum(-1)
        return texts, mask_predict(texts.mlm, lengths, texts.owner, iterations=10)[0]
    best = mask_predict_decode(
        texts.mlm, texts.length_scores, candidates=cell.candidates, iterations=10
    )
    tokens, lengths = best.tokens[texts.owner, 0], best.lengths[texts.owner, 0]
    width = int(lengths.max())
    return texts._replace(real=length_mask(lengths, width)), tokens[:, :width]


def sample_sweeps(cell: Sampling, texts: Texts) -> tuple[list[dict[str, Any]], list[Sums], Ends]:
    """Number and phase of each sweep, the sums of each sweep, and start, mode and last texts."""
    local = LocalEnergy(texts.mlm, owner=texts.owner)
    rng = torch.Generator().manual_seed(cell.seed)
    start = first_texts(cell, texts, rng)
    modes = Modes(start, torch.full(texts.owner.shape, float("inf")))
    heads, moments, tokens = [], [], start
    for record in records(cell, texts, start, rng):
        tokens = record.state.tokens
        of_target = cell.method == "MH" and cell.energy == "local"
        energy = record.state.energy if of_target else local(tokens)
        modes = modes.seen(tokens, record.state.energy if cell.method == "MH" else energy)
        names = ("proposals", "accept", "repeated", "novel", "stuck")
        counts = dict(zip(names, map(texts.by_chain, record.counts), strict=True))
        moments.append(texts.sums(tokens, energy) | counts)
        head = {"sweep": record.sweep, "phase": record.phase, "temperature": record.temperature}
        heads.append(head)
    return heads, moments, texts.ends({"start": start, "mode": modes.tokens, "last": tokens})


def values_of(kind: KindName, sums: Sums) -> dict[str, list[float]]:
    """Energy per token, rates and quality of one sweep, each for every repetition."""
    every = np.ones((1, sums["energy"].shape[-1]))
    return {name: x[..., 0].tolist() for name, x in figures_of(kind, sums, every).items()}


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


def first_texts(cell: Sampling, texts: Texts, rng: Generator) -> Int[Tensor, "rows time"]:
    """The start of each chain: random tokens, or all positions predicted at once."""
    if cell.start == "greedy":
        return mask_predict(texts.mlm, texts.real.sum(-1), texts.owner, iterations=1)[0]
    empty = torch.full(texts.real.shape, texts.mlm.pad_id)
    return fill_randomly(empty, texts.real, texts.mlm.allowed, rng)


def records(
    cell: Sampling, texts: Texts, start: Int[Tensor, "rows time"], rng: Generator
) -> Iterable[Record]:
    """Run the cell's kernel sweep by sweep."""
    with warnings.catch_warnings():  # the thesis uses a nucleus; `stuck` counts its cost
        warnings.simplefilter("ignore", ReducibleWarning)
        propose = MaskedConditionals(
            texts.mlm, owner=texts.owner, temperature=cell.temperature, nucleus=cell.nucleus
        )
    energy = (LocalEnergy if cell.energy == "local" else RawEnergy)(texts.mlm, owner=texts.owner)
    gibbs = degenerate_gibbs(propose, no_energy)
    cache = SiteCache()

    def kernel(temperature: float) -> Kernel:
        if cell.method == "Gibbs":
            return gibbs
        early = 4 if cell.energy == "local" else None  # the same chain with cheaper rejections
        return fast_metropolis_hastings(
            energy, propose, temperature=temperature, cache=cache, sites_a_round=early
        )

    plan = Plan(
        sweeps=cell.sweeps,
        burn_in=cell.burn_in,
        forced=cell.forced,
        order=cell.order,
        blocks=ConstantBlocks() if cell.blocks == "single" else LinearBlocks(),
        temperature=Linear(start=1.0, slope=-cell.cooling, floor=FLOOR),
    )
    warm_up = degenerate_gibbs(propose, energy) if cell.forced else None
    return run_chains(kernel, start, texts.real, plan=plan, rng=rng, warm_up=warm_up)


def no_energy(tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
    """Zeros in place of energies, which degenerate Gibbs does not need at every step."""
    return torch.zeros(len(tokens))
