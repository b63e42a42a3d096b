"""Steps of an LSTM equal those of `torch.lstm_cell`, in values and in gradients."""

import pytest
import torch
from torch import nn

from softbeam.models.cell import LstmSteps


def given(rows: int, layers: int):
    """Layers, a value, a part of the first gates for each of two sources, and a first state."""
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, layers).double()
    for parameter in lstm.parameters():
        nn.init.normal_(parameter)
    made = [torch.randn(rows, 3), torch.randn(2, 16), *(torch.randn(rows, 4) for _ in range(4))]
    value, base, *state = (tensor.double().requires_grad_() for tensor in made)
    pairs = tuple(zip(state[:layers], state[2:][:layers], strict=True))
    return lstm, value, base, pairs


def together(state):
    """States as `LstmSteps` keeps them: h and c of a layer side by side."""
    return tuple(torch.cat(pair, 1) for pair in state)


def plain_steps(lstm, value, base, state, *, read: int | None):
    """Three steps by torch.lstm_cell; `base` is a bias of each row."""
    for _ in range(3):
        new, x = [], value
        for number, ((h, c), (w_ih, w_hh, *biases)) in enumerate(
            zip(state, lstm.all_weights, strict=True)
        ):
            if number or read is None:
                x, c = torch.lstm_cell(x, (h, c), w_ih, w_hh, *biases)
            else:
                gates = x[:, :read] @ w_ih[:, :read].T + h @ w_hh.T
                i, f, g, o = (gates + base.repeat_interleave(len(x) // 2, 0)).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                x = o.sigmoid() * c.tanh()
            new.append((x, c))
        state = tuple(new)
    return state


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("read", [None, 2])
@pytest.mark.parametrize("projected", [False, True])
def test_steps_and_gradients_are_those_of_lstm_cell(layers, read, projected):
    if projected and read is None:
        read = 3
    lstm, value, base, state = given(6, layers)

    def ours():
        steps = LstmSteps(lstm, nn.Identity(), read=read, projected=projected)
        layers = together(state)
        x = value if read is None else value[:, :read]
        x = x @ lstm.all_weights[0][0][:, :read].T if projected else x
        for _ in range(3):
            h, layers = steps(x, layers, None if read is None else base)
            torch.testing.assert_close(h, layers[-1][:, : h.shape[1]])
        return tuple(layer.chunk(2, 1) for layer in layers[:-1]) + ((h, layers[-1].chunk(2, 1)[1]),)

    def total(layers):
        return sum((i + 1) * (h.sum() + c.square().sum()) for i, (h, c) in enumerate(layers))

    leaves = [*lstm.parameters(), value, base, *(t for layer in state for t in layer)]
    got, want = total(ours()), total(plain_steps(lstm, value, base, state, read=read))
    torch.testing.assert_close(got, want)
    for a, b in zip(
        torch.autograd.grad(got, leaves, allow_unused=True),
        torch.autograd.grad(want, leaves, allow_unused=True),
        strict=True,
    ):
        assert (a is None or not a.any()) == (b is None or not b.any())
        if b is not None and b.any():
            torch.testing.assert_close(a, b)


def test_a_step_without_gradients_does_not_cut_those_of_the_next():
    """The same decoder searches without gradients, then trains: weights get theirs."""
    lstm, value, _, state = given(6, 1)
    with torch.no_grad():
        LstmSteps(lstm, nn.Identity())(value, together(state))
    LstmSteps(lstm, nn.Identity())(value, together(state))[0].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in lstm.parameters())
