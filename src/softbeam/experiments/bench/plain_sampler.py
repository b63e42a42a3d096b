"""Metropolis-Hastings as public samplers write it: a pass for each position, logits everywhere.

This sampler is a baseline for speed and an oracle for tests: plain loops that share no code with
the package. For a proposal, a pass masks the given positions of every chain; for an energy, each
pass masks one position. Random numbers are drawn in the same order as in the package, the words and
then one acceptance for each chain, so that the same seed gives the same chain.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from softbeam.types import ChainState, Kernel, StepInfo

FullLogits = Callable[[Tensor], Tensor]  # ids with masks in them -> logits of every position


def plain_sampler(
    logits: FullLogits, *, mask_id: int, allowed: Tensor, sites: list[int], keep_energy: bool
) -> Kernel:
    """A kernel for exp(-E_local) with 2T+1 passes for each proposal, or T+1 with a kept energy.

    Args:
        logits: the model.
        mask_id: the token that hides another.
        allowed: which tokens may be proposed.
        sites: the positions whose tokens are sampled, the same for each chain.
        keep_energy: whether the energy of the present text is kept instead of computed for each
            proposal.
    """

    def at(tokens: Tensor, site: Tensor) -> Tensor:
        """Logits of one position of each chain, with its token hidden."""
        rows = torch.arange(len(tokens))
        ids = tokens.clone()
        ids[rows, site] = mask_id
        return logits(ids)[rows, site]

    def energy(tokens: Tensor) -> Tensor:
        total = torch.zeros(len(tokens), dtype=torch.float64)
        for i in sites:
            site = torch.full((len(tokens),), i)
            log_p = torch.log_softmax(at(tokens, site), -1)
            total -= log_p[torch.arange(len(tokens)), tokens[:, i]]
        return total

    @torch.no_grad()
    def init(tokens: Tensor) -> ChainState:
        return ChainState(tokens, energy(tokens))

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        tokens = state.tokens
        chain = positions.nonzero()[:, 0]
        cells = torch.arange(len(chain))
        scores = logits(torch.where(positions, mask_id, tokens))[positions]
        scores[:, ~allowed] = float("-inf")
        log_q = torch.log_softmax(scores, -1)
        word = torch.multinomial(torch.exp(log_q), 1, generator=rng)[:, 0]
        new = tokens.clone()
        new[positions] = word
        back = log_q[cells, tokens[positions]] - log_q[cells, word]
        old_energy = state.energy if keep_energy else energy(tokens)
        new_energy = energy(new)
        log_a = (old_energy - new_energy).index_add(0, chain, back.double())
        same = (new == tokens).all(-1)
        log_a = torch.where(same, 0.0, log_a).clamp(max=0.0)
        u = torch.rand(len(tokens), generator=rng, dtype=torch.float64)
        accepted = torch.log(u) < log_a
        return (
            ChainState(
                torch.where(accepted[:, None], new, tokens),
                torch.where(accepted & ~same, new_energy, old_energy),
            ),
            StepInfo(log_a, accepted, accepted & ~same, same, torch.zeros_like(same)),
        )

    return Kernel(init, step)
