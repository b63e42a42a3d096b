"""The Transformer masked LM: masked cells alone, padding without effect, energies by loops."""

import pytest
import torch
from torch.nn.functional import cross_entropy, pad

from softbeam.data.vocabulary import MASK, MASKED, PAD, Vocabulary
from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.sampling.certificates import certify
from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import every_text
from softbeam.types import MaskedLM

VOCABULARY = Vocabulary(list("abcdef"), MASKED)


def over(vocabulary: Vocabulary, seed: int = 0, **sizes) -> TransformerMlm:
    torch.manual_seed(seed)
    made = TransformerMlm(
        len(vocabulary),
        TransformerShape(**{"width": 8, "layers": 2, "heads": 2, "longest": 12} | sizes),
        pad_id=vocabulary.id(PAD),
        mask_id=vocabulary.id(MASK),
        specials=[vocabulary.id(special) for special in vocabulary.specials],
    )
    for parameter in made.parameters():  # far from uniform
        torch.nn.init.normal_(parameter, std=0.7)
    return made.double().eval()


def texts(*lines: str) -> torch.Tensor:
    rows = [VOCABULARY.encode(list(line)) for line in lines]
    time = max(map(len, rows))
    return torch.tensor([row + [VOCABULARY.id(PAD)] * (time - len(row)) for row in rows])


def nobody(rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(rows), dtype=torch.long)


def test_it_is_a_masked_lm_and_allows_no_special():
    mlm = over(VOCABULARY)
    assert isinstance(mlm, MaskedLM)
    assert [VOCABULARY.tokens[i] for i in mlm.allowed.nonzero()[:, 0]] == list("abcdef")


def test_what_stands_at_a_masked_cell_is_not_read():
    mlm, tokens = over(VOCABULARY), texts("abcd", "fed")
    masked = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0]]).bool()
    cells = mlm.logits(tokens, masked, nobody(tokens))
    assert cells.shape == (3, len(VOCABULARY))
    for other in (VOCABULARY.id(PAD), VOCABULARY.id(MASK), 7):
        again = mlm.logits(tokens.masked_fill(masked, other), masked, nobody(tokens))
        torch.testing.assert_close(again, cells, rtol=0, atol=0)


def test_padding_changes_nothing_and_a_batch_is_its_rows():
    mlm, tokens = over(VOCABULARY), texts("abcdab", "fed", "a")
    masked = torch.zeros_like(tokens).bool()
    masked[0, 2] = masked[0, 5] = masked[1, 0] = masked[2, 0] = True
    cells = mlm.logits(tokens, masked, nobody(tokens))
    alone = [
        mlm.logits(tokens[i : i + 1, :n], masked[i : i + 1, :n], nobody(tokens[:1]))
        for i, n in enumerate((6, 3, 1))
    ]
    torch.testing.assert_close(cells, torch.cat(alone))
    wide = mlm.logits(pad(tokens, (0, 4)), pad(masked, (0, 4)), nobody(tokens))
    torch.testing.assert_close(wide, cells)


def test_each_position_reads_all_others_and_none_reads_padding():
    mlm, tokens = over(VOCABULARY), texts("abcd")
    masked = torch.tensor([[0, 1, 0, 0]]).bool()
    cells = mlm.logits(tokens, masked, nobody(tokens))
    for t in (0, 2, 3):
        changed = tokens.clone()
        changed[0, t] = VOCABULARY.index["f"]
        assert (mlm.logits(changed, masked, nobody(tokens)) - cells).abs().max() > 1e-3


def test_energies_are_a_plain_loop_over_positions():
    mlm, lines = over(VOCABULARY), ("abcd", "fe")
    tokens = texts(*lines)
    for row, line in enumerate(lines):
        raw = local = 0.0
        for t in range(len(line)):
            alone = torch.zeros(1, len(line), dtype=torch.bool)
            alone[0, t] = True
            scores = mlm.logits(tokens[row : row + 1, : len(line)], alone, nobody(alone))[0]
            raw -= scores[tokens[row, t]].item()
            local -= (scores[tokens[row, t]] - scores.exp().sum().log()).item()
        torch.testing.assert_close(RawEnergy(mlm)(tokens)[row].item(), raw)
        torch.testing.assert_close(LocalEnergy(mlm)(tokens)[row].item(), local)


@pytest.mark.slow
def test_metropolis_hastings_on_it_holds_every_certificate():
    mlm = over(Vocabulary(list("abc"), (PAD, MASK))).requires_grad_(False)
    kernel = metropolis_hastings(LocalEnergy(mlm), MaskedConditionals(mlm))
    found = certify(kernel, LocalEnergy(mlm), every_text(mlm, time=2), method="exact", chains=200)
    assert all(certificate.holds for certificate in found), found


@pytest.mark.slow
def test_gradient_reaches_every_parameter_and_training_learns_a_repetition():
    torch.manual_seed(0)
    ids = {"pad_id": VOCABULARY.id(PAD), "mask_id": VOCABULARY.id(MASK), "specials": range(5)}
    shape = TransformerShape(width=32, layers=2, heads=2, dropout=0.0)
    mlm = TransformerMlm(len(VOCABULARY), shape, **ids)
    rng = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(mlm.parameters(), lr=3e-3)
    first = last = 0.0
    for update in range(400):
        half = torch.randint(5, 11, (32, 3), generator=rng)
        tokens = torch.cat([half, half], 1)  # each token tells another
        masked = torch.zeros_like(tokens).bool()
        masked[torch.arange(32), torch.randint(6, (32,), generator=rng)] = True
        loss = cross_entropy(mlm.logits(tokens, masked, nobody(tokens)), tokens[masked])
        optimizer.zero_grad()
        loss.backward()
        if update == 0:
            first = loss.item()
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mlm.parameters())
        optimizer.step()
        last = loss.item()
    assert first > 1.5 and last < 0.5


@pytest.mark.parametrize(
    ("sizes", "ids", "said"),
    [
        ({"width": 7}, {}, "heads=2 must divide the width 7"),
        ({"layers": 0}, {}, "layers=0 must be at least 1"),
        ({}, {"mask_id": 99}, "must be from 0 to 10"),
        ({}, {"mask_id": 0}, "must differ"),
    ],
)
def test_wrong_sizes_are_named(sizes, ids, said):
    with pytest.raises(ValueError, match=said):
        shape = TransformerShape(**{"width": 8, "heads": 2} | sizes)
        TransformerMlm(11, shape, **{"pad_id": 0, "mask_id": 4} | ids)


def test_a_text_beyond_the_limit_is_refused():
    mlm, tokens = over(VOCABULARY, longest=3), texts("abcd")
    with pytest.raises(ValueError, match="4 positions; the model's limit is 3"):
        mlm.logits(tokens, tokens == 5, nobody(tokens))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_one_masked_cell_in_each_row_has_the_logits_of_the_whole_layer(layers, norm_first):
    """The last layer then runs at that cell alone; with a second one masked it runs everywhere."""
    torch.manual_seed(0)
    shape = TransformerShape(width=8, layers=layers, heads=2, norm_first=norm_first)
    model = TransformerMlm(9, shape, pad_id=0, mask_id=1).double().eval()
    tokens = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [3, 3, 8, 0]])
    masked = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0]]).bool()
    owner = torch.zeros(3).long()
    ids, lengths = tokens.masked_fill(masked, 1), torch.tensor([4, 2, 3])
    whole = model.states(ids, lengths)[masked]
    torch.testing.assert_close(model.states_alone(ids, lengths, masked), whole)
    more = torch.cat([masked, torch.tensor([[1, 1, 0, 0]]).bool()])  # takes the other way
    found = model.logits(torch.cat([tokens, tokens[:1]]), more, torch.zeros(4).long())
    torch.testing.assert_close(model.logits(tokens, masked, owner), found[:3])
