"""Cross-ratios against joints that exist, and the thesis's conditionals that have none."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from softbeam import exact
from softbeam.models.random_field import BiLstmMrf
from softbeam.sampling.compatibility import cross_ratios, log_cross_ratios, masked_cross_ratios
from softbeam.types import MaskedLM

FREE_1 = torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64)  # p(y1 | y2)
FREE_2 = torch.full((2, 2), 0.5, dtype=torch.float64)  # p(y2 | y1)


def random_joint(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).flatten().softmax(0).view(shape)


def test_the_thesis_s_example_is_inconsistent():
    found = cross_ratios(FREE_1, FREE_2)
    torch.testing.assert_close(found.first.exp(), torch.tensor([9801.0], dtype=torch.float64))
    torch.testing.assert_close(found.second.exp(), torch.tensor([1.0], dtype=torch.float64))
    assert found.summary()["max"] == pytest.approx(math.log(9801))


@pytest.mark.parametrize("seed", range(3))
def test_conditionals_of_a_joint_are_consistent(seed):
    joint = random_joint(4, 3, seed=seed)
    found = cross_ratios(joint / joint.sum(0), joint / joint.sum(1, keepdim=True))
    assert found.discrepancy.shape == (6 * 3,)
    assert found.summary()["max"] < 1e-10 < found.summary()["mean_abs_log_ratio"]


def test_consistent_tables_have_the_joint_that_bayes_builds():
    """If no square differs, p(a|b) p(b) is the same as p(b|a) p(a) for the right margins."""
    joint = random_joint(3, 3)
    given_j, given_i = joint / joint.sum(0), joint / joint.sum(1, keepdim=True)
    odds = given_i[0] / given_j[0]  # proportional to p(b)
    rebuilt = given_j * odds / odds.sum()
    torch.testing.assert_close(rebuilt, joint)


def test_cross_ratios_are_those_of_loops():
    scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    squares = [
        [
            s[a, b] + s[c, d] - s[a, d] - s[c, b]
            for a, c in itertools.combinations(range(3), 2)
            for b, d in itertools.combinations(range(4), 2)
        ]
        for s in scores
    ]
    torch.testing.assert_close(log_cross_ratios(scores), torch.tensor(squares).double())


def test_what_is_not_a_table_of_conditionals_is_an_error():
    with pytest.raises(ValueError, match="p_i_given_j has the entry 0"):
        cross_ratios(torch.eye(2), FREE_2.float())
    with pytest.raises(ValueError, match="p_j_given_i sums to 2"):
        cross_ratios(FREE_1, 2 * FREE_2)
    with pytest.raises(ValueError, match="two tokens on each side"):
        log_cross_ratios(torch.zeros(1, 3))


class Conditionals:
    """A masked LM whose logits are the true conditionals of a random field, by enumeration.

    `noise` is added to them: a smooth function of the context, different at each position.
    """

    def __init__(self, *, vocab: int, time: int, noise: float = 0.0, gauge: float = 0.0):
        g = torch.Generator().manual_seed(0)
        table = 2 * torch.randn([vocab] * time, generator=g, dtype=torch.float64)
        self.score = lambda tokens: table[tuple(tokens.T)]
        self.space = exact.Space(vocab=vocab, time=time)
        self.wrong = torch.randn(time, vocab, time, vocab, generator=g, dtype=torch.float64)
        self.noise, self.gauge = noise, gauge
        self.calls: list[int] = []

    pad_id = 0

    @property
    def allowed(self) -> Tensor:
        return torch.arange(self.space.vocab) < self.space.vocab - 1  # the last is special

    def logits(self, tokens: Tensor, masked: Tensor, owner: Tensor) -> Tensor:
        assert (masked.sum(1) == 1).all() and len(owner) == len(tokens)
        self.calls.append(len(tokens))
        true = exact.conditionals(self.score, tokens, self.space)[masked]
        hidden = masked.nonzero()[:, 1]
        seen = torch.nn.functional.one_hot(tokens, self.space.vocab).double()
        seen = seen * ~masked[:, :, None]
        bias = torch.einsum("rvtw,rtw->rv", self.wrong[hidden], seen)
        context = (tokens * ~masked).sum(1, keepdim=True)  # a shift that no softmax sees
        return true + self.noise * bias + self.gauge * context


PAIRS = [(0, 1), (0, 2), (2, 1)]
TEXT = torch.tensor([1, 0, 2])
TOKENS = torch.tensor([0, 1, 2])


def test_conditionals_of_a_random_field_are_consistent_in_a_text():
    lm = Conditionals(vocab=4, time=3)
    assert isinstance(lm, MaskedLM)
    found = masked_cross_ratios(lm, TEXT, PAIRS, TOKENS)
    assert found.discrepancy.shape == (3, 3 * 3)
    assert found.summary()["max"] < 1e-10 < 0.1 < found.summary()["mean_abs_log_ratio"]


def test_the_first_family_is_that_of_the_first_position():
    lm = Conditionals(vocab=4, time=3)
    found = masked_cross_ratios(lm, TEXT, [(2, 0)], TOKENS)
    joint = torch.tensor(
        [[lm.score(torch.tensor([[b, 0, a]])) for b in range(3)] for a in range(3)]
    )
    torch.testing.assert_close(found.first[0], log_cross_ratios(joint.double()))
    torch.testing.assert_close(found.second, found.first)


def test_a_perturbed_field_is_inconsistent():
    found = masked_cross_ratios(Conditionals(vocab=4, time=3, noise=0.1), TEXT, PAIRS, TOKENS)
    assert found.summary()["mean_abs"] > 0.05
    assert found.summary()["max"] > found.summary()["mean_abs"]


def test_what_a_softmax_does_not_see_changes_nothing():
    plain, shifted = (
        masked_cross_ratios(Conditionals(vocab=4, time=3, noise=0.1, gauge=g), TEXT, PAIRS, TOKENS)
        for g in (0.0, 5.0)
    )
    torch.testing.assert_close(plain.discrepancy, shifted.discrepancy)


def test_chunks_change_nothing():
    whole, cut = Conditionals(vocab=4, time=3), Conditionals(vocab=4, time=3)
    a = masked_cross_ratios(whole, TEXT, PAIRS, TOKENS)
    b = masked_cross_ratios(cut, TEXT, PAIRS, TOKENS, chunk=4)
    torch.testing.assert_close(a.discrepancy, b.discrepancy)
    assert whole.calls == [18] and max(cut.calls) == 4


def test_positions_and_tokens_are_checked():
    lm = Conditionals(vocab=4, time=3)
    for pair in ((1, 1), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="not two positions below 3"):
            masked_cross_ratios(lm, TEXT, [pair], TOKENS)
    with pytest.raises(ValueError, match=r"tokens: \[3\] may not occur"):
        masked_cross_ratios(lm, TEXT, PAIRS, torch.tensor([0, 3]))


def test_the_free_conditionals_of_an_lstm_have_no_joint_and_the_true_ones_have():
    """Thesis, Sec. 6.2.1: p_mlm need not correspond to any field, least of all to that of E_raw."""
    torch.manual_seed(0)
    model = BiLstmMrf(4, embedding=6, hidden=8).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    free = masked_cross_ratios(model, TEXT, PAIRS, TOKENS).summary()
    true = Conditionals(vocab=4, time=3)
    true.score = lambda tokens: -model.energy(tokens)
    assert free["mean_abs"] > 0.05
    assert masked_cross_ratios(true, TEXT, PAIRS, TOKENS).summary()["max"] < 1e-10
