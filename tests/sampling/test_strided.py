"""Strided energies: by plain loops, as many rows as the stride, and a target of their own."""

import pytest
import torch

from softbeam.sampling.certificates import certify
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.strided import StridedEnergy
from softbeam.sampling.tiny import CountedMlm, TinyMLM, every_text

TEXTS = torch.tensor([[2, 3, 5, 4, 4, 3, 2], [2, 5, 3, 4, 2, 0, 0]])  # 2 frames them, 0 is padding


def by_loops(mlm, text, stride):
    """The energy of one text, one call of the model for each offset."""
    places = [t for t, token in enumerate(text) if token > 2]
    total = 0.0
    for offset in range(stride):
        together = places[offset::stride]
        if not together:
            continue
        masked = torch.zeros(1, len(text), dtype=torch.bool)
        masked[0, together] = True
        logits = mlm.logits(torch.tensor([text]), masked, torch.zeros(1, dtype=torch.long))
        for place, row in zip(together, logits.log_softmax(-1), strict=True):
            total -= float(row[text[place]])
    return total


@pytest.mark.parametrize("stride", [1, 2, 3, 9])
def test_energies_are_those_of_plain_loops(stride):
    mlm = TinyMLM(words=3, seed=4)
    counted = CountedMlm(mlm)
    energy = StridedEnergy(counted, stride=stride)(TEXTS)
    expected = [by_loops(mlm, text, stride) for text in TEXTS.tolist()]
    torch.testing.assert_close(energy, torch.tensor(expected, dtype=torch.float64))
    assert counted.rows == sum(min(stride, n) for n in (5, 3))
    swapped = StridedEnergy(mlm, stride=stride).chosen(torch.tensor([1, 0]))(TEXTS.flip(0))
    torch.testing.assert_close(swapped, energy.flip(0))


def test_a_stride_of_the_whole_text_is_the_local_energy_and_a_shorter_one_is_not():
    mlm = TinyMLM(words=3, seed=4)
    local = LocalEnergy(mlm)(TEXTS)
    torch.testing.assert_close(StridedEnergy(mlm, stride=5)(TEXTS), local)
    assert (StridedEnergy(mlm, stride=2)(TEXTS) - local).abs().min() > 1e-3
    with pytest.raises(ValueError, match="stride=0"):
        StridedEnergy(mlm, stride=0)


@pytest.mark.slow
def test_chains_sample_it_exactly():
    mlm = TinyMLM(words=3, seed=1)
    energy = StridedEnergy(mlm, stride=2)
    kernel = metropolis_hastings(energy, MaskedConditionals(mlm))
    certificates = certify(kernel, energy, every_text(mlm, time=3), chains=500)
    assert all(each.holds for each in certificates)
    other = certify(kernel, LocalEnergy(mlm), every_text(mlm, time=3), chains=500)
    assert "invariant" in [each.name for each in other if not each.holds]
