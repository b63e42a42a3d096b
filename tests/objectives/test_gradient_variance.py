"""Gradients of scheduled sampling with sampled feedback, against the enumerated gradient.

The loss is the expectation over fed sequences, whose gradient also says which tokens to feed. A
hard sample has no gradient of that kind; the Gumbel-soft form has that of a relaxed loss (2017).
"""

import itertools

import pytest
import torch

from softbeam.objectives.losses.feedback import gumbel_soft_sample, hard_sample, mixed_scores
from support.toys import ToyDecoder

TARGET = torch.tensor([[1, 2, 0]])
VOCAB, TIME, DRAWS = 3, 3, 300


def gradient(decoder, loss) -> torch.Tensor:
    parts = torch.autograd.grad(loss, list(decoder.parameters()), allow_unused=True)
    zeros = [torch.zeros_like(p) for p in decoder.parameters()]
    return torch.cat(
        [(g if g is not None else z).flatten() for g, z in zip(parts, zeros, strict=True)]
    )


def gold_loss(scores) -> torch.Tensor:
    return -scores.log_softmax(-1).gather(-1, TARGET[..., None]).sum()


def enumerated(decoder, *, through_choices: bool) -> torch.Tensor:
    """The gradient of the expected loss, with every fed sequence in turn."""
    total = 0.0
    for fed in itertools.product(range(VOCAB), repeat=TIME - 1):
        state, emb = decoder.start()
        chance, scores = torch.ones((), dtype=torch.float64), []
        for t in range(TIME):
            score, state = decoder.step(state, emb)
            scores.append(score)
            if t < TIME - 1:
                chance = chance * score.softmax(-1)[0, fed[t]]
                emb = decoder.embedding[[fed[t]]]
        chance = chance if through_choices else chance.detach()
        total = total + chance * gold_loss(torch.stack(scores, 1))
    return gradient(decoder, total)


def sampled(decoder, feedback, alpha: float) -> torch.Tensor:
    rng, gold = torch.Generator().manual_seed(0), torch.zeros(1, TIME, dtype=torch.bool)
    return torch.stack(
        [
            gradient(
                decoder,
                gold_loss(
                    mixed_scores(decoder, TARGET, gold, feedback=feedback, alpha=alpha, rng=rng)
                ),
            )
            for _ in range(DRAWS)
        ]
    )


def variance_and_bias(draws, exact) -> tuple[float, float]:
    """The variance of one draw and the squared bias, in units of the exact gradient's square."""
    middle, size = draws.mean(0), exact.square().sum()
    spread = (draws - middle).square().sum(1).mean()
    return float(spread / size), float((middle - exact).square().sum() / size)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_soft_samples_have_less_variance_than_hard_ones(seed):
    """At alpha 1; as alpha grows the relaxed gradient gets the variance that it was to avoid."""
    decoder = ToyDecoder(vocab=VOCAB, seed=seed)
    exact, blind = (enumerated(decoder, through_choices=x) for x in (True, False))
    hard = sampled(decoder, hard_sample, 1.0)
    error = float((hard.mean(0) - blind).square().sum())
    chance = float(hard.var(0).sum()) / DRAWS
    assert error < 4 * chance, "a hard sample's mean is the gradient without choices"
    assert not torch.allclose(exact, blind, rtol=0.01), "which is another one"
    figures = {"hard": variance_and_bias(hard, exact)} | {
        f"soft, alpha {alpha:g}": variance_and_bias(
            sampled(decoder, gumbel_soft_sample, alpha), exact
        )
        for alpha in (1.0, 10.0)
    }
    assert figures["soft, alpha 1"][0] < figures["hard"][0]
    assert figures["soft, alpha 10"][0] > figures["soft, alpha 1"][0]
