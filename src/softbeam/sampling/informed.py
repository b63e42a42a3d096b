r"""Metropolis-Hastings that chooses the site by how much it wants to change (Zanella 2020).

A step looks at the conditionals of all given positions, each masked alone, and proposes one new
token v at one site t with a probability proportional to

    sqrt(p(v | y\t) / p(y_t | y\t)),

over all sites and all tokens but the present ones. The square root makes the choice *locally
balanced*: if the conditionals belonged to the target, moves would be accepted nearly always. They
do not, so each move is accepted or refused by the energies and by the probabilities of both
directions, which makes the kernel exact for any model.

The rows are those of the energies: the conditionals of the present text are known from its energy,
and those of the new text are computed for its energy anyway. So a proposal costs what a proposal of
`fast_metropolis_hastings` costs that differs from the text; but none repeats the text.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.fast import Parts, sites_of, split
from softbeam.sampling.kernels import (
    check_temperature,
    checked,
    energy_of,
    log_acceptance,
    log_uniform,
)
from softbeam.sampling.masking import site_logits
from softbeam.sampling.proposals import UniformProposals, check_tokens
from softbeam.tensors import Allowed, allowed_at, draw
from softbeam.types import ChainState, Energy, Kernel, StepInfo


def informed_metropolis_hastings(
    energy: Energy, *, allowed: Allowed | None = None, temperature: float = 1.0
) -> Kernel:
    """Make a kernel that proposes the changes that the model's conditionals favour.

    A step changes at most one of its positions; give it many, such as all free ones. The energy is
    a `LocalEnergy` or `RawEnergy`, alone or inside `WeightedSum`, `Tempered` and `Constrained`;
    only the conditionals of its model choose the site. Raises ValueError if there is no such part.

    A state is plain tensors. The kernel keeps the conditionals of the last texts, chains * time *
    vocab numbers, and computes those of any other text when it gets one.

    Args:
        energy: the energy of the target.
        allowed: the tokens that may be proposed; by default those of the model.
        temperature: the temperature of the target.
    """
    check_temperature(temperature)
    if (parts := split(energy, UniformProposals(1))) is None:
        raise ValueError("energy: has no LocalEnergy or RawEnergy, whose rows choose the site")
    kernel = _InformedKernel(parts, allowed, temperature)
    return Kernel(kernel.init, kernel.step)


class Conditionals(NamedTuple):
    """Texts, and the model's logits at their sites, each masked alone."""

    tokens: Int[Tensor, "chain time"]
    logits: Float[Tensor, "chain time vocab"]


class _InformedKernel:
    """The two functions of `informed_metropolis_hastings`, and what they share."""

    def __init__(self, parts: Parts, allowed: Allowed | None, temperature: float):
        self.parts, self.temperature = parts, temperature
        self.allowed = parts.sites.mlm.allowed if allowed is None else allowed
        self.last: Conditionals | None = None

    @torch.no_grad()
    def init(self, tokens: Tensor) -> ChainState:
        """Score the texts from scratch, and keep their conditionals."""
        self.last = None
        self.last = self.conditionals(tokens)
        return ChainState(tokens, checked(self.energy(self.last)))

    @torch.no_grad()
    def step(
        self, state: ChainState, positions: Tensor, rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """Propose a new token at one of the positions; accept or refuse it."""
        check_tokens(state.tokens, positions, self.allowed)
        self.last = now = self.conditionals(state.tokens)
        weight = self.log_weights(now, positions)
        still = weight.isneginf().all(-1)  # no position, or a single token is allowed in each
        flat = weight.masked_fill(still[:, None], 0.0)
        cell = draw(flat.softmax(-1), rng)
        site, token = cell // now.logits.shape[-1], cell % now.logits.shape[-1]
        token = torch.where(still[:, None], state.tokens.gather(1, site), token)
        new = self.conditionals(state.tokens.scatter(1, site, token))
        energy = torch.where(still, state.energy, checked(self.energy(new)).to(state.energy))
        back = site * now.logits.shape[-1] + state.tokens.gather(1, site)
        reverse = self.log_weights(new, positions)
        log_a = log_acceptance(
            state.energy / self.temperature,
            energy / self.temperature,
            weight.gather(1, cell)[:, 0] - weight.logsumexp(-1),
            reverse.gather(1, back)[:, 0] - reverse.logsumexp(-1),
        ).masked_fill(still, 0.0)
        accepted = log_uniform(log_a, rng) < log_a
        tokens = torch.where(accepted[:, None], new.tokens, state.tokens)
        logits = torch.where(accepted[:, None, None], new.logits, now.logits)
        self.last = Conditionals(tokens, logits)
        flags = (accepted, accepted & ~still, still, torch.zeros_like(still))
        return (
            ChainState(tokens, torch.where(accepted, energy, state.energy)),
            StepInfo(log_a, *flags),
        )

    def conditionals(self, tokens: Int[Tensor, "chain time"]) -> Conditionals:
        """Compute the logits of all sites of texts, but for those that did not change."""
        sites, before = self.parts.sites, self.last
        asked = sites_of(self.parts, tokens)
        logits = None
        if before is not None and before.tokens.shape == tokens.shape:
            changed = (tokens != before.tokens).long()
            asked = asked & (changed.sum(-1, keepdim=True) != changed)
            logits = before.logits.clone()
        row, site = asked.nonzero(as_tuple=True)
        for index, cells in site_logits(
            sites.mlm, tokens, row, site, sites.owner, limit=sites.rows
        ):
            if logits is None:
                logits = cells.new_zeros(*tokens.shape, cells.shape[-1])
            logits[row[index], site[index]] = cells
        assert logits is not None
        return Conditionals(tokens, logits)

    def energy(self, texts: Conditionals) -> Float[Tensor, " chain"]:
        """Compute the energies of texts from their conditionals."""
        sites, every = self.parts.sites, torch.arange(len(texts.tokens))
        rest = energy_of(
            self.parts.rest, texts.tokens, every, like=texts.logits.new_zeros(0).double()
        )
        counted = sites_of(self.parts, texts.tokens)
        scores = sites.score(texts.logits[counted], texts.tokens[counted]).double()
        table = scores.new_zeros(counted.shape).masked_scatter(counted, scores)
        return rest - self.parts.weight * table.sum(-1)

    def log_weights(
        self, texts: Conditionals, positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "chain cells"]:
        """Half of log p(v) - log p(y_t) for each site t and each other token v that is allowed."""
        half = 0.5 * self.parts.weight / self.temperature
        present = texts.tokens[:, :, None]
        gain = half * (texts.logits - texts.logits.gather(-1, present)).double()
        may = torch.zeros_like(gain, dtype=torch.bool)
        may[positions] = allowed_at(self.allowed, positions)
        return gain.masked_fill(~may.scatter(-1, present, False), -torch.inf).flatten(1)
