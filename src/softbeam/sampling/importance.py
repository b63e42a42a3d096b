"""Annealed importance sampling: estimate log Z of a large space, with its error (Neal 2001).

A scorer is any function from sequences of one length to their log-potentials, `rows time -> rows`,
as in `exact`; the two modules share no code.

The start is a Markov chain q, uniform or fitted to similar sequences. Between q and exp(s) / Z lie
the bridges q^(1-beta) exp(s)^beta. With w(y) = s(y) - log q(y), a bridge is q exp(beta w): a token
drawn from q given the other tokens is accepted with probability min(1, exp(beta (w' - w))), and the
log-weight of a particle is the sum of w times the steps of beta. The cost is one score for each
particle and bridge; an exact Gibbs step would need a score for each symbol.

Backwards from exact samples of the target, the same bridges give an estimate that is too high on
average (`log_partition_from_above`): both together bracket log Z.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from softbeam.tensors import draw, uniform

Score = Callable[[Tensor], Tensor]  # rows time -> rows


class Estimate(NamedTuple):
    """An estimate of log Z, its standard error, and its effective number of particles."""

    log_z: float
    error: float  # by the delta method; too small if `effective` is small
    effective: float  # (sum of weights)^2 / sum of squares: between 1 and the particles
    accepted: float  # share of the proposed tokens, including unchanged ones


@dataclass(frozen=True)
class MarkovChain:
    """A starting distribution: a Markov chain whose probabilities depend on the position.

    A log-probability of -inf excludes a token from the space.
    """

    first: Float[Tensor, " vocab"]
    later: Float[Tensor, "steps vocab vocab"]  # [t - 1, token at t - 1, token at t]

    @classmethod
    def uniform(cls, vocab: int, time: int, *, forbidden: tuple[int, ...] = ()) -> "MarkovChain":
        """Make the uniform distribution over all sequences of `time` tokens."""
        if min(vocab - len(set(forbidden)), time) < 1:
            raise ValueError(
                f"vocab={vocab}, time={time}, forbidden={forbidden}: no sequence is left"
            )
        flat = torch.zeros(vocab, dtype=torch.float64)
        flat[list(forbidden)] = float("-inf")
        flat = flat.log_softmax(0)
        return cls(flat, flat.expand(time - 1, vocab, vocab))

    def fitted(
        self, tokens: Int[Tensor, "rows time"], *, prior: float = 5.0, share: float = 0.1
    ) -> "MarkovChain":
        """Fit a chain to given sequences, smoothed so that this chain's whole space stays possible.

        The counts of single tokens are smoothed with this chain, one count for each symbol; the
        counts of pairs with `prior` single tokens; and the result is mixed with a `share` of this
        chain. The estimate of Z is unbiased for any start; near the target its error is smaller.
        """
        if not (prior > 0 and 0 < share <= 1):
            raise ValueError(f"prior={prior} must be above 0, and share={share} in (0, 1]")
        vocab = len(self.first)
        seen = one_hot(tokens, vocab).double()
        single = seen.sum(0) + vocab * self.marginals()
        single = single / single.sum(-1, keepdim=True)
        pairs = torch.einsum("rti,rtj->tij", seen[:, :-1], seen[:, 1:]) + prior * single[1:, None]
        pairs = pairs / pairs.sum(-1, keepdim=True)
        return MarkovChain(
            ((1 - share) * single[0] + share * self.first.exp()).log(),
            ((1 - share) * pairs + share * self.later.exp()).log(),
        )

    def marginals(self) -> Float[Tensor, "time vocab"]:
        """Compute the probability of each token at each position."""
        rows = [self.first.exp()]
        for table in self.later:
            rows.append(rows[-1] @ table.exp())
        return torch.stack(rows)

    @property
    def time(self) -> int:
        return len(self.later) + 1

    def sample(self, n: int, rng: Generator) -> Int[Tensor, "n time"]:
        """Draw n independent sequences."""
        drawn = [torch.multinomial(self.first.exp(), n, replacement=True, generator=rng)]
        for table in self.later:
            drawn.append(draw(table.exp()[drawn[-1]], rng)[:, 0])
        return torch.stack(drawn, 1)

    def log_prob(self, tokens: Int[Tensor, "rows time"]) -> Float[Tensor, " rows"]:
        """Compute the log-probability of each sequence."""
        place = torch.arange(self.time - 1, device=tokens.device)
        return self.first[tokens[:, 0]] + self.later[place, tokens[:, :-1], tokens[:, 1:]].sum(1)

    def redrawn(
        self, tokens: Int[Tensor, "rows time"], t: int, rng: Generator
    ) -> Int[Tensor, "rows time"]:
        """Draw a new token at t, given all others."""
        log_p = self.first if t == 0 else self.later[t - 1][tokens[:, t - 1]]
        if t + 1 < self.time:
            log_p = log_p + self.later[t].T[tokens[:, t + 1]]
        p = log_p.expand(len(tokens), -1).softmax(-1)
        new = tokens.clone()
        new[:, t] = draw(p, rng)[:, 0]
        return new


@torch.no_grad()
def log_partition(
    score: Score, start: MarkovChain, *, particles: int, steps: int, rng: Generator
) -> Estimate:
    """Estimate log sum_y exp s(y) over all sequences of the start's space (thesis, Sec. 6.2.3).

    The mean weight is an unbiased estimate of Z for any number of particles and steps; its
    logarithm is too low on average, by about half the square of the error. A score that differs
    from log q by a constant gives the exact value.

    Args:
        score: the scorer.
        start: the starting distribution.
        particles: the number of independent runs, computed together; an error needs at least 2.
        steps: the number of bridges; each proposes one token, position after position.
        rng: the source of all random numbers.
    """
    check_sizes(particles, steps)
    tokens = start.sample(particles, rng)
    return summary(*carry(score, start, tokens, range(1, steps), steps=steps, rng=rng))


@torch.no_grad()
def log_partition_from_above(
    score: Score,
    start: MarkovChain,
    samples: Int[Tensor, "particles time"],
    *,
    steps: int,
    rng: Generator,
) -> Estimate:
    """Estimate log Z from exact samples of exp(s) / Z, by the same bridges in reverse.

    The mean of exp(-log weight) is an unbiased estimate of 1 / Z, so that log Z is too high on
    average, as `log_partition` is too low: together they bracket it (Grosse et al. 2015). If the
    samples are those of chains that have not mixed, this is no longer a bound.

    Args:
        score: the scorer.
        start: the distribution that the bridges lead to.
        samples: independent draws from exp(s) / Z, at least 2.
        steps: the number of bridges.
        rng: the source of all random numbers.
    """
    check_sizes(len(samples), steps)
    down = range(steps - 1, 0, -1)
    log_weight, accepted = carry(score, start, samples, down, steps=steps, rng=rng)
    estimate = summary(-log_weight, accepted)
    return estimate._replace(log_z=-estimate.log_z)


class Bracket(NamedTuple):
    """Estimates of log Z that are too low and too high on average."""

    low: Estimate
    high: Estimate

    def holds(self, log_z: float, *, errors: float = 3.0) -> bool:
        """Say whether a value is between both, or beyond them by a few standard errors at most."""
        below = self.low.log_z - errors * self.low.error
        return below <= log_z <= self.high.log_z + errors * self.high.error


def bracket(
    score: Score,
    start: MarkovChain,
    samples: Int[Tensor, "particles time"],
    *,
    steps: int,
    rng: Generator,
) -> Bracket:
    """Bracket log Z from below, with as many particles as samples, and from above."""
    low = log_partition(score, start, particles=len(samples), steps=steps, rng=rng)
    return Bracket(low, log_partition_from_above(score, start, samples, steps=steps, rng=rng))


def check_sizes(particles: int, steps: int) -> None:
    if particles < 2 or steps < 1:
        raise ValueError(f"particles={particles} must be at least 2, steps={steps} at least 1")


def carry(
    score: Score,
    start: MarkovChain,
    tokens: Int[Tensor, "particles time"],
    bridges: Sequence[int],
    *,
    steps: int,
    rng: Generator,
) -> tuple[Float[Tensor, " particles"], float]:
    """Carry particles over the bridges in turn; returns log-weights and the share accepted."""
    w = score(tokens).to(tokens.device).double() - start.log_prob(tokens)
    log_weight, accepted = w / steps, 0.0
    for step in bridges:
        new = start.redrawn(tokens, step % start.time, rng)
        new_w = score(new).to(new.device).double() - start.log_prob(new)
        chance = uniform((len(tokens),), rng, w.device)
        accept = chance.log() < step / steps * (new_w - w)
        tokens = torch.where(accept[:, None], new, tokens)
        w = torch.where(accept, new_w, w)
        log_weight = log_weight + w / steps
        accepted += accept.double().mean().item() / (steps - 1)
    return log_weight, accepted


def summary(log_weight: Float[Tensor, " particles"], accepted: float) -> Estimate:
    """Compute the log of the mean weight, its standard error, and the effective particles."""
    n = len(log_weight)
    total = log_weight.logsumexp(0)
    effective = (2 * total - (2 * log_weight).logsumexp(0)).exp().clamp(max=n)
    error = ((n / effective - 1) / (n - 1)).sqrt()
    log_z = total - torch.tensor(float(n), dtype=torch.float64).log()
    return Estimate(log_z.item(), error.item(), effective.item(), accepted)
