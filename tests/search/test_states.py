"""States with numbers that cannot be mixed: counters are carried, histories are refused."""

import pytest
import torch

from softbeam.search.hard import beam_search
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.form import FAST, REFERENCE, Form
from softbeam.search.soft.loop import soft_beam_loss
from softbeam.tensors import gather, mix
from support.toys import ToyDecoder

K, TIME, VOCAB = 3, 4, 5
COSTS = torch.rand(2, TIME, VOCAB, generator=torch.Generator().manual_seed(1)).double()
FORMS = [REFERENCE, FAST, Form(checkpoint=True)]


class Carrying:
    """A decoder whose state also has integers and booleans for each row."""

    def __init__(self, *, history: bool):
        self.inner, self.history = ToyDecoder(vocab=VOCAB, batch=2), history
        self.embedding = self.inner.embedding

    def start(self):
        state, emb = self.inner.start()
        return (state, torch.zeros(len(emb), 2).long(), torch.ones(len(emb)).bool()), emb

    def step(self, state, emb):
        inner, count, flag = state
        assert count.dtype == torch.long and flag.dtype == torch.bool
        scores, inner = self.inner.step(inner, emb)
        last = (emb @ self.embedding.T).argmax(-1)
        return scores, (inner, count + (last[:, None] if self.history else 1), flag)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("eos", [None, 2])
def test_a_counter_changes_neither_loss_nor_gradient(form, eos):
    losses, gradients = [], []
    for decoder in (Carrying(history=False), ToyDecoder(vocab=VOCAB, batch=2)):
        loss = soft_beam_loss(decoder, COSTS, k=K, alpha=1.5, eos=eos, form=form)
        losses.append(loss)
        weights = decoder.inner.out if isinstance(decoder, Carrying) else decoder.out
        gradients.append(torch.autograd.grad(loss.sum(), weights)[0])
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_differ_in_integers_are_not_mixed(form):
    decoder = Carrying(history=True)
    with pytest.raises(
        ValueError, match=r"state: a tensor of torch.int64 differs between elements"
    ):
        soft_beam_loss(decoder, COSTS, k=K, alpha=0.5, form=form)
    lengths = torch.tensor([TIME, TIME])
    hard = beam_search(decoder, k=K, lengths=lengths, nbest=K)
    soft = soft_beam_decode(decoder, k=K, alpha=1e9, time=TIME, lengths=lengths)
    assert soft.tokens.equal(hard.tokens), "where nothing is mixed they are gathered"


def test_integers_are_taken_from_the_heaviest_row():
    state = torch.tensor([[7, 1], [8, 2], [9, 3]]), torch.tensor([[1.0], [2.0], [4.0]])
    one_hot = torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])
    mixed, rows = mix(state, one_hot), gather(state, torch.tensor([2, 0]))
    assert mixed[0].equal(rows[0]) and mixed[1].equal(rows[1])
    equal = torch.tensor([[5, 5]] * 3), state[1]
    numbers, floats = mix(equal, torch.tensor([[[0.5, 0.25, 0.25]]]))
    assert numbers.tolist() == [[5, 5]] and floats.tolist() == [[2.0]]
