"""Sampling from real masked language models, of antibodies and of chemical reactions."""

import pytest
import torch

from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.texts.api import infill
from softbeam.sampling.texts.sampler import sampler
from softbeam.sampling.texts.settings import SamplingConfig

HEAVY = "EVQLVESGGGLVQPGGSLRLSCAAS"  # how most human heavy chains begin
AMINO = set("ACDEFGHIKLMNPQRSTVWY")


@pytest.mark.slow
def test_an_antibody_is_repaired(real):
    """Three gaps in a framework region: the joint mode is what nearly all antibodies have."""
    text = HEAVY[:10] + "[MASK][MASK]" + HEAVY[12:16] + "[MASK]" + HEAVY[17:]
    found = infill(real("sapiens-vh"), text, samples=64, burn_in=5)
    assert found[0].text == HEAVY and found[0].tokens == ["L", "V", "S"]
    assert found[0].share > 0.4


@pytest.mark.slow
def test_a_real_model_samples_letters_at_its_gaps_alone(real):
    mlm = real("sapiens-vh")
    texts = [HEAVY[:8] + "[MASK]" * 4, "[MASK]" + HEAVY[1:]]
    config = SamplingConfig(chains=2, sweeps=4, burn_in=1, block=2)
    made = sampler(mlm, texts, config)
    for record in made.run(torch.Generator().manual_seed(1)):
        shown = mlm.decode(record.state.tokens)
        assert all(text.startswith(HEAVY[:8]) and len(text) == 12 for text in shown[:2])
        assert all(text[1:] == HEAVY[1:] for text in shown[2:])
        assert set("".join(shown)) <= AMINO, "X is a token, but no special"
        own = LocalEnergy(mlm)(record.state.tokens)
        torch.testing.assert_close(record.state.energy.to(own), own, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_an_ester_is_completed(real):
    text = "CC(=O)O.OCC>>CC(=O)[MASK]CC"
    found = infill(real("rxnmapper"), text, method="enumerate", energy="chain-rule")
    assert found[0].tokens == ["O"] and found[0].text == "CC(=O)O.OCC>>CC(=O)OCC"
    assert found[0].share == pytest.approx(0.86, abs=0.01), "the model's conditional at the gap"
