"""Conditionals without the label smoothing of their training."""

import pytest
import torch

from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.sampling.masking import WrappedMlm
from softbeam.sampling.tiny import TinyMLM, every_text
from softbeam.sampling.unsmoothing import Unsmoothed


class Smoothed(WrappedMlm):
    """What a model learns from smoothed labels: 0.9 p + 0.1 / V, and a constant of the context."""

    def logits(self, tokens, masked, owner):
        p = super().logits(tokens, masked, owner).softmax(-1)
        return (0.9 * p + 0.1 / p.shape[-1]).log() + p[:, -1:] * 3


def test_the_law_of_the_data_comes_back():
    mlm = TinyMLM(words=3, seed=2)
    texts = every_text(mlm, time=3)
    smoothed = Smoothed(mlm)
    found = LocalEnergy(Unsmoothed(smoothed, 0.1))(texts)
    torch.testing.assert_close(found, LocalEnergy(mlm)(texts), rtol=1e-4, atol=1e-4)
    assert (LocalEnergy(smoothed)(texts) - found).abs().max() > 0.05, "it was smoothed before"


def test_the_level_of_raw_logits_is_kept():
    mlm = Smoothed(TinyMLM(words=3, seed=2))
    texts, sites = every_text(mlm, time=2), torch.tensor([True, False]).expand(9, 2)
    before, after = (m.logits(texts, sites, 0 * texts[:, 0]) for m in (mlm, Unsmoothed(mlm, 0.1)))
    torch.testing.assert_close(before.logsumexp(-1), after.logsumexp(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(RawEnergy(Unsmoothed(mlm, 0.0))(texts), RawEnergy(mlm)(texts))


def test_improbable_tokens_keep_a_finite_energy():
    mlm = TinyMLM(words=3, seed=2)  # never smoothed: some probabilities are below 0.9 / V
    energy = LocalEnergy(Unsmoothed(mlm, 0.9))(every_text(mlm, time=2))
    assert energy.isfinite().all() and energy.max() > 15
    with pytest.raises(ValueError, match="smoothing=1 must be"):
        Unsmoothed(mlm, 1)
