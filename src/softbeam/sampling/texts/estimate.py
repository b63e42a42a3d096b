"""Estimate how long sampling takes, before it starts.

The time is that of the model: the number of masked rows it will get, times the time of a row, which
a trial of about a second measures. The number of rows follows from the kernel. For
Metropolis-Hastings it depends on how often a proposal differs from the text, which the trial
estimates from the model's own conditional distributions.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from softbeam.sampling.energies import chosen, counted_sites
from softbeam.sampling.masking import ROWS, in_one_pass
from softbeam.sampling.texts.sampler import Sampler
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.tensors import allowed_at
from softbeam.types import MaskedLM, TextModel

ENOUGH, LONG = 0.25, 600.0  # seconds: of a call that is timed; of sampling that calls for advice
LINE, CELL = 230, 5  # bytes of a sample, and of each of its tokens


class Trial(NamedTuple):
    """What a few rows of the model show."""

    seconds: float  # of a row
    changed: float  # probability that a proposal at one position differs from the text
    term: float  # seconds of the other terms of a text's energy


def estimated(
    mlm: TextModel, groups: Sequence[Sampler], config: SamplingConfig, *, sweeps: int
) -> str:
    """Say how long sampling takes, and how to make it shorter if it is long.

    Args:
        mlm: the model.
        groups: the samplers of all texts.
        config: their settings.
        sweeps: of all sweeps of all groups, those that are left to this process.
    """
    measured = trial(mlm, groups[0], config)
    work = [sweep_work(mlm, group, config, measured.changed) for group in groups]
    share = sweeps / (config.sweeps * len(groups))
    rows, energies = (sum(each) * config.sweeps * share for each in zip(*work, strict=True))
    seconds = rows * measured.seconds + energies * measured.term
    lengths = sorted({int(n) for group in groups for n in group.free.sum(-1).unique()})
    positions = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"{lengths[0]}"
    texts = sum(len(group.tokens) for group in groups) // config.chains
    what = f"{config.chains} chains x {config.sweeps} sweeps of {positions} positions"
    what = f"{texts} texts x {what}" if texts > 1 else what
    each = (len(group.tokens) * (LINE + CELL * group.tokens.shape[1]) for group in groups)
    size = sum(each) * config.sweeps / 1e6
    size_text = f"{size:,.0f} MB" if size >= 1 else "less than 1 MB"
    need = f"{what} ({rows:,.0f} rows of the model, {size_text} of samples)"
    return f"about {duration(seconds)} for {need}{advice(config, seconds / max(share, 1e-9))}"


def advice(config: SamplingConfig, seconds: float) -> str:
    """Name a number of sweeps that takes a tenth of a long time."""
    fewer = max(config.sweeps // 10, 1)
    if seconds < LONG or fewer == config.sweeps:
        return ""
    burn_in = f" --burn-in {fewer // 5}" if config.burn_in >= fewer else ""
    less = duration(seconds * fewer / config.sweeps)
    return f"; --sweeps {fewer}{burn_in} takes {less}"


@torch.inference_mode()
def trial(mlm: TextModel, group: Sampler, config: SamplingConfig) -> Trial:
    """Time the model on more and more rows of a group's texts, for about a second."""
    free, owner = group.free[:1], torch.zeros(1, dtype=torch.long)
    allowed = group.allowed if group.allowed.dim() == 1 else group.allowed[:1]
    sets = allowed_at(allowed, free).expand(int(free.sum()), -1)
    logits = mlm.logits(group.tokens[:1], free, owner).cpu()
    texts = group.tokens[:1].masked_scatter(free, logits.masked_fill(~sets, -torch.inf).argmax(-1))
    every = free.nonzero()[:, 1]
    limit = ROWS if isinstance(config.rows, str) else config.rows
    seconds, cells = timed_rows(mlm, texts, every, min(limit, len(group.tokens) * len(every)))
    own = sets[torch.arange(len(cells)) % len(every)]
    logits = cells.double().masked_fill(~own, -torch.inf)
    target = (logits / config.target_temperature.at(0)).softmax(-1)  # of the token that is there
    proposed = (logits / config.proposal_temperature).softmax(-1)
    if config.proposal == "uniform":
        proposed = own.double() / own.sum(-1, keepdim=True)
    started = time.monotonic()
    if config.term:
        chosen(group.terms, owner)(texts)
    term = time.monotonic() - started
    return Trial(seconds, 1 - float((target * proposed).sum(-1).mean()), term)


def timed_rows(
    mlm: MaskedLM, text: Int[Tensor, "1 time"], sites: Int[Tensor, " sites"], most: int
) -> tuple[float, Float[Tensor, "cells vocab"]]:
    """Time rows of a text, of which one site each is masked; returns seconds a row, and logits.

    The numbers of rows grow until a call takes long enough, or has `most` rows.
    """
    first, rows = time.monotonic(), 1
    while True:
        alone = one_hot(sites[torch.arange(rows) % len(sites)], text.shape[1]).bool()
        owner = torch.zeros(rows, dtype=torch.long)
        started = time.monotonic()
        cells = mlm.logits(text.expand(rows, -1), alone, owner).cpu()
        ended = time.monotonic()
        if rows >= most or ended - started >= ENOUGH or ended - first >= 4 * ENOUGH:
            return (ended - started) / rows, cells
        rows = min(4 * rows, most)


class Work(NamedTuple):
    """What a sweep of a group asks for."""

    rows: float  # masked rows of the model
    energies: float  # texts whose other terms are computed


def sweep_work(mlm: TextModel, group: Sampler, config: SamplingConfig, changed: float) -> Work:
    """Estimate the number of masked rows that the model gets in a sweep of a group.

    A proposal needs a row of each chain, unless an earlier energy has it. The energy of a changed
    text needs a row for each of its sites, of a `OnePassMlm` one. Exact Gibbs tries all tokens.
    """
    sites = (counted_sites(mlm, group.tokens) | group.free).sum(-1)
    strided = config.energy == "strided"
    if one_pass := in_one_pass(mlm) is not None and not strided:
        sites = torch.ones_like(sites)
    sites = sites.clamp_max(config.stride) if strided else sites
    steps, size = blocks_of(group, config)
    if config.lengths is not None:  # every change of length is another text, with rows of its own
        return Work(float((steps * (1 + sites)).sum()), float(steps.sum()))
    if config.kernel == "exact-gibbs":
        sets = group.allowed if group.allowed.dim() == 1 else group.allowed[group.free]
        tried = steps * float(sets.sum(-1).double().mean())
        return Work(float((tried * sites).sum()), float(tried.sum()))
    energy = torch.ones_like(steps) if config.kernel == "gibbs" else 1 - (1 - changed) ** size
    known = (size == 1).double() * (config.kernel == "mh" and not strided)
    rows = steps * (1 - known) + steps * energy * (sites if one_pass else sites - known)
    rows = rows + known * steps.minimum(1 / energy.clamp_min(1e-9))
    return Work(float(rows.sum()), float((steps * energy).sum()))


def blocks_of(group: Sampler, config: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Mean number of steps of each chain in a sweep, and mean size of its blocks."""
    free: Int[Tensor, " chain"] = group.free.sum(-1)
    rng = Generator().manual_seed(0)
    places = sorted({0, config.sweeps // 4, config.sweeps // 2, 3 * config.sweeps // 4})
    sizes = [group.plan.blocks(free, s, config.sweeps, rng).clamp_min(1) for s in places]
    steps = torch.stack([(free / size).ceil() for size in sizes]).mean(0).double()
    return steps, free / steps.clamp_min(1)


def duration(seconds: float) -> str:
    """Format a time as 40 s, 18 min, 3 h or 2 days."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds / unit, 1):.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
