"""Energies against plain loops over one masked row at a time (thesis, Sec. 6.2)."""

import math

import pytest
import torch
from torch import nn

from softbeam.sampling.energies import (
    Constrained,
    LocalEnergy,
    RawEnergy,
    Tempered,
    WeightedSum,
    chosen,
    raw_score,
)
from softbeam.sampling.masking import site_logits
from softbeam.sampling.tiny import CountedMlm, TinyMLM
from softbeam.types import BoundEnergy, Energy

PAD, SEP = 0, 2
TEXTS = torch.tensor([[SEP, 3, 4, 5, SEP], [SEP, 5, 5, SEP, PAD], [SEP, 4, SEP, PAD, PAD]])
OWNER = torch.tensor([0, 1, 1])


def plain_logits(mlm, row, t, source):
    """The logits of position t, alone masked, in a row of its own."""
    masked = torch.zeros(1, len(row), dtype=torch.bool)
    masked[0, t] = True
    return mlm.logits(torch.tensor([row]), masked, torch.tensor([source]))[0].tolist()


def plain_energy(mlm, row, source, *, local, restricted=False, counted=(3, 4, 5)):
    total = 0.0
    for t, token in enumerate(row):
        if token not in counted:
            continue
        logits = plain_logits(mlm, row, t, source)
        total -= logits[token]
        if local:
            scope = [x for v, x in enumerate(logits) if v >= 3 or not restricted]
            total += math.log(sum(math.exp(x) for x in scope))
    return total


def energies(mlm, **options):
    """Every energy with what its plain loop needs."""
    return [
        (RawEnergy(mlm, **options), {"local": False}),
        (LocalEnergy(mlm, **options), {"local": True}),
        (LocalEnergy(mlm, restricted=True, **options), {"local": True, "restricted": True}),
    ]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_energies_equal_plain_loops(kind, rows):
    """Over several lengths and sources, with separators that do not count, however packed."""
    mlm = TinyMLM(sources=2)
    energy, form = energies(mlm, owner=OWNER, rows=rows)[kind]
    expected = [
        plain_energy(mlm, row, source, **form)
        for row, source in zip(TEXTS.tolist(), OWNER.tolist(), strict=True)
    ]
    torch.testing.assert_close(energy(TEXTS), torch.tensor(expected).double())


def test_the_scores_are_those_of_each_position():
    mlm = TinyMLM()
    found = RawEnergy(mlm).scores(TEXTS)
    assert (found[TEXTS < 3] == 0).all()
    for i, t in (TEXTS >= 3).nonzero().tolist():
        expected = plain_logits(mlm, TEXTS[i].tolist(), t, 0)[TEXTS[i, t]]
        assert found[i, t].item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", range(3))
def test_padding_changes_nothing_and_a_batch_equals_its_rows(kind):
    mlm = TinyMLM(sources=2)
    energy, _ = energies(mlm, owner=OWNER)[kind]
    for i, length in enumerate([5, 4, 3]):
        alone, _ = energies(mlm, owner=OWNER[i : i + 1])[kind]
        torch.testing.assert_close(energy(TEXTS)[i : i + 1], alone(TEXTS[i : i + 1, :length]))


class Watched(TinyMLM):
    """Remembers how many rows each call had."""

    def logits(self, tokens, masked, owner):
        self.calls = [*getattr(self, "calls", []), len(tokens)]
        return super().logits(tokens, masked, owner)


def test_packs_are_bounded_and_hold_the_rows_of_all_chains():
    mlm = Watched()
    LocalEnergy(mlm, rows=4)(TEXTS)
    assert mlm.calls == [4, 2]  # 3 + 2 + 1 words


def test_a_text_without_words_has_energy_zero():
    mlm = Watched()
    assert LocalEnergy(mlm)(torch.tensor([[SEP, SEP]])).tolist() == [0.0]
    assert not hasattr(mlm, "calls")


def test_frozen_words_count_unless_told_otherwise_and_padding_never_does():
    mlm = TinyMLM()
    counted = torch.ones_like(TEXTS, dtype=torch.bool)
    expected = [plain_energy(mlm, r, 0, local=True, counted=(SEP, 3, 4, 5)) for r in TEXTS.tolist()]
    found = LocalEnergy(mlm, counted=counted)(TEXTS)
    torch.testing.assert_close(found, torch.tensor(expected).double())


class Shifted(TinyMLM):
    """Adds a number that depends on the context to all logits of a cell."""

    def logits(self, tokens, masked, owner):
        shift = tokens.masked_fill(masked, 7).square().sum(-1).double()[masked.nonzero()[:, 0]]
        return super().logits(tokens, masked, owner) + shift[:, None] / 10


def test_a_shift_of_the_logits_changes_raw_but_not_local():
    """Training never fixes the gauge of a context; E_raw depends on it, E_local does not."""
    plain, shifted = TinyMLM(), Shifted()
    for restricted in (False, True):
        torch.testing.assert_close(
            LocalEnergy(plain, restricted=restricted)(TEXTS),
            LocalEnergy(shifted, restricted=restricted)(TEXTS),
        )
    difference = RawEnergy(plain)(TEXTS) - RawEnergy(shifted)(TEXTS)
    assert (difference.max() - difference.min()).item() > 1  # more than a constant


class Normalized(TinyMLM):
    dtype = torch.float64

    def logits(self, tokens, masked, owner):
        return super().logits(tokens, masked, owner).to(self.dtype).log_softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_raw_energy_refuses_log_probabilities(dtype):
    mlm = Normalized()
    mlm.dtype = dtype
    with pytest.raises(ValueError, match="log-probabilities.*use LocalEnergy"):
        RawEnergy(mlm)(TEXTS)
    assert LocalEnergy(mlm)(TEXTS).isfinite().all()


def test_raw_energy_takes_logits_that_are_nearly_normalized():
    logits = torch.randn(3, 50).log_softmax(-1) + torch.tensor([[0.01], [-0.02], [0.0]])
    target = torch.tensor([1, 2, 3])
    torch.testing.assert_close(raw_score(logits, target), logits[range(3), target])
    one = logits[2:]  # sums to one, but a single cell may by chance
    torch.testing.assert_close(raw_score(one, target[2:]), one[:, 3])


def test_padding_may_lie_beyond_the_vocabulary():
    """As in `BiLstmMrf`."""

    class PadBeyond(TinyMLM):
        def logits(self, tokens, masked, owner):
            return super().logits(tokens.where(tokens != 99, PAD), masked, owner)

    mlm = PadBeyond()
    mlm.pad_id = 99
    texts = TEXTS.where(TEXTS != PAD, 99)
    torch.testing.assert_close(LocalEnergy(mlm)(texts), LocalEnergy(TinyMLM())(TEXTS))


# Composition


def hamming(tokens):
    return (tokens != 3).sum(-1).double()


def test_tempered_and_weighted_energies():
    mlm = TinyMLM()
    raw, local = RawEnergy(mlm), LocalEnergy(mlm)
    torch.testing.assert_close(Tempered(raw, 4.0)(TEXTS), raw(TEXTS) / 4)
    both = WeightedSum([(2.0, local), (0.5, hamming), (-1.0, raw)])
    torch.testing.assert_close(both(TEXTS), 2 * local(TEXTS) + hamming(TEXTS) / 2 - raw(TEXTS))
    assert isinstance(hamming, Energy) and not isinstance(hamming, BoundEnergy)
    with pytest.raises(ValueError, match="temperature=0.0"):
        Tempered(raw, 0.0)


def test_a_term_of_weight_zero_is_not_computed():
    def never(tokens):
        raise AssertionError

    WeightedSum([(0.0, never), (1.0, hamming)])(TEXTS)


def test_a_term_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match=r"terms\[1\] has the shape \(3, 1\); \(3,\) is needed"):
        WeightedSum([(1.0, hamming), (1.0, lambda tokens: hamming(tokens)[:, None])])(TEXTS)


def constrained(energy):
    """Position 1 free for words, position 2 for 4 and 5; all else frozen."""
    allowed = torch.zeros(*TEXTS.shape, 6, dtype=torch.bool)
    allowed[:, 1, 3:] = True
    allowed[0, 2, 4:] = True
    return Constrained(energy, text=TEXTS, allowed=allowed)


@pytest.mark.parametrize(
    ("where", "token", "fine"),
    [(1, 3, True), (1, 5, True), (2, 5, True), (2, 3, False), (3, 4, False), (1, 2, False)],
)
def test_what_is_not_allowed_has_infinite_energy(where, token, fine):
    energy = LocalEnergy(TinyMLM())
    changed = TEXTS.clone()
    changed[0, where] = token
    found = constrained(energy)(changed)
    torch.testing.assert_close(found[1:], energy(TEXTS)[1:])
    expected = energy(changed)[0].item() if fine else float("inf")
    assert found[0].item() == pytest.approx(expected)


def test_some_chains_of_an_energy_equal_its_rows():
    """However deep: rows are chosen, repeated and put in another order."""
    mlm = TinyMLM(sources=2)
    counted = TEXTS >= 3
    counted[1, 1] = False
    for inner in (RawEnergy, LocalEnergy):
        bound = inner(mlm, owner=OWNER, counted=counted)
        energy = Tempered(WeightedSum([(2.0, constrained(bound)), (1.0, hamming)]), 3.0)
        assert isinstance(energy, BoundEnergy)
        rows = torch.tensor([2, 0, 0, 1])
        torch.testing.assert_close(chosen(energy, rows)(TEXTS[rows]), energy(TEXTS)[rows])
    assert chosen(hamming, rows) is hamming


def test_energies_of_a_module_have_gradients():
    class Net(TinyMLM):
        def __init__(self):
            super().__init__()
            self.out = nn.Parameter(self.out)

    mlm = Net()
    LocalEnergy(mlm)(TEXTS).sum().backward()
    assert mlm.out.grad.abs().sum() > 0


def test_equal_rows_of_equal_sources_are_computed_once():
    mlm = CountedMlm(TinyMLM(words=4, sources=4, seed=0))
    word = int(mlm.allowed.nonzero()[0])
    text = [word, word + 1, word + 2]
    tokens = torch.tensor([text, [word, word + 1, word + 3], text, text])
    energy = LocalEnergy(mlm, owner=torch.tensor([0, 0, 0, 0]))
    expected = torch.stack([LocalEnergy(mlm.mlm)(row[None])[0] for row in tokens])
    torch.testing.assert_close(energy(tokens), expected)
    assert mlm.rows == 5, "three of the first text, and two more; the last word is masked in one"
    mlm.rows = 0
    packs = [(a.tolist(), len(b)) for a, b in site_logits(mlm, tokens, *sites(tokens), limit=2)]
    assert [len(a) for a, _ in packs] == [b for _, b in packs] and mlm.rows == 5
    assert sorted(i for a, _ in packs for i in a) == list(range(12))
    mlm.rows = 0
    list(site_logits(mlm, tokens, *sites(tokens), torch.arange(4)))
    assert mlm.rows == 12, "rows of different sources are different"


def sites(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones_like(tokens).nonzero(as_tuple=True)
