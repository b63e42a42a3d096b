"""The hollow Transformer: one pass is T masked passes, and no output sees its own token."""

import pytest
import torch

from softbeam.models.hollow import HollowMlm
from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.sampling.certificates import certify
from softbeam.sampling.energies import LocalEnergy, site_scores
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.masking import WrappedMlm
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import CountedMlm, every_text

PAD, MASK, VOCAB = 0, 1, 7
OWNER = torch.zeros(3, dtype=torch.long)
TEXTS = torch.tensor([[3, 4, 5, 6, 2], [6, 6, 2, PAD, PAD], [5, PAD, PAD, PAD, PAD]])


def hollow(layers: int = 4, **sizes) -> HollowMlm:
    torch.manual_seed(0)
    shape = TransformerShape(width=8, heads=2, layers=layers, longest=6, **sizes)
    model = HollowMlm(VOCAB, shape, pad_id=PAD, mask_id=MASK).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # far from 0, so that a leak is seen
    return model.requires_grad_(False)


@pytest.mark.parametrize("layers", [1, 3, 4])
@pytest.mark.parametrize("norm_first", [True, False])
def test_one_pass_is_a_masked_pass_for_each_position(layers, norm_first):
    mlm = hollow(layers, norm_first=norm_first)
    every = mlm.every_logits(TEXTS, OWNER)
    for row, site in (TEXTS != PAD).nonzero().tolist():
        alone = torch.zeros(1, 5, dtype=torch.bool)
        alone[0, site] = True
        masked = mlm.logits(TEXTS[row : row + 1], alone, OWNER[:1])[0]
        torch.testing.assert_close(every[row, site], masked, rtol=0, atol=1e-12)


def test_every_output_depends_on_all_other_tokens_and_not_on_its_own():
    mlm = hollow()
    before = mlm.every_logits(TEXTS[:1], OWNER[:1])[0]
    for site in range(5):
        changed = TEXTS[:1].clone()
        changed[0, site] = 2 if changed[0, site] != 2 else 3
        gap = (mlm.every_logits(changed, OWNER[:1])[0] - before).abs().amax(-1)
        assert float(gap[site]) == 0.0
        assert all(gap[other] > 1e-6 for other in range(5) if other != site)


def test_padding_and_other_rows_change_nothing():
    mlm = hollow()
    every = mlm.every_logits(TEXTS, OWNER)
    for row, length in enumerate((5, 3, 1)):
        alone = mlm.every_logits(TEXTS[row : row + 1, :length], OWNER[:1])
        torch.testing.assert_close(every[row : row + 1, :length], alone)
    two = torch.tensor([[1, 0, 1, 0, 0]]).bool()
    wide = mlm.logits(TEXTS[:1], two, OWNER[:1])
    narrow = mlm.logits(torch.tensor([[9, 4, 9, 6, 2, PAD]]), two_wide(two), OWNER[:1])
    torch.testing.assert_close(wide, narrow)


def two_wide(masked):
    return torch.cat([masked, torch.zeros_like(masked[:, :1])], 1)


def test_it_has_about_as_many_weights_as_a_masked_lm_of_its_shape():
    shape = TransformerShape(width=32, heads=2, layers=4, longest=6)
    sizes = [
        sum(p.numel() for p in kind(VOCAB, shape, pad_id=PAD, mask_id=MASK).parameters())
        for kind in (HollowMlm, TransformerMlm)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


class Separate(WrappedMlm):
    """The same model, one masked row for each site."""

    every_logits = None


def test_energies_take_one_row_a_text():
    counted = CountedMlm(hollow())
    energy = LocalEnergy(counted)(TEXTS)
    assert (counted.calls, counted.rows) == (1, 3)
    torch.testing.assert_close(energy, LocalEnergy(Separate(hollow()))(TEXTS))
    twice = torch.cat([TEXTS, TEXTS])
    counted.reset()
    torch.testing.assert_close(LocalEnergy(counted, rows=1)(twice), energy.repeat(2))
    assert (counted.calls, counted.rows) == (3, 3), "equal texts once, a text at a time"
    some = torch.tensor([[0, 1, 0, 0, 1]]).bool().expand(3, -1)

    def scores(mlm):
        return site_scores(mlm, TEXTS, lambda logits, t: logits[:, 3], counted=some)

    torch.testing.assert_close(scores(hollow()), scores(Separate(hollow())))


@pytest.mark.slow
def test_metropolis_hastings_takes_one_row_a_proposal_and_is_certified():
    mlm = hollow()
    counted = CountedMlm(mlm)
    kernel = fast_metropolis_hastings(LocalEnergy(counted), MaskedConditionals(counted))
    state = kernel.init(TEXTS[:1])
    counted.reset()
    rng = torch.Generator().manual_seed(0)
    novel = 0
    for step in range(30):
        positions = torch.arange(5)[None] == step % 5
        state, info = kernel.step(state, positions, rng)
        novel += int(not info.repeated)
    assert counted.rows <= novel + 1, "a proposal takes no row, its energy one"
    energy = LocalEnergy(mlm)
    texts = every_text(mlm, time=2)
    certificates = certify(
        fast_metropolis_hastings(energy, MaskedConditionals(mlm)), energy, texts, chains=500
    )
    assert all(each.holds for each in certificates)
