"""Sampling from a masked language model: texts in, records of all chains out, sweep by sweep.

Chains are rows: each text as often as it has chains. Where a text has gaps, they alone are sampled
unless the whole text is free; the tokenizer's frame and padding never are.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from softbeam.errors import UserError
from softbeam.sampling.chains import (
    Blocks,
    ConstantBlocks,
    LinearBlocks,
    Plan,
    RandomBlocks,
    Record,
    fill_greedily,
    fill_in_turn,
    fill_randomly,
    run,
)
from softbeam.sampling.energies import LocalEnergy, RawEnergy, StridedEnergy, WeightedSum
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs, delayed_acceptance, exact_gibbs
from softbeam.sampling.proposals import MaskedConditionals, ReducibleWarning, UniformProposals
from softbeam.sampling.terms import EditDistance, HammingDistance, PhraseCount
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.tensors import may_stand
from softbeam.types import ChainState, Energy, Kernel, Propose, TextModel


class Sampler(NamedTuple):
    """Everything that is fixed while chains run."""

    tokens: Int[Tensor, "chain time"]  # the texts, a mask in each gap
    free: Bool[Tensor, "chain time"]
    start: Callable[[Generator], Tensor]  # texts without gaps
    kernel: Callable[[float], Kernel]  # at a temperature of the target
    warm_up: Kernel  # of forced sweeps
    plan: Plan


def sampler(mlm: TextModel, texts: Sequence[str], config: SamplingConfig) -> Sampler:
    """The sampler of these texts, row i * chains + c being chain c of text i."""
    tokens, free = text_rows(mlm, texts, config)
    allowed = allowed_tokens(mlm, config.allowed)
    terms = composed(mlm, texts, tokens, config)
    exact = WeightedSum([(1.0, ENERGIES[config.energy](mlm, rows=config.rows)), *terms])
    cheap = WeightedSum([(1.0, StridedEnergy(mlm, rows=config.rows)), *terms])
    conditionals = MaskedConditionals(mlm, allowed=allowed, rows=config.rows)
    propose = proposals(mlm, allowed, config)

    def kernel(temperature: float) -> Kernel:
        if config.kernel == "gibbs":
            return degenerate_gibbs(propose, exact)
        if config.kernel == "exact-gibbs":
            return exact_gibbs(exact, allowed=allowed, temperature=temperature)
        if config.kernel == "delayed":
            return delayed_acceptance(cheap, exact, propose, temperature=temperature)
        # A cache of its own for each sweep: a sweep depends on its start alone, so that going on
        # from a checkpoint repeats it to the last bit.
        return fast_metropolis_hastings(exact, propose, temperature=temperature)

    def start(rng: Generator) -> Tensor:
        if config.start == "text":
            return tokens
        if config.start == "greedy":
            return fill_greedily(conditionals, tokens, free)
        if config.start == "random":
            return fill_randomly(tokens, free, allowed, rng)
        return fill_in_turn(conditionals, tokens, free, rng)

    if config.start == "text":
        check_start(mlm, tokens, free, allowed, config)
    return Sampler(tokens, free, start, kernel, degenerate_gibbs(propose, exact), plan(config))


def sample(
    chains: Sampler, rng: Generator, *, state: ChainState | None = None, first: int = 0
) -> Iterator[Record]:
    """A record of all chains for each sweep; from a record's state, with the generator as it was
    then and the next sweep as `first`, the same chains go on."""
    return run(
        chains.kernel,
        chains.start(rng) if state is None else state,
        chains.free,
        plan=chains.plan,
        rng=rng,
        warm_up=chains.warm_up,
        first=first,
    )


def plan(config: SamplingConfig) -> Plan:
    blocks: Blocks
    if isinstance(config.block, int):
        blocks = ConstantBlocks(size=config.block)
    else:
        blocks = LinearBlocks() if config.block == "linear" else RandomBlocks()
    return Plan(
        sweeps=config.sweeps,
        burn_in=config.burn_in,
        forced=config.forced,
        order=config.order,
        blocks=blocks,
        temperature=config.target_temperature,
    )


# Texts


def text_rows(
    mlm: TextModel, texts: Sequence[str], config: SamplingConfig
) -> tuple[Int[Tensor, "chain time"], Bool[Tensor, "chain time"]]:
    """The tokens of each chain, and the positions that are sampled."""
    if not texts:
        raise UserError("there is no text to sample")
    prompts = mlm.encode(texts)
    free = prompts.hidden if config.free == "mask" else ~prompts.frozen
    for i, (row, text) in enumerate(zip(free, texts, strict=True)):
        if bool(row.any()):
            continue
        if config.free == "mask":
            raise UserError(
                f"text {i} has no [MASK]: {text[:40]!r}; --free all samples the whole text"
            )
        raise UserError(f"text {i} has no token: {text[:40]!r}")
    return tuple(table.repeat_interleave(config.chains, 0) for table in (prompts.tokens, free))  # type: ignore[return-value]


def check_start(
    mlm: TextModel, tokens: Tensor, free: Tensor, allowed: Tensor, config: SamplingConfig
) -> None:
    """A sentence if chains cannot start from the texts as they are."""
    gaps = tokens == mlm.mask_id
    if bool(gaps.any()):
        row = int(gaps.any(-1).nonzero()[0])
        raise UserError(
            f"--start text: text {row // config.chains} has {int(gaps[row].sum())} gaps; "
            "in-turn, greedy and random fill them"
        )
    foreign = free & ~may_stand(tokens, allowed)
    if bool(foreign.any()):
        row, time = foreign.nonzero()[0].tolist()
        token = mlm.token_names([int(tokens[row, time])])[0]
        raise UserError(
            f"--start text: text {row // config.chains} has {token!r}, not among --allowed"
        )


def allowed_tokens(mlm: TextModel, tokens: Sequence[str]) -> Bool[Tensor, " vocab"]:
    """The set of these tokens, or all that the model allows if there are none."""
    if not tokens:
        return mlm.allowed
    ids = []
    for token in tokens:
        i = mlm.token_id(token)
        if i is None or i >= len(mlm.allowed) or not mlm.allowed[i]:
            what = "no token of the model" if i is None else "a special token, never sampled"
            raise UserError(f"--allowed {token}: is {what}")
        ids.append(i)
    return torch.zeros_like(mlm.allowed).index_fill(0, torch.tensor(ids), True)


# Targets and proposals

ENERGIES: dict[str, Callable[..., Energy]] = {"local": LocalEnergy, "raw": RawEnergy}


def composed(
    mlm: TextModel, texts: Sequence[str], tokens: Tensor, config: SamplingConfig
) -> list[tuple[float, Energy]]:
    """The weighted terms of the energy beside the model's own."""
    terms: list[tuple[float, Energy]] = []
    if config.near is not None:
        terms.append((config.near_weight, distance(mlm, texts, tokens, config)))
    if config.lexicon:
        found = PhraseCount(phrases(mlm, config.lexicon))
        terms.append((-config.lexicon_weight, found))
    return terms


def distance(
    mlm: TextModel, texts: Sequence[str], tokens: Tensor, config: SamplingConfig
) -> Energy:
    """How far each chain is from what it is to stay near to."""
    assert config.near is not None
    others = list(texts) if config.near == "self" else [config.near] * len(texts)
    near = mlm.encode(others).tokens.repeat_interleave(config.chains, 0)
    if config.near_distance == "edit":
        rows = [[i for i in row if i != mlm.pad_id] for row in near.tolist()]
        return EditDistance(rows, mlm.pad_id)
    lengths = [(table != mlm.pad_id).sum(-1).tolist() for table in (tokens, near)]
    for row, (time, other) in enumerate(zip(*lengths, strict=True)):
        if time != other:
            raise UserError(
                f"--near has {other} tokens and text {row // config.chains} has {time}: "
                "--near-distance hamming needs the same number, edit does not"
            )
    return HammingDistance(near[:, : tokens.shape[1]])


def phrases(mlm: TextModel, words: Sequence[str]) -> list[list[int]]:
    """The tokens of each word, as it stands at the beginning and inside of a text."""
    found = {}
    for word in words:
        for form in (word, f" {word}"):
            ids = mlm.word_ids(form)
            if ids and all(bool(mlm.allowed[i]) for i in ids):
                found[tuple(ids)] = word
        if word not in found.values():
            raise UserError(f"--lexicon: the model has no tokens for {word!r}")
    return [list(ids) for ids in found]


def proposals(mlm: TextModel, allowed: Bool[Tensor, " vocab"], config: SamplingConfig) -> Propose:
    if config.proposal == "uniform":
        return UniformProposals(allowed)
    with warnings.catch_warnings():  # config.caveats() says it
        warnings.simplefilter("ignore", ReducibleWarning)
        return MaskedConditionals(
            mlm,
            allowed=allowed,
            temperature=config.proposal_temperature,
            nucleus=config.nucleus,
            epsilon=config.epsilon,
            rows=config.rows,
        )
