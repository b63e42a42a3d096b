"""Noise-contrastive training of raw scores: against enumeration, and its optimum."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from softbeam.errors import UserError
from softbeam.objectives.likelihood import TokenContrast
from softbeam.schedules import Moment
from softbeam.types import Batch, Ends

P = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
TARGET = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 3]])  # tokens as frequent as P says


class Fixed(nn.Module):
    """A model and decoder with the same scores at each step."""

    def __init__(self, scores):
        super().__init__()
        self.scores = nn.Parameter(scores.clone())

    @property
    def embedding(self):
        return torch.zeros(4, 1, dtype=torch.float64)

    def forward(self, source):
        return self

    def start(self):
        return (), torch.zeros(1, 1, dtype=torch.float64)

    def step(self, state, emb):
        return self.scores.expand(len(emb), -1), state


def noisy_loss(model, objective, draws):
    batch = Batch(
        TARGET, TARGET, torch.ones_like(TARGET, dtype=torch.bool), Ends(torch.tensor([8]))
    )
    rng = torch.Generator().manual_seed(0)
    losses = [objective(model, batch, now=Moment(), rng=rng) for _ in range(draws)]
    return sum(loss.total for loss in losses) / (draws * losses[0].size)


def enumerated(scores, n, uniform):
    """The expected loss of a token, with every gold and every noise token in turn."""
    total = 0.0
    for token in range(4):
        q = uniform / 4 + (1 - uniform) * P[token]
        odds = (scores[token] - (n * q).log()).sigmoid()
        total = total - P[token] * odds.log() - n * q * (1 - odds).log()
    return total


@pytest.mark.parametrize("uniform", [0.5, 1.0])
def test_its_mean_is_the_enumerated_loss_and_its_optimum_log_probabilities(uniform):
    objective, start = TokenContrast(noise=3, uniform=uniform), torch.zeros(4, dtype=torch.float64)
    for scores in (start, P.log(), P.log() + 1):
        model = Fixed(scores)
        loss = noisy_loss(model, objective, 150)
        exact = enumerated(model.scores, 3, uniform)
        assert_close(loss, exact, rtol=0.05, atol=0.05)
        model.scores.grad = None
        exact.backward()
        slope = model.scores.grad.abs().max()
        assert (slope < 1e-9) == (scores is not start and torch.equal(scores, P.log()))


def test_its_settings_have_limits():
    for wrong in ({"noise": 0}, {"uniform": 0.0}):
        with pytest.raises((ValueError, UserError)):
            TokenContrast(**wrong)
