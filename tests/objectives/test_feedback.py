"""What is fed back: limits, laws and gradients of each form."""

import pytest
import torch

from softbeam.objectives.losses import feedback

FORMS = [
    feedback.hard_argmax,
    feedback.hard_sample,
    feedback.soft_argmax_embedding,
    feedback.gumbel_soft_sample,
    feedback.straight_through_argmax,
    feedback.straight_through_sample,
]
SAMPLED = [feedback.hard_sample, feedback.gumbel_soft_sample, feedback.straight_through_sample]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def case(rows: int = 4, vocab: int = 6, emb: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.randn(rows, vocab, generator=rng(1), dtype=torch.float64).requires_grad_()
    table = torch.randn(vocab, emb, generator=rng(2), dtype=torch.float64).requires_grad_()
    return scores, table


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reaches_the_table_and_repeats_with_its_seed(form):
    scores, table = case()
    fed = form(scores, table, alpha=2.0, rng=rng())
    torch.testing.assert_close(fed, form(scores, table, alpha=2.0, rng=rng()))
    assert torch.autograd.grad(fed.square().sum(), table)[0].abs().sum() > 0


@pytest.mark.parametrize("form", FORMS)
def test_only_soft_forms_reach_the_scores(form):
    scores, table = case()
    fed = form(scores, table, alpha=2.0, rng=rng())
    (grad,) = torch.autograd.grad(fed.square().sum(), scores, allow_unused=True)
    hard = form in (feedback.hard_argmax, feedback.hard_sample)
    assert (grad is None) if hard else (grad.abs().sum() > 0)


def test_soft_argmax_tends_to_the_hard_one():
    scores, table = case()
    soft = feedback.soft_argmax_embedding(scores, table, alpha=1e7, rng=rng())
    torch.testing.assert_close(soft, feedback.hard_argmax(scores, table, alpha=1.0, rng=rng()))


def test_gumbel_soft_sample_tends_to_its_hard_sample():
    scores, table = case()
    soft = feedback.gumbel_soft_sample(scores, table, alpha=1e9, rng=rng())
    hard = feedback.straight_through_sample(scores, table, alpha=1.0, rng=rng())
    torch.testing.assert_close(soft, hard)


@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_straight_through_forward_equals_hard_exactly(alpha):
    scores, table = case()
    fed = feedback.straight_through_argmax(scores, table, alpha=alpha, rng=rng())
    hard = feedback.hard_argmax(scores, table, alpha=alpha, rng=rng())
    torch.testing.assert_close(fed, hard, rtol=0, atol=0)
    fed = feedback.straight_through_sample(scores, table, alpha=alpha, rng=rng())
    rows = (fed[:, None] == table[None]).all(-1).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_straight_through_gradient_of_the_scores_is_the_soft_one():
    scores, table = case()
    direction = torch.randn(4, 3, generator=rng(7), dtype=torch.float64)
    pairs = [
        (feedback.straight_through_argmax, feedback.soft_argmax_embedding),
        (feedback.straight_through_sample, feedback.gumbel_soft_sample),
    ]
    for straight, soft in pairs:
        grads = [
            torch.autograd.grad((f(scores, table, alpha=1.3, rng=rng()) * direction).sum(), scores)
            for f in (straight, soft)
        ]
        torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("form", SAMPLED)
@pytest.mark.parametrize("alpha", [0.5, 4.0])
def test_samples_follow_the_softmax_whatever_alpha(form, alpha):
    """Chi-square: with the identity as table, the largest weight is the sampled token."""
    draws, vocab = 20_000, 5
    scores = torch.tensor([0.0, 1.0, -0.5, 0.7, -2.0], dtype=torch.float64)
    fed = form(scores.expand(draws, vocab), torch.eye(vocab).double(), alpha=alpha, rng=rng(11))
    counts = fed.argmax(-1).bincount(minlength=vocab)
    expected = draws * scores.softmax(-1)
    assert ((counts - expected) ** 2 / expected).sum() < 18.47  # p = 0.001 at 4 degrees of freedom


def test_soft_forms_gradcheck():
    scores, table = case(rows=2, vocab=4)
    for form in (feedback.soft_argmax_embedding, feedback.gumbel_soft_sample):
        assert torch.autograd.gradcheck(
            lambda s, e, form=form: form(s, e, alpha=1.5, rng=rng()), (scores, table)
        )
