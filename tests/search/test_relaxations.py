"""Algorithm 2 and its relatives, against plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from softbeam.search.relaxations import (
    gumbel_noise,
    gumbel_softmax,
    peaked_softmax,
    soft_argmax,
    soft_topk,
    weighted_soft_indices,
    weighted_top_values,
)


def scores(*shape: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=g, dtype=torch.float64)


def plain_soft_topk(matrix: list[list[float]], k: int, alpha: float) -> list[list[list[float]]]:
    """Algorithm 2 in loops over numbers."""
    cells = [value for row in matrix for value in row]
    out = []
    for m in sorted(cells, reverse=True)[:k]:
        e = [[math.exp(-alpha * (value - m) ** 2) for value in row] for row in matrix]
        z = sum(map(sum, e))
        out.append([[value / z for value in row] for row in e])
    return out


@pytest.mark.parametrize("k", [1, 2, 5])
def test_soft_topk_is_algorithm_2(k):
    s = scores(2, 3, 4)
    plain = [plain_soft_topk(matrix, k, 0.7) for matrix in s.tolist()]
    torch.testing.assert_close(soft_topk(s, k, 0.7)[0], s.flatten(1).topk(k).values)
    torch.testing.assert_close(soft_topk(s, k, 0.7)[1], torch.tensor(plain, dtype=s.dtype))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 6), alpha=st.floats(0.01, 100))
def test_soft_topk_slices_are_distributions(seed, k, alpha):
    _, p = soft_topk(scores(2, 3, 2, seed=seed), k, alpha)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum((-1, -2)), torch.ones(2, k, dtype=p.dtype))


def test_soft_topk_tends_to_the_hard_indices():
    s = scores(3, 2, 5)
    p = soft_topk(s, 4, 1e8)[1].flatten(2)
    hard = torch.nn.functional.one_hot(s.flatten(1).topk(4).indices, 10).to(p)
    torch.testing.assert_close(p, hard)


def test_soft_topk_commutes_with_a_permutation_of_the_batch():
    s, order = scores(4, 2, 3), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(soft_topk(s[order], 2, 1.0)[1], soft_topk(s, 2, 1.0)[1][order])


@pytest.mark.parametrize("k", [0, 7])
def test_soft_topk_refuses_a_k_outside_the_cells(k):
    with pytest.raises(ValueError, match=f"k={k} .* 6 cells"):
        soft_topk(scores(1, 2, 3), k, 1.0)


@pytest.mark.parametrize("detach", [False, True])
def test_soft_topk_gradient(detach):
    s = scores(2, 2, 3).requires_grad_()
    if not detach:
        assert torch.autograd.gradcheck(lambda x: soft_topk(x, 3, 0.8), s)
        return
    m = s.detach().flatten(1).topk(3).values
    fixed = (-0.8 * (s.flatten(1)[:, None] - m[..., None]) ** 2).softmax(-1)
    target = scores(2, 3, 2, 3, seed=1)
    expected = torch.autograd.grad((fixed * target.flatten(2)).sum(), s)[0]
    actual = torch.autograd.grad(
        (soft_topk(s, 3, 0.8, detach_threshold=True)[1] * target).sum(), s
    )[0]
    torch.testing.assert_close(actual, expected)


def test_ties_give_equal_weights_and_finite_gradients():
    s = torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)
    _, p = soft_topk(s, 4, 10.0)
    torch.testing.assert_close(p, torch.full_like(p, 1 / 6))
    (p * scores(1, 4, 2, 3)).sum().backward()
    assert torch.isfinite(s.grad).all()


@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_soft_topk_keeps_its_digits_far_from_zero(shift):
    s = (scores(2, 3, 4) * 64).round() / 64  # exact in float32 near 1,000
    near, far = (soft_topk(x.float(), 3, 5.0)[1] for x in (s, s + shift))
    torch.testing.assert_close(far, near)


def test_weighted_top_values_with_weights_0_and_1_are_the_top_values_of_the_live_cells():
    s = scores(3, 8)
    w = (scores(3, 8, seed=1) > -1).to(s)
    expected = s.masked_fill(w == 0, -torch.inf).topk(3).values
    torch.testing.assert_close(weighted_top_values(s, w, 3), expected, rtol=1e-14, atol=1e-14)


def test_weighted_top_values_are_means_of_units_of_weight():
    s = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    w = torch.tensor([[0.5, 1.0, 0.25, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.5 * 3 + 0.5 * 2, 0.5 * 2 + 0.25 * 1 + 0.25 * 0]])
    torch.testing.assert_close(weighted_top_values(s, w, 2), expected.double())
    stretched = weighted_top_values(s[:, :2], w[:, :2], 2)  # 1.5 units of weight, stretched to 2
    expected = torch.tensor([[(2 / 3) * 3 + (1 / 3) * 2, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(stretched, expected)


def test_weighted_top_values_are_continuous_where_cells_change_places():
    w = torch.tensor([[0.3, 0.9, 0.8]], dtype=torch.float64)
    below, above = (torch.tensor([[1.0, 1.0 + e, 0.0]]).double() for e in (-1e-9, 1e-9))
    torch.testing.assert_close(weighted_top_values(below, w, 2), weighted_top_values(above, w, 2))


def test_weighted_indices_with_equal_weights_are_the_plain_ones():
    s = scores(2, 2, 4)
    m, _ = soft_topk(s, 3, 0.9)
    p = weighted_soft_indices(s, torch.full_like(s, 0.5), m, 0.9)
    torch.testing.assert_close(p, soft_topk(s, 3, 0.9)[1])


def test_weighted_indices_gradient_and_dead_cells():
    s, m = scores(1, 2, 3).requires_grad_(), scores(1, 2, seed=3).requires_grad_()
    w = torch.tensor([[[0.2, 1.0, 0.7], [0.0, 0.6, 0.0]]], dtype=torch.float64)
    p = weighted_soft_indices(s, w, m, 0.8)
    assert (p[..., w[0] == 0] == 0).all()
    assert torch.autograd.gradcheck(lambda s, m: weighted_soft_indices(s, w, m, 0.8), (s, m))
    live = w.clamp_min(0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: weighted_soft_indices(s, w, m, 0.8), live)
    assert torch.autograd.gradcheck(lambda w: weighted_top_values(s[:, 0], w[:, 0], 2), live)


def test_peaked_softmax_and_soft_argmax_tend_to_the_argmax():
    s, values = scores(5, 7), scores(7, 3, seed=1)
    hard = torch.nn.functional.one_hot(s.argmax(-1), 7).to(s)
    torch.testing.assert_close(peaked_softmax(s, 1e6), hard)
    torch.testing.assert_close(soft_argmax(s, values, 1e6), values[s.argmax(-1)])


def test_gumbel_noise_has_the_gumbel_law_and_its_seed():
    like = torch.zeros(200_000, dtype=torch.float64)
    noise = gumbel_noise(like, torch.Generator().manual_seed(3))
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.03
    torch.testing.assert_close(noise, gumbel_noise(like, torch.Generator().manual_seed(3)))


def test_gumbel_softmax_puts_the_noise_inside():
    s = scores(4, 5)
    noise = gumbel_noise(s, torch.Generator().manual_seed(5))
    expected = (3.0 * (s + noise)).softmax(-1)
    torch.testing.assert_close(gumbel_softmax(s, 3.0, torch.Generator().manual_seed(5)), expected)
