"""Correct the draft of a parallel sampler: certified kernels move it to the right law."""

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.unmasking import Unmask
from softbeam.types import Energy, Kernel, MaskedLM


@torch.no_grad()
def correct(
    draft: Int[Tensor, "chain time"],
    free: Bool[Tensor, "chain time"],
    kernel: Kernel,
    *,
    passes: int,
    stride: int = 1,
    rng: Generator,
) -> Int[Tensor, "chain time"]:
    """Run a kernel over the free positions of drafts, a number of times.

    A pass takes `stride` steps: every stride-th free position, from the first one on, then from the
    second on, and so on. So each position is in one step of a pass, and positions of one step are
    `stride` apart: for tokens that depend mostly on their neighbours they are nearly independent,
    and are proposed by one row of the model. Which positions are masked never depends on the texts;
    if it did, the kernel would leave another law invariant.

    Args:
        draft: the texts.
        free: the positions that may change.
        kernel: leaves the law of the target invariant, as `metropolis_hastings` does.
        passes: how often each position is visited.
        stride: the distance of positions that are changed together; 0 for one position a step.
        rng: the generator of random numbers.
    """
    if passes < 0 or stride < 0:
        raise ValueError(f"passes={passes} and stride={stride} must be at least 0")
    place = free.cumsum(-1) - 1  # of each free position among those of its text
    turn = place % stride if stride else place
    state = kernel.init(draft)
    for _ in range(passes):
        for step in range(stride or int(free.sum(-1).max())):
            state, _ = kernel.step(state, free & (turn == step), rng)
    return state.tokens


def corrected(sampler: Unmask, energy: Energy, *, passes: int, stride: int = 1) -> Unmask:
    """Make a sampler that corrects the drafts of another, for the target exp(-energy)."""

    def sample(mlm: MaskedLM, tokens: Tensor, hidden: Tensor, rng: Generator) -> Tensor:
        draft = sampler(mlm, tokens, hidden, rng)
        kernel = metropolis_hastings(energy, MaskedConditionals(mlm))
        return correct(draft, hidden, kernel, passes=passes, stride=stride, rng=rng)

    return sample
