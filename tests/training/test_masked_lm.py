"""Masked cross-entropy against plain loops, and a model that learns."""

import math

import pytest
import torch
from torch import nn

from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.objectives.losses.masked import hidden_at_rate, hidden_uniformly, masked_cross_entropy
from softbeam.sampling.tiny import TinyMLM
from softbeam.training.masked_lm import held_out_loss, train_mlm
from softbeam.training.optimization import ramp

REAL = torch.arange(6) < torch.tensor([6, 1, 4, 0])[:, None]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_hidden_cells_are_real_and_each_text_has_one():
    seen = torch.zeros(REAL.shape)
    for seed in range(400):
        hidden = hidden_at_rate(REAL, generator(seed), rate=0.3)
        assert not (hidden & ~REAL).any()
        assert hidden.any(-1).tolist() == [True, True, True, False]
        seen += hidden
    # in the long row: 0.3, and more by the chance that otherwise none would be
    expected = 0.3 + 0.7**6 / 6
    assert (seen[0] / 400 - expected).abs().max() < 4 * math.sqrt(0.3 * 0.7 / 400)
    assert torch.equal(hidden_at_rate(REAL, generator(), rate=1.0), REAL)
    with pytest.raises(ValueError, match="rate=0.0 must be above 0"):
        hidden_at_rate(REAL, generator(), rate=0.0)


def test_masked_cross_entropy_equals_plain_loops():
    mlm = TinyMLM(words=4)
    tokens = torch.tensor([[3, 4, 5, 6], [6, 3, 0, 0]])
    hidden = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]).bool()
    total = 0.0
    for row, mask in zip(tokens, hidden, strict=True):
        cells = mlm.logits(row[None], mask[None], torch.tensor([0])).tolist()
        for cell, token in zip(cells, row[mask].tolist(), strict=True):
            total += math.log(sum(map(math.exp, cell))) - cell[token]
    loss = masked_cross_entropy(mlm, tokens, hidden)
    assert loss.size == 3 and math.isclose(loss.total.item(), total, rel_tol=1e-12)


def counting_texts():
    """Texts that count up, so that every hidden token follows from any other."""
    start = torch.randint(5, (64, 1), generator=generator())
    texts = 3 + (start + torch.arange(5)) % 5
    return texts.masked_fill(torch.arange(5) >= 3 + start % 3, 0)


def small(seed=0):
    torch.manual_seed(seed)
    return TransformerMlm(
        8, TransformerShape(width=16, layers=1, heads=2), pad_id=0, mask_id=1, specials=(2,)
    )


@pytest.mark.slow
@pytest.mark.parametrize("hide", [hidden_at_rate, hidden_uniformly])
def test_a_model_learns_and_the_same_seed_gives_the_same_model(hide):
    texts, models = counting_texts(), [small(), small()]
    before = held_out_loss(models[0].eval(), texts, generator(1))
    watched = []
    for model in models:
        train_mlm(
            model,
            texts,
            updates=150,
            rng=generator(),
            learning_rate=0.01,
            hide=hide,
            watch=lambda update, loss: watched.append(loss),
        )
    after = held_out_loss(models[0], texts, generator(1))
    assert after < 0.3 < before and len(watched) == 300
    assert not models[0].training
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_callers_random_numbers_stay_as_they_were():
    model, before = small(), torch.get_rng_state()
    train_mlm(model, counting_texts(), updates=1, rng=generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rate_rises_and_falls():
    rates = [ramp(update, updates=100, rise=5, fall=95) for update in range(100)]
    assert rates[4] == 1.0 == max(rates) and rates[0] == 0.2 and 0 < rates[99] < 0.02
    assert ramp(0, updates=1, rise=1, fall=0) == 1.0
    falling = [ramp(update, updates=4, rise=1, fall=4, end=0.1) for update in range(5)]
    assert falling == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1])


def test_what_is_no_masked_lm_is_refused():
    with pytest.raises(ValueError, match="Linear has no logits"):
        train_mlm(nn.Linear(2, 2), counting_texts(), updates=1, rng=generator())
