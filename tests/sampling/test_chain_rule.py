"""The chain rule: normalization by enumeration, plain loops, exact samples, prompts and padding."""

import itertools
import math

import pytest
import torch

from softbeam.sampling.chain_rule import ChainEnergy, masks
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.tiny import TinyMLM, every_text


def plain(mlm, text, order, owner=0):
    """-log p_o of a text, one call of the model for each position."""
    words, total = mlm.allowed.nonzero()[:, 0].tolist(), 0.0
    for i, site in enumerate(order):
        masked = torch.tensor([[t in order[i:] for t in range(len(text))]])
        logits = mlm.logits(torch.tensor([text]), masked, torch.tensor([owner]))
        at = sorted(order[i:]).index(site)
        scores = {word: float(logits[at, word]) for word in words}
        total -= scores[text[site]] - math.log(sum(math.exp(s) for s in scores.values()))
    return total


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_every_order_sums_to_one_and_equals_plain_loops(order):
    mlm = TinyMLM(words=3, seed=4)
    texts = every_text(mlm, time=3)
    energy = ChainEnergy(mlm, torch.tensor(order), rows=7)(texts)
    assert abs(float((-energy).exp().sum()) - 1) < 1e-12
    for text, e in zip(texts.tolist(), energy.tolist(), strict=True):
        assert abs(plain(mlm, text, order) - e) < 1e-12


def test_the_mean_over_orders_bounds_the_mixture_from_above():
    mlm = TinyMLM(words=3, seed=4)
    texts = every_text(mlm, time=3)
    orders = torch.tensor([*itertools.permutations(range(3))])
    each = torch.stack([ChainEnergy(mlm, order)(texts) for order in orders])
    mean = ChainEnergy(mlm, orders)(texts)
    torch.testing.assert_close(mean, each.mean(0), rtol=0, atol=1e-12)
    mixture = -(-each).logsumexp(0) + math.log(len(orders))
    assert (mean >= mixture - 1e-12).all() and (mean > mixture + 1e-3).any()


def test_ancestral_samples_have_the_law_of_the_energy():
    mlm = TinyMLM(words=3, seed=4)
    energy, draws = ChainEnergy(mlm, torch.tensor([2, 0, 1])), 30_000
    texts = every_text(mlm, time=3)
    start = torch.full((draws, 3), 3)
    sampled = energy.sample(start, torch.Generator().manual_seed(0))
    code = torch.tensor([9, 3, 1])
    counts = torch.bincount((sampled - 3) @ code, minlength=27)[((texts - 3) @ code)]
    expected = (-energy(texts)).exp() * draws
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < 61  # 26 degrees of freedom: 1e-4
    wrong = (-LocalEnergy(mlm)(texts)).softmax(0).double() * draws  # another law: must fail
    assert float(((counts - wrong) ** 2 / wrong).sum()) > 61


def test_prompts_are_kept_padding_is_left_out_and_rows_have_sources():
    mlm = TinyMLM(words=3, seed=4, sources=2)
    tokens = torch.tensor([[3, 4, 5, 4], [5, 4, 3, 0]])
    order, owner = torch.tensor([3, 1, 2]), torch.tensor([1, 0])  # position 0 is a prompt
    energy = ChainEnergy(mlm, order, owner=owner)
    expected = [plain(mlm, [3, 4, 5, 4], (3, 1, 2), 1), plain(mlm, [5, 4, 3], (1, 2), 0)]
    torch.testing.assert_close(energy(tokens).tolist(), expected, rtol=0, atol=1e-12)
    assert energy.chosen(torch.tensor([1]))(tokens[1:]).tolist() == energy(tokens)[1:].tolist()
    drawn = energy.sample(tokens, torch.Generator().manual_seed(0))
    assert drawn[:, 0].tolist() == [3, 5] and int(drawn[1, 3]) == 0


def test_the_local_energy_of_a_joint_is_not_its_negative_logarithm():
    class Twins(TinyMLM):  # two positions that always hold the same of two words
        def logits(self, tokens, masked, owner):
            other = tokens.flip(1).masked_fill(masked.flip(1), 0)[masked]
            same = torch.arange(6) == other[:, None]
            return torch.where(same | (other == 0)[:, None], 0.0, -100.0).double()

    mlm = Twins(words=2)
    mlm.allowed = torch.arange(6) // 2 == 2  # tokens 4 and 5
    texts = torch.tensor([[4, 4], [5, 5]])
    assert ChainEnergy(mlm, torch.tensor([0, 1]))(texts).tolist() == pytest.approx(
        [math.log(2)] * 2
    )
    assert LocalEnergy(mlm)(texts).tolist() == pytest.approx([0, 0])


@pytest.mark.parametrize("order", [[0, 0], [[0, 1], [0, 2]], [-1, 0]])
def test_orders_that_are_none_are_refused(order):
    with pytest.raises(ValueError, match="order: must list"):
        ChainEnergy(TinyMLM(), torch.tensor(order))


def test_samples_follow_one_order():
    with pytest.raises(ValueError, match="2 orders"):
        energy = ChainEnergy(TinyMLM(), torch.tensor([[0, 1], [1, 0]]))
        energy.sample(torch.full((1, 2), 3), torch.Generator())


def test_masks_of_an_order():
    expected = [[True, False, True], [True, False, False]]
    assert masks(torch.tensor([2, 0]), 3).tolist() == expected
