"""Conditional masked LMs: layers against torch's own, sources kept apart, mask-predict by loops."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from softbeam.models.conditional_masked import ConditionalMlm
from softbeam.models.layers import Attention, TransformerShape
from softbeam.objectives.losses.masked import hidden_uniformly
from softbeam.objectives.masked import UniformMasking
from softbeam.sampling.masked_search import likeliest_lengths, mask_predict, mask_predict_decode
from softbeam.schedules import Moment
from softbeam.types import Batch, MaskedLM
from support.torch_layers import twins

NOW = Moment(0, 0)


def toy(seed: int = 0, **sizes) -> ConditionalMlm:
    torch.manual_seed(seed)
    knobs = {"width": 8, "layers": 2, "heads": 2, "longest": 9, "hidden": 12} | sizes
    made = ConditionalMlm(7, 10, TransformerShape(**knobs), mask_id=2, specials=[1])
    for parameter in made.parameters():  # far from uniform
        nn.init.normal_(parameter, std=0.7)
    return made.double().eval()


SOURCE = torch.tensor([[3, 4, 5, 6], [6, 2, 0, 0], [4, 0, 0, 0]])


# Layers


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_is_torchs_decoder_layer(norm_first):
    layer, theirs = twins(norm_first)
    x, y = torch.randn(3, 5, 8).double(), torch.randn(3, 4, 8).double()
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()
    seen = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    ours = layer(x, real, layer.remember(y, seen))
    gold = theirs(x, y, tgt_key_padding_mask=~real, memory_key_padding_mask=~seen)
    torch.testing.assert_close(ours[real], gold[real])


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="heads=3 must divide the width 8"):
        Attention(8, 3)


# The model


def test_bound_to_sources_it_is_a_masked_lm_that_allows_no_special():
    bound = toy()(SOURCE)
    assert isinstance(bound, MaskedLM)
    assert bound.allowed.nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_a_row_reads_its_own_source_and_no_other():
    model = toy()
    tokens = torch.tensor([[3, 4, 5], [5, 6, 0], [7, 8, 9]])
    masked = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]]).bool()
    together = model(SOURCE).logits(tokens, masked, torch.tensor([2, 0, 1]))
    for row, source in enumerate([SOURCE[2:, :1], SOURCE[:1], SOURCE[1:2, :2]]):
        n = int((tokens[row] != 0).sum())
        alone = model(source).logits(
            tokens[row : row + 1, :n], masked[row : row + 1, :n], torch.tensor([0])
        )
        torch.testing.assert_close(together[row : row + 1], alone)
    other = model(SOURCE).logits(tokens, masked, torch.tensor([2, 1, 1]))
    assert (other[1] - together[1]).abs().max() > 1e-3


def test_padding_of_either_side_changes_nothing():
    model = toy()
    tokens = torch.tensor([[3, 4, 5], [5, 6, 0]])
    masked = torch.tensor([[0, 1, 0], [1, 0, 0]]).bool()
    owner = torch.tensor([0, 1])
    narrow, wide = model(SOURCE), model(pad(SOURCE, (0, 3)))
    torch.testing.assert_close(narrow.length_scores, wide.length_scores)
    torch.testing.assert_close(
        narrow.logits(tokens, masked, owner),
        wide.logits(pad(tokens, (0, 2)), pad(masked, (0, 2)), owner),
    )


def test_what_stands_at_a_masked_cell_is_not_read():
    bound, masked = toy()(SOURCE), torch.tensor([[0, 1, 1]]).bool()
    cells = [
        bound.logits(torch.tensor([row]), masked, torch.tensor([0]))
        for row in ([3, 4, 5], [3, 0, 0], [3, 2, 9])
    ]
    assert torch.equal(cells[0], cells[1])
    assert torch.equal(cells[0], cells[2])


def test_no_text_is_empty_and_the_source_decides_on_lengths():
    scores = toy()(SOURCE).length_scores
    assert scores.shape == (3, 9)
    assert scores[:, 0].isneginf().all()
    assert scores[:, 1:].isfinite().all()
    assert (scores[0, 1:] - scores[1, 1:]).abs().max() > 1e-3


def test_a_source_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match="10 positions; the model's limit is 9"):
        toy()(torch.ones(1, 10).long())


# Mask-predict


def loops(bound, source: int, length: int, iterations: int) -> tuple[list[int], list[float]]:
    """Ghazvininejad et al. (2019), Sec. 3, one text, one cell at a time."""
    tokens, sure = [2] * length, [-math.inf] * length
    for t in range(iterations):
        count = length if t == 0 else max(1, int(length * (iterations - t) / iterations))
        order = sorted(range(length), key=lambda i: (sure[i], i))
        hidden = sorted(order[:count])
        row = torch.tensor([[2 if i in hidden else tokens[i] for i in range(length)]])
        masked = torch.tensor([[i in hidden for i in range(length)]])
        logits = bound.logits(row, masked, torch.tensor([source]))
        for cell, i in enumerate(hidden):
            kept = {v: logits[cell, v].item() for v in range(3, 10)}  # no special
            total = math.log(sum(math.exp(x) for x in kept.values()))
            tokens[i] = max(kept, key=kept.get)
            sure[i] = kept[tokens[i]] - total
    return tokens, sure


@pytest.mark.parametrize("iterations", [1, 2, 4, 10])
def test_mask_predict_is_the_papers_loop(iterations):
    bound = toy(seed=iterations)(SOURCE)
    lengths, owner = torch.tensor([5, 1, 7, 3]), torch.tensor([0, 1, 2, 0])
    tokens, log_p = mask_predict(bound, lengths, owner, iterations=iterations)
    for row, (length, source) in enumerate(zip(lengths.tolist(), owner.tolist(), strict=True)):
        gold, sure = loops(bound, source, length, iterations)
        assert tokens[row].tolist() == gold + [0] * (7 - length)
        torch.testing.assert_close(log_p[row, :length], torch.tensor(sure))
        assert (log_p[row, length:] == 0).all()


def test_the_best_of_several_lengths_has_the_best_mean():
    bound = toy(seed=3)(SOURCE)
    found = mask_predict_decode(bound, bound.length_scores, candidates=3, iterations=3, nbest=3)
    assert found.tokens.shape[:2] == (3, 3)
    for source in range(3):
        likely = bound.length_scores[source].argsort(descending=True)[:3].tolist()
        means = {n: sum(loops(bound, source, n, 3)[1]) / n for n in likely}
        order = sorted(likely, key=means.get, reverse=True)
        assert found.lengths[source].tolist() == order
        assert found.tokens[source, 0, : order[0]].tolist() == loops(bound, source, order[0], 3)[0]
        torch.testing.assert_close(
            found.scores[source], torch.tensor([means[n] for n in order]), rtol=1e-5, atol=1e-6
        )


def test_limits_of_mask_predict_are_named():
    bound = toy()(SOURCE)
    with pytest.raises(ValueError, match="iterations=0 must be at least 1"):
        mask_predict(bound, torch.tensor([2]), iterations=0)
    with pytest.raises(ValueError, match="candidates=9 must be from 1 to 8"):
        likeliest_lengths(bound.length_scores, 9)


# The objective


def test_how_many_are_hidden_is_uniform_and_which_is_uniform():
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool().repeat(4000, 1)
    hidden = hidden_uniformly(real, torch.Generator().manual_seed(0))
    assert not (hidden & ~real).any()
    for size, rows in ((4, hidden[0::2]), (2, hidden[1::2])):
        counts = torch.bincount(rows.sum(1), minlength=size + 1)
        assert counts[0] == 0
        expected = len(rows) / size
        chi_square = ((counts[1:] - expected) ** 2 / expected).sum()
        assert chi_square < 16.3  # 0.1 % of the chi-square distribution with 3 degrees of freedom
        each = rows.sum(0)[:size] / len(rows)
        torch.testing.assert_close(
            each, torch.full_like(each, (size + 1) / (2 * size)), atol=0.03, rtol=0
        )


def test_the_loss_is_that_of_hidden_cells_and_lengths():
    model = toy()
    target = torch.tensor([[3, 4, 5], [5, 6, 0]])
    batch = Batch.of(SOURCE[:2], target, torch.tensor([3, 2]))
    objective = UniformMasking(smoothing=0.0, length_weight=0.5)
    found = objective(model, batch, now=NOW, rng=torch.Generator().manual_seed(5))
    hidden = hidden_uniformly(batch.mask, torch.Generator().manual_seed(5))
    total, bound = 0.0, model(batch.source)
    for row in range(2):
        logits = bound.logits(
            batch.target[row : row + 1], hidden[row : row + 1], torch.tensor([row])
        )
        total += cross_entropy(logits, batch.target[row][hidden[row]], reduction="sum")
        scores = bound.length_scores[row].log_softmax(-1)
        total -= 0.5 * scores[int(batch.mask[row].sum())]
    torch.testing.assert_close(found.total, total)
    assert found.size == int(hidden.sum())
    found.total.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
def test_it_learns_to_reverse_with_lengths_of_its_own():
    torch.manual_seed(0)
    shape = TransformerShape(width=32, layers=2, longest=12)
    model = ConditionalMlm(9, 10, shape, mask_id=2, specials=[1])
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    rng = torch.Generator().manual_seed(0)

    def batch(rows: int) -> Batch:
        lengths = torch.randint(3, 7, (rows,), generator=rng)
        source = torch.zeros(rows, 6).long()
        target = torch.zeros(rows, 6).long()
        for row, n in enumerate(lengths.tolist()):
            source[row, :n] = torch.randint(3, 9, (n,), generator=rng)
            target[row, :n] = source[row, :n].flip(0)
        return Batch.of(source, target, lengths)

    def share_right() -> float:
        test = batch(100)
        bound = model.eval()(test.source)
        found = mask_predict_decode(bound, bound.length_scores, candidates=2, iterations=4)
        right = (pad(found.tokens[:, 0], (0, 6))[:, :6] == test.target).all(-1)
        return right.float().mean().item()

    for update in range(500):
        loss = UniformMasking()(model.train(), batch(32), now=Moment(0, update), rng=rng)
        (loss.total / loss.size).backward()
        optimizer.step()
        optimizer.zero_grad()
        if update % 50 == 49 and share_right() > 0.95:
            break
    assert share_right() > 0.9
