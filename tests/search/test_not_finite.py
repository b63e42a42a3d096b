"""Scores that are NaN or +inf are named; tokens that -inf forbids are as if they did not exist."""

import copy

import pytest
import torch
from torch import nn

from softbeam.errors import NotFinite
from softbeam.search.decoders import Forbidding, LocallyNormalized, Wrapped
from softbeam.search.hard import ancestral_sample, beam_search, greedy
from softbeam.search.live import live_beam_search
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.form import FAST, REFERENCE, Form
from softbeam.search.soft.loop import soft_beam_loss, soft_beam_max
from softbeam.search.tracked import tracked_beam
from support.toys import ToyDecoder

FORMS = [REFERENCE, FAST, Form(candidates=4, tolerance=1e-9)]
forms = pytest.mark.parametrize("form", FORMS, ids=["reference", "dense", "pooled"])
LENGTHS = torch.tensor([4, 3])
COSTS = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Spoiled(Wrapped):
    """A decoder with a wrong score in one cell of every step."""

    def __init__(self, decoder, value: float):
        super().__init__(decoder)
        self.value = value

    def change(self, scores):
        scores = scores.clone()
        scores[-1, 1] = self.value
        return scores


SEARCHES = {
    "greedy": lambda d: greedy(d, lengths=LENGTHS),
    "sample": lambda d: ancestral_sample(d, lengths=LENGTHS, rng=torch.Generator()),
    "beam": lambda d: beam_search(d, k=3, lengths=LENGTHS),
    "live beam": lambda d: live_beam_search(d, k=3, lengths=LENGTHS, eos=2),
    "tracked": lambda d: list(tracked_beam(d, torch.ones(2, 4).long(), k=2, lengths=LENGTHS)),
    "soft loss": lambda d: soft_beam_loss(d, COSTS, k=2, alpha=1.0),
    "soft loss, reference": lambda d: soft_beam_loss(d, COSTS, k=2, alpha=1.0, form=REFERENCE),
    "soft loss, end mark": lambda d: soft_beam_loss(d, COSTS, k=2, alpha=1.0, eos=2),
    "soft decode": lambda d: soft_beam_decode(d, k=2, alpha=1.0, time=4),
}


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "NaN"), (float("inf"), "+inf")])
@pytest.mark.parametrize("search", SEARCHES)
def test_scores_that_are_no_numbers_are_named(search, value, name):
    SEARCHES[search](ToyDecoder(vocab=6, batch=2))
    with pytest.raises(NotFinite, match=name.replace("+", r"\+")):
        SEARCHES[search](Spoiled(ToyDecoder(vocab=6, batch=2), value))


@pytest.mark.parametrize("search", ["sample", "soft loss", "soft loss, end mark", "soft decode"])
def test_a_step_that_forbids_everything_is_named(search):
    with pytest.raises(NotFinite):
        SEARCHES[search](Forbidding(ToyDecoder(vocab=6, batch=2), range(6)))


def test_a_hard_beam_without_outputs_has_scores_of_minus_infinity():
    found = beam_search(Forbidding(ToyDecoder(vocab=6, batch=2), range(6)), k=3, lengths=LENGTHS)
    assert found.scores.isneginf().all()


def smaller(toy: ToyDecoder, kept: list[int]) -> ToyDecoder:
    """The same decoder with a vocabulary of the kept tokens alone."""
    toy = copy.deepcopy(toy)
    for name in ("E", "out", "out_bias"):
        setattr(toy, name, nn.Parameter(getattr(toy, name).detach()[kept]))
    return toy


@forms
@pytest.mark.parametrize("alpha", [0.1, 1.0, 30.0, 1e12])
@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("loss", [soft_beam_loss, soft_beam_max])
def test_forbidden_tokens_are_as_if_they_did_not_exist(form, alpha, eos, normalize, loss):
    """Values and gradients are those of the vocabulary without them."""
    toy, kept = ToyDecoder(vocab=6, batch=2, seed=3), [0, 2, 3, 5]
    few, costs = smaller(toy, kept), COSTS[..., kept]
    ends = {None: None, 2: 1}[eos]
    options = {"k": 3, "alpha": alpha, "form": form, "lengths": LENGTHS}
    pairs = (Forbidding(toy, [1, 4]), COSTS, eos), (few, costs, ends)
    values = []
    for decoder, cost, end in pairs:
        decoder = LocallyNormalized(decoder) if normalize else decoder
        value = loss(decoder, cost, eos=end, **options)
        value.sum().backward()
        values.append(value.detach())
    torch.testing.assert_close(*values)
    for (name, many), fewer in zip(toy.named_parameters(), few.parameters(), strict=True):
        assert many.grad.isfinite().all(), name
        if name in ("E", "out", "out_bias"):
            assert many.grad[[1, 4]].abs().max() < 1e-100, "no gradient reaches the forbidden"
            grad = many.grad[kept]
        else:
            grad = many.grad
        torch.testing.assert_close(grad, fewer.grad, msg=lambda text, name=name: name + text)


@forms
def test_fewer_allowed_tokens_than_slots(form):
    """One token is allowed, so that every path but one is forbidden."""
    toy = ToyDecoder(vocab=6, batch=2)
    decoder = Forbidding(toy, [0, 1, 2, 4, 5])
    loss = soft_beam_loss(decoder, COSTS, k=3, alpha=1.0, lengths=LENGTHS, form=form)
    expected = [sum(COSTS[row, : int(n), 3].tolist()) for row, n in enumerate(LENGTHS)]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))
    loss.sum().backward()
    assert all(p.grad.isfinite().all() for p in toy.parameters() if p.grad is not None)


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eos", [None, 2])
def test_the_largest_alpha_has_finite_gradients_and_a_larger_one_is_refused(form, dtype, eos):
    toy = ToyDecoder(vocab=6, batch=2, seed=3).to(dtype)
    toy.start = lambda: (((z := torch.zeros(2, 6, dtype=dtype), z), 0), toy.bos.expand(2, -1))
    costs = COSTS.to(dtype)
    loss = soft_beam_loss(toy, costs, k=3, alpha=1e12, eos=eos, form=form)
    loss.sum().backward()
    assert loss.isfinite().all() and all(p.grad.isfinite().all() for p in toy.parameters())
    for name in ("alpha", "alpha_final"):
        with pytest.raises(ValueError, match=f"{name}=1e\\+30 is not above 0 and at most 1e\\+12"):
            soft_beam_loss(toy, costs, **{"k": 3, "alpha": 1.0, "form": form, name: 1e30})
