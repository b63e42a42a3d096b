"""Chains of translations: what Tables 6.2 to 6.6 are made of (thesis, Sec. 6.5 to 6.8).

A cell holds all chains of one setting: a chain for each source, several times. Its result has, for
each sweep and each of the repetitions, the energy per token, the rates and the quality. What these
are quotients of, source by source, stays in a file beside it, for tests that draw sources anew.
"""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from softbeam.data.tasks import Kind
from softbeam.errors import UserError
from softbeam.runtime.cells import Result, key
from softbeam.runtime.files import write_atomic
from softbeam.sampling.chains import ConstantBlocks, LinearBlocks, Plan, Record, fill_randomly, run
from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.sampling.fast import SiteCache, fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs
from softbeam.sampling.mask_predict import likeliest_lengths, mask_predict
from softbeam.sampling.proposals import MaskedConditionals, ReducibleWarning
from softbeam.schedules import Linear
from softbeam.tensors import length_mask
from softbeam.training import metrics
from softbeam.training.evaluation import Problems, problems
from softbeam.training.runs import WEIGHTS, Run, load_run
from softbeam.types import Kernel, MaskedLM

FLOOR = 0.05  # of the target's temperature, which would otherwise fall below 0

RATES = ("accept", "repeated", "novel", "stuck")  # of the proposals

Method = Literal["MH", "Gibbs", "mask-predict"]
Array = metrics.Array
Sums = dict[str, Array]  # by chain and source


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
        sources: so many of the test split, evenly spread (it may be sorted) ...
        longest: ... over those with at most so many words.
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

    def by_chain(self, values: Tensor) -> Array:
        """A number for each row, as an array of repetitions and sources."""
        found: Array = values.unflatten(0, (-1, len(self.references))).double().numpy()
        return found

    def sums(self, tokens: Int[Tensor, "rows time"], energy: Float[Tensor, " rows"]) -> Sums:
        """What energy per token and quality of some texts are quotients of."""
        codec = self.run.codecs.target
        rows = zip(tokens, self.real, strict=True)
        words = [codec.decode(row[mask].tolist()) for row, mask in rows]
        golds = [self.references[source] for source in self.owner.tolist()]
        counts = torch.from_numpy(quality_counts(self.kind, words, golds))
        lengths = self.real.sum(-1)
        parts = {"energy": energy, "tokens": lengths, "quality": counts}
        return {name: self.by_chain(part) for name, part in parts.items()}


def quality_counts(
    kind: Kind,
    predicted: Sequence[Sequence[str]],
    references: Sequence[Sequence[Sequence[str]]],
) -> Array:
    """For each text a row: what BLEU adds up, or for transcriptions the token error rate."""
    if kind == "transcription":
        return np.array(metrics.error_counts(predicted, references), dtype=float)
    golds = [[" ".join(tokens) for tokens in one] for one in references]
    texts = [" ".join(tokens) for tokens in predicted]
    return np.array(metrics.bleu_counts(texts, golds), dtype=float)


def figures_of(kind: Kind, sums: Sums, weights: Array) -> dict[str, Array]:
    """Energy per token, rates and quality, all sources together.

    Args:
        kind: more quality is better for translations, less for transcriptions.
        sums: by name, `... chains sources`, and the counts of the quality as a last axis.
        weights: `draws sources`: how often each source counts.

    Returns: by name, `... chains draws`.
    """
    quality = metrics.token_errors_of if kind == "transcription" else metrics.bleu_of
    counts = np.einsum("...sk,ds->...dk", sums["quality"], weights)
    other = {name: x for name, x in sums.items() if name != "quality"}
    total = {name: np.einsum("...s,ds->...d", x, weights) for name, x in other.items()}
    found = {"energy": total["energy"] / total["tokens"]}
    found["quality"] = np.apply_along_axis(lambda row: quality(row[None]), -1, counts)
    return found | {name: total[name] / total["proposals"] for name in RATES if name in sums}


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
    n = min(cell.sources, len(short))
    short = [short[i * len(short) // n] for i in range(n)]
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
    """`sample` as the work of a grid, in whose folder the sums by source stay."""
    result, sums = sample(cell)
    arrays = {f"{part} {name}": x for part, each in sums.items() for name, x in each.items()}
    small = {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in arrays.items()}
    write_atomic(sums_path(cell, folder), save(small))
    return result


def sums_path(cell: Sampling, folder: Path) -> Path:
    return folder / "chains" / f"{key(cell)}.safetensors"


def sums_of(cell: Sampling, folder: Path) -> dict[str, Sums] | None:
    """What a finished cell left by source: of its sweeps, its start, its mode. None if gone."""
    path = sums_path(cell, folder)
    if not path.is_file():
        return None
    found: dict[str, Sums] = {}
    try:
        arrays = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not what a cell left ({error}); remove it") from None
    for full, x in arrays.items():
        part, name = full.split()
        found.setdefault(part, {})[name] = x.astype(np.float64)
    return found


@torch.no_grad()
def sample(cell: Sampling) -> tuple[Result, dict[str, Sums]]:
    """The chains of a cell, sweep by sweep; of mask-predict one line.

    Beside it the sums of `sweeps`, which have a first axis more, of the `start` and the `mode`.
    """
    texts = texts_of(cell)
    local = LocalEnergy(texts.mlm, owner=texts.owner)
    heads: list[dict[str, Any]] = [{}]
    ends: dict[str, Sums] = {}
    if cell.method == "mask-predict":
        tokens, _ = mask_predict(texts.mlm, texts.real.sum(-1), texts.owner, iterations=10)
        moments = [texts.sums(tokens, local(tokens))]
    else:
        heads, moments, ends = watched(cell, texts, local)
    lines = [head | shown(texts.kind, sums) for head, sums in zip(heads, moments, strict=True)]
    result: Result = {"kind": texts.kind, "sources": len(texts.references), "sweeps": lines}
    result |= {name: shown(texts.kind, sums) for name, sums in ends.items()}
    sweeps = {name: np.stack([sums[name] for sums in moments]) for name in moments[0]}
    return result, {"sweeps": sweeps} | ends


def watched(
    cell: Sampling, texts: Texts, local: LocalEnergy
) -> tuple[list[dict[str, Any]], list[Sums], dict[str, Sums]]:
    """What each sweep is, its sums, and those of the start and of the mode."""
    rng = torch.Generator().manual_seed(cell.seed)
    start = first_texts(cell, texts, rng)
    modes = Modes(start, torch.full(texts.owner.shape, float("inf")))
    heads, moments = [], []
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
    ends = {"start": start, "mode": modes.tokens}
    return heads, moments, {name: texts.sums(each, local(each)) for name, each in ends.items()}


def shown(kind: Kind, sums: Sums) -> dict[str, list[float]]:
    """The figures of one moment, each for every repetition."""
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
