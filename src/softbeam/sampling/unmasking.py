"""The samplers that masked and diffusion language models are used with, as plain functions.

Each fills the hidden positions of texts and returns the texts: `f(mlm, tokens, hidden, rng)`, with
its settings by keyword. In a step, a token is drawn at every hidden position, each from its own
conditional given what is not hidden, and some of the tokens stay. Tokens that stay in the same step
are drawn independently of each other, and most samplers choose them by looking at the tokens. Both
change the law of the texts: none of these functions samples from the model's joint distribution,
except with one token a step in an order that does not depend on the text. `audit` measures how far
off a sampler is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.masking import packed_logits
from softbeam.tensors import draw, rank, uniform
from softbeam.types import MaskedLM

# (mlm, tokens, hidden, rng) -> tokens; also `later`, positions that are masked but not filled
Unmask = Callable[..., Int[Tensor, "chain time"]]
Priority = Callable[[Tensor, Tensor, Generator], Tensor]  # (log_p, drawn, rng): larger stays first


def conditionals(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    later: Bool[Tensor, "chain time"] | None = None,
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "cells vocab"]:
    """Compute log p of the allowed tokens at the hidden positions, all masked together."""
    masked = hidden if later is None else hidden | later
    active = masked.any(-1)
    cells = torch.cat(list(packed_logits(mlm, tokens[active], masked[active])))
    cells = cells[hidden[masked]].double() / temperature
    return cells.masked_fill(~mlm.allowed, float("-inf")).log_softmax(-1)


ROUNDING = 1e-9  # of sums of entropies


# What stays first


def by_chance(log_p: Tensor, drawn: Tensor, rng: Generator) -> Tensor:
    """In random order, as diffusion models are trained."""
    return uniform((len(drawn),), rng, drawn.device)


def by_confidence(log_p: Tensor, drawn: Tensor, rng: Generator) -> Tensor:
    """The likeliest of the drawn tokens first (Nie et al. 2025, LLaDA)."""
    return log_p.gather(1, drawn[:, None])[:, 0]


def by_margin(log_p: Tensor, drawn: Tensor, rng: Generator) -> Tensor:
    """Where the best token is far above the second best (Kim et al. 2025, top-k margin)."""
    best = log_p.exp().topk(2).values
    return best[:, 0] - best[:, 1]


def by_entropy(log_p: Tensor, drawn: Tensor, rng: Generator) -> Tensor:
    """Where the entropy is smallest (Ye et al. 2025, Dream)."""
    return -entropy(log_p)


def entropy(log_p: Float[Tensor, "cells vocab"]) -> Float[Tensor, " cells"]:
    """The entropy of each row."""
    return torch.special.entr(log_p.exp()).sum(-1)


# Samplers


@torch.no_grad()
def in_steps(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    rng: Generator,
    *,
    steps: int,
    priority: Priority = by_chance,
    temperature: float = 1.0,
    later: Bool[Tensor, "chain time"] | None = None,
) -> Int[Tensor, "chain time"]:
    """Fill texts in a number of steps, in each of which equally many tokens stay.

    Of n hidden positions, n // steps stay in each step, and one more in the first n % steps.

    Args:
        mlm: the model.
        tokens: the texts.
        hidden: the positions to fill.
        rng: the generator of random numbers.
        steps: the number of steps; one for all tokens at once.
        priority: says which tokens stay first.
        temperature: of the conditionals.
        later: positions that stay masked.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    count = hidden.sum(-1)
    for step in range(steps):
        if not bool(hidden.any()):
            break
        log_p = conditionals(mlm, tokens, hidden, later, temperature=temperature)
        drawn = draw(log_p.exp(), rng)[:, 0]
        stay = count // steps + (step < count % steps)
        keep = first(priority(log_p, drawn, rng), hidden, stay)
        tokens, hidden = revealed(tokens, hidden, drawn, keep)
    return tokens


@torch.no_grad()
def entropy_bounded(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    rng: Generator,
    *,
    bound: float,
    temperature: float = 1.0,
    later: Bool[Tensor, "chain time"] | None = None,
) -> Int[Tensor, "chain time"]:
    """Fill as many positions a step as a bound of their dependence allows (Ben-Hamu et al. 2025).

    The positions with the smallest entropies stay, as long as the sum of their entropies without
    the largest is at most `bound`. It limits how much the joint distribution of these positions can
    differ from a product. A bound of 0 is one position a step, unless others are certain.
    """
    if bound < 0:
        raise ValueError(f"bound={bound} must be at least 0")
    while bool(hidden.any()):
        log_p = conditionals(mlm, tokens, hidden, later, temperature=temperature)
        drawn = draw(log_p.exp(), rng)[:, 0]
        table = log_p.new_full(hidden.shape, torch.inf).masked_scatter(hidden, entropy(log_p))
        total = table.sort(-1).values.cumsum(-1)  # infinite beyond the hidden positions
        others = torch.cat([torch.zeros_like(total[:, :1]), total[:, :-1]], -1)  # but the largest
        keep = first(-entropy(log_p), hidden, (others <= bound + ROUNDING).sum(-1))
        tokens, hidden = revealed(tokens, hidden, drawn, keep)
    return tokens


@torch.no_grad()
def remasking(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    rng: Generator,
    *,
    steps: int,
    cap: float = 0.0,
    temperature: float = 1.0,
    later: Bool[Tensor, "chain time"] | None = None,
) -> Int[Tensor, "chain time"]:
    """Reverse the diffusion in steps of time, and mask some tokens again (Wang et al. 2025, ReMDM).

    From time t to s the share of tokens that are not masked grows from a_t = 1 - t to a_s. A token
    is masked again with the probability sigma = min(cap, (1 - a_s) / a_t), and a masked one is
    filled with the probability (a_s - (1 - sigma) a_t) / (1 - a_t). Without a cap nothing is masked
    again, which is the ancestral sampler of MDLM (Sahoo et al. 2024).

    Args:
        steps: the number of steps of time.
        cap: the largest probability of masking a token again.
    """
    if steps < 1 or not 0 <= cap <= 1:
        raise ValueError(f"steps={steps} must be at least 1, and cap={cap} from 0 to 1")
    free = hidden
    for step in range(steps):
        before, after = step / steps, (step + 1) / steps  # a_t and a_s
        sigma = min(cap, (1 - after) / before) if before else 0.0
        fill = (after - (1 - sigma) * before) / (1 - before)
        chance = uniform(hidden.shape, rng, hidden.device)
        again = free & ~hidden & (chance < sigma)
        if bool(hidden.any()):
            log_p = conditionals(mlm, tokens, hidden, later, temperature=temperature)
            keep = (chance < fill)[hidden]
            tokens, hidden = revealed(tokens, hidden, draw(log_p.exp(), rng)[:, 0], keep)
        hidden = hidden | again
    return tokens


def in_blocks(sampler: Unmask, size: int) -> Unmask:
    """Make a sampler that fills blocks of positions from left to right (semi-autoregressive).

    Blocks to the right stay masked until it is their turn (Arriola et al. 2025; LLaDA).
    """
    if size < 1:
        raise ValueError(f"size={size} must be at least 1")

    def fill(
        mlm: MaskedLM, tokens: Tensor, hidden: Tensor, rng: Generator, **settings: Any
    ) -> Tensor:
        place = hidden.cumsum(-1) - 1  # of each hidden position among those of its text
        for start in range(0, int(hidden.sum(-1).max()), size):
            now = hidden & (place >= start) & (place < start + size)
            after = hidden & (place >= start + size)
            tokens = sampler(mlm, tokens, now, rng, later=after, **settings)
        return tokens

    return fill


NAMES: dict[str, Callable[[int], Unmask]] = {
    "random": lambda steps: partial(in_steps, steps=steps),
    "confidence": lambda steps: partial(in_steps, steps=steps, priority=by_confidence),
    "margin": lambda steps: partial(in_steps, steps=steps, priority=by_margin),
    "entropy": lambda steps: partial(in_steps, steps=steps, priority=by_entropy),
    "mdlm": lambda steps: partial(remasking, steps=steps),
    "remdm": lambda steps: partial(remasking, steps=steps, cap=0.2),
}


# Shared parts


def first(
    priority: Float[Tensor, " cells"],
    hidden: Bool[Tensor, "chain time"],
    count: Int[Tensor, " chain"],
) -> Bool[Tensor, " cells"]:
    """Choose of each chain's hidden cells the `count` with the largest priority."""
    table = priority.new_full(hidden.shape, torch.inf).masked_scatter(hidden, -priority)
    return (rank(table) < count[:, None])[hidden]


def revealed(
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    drawn: Int[Tensor, " cells"],
    keep: Bool[Tensor, " cells"],
) -> tuple[Int[Tensor, "chain time"], Bool[Tensor, "chain time"]]:
    """Put the kept tokens into their places, which are no longer hidden."""
    shown = hidden.masked_scatter(hidden, keep)
    return tokens.masked_scatter(shown, drawn[keep].to(tokens.device)), hidden & ~shown
