"""The soft beam against hard beams in plain loops, and its laws. No package search is used."""

import pytest
import torch

from softbeam.search.decoders import LocallyNormalized
from softbeam.search.hard import hard_beam_max
from softbeam.search.soft import loop, step as search_soft_step
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.form import FAST, REFERENCE, Form
from softbeam.search.soft.loop import (
    beam_widths,
    expected_cost,
    soft_beam,
    soft_beam_loss,
    soft_beam_max,
)
from support.toys import ToyDecoder, plain_beam, score, step_scores

EOS = 2
FORMS = [REFERENCE, FAST, Form(candidates=4, tolerance=0.5)]
names = pytest.mark.parametrize("form", FORMS, ids=["reference", "dense", "pooled"])


def random_costs(batch: int, time: int, vocab: int, seed: int = 5) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(batch, time, vocab, generator=g, dtype=torch.float64)


def padded(sequence: tuple[int, ...], time: int) -> list[int]:
    return [*sequence, *[0] * (time - len(sequence))]


def path_cost(costs: torch.Tensor, sequence: tuple[int, ...]) -> float:
    tokens = padded(sequence, costs.shape[0])
    return sum(float(costs[t, token]) for t, token in enumerate(tokens))


def gradients(loss: torch.Tensor, decoder: ToyDecoder) -> list[torch.Tensor]:
    grads = torch.autograd.grad(loss, list(decoder.parameters()), allow_unused=True)
    pairs = zip(grads, decoder.parameters(), strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


# Limits


@pytest.mark.slow
@names
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_and_the_scores_tend_to_the_hard_beams(k, eos, normalize, form):
    for seed in range(3):
        toy, costs = ToyDecoder(vocab=5, batch=2, seed=seed), random_costs(2, 4, 5, seed)
        decoder = LocallyNormalized(toy) if normalize else toy
        beam = soft_beam(decoder, costs, k=k, alpha=1e9, eos=eos, form=form)
        loss = expected_cost(beam, 1e9)
        for row in range(2):
            hard = plain_beam(toy, k, 4, row=row, eos=eos, normalize=normalize)
            expected = torch.tensor([total for total, _ in hard]).to(loss)
            torch.testing.assert_close(beam.score[row], expected, rtol=1e-6, atol=1e-6)
            best = path_cost(costs[row], hard[0][1])
            torch.testing.assert_close(loss[row].item(), best, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("eos", [None, EOS])
def test_the_error_falls_as_alpha_grows(eos):
    errors = []
    for alpha in (1.0, 10.0, 1e3, 1e6):
        error = 0.0
        for seed in range(8):
            toy, costs = ToyDecoder(vocab=4, seed=seed), random_costs(1, 3, 4, seed)
            loss = soft_beam_loss(toy, costs, k=3, alpha=alpha, eos=eos)
            hard = plain_beam(toy, 3, 3, eos=eos, normalize=False)
            error += abs(loss.item() - path_cost(costs[0], hard[0][1]))
        errors.append(error)
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("marginal", [False, True])
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_decoded_paths_tend_to_the_hard_beams(k, eos, marginal):
    for seed in range(3):
        toy = ToyDecoder(vocab=5, batch=2, seed=seed)
        out = soft_beam_decode(toy, k=k, alpha=1e9, time=4, eos=eos, marginal=marginal)
        for row in range(2):
            hard = plain_beam(toy, k, 4, row=row, eos=eos, normalize=False)
            assert out.tokens[row].tolist() == [padded(path, 4) for _, path in hard]
            assert out.lengths[row].tolist() == [len(path) for _, path in hard]
            expected = torch.tensor([total for total, _ in hard]).double()
            torch.testing.assert_close(out.scores[row], expected, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(out.hard_scores[row], expected)


def test_hard_scores_are_those_of_the_path_at_any_alpha():
    toy = ToyDecoder(vocab=4, batch=2)
    out = soft_beam_decode(toy, k=3, alpha=0.3, time=3)
    for row in range(2):
        for path, hard in zip(out.tokens[row].tolist(), out.hard_scores[row], strict=True):
            torch.testing.assert_close(hard.item(), score(toy, tuple(path), row, normalize=False))


@pytest.mark.slow
def test_joint_and_marginal_pointers_can_differ_while_alpha_is_small():
    differ = 0
    for seed in range(20):
        toy = ToyDecoder(vocab=5, seed=seed)
        joint, marginal = (
            soft_beam_decode(toy, k=3, alpha=0.05, time=4, marginal=m) for m in (False, True)
        )
        differ += int((joint.tokens != marginal.tokens).any())
    assert differ > 0


def test_decoding_with_lengths_is_decoding_each_row_alone():
    toy, lengths = ToyDecoder(vocab=5, batch=3), torch.tensor([1, 4, 2])
    out = soft_beam_decode(toy, k=3, alpha=0.7, time=4, lengths=lengths)
    for row in range(3):
        alone = soft_beam_decode(only(toy, row), k=3, alpha=0.7, time=int(lengths[row]))
        assert out.lengths[row].tolist() == [int(lengths[row])] * 3
        assert out.tokens[row, :, : lengths[row]].tolist() == alone.tokens[0].tolist()
        torch.testing.assert_close(out.scores[row], alone.scores[0])
        torch.testing.assert_close(out.hard_scores[row], alone.hard_scores[0])


@names
def test_with_one_slot_it_is_not_the_soft_argmax_at_finite_alpha(form):
    """Squared distances against scores: two relaxations that agree only in the limit."""
    toy, costs = ToyDecoder(vocab=5), random_costs(1, 2, 5)
    for alpha, same in ((1.0, False), (1e9, True)):
        state, emb = toy.start()
        expected = torch.zeros(1, dtype=torch.float64)
        for t in range(2):
            scores, state = toy.step(state, emb)
            p = (alpha * scores).softmax(-1)
            emb, expected = p @ toy.embedding, expected + (p * costs[:, t]).sum(-1)
        loss = soft_beam_loss(toy, costs, k=1, alpha=alpha, form=form)
        assert torch.allclose(loss, expected, atol=1e-6) is same


# The step, in loops over numbers


def test_a_step_is_algorithm_3_line_by_line():
    toy, costs, k, alpha = ToyDecoder(vocab=3), random_costs(1, 2, 3), 2, 0.6
    scores, state = toy.step(*toy.start())
    first = search_soft_step.soft_beam_step(toy, loop._start(toy), costs[:, 0], k=k, alpha=alpha)
    (h, c), _ = state
    for i in range(k):
        p = (-alpha * (scores[0] - scores[0].sort(descending=True).values[i]) ** 2).softmax(-1)
        torch.testing.assert_close(first.emb[i], p @ toy.E)
        torch.testing.assert_close(first.score[0, i], p @ scores[0])
        torch.testing.assert_close(first.cost[0, i], p @ costs[0, 0])
        torch.testing.assert_close(first.state[0][0][i], h[0])
    second = search_soft_step.soft_beam_step(toy, first, costs[:, 1], k=k, alpha=alpha)
    local, ((h, c), _) = toy.step(first.state, first.emb)
    s = first.score[0, :, None] + local
    for i in range(k):
        distance = (s - s.flatten().sort(descending=True).values[i]) ** 2
        p = (-alpha * distance).flatten().softmax(-1).view(2, 3)
        torch.testing.assert_close(second.score[0, i], (p * s).sum())
        expected = (p * costs[0, 1]).sum() + (p.sum(1) * first.cost[0]).sum()
        torch.testing.assert_close(second.cost[0, i], expected)
        torch.testing.assert_close(second.state[0][0][i], p.sum(1) @ h)
        torch.testing.assert_close(second.state[0][1][i], p.sum(1) @ c)
        torch.testing.assert_close(second.emb[i], p.sum(0) @ toy.E)


def test_without_finished_mass_the_extension_is_algorithm_3():
    toy, costs = ToyDecoder(vocab=5, batch=2), random_costs(2, 1, 5)[:, 0]
    start = loop._start(toy)
    plain = search_soft_step.soft_beam_step(toy, start, costs, k=3, alpha=0.7)
    carried = search_soft_step.soft_beam_step_eos(toy, start, costs, k=3, alpha=0.7, eos=EOS)
    for field in ("score", "cost", "emb"):
        torch.testing.assert_close(getattr(plain, field), getattr(carried, field))
    torch.testing.assert_close(carried.finished, plain.p[..., EOS].sum(-1))


@names
def test_finished_mass_is_carried_at_the_cost_of_padding(form):
    """A decoder that ends at once: later steps cost what padding costs, and score nothing."""
    toy, costs = ToyDecoder(vocab=4), random_costs(1, 3, 4)
    with torch.no_grad():
        toy.out.zero_()
        toy.out_bias.copy_(torch.tensor([0.0, 1.0, 30.0, -1.0]))
    beam = soft_beam(toy, costs, k=1, alpha=2.0, eos=EOS, form=form)
    torch.testing.assert_close(beam.score, torch.full_like(beam.score, 30.0))
    expected = costs[0, 0, EOS] + costs[0, 1:, 0].sum()
    torch.testing.assert_close(beam.cost[0, 0], expected)
    torch.testing.assert_close(beam.finished, torch.ones_like(beam.finished))


@pytest.mark.slow
@names
@pytest.mark.parametrize("alpha", [0.1, 1.0, 30.0, 1e5])
def test_finished_mass_stays_between_0_and_1_and_gradients_finite(alpha, form):
    for seed in range(5):
        toy, costs = ToyDecoder(vocab=4, seed=seed), random_costs(1, 5, 4)
        beam = soft_beam(toy, costs, k=3, alpha=alpha, eos=EOS, form=form)
        assert ((beam.finished >= 0) & (beam.finished <= 1)).all()
        for grad in gradients(expected_cost(beam, alpha).sum(), toy):
            assert torch.isfinite(grad).all()


def test_the_loss_with_eos_is_continuous():
    """Along a line of sources the largest jump between neighbours shrinks with the distance."""
    jumps = []
    for points in (300, 3000):
        toy, costs = ToyDecoder(vocab=4, batch=points, seed=3), random_costs(1, 4, 4)
        with torch.no_grad():
            direction = torch.tensor([1.0, -0.7, 0.4]).double()
            toy.memory.copy_(torch.linspace(-6, 6, points).double()[:, None] * direction)
            loss = soft_beam_loss(toy, costs.expand(points, -1, -1), k=2, alpha=2.0, eos=EOS)
        assert loss.max() - loss.min() > 0.1
        jumps.append(loss.diff().abs().max().item())
    assert jumps[1] < 0.2 * jumps[0]


# Gradients


@names
@pytest.mark.parametrize("eos", [None, EOS])
def test_gradient_reaches_every_parameter(eos, form):
    toy, costs = ToyDecoder(vocab=5, batch=2), random_costs(2, 3, 5)
    loss = soft_beam_loss(toy, costs, k=3, alpha=0.5, eos=eos, form=form)
    for grad in gradients(loss.sum(), toy):
        assert torch.isfinite(grad).all() and grad.abs().sum() > 0


@pytest.mark.slow
@names
@pytest.mark.parametrize("eos", [None, EOS])
def test_gradcheck_of_the_loss(eos, form):
    toy, costs = ToyDecoder(vocab=4, hidden=3, seed=2), random_costs(1, 3, 4)
    inputs = tuple(toy.parameters())

    def loss(*values: torch.Tensor) -> torch.Tensor:
        return soft_beam_loss(toy, costs, k=2, alpha=0.6, eos=eos, form=form)

    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


@names
def test_gradcheck_of_the_soft_maximum(form):
    toy, costs = ToyDecoder(vocab=4, hidden=3, seed=4), random_costs(1, 3, 4)
    inputs = tuple(toy.parameters())

    def top(*values: torch.Tensor) -> torch.Tensor:
        return soft_beam_max(toy, costs, k=2, alpha=0.6, form=form)

    assert torch.autograd.gradcheck(top, inputs, fast_mode=True)


# Batches and padding


def only(decoder: ToyDecoder, row: int) -> ToyDecoder:
    """The same decoder bound to one of its sources; parameters are shared."""
    alone = ToyDecoder(vocab=decoder.E.shape[0], hidden=decoder.hidden)
    for name, value in decoder.named_parameters():
        value = value[row : row + 1] if name == "memory" else value
        delattr(alone, name)
        setattr(alone, name, value)
    return alone


@pytest.mark.slow
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize(
    ("form", "vocab", "k", "alpha"),
    [
        (REFERENCE, 5, 3, 0.8),
        (REFERENCE, 3, 5, 0.8),
        (FAST, 5, 3, 0.8),
        (FAST, 3, 5, 0.8),
        (Form(candidates=8, tolerance=1e-9), 40, 3, 2.0),
        (Form(candidates=4, tolerance=1e-9), 9, 2, 10.0),
    ],
    ids=["reference", "reference, wide", "dense", "dense, wide", "pooled", "pooled, narrow"],
)
def test_a_padded_batch_is_its_rows_one_at_a_time(form, vocab, k, alpha, eos):
    """A pool depends on the batch, but only within its tolerance."""
    scale = 8.0 if form.candidates else 1.5  # few cells have any mass
    toy, costs = ToyDecoder(vocab=vocab, batch=3, scale=scale), random_costs(3, 4, vocab)
    lengths = torch.tensor([4, 1, 2])
    costs[1, 1:] = costs[2, 2:] = 1e6  # padding must not matter
    options = {"k": k, "alpha": alpha, "eos": eos, "form": form}
    if form.candidates:  # a pool was enough
        assert 0 < soft_beam(toy, costs, lengths=lengths, **options).dropped.max() < 1e-9
    for function in (soft_beam_loss, soft_beam_max):
        whole = function(toy, costs, lengths=lengths, **options)
        for row in range(3):
            alone = function(only(toy, row), costs[row : row + 1, : lengths[row]], **options)
            torch.testing.assert_close(whole[row], alone[0])
            pair = gradients(whole[row], toy), gradients(alone[0], toy)
            torch.testing.assert_close(pair[0], pair[1])
            whole = function(toy, costs, lengths=lengths, **options)


@names
def test_permuting_the_batch_permutes_the_loss(form):
    toy, costs = ToyDecoder(vocab=5, batch=3), random_costs(3, 3, 5)
    loss = soft_beam_loss(toy, costs, k=2, alpha=1.0, form=form)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        toy.memory.copy_(toy.memory[order].clone())
    permuted = soft_beam_loss(toy, costs[order], k=2, alpha=1.0, form=form)
    torch.testing.assert_close(permuted, loss[order])


# Corners


class Shifted:
    """A float32 copy whose step scores are rounded to 1/64 and moved by a constant."""

    def __init__(self, toy: ToyDecoder, shift: float):
        self.toy, self.shift = toy.float(), shift

    @property
    def embedding(self):
        return self.toy.embedding

    def start(self):
        return self.toy.start()

    def step(self, state, emb):
        scores, state = self.toy.step(state, emb)
        return scores + self.shift, state


@names
@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_scores_near_1000_in_float32(shift, form):
    toy, costs = ToyDecoder(vocab=6, batch=2), random_costs(2, 3, 6).float()
    near = soft_beam_loss(Shifted(toy, 0.0), costs, k=3, alpha=2.0, form=form)
    beam = soft_beam(Shifted(toy, shift), costs, k=3, alpha=2.0, form=form)
    far = expected_cost(beam, 2.0)
    torch.testing.assert_close(far, near, rtol=2e-2, atol=2e-2)
    reference = soft_beam(Shifted(toy, 0.0), costs, k=3, alpha=2.0, form=form)
    torch.testing.assert_close(beam.score - 3 * shift, reference.score, rtol=0, atol=5e-3)
    for grad in gradients(far.sum(), toy):
        assert torch.isfinite(grad).all()


@names
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("time", [1, 2, 4])
def test_a_vocabulary_smaller_than_the_beam(eos, time, form):
    toy, costs = ToyDecoder(vocab=3, seed=1), random_costs(1, time, 3)
    beam = soft_beam(toy, costs, k=7, alpha=1e9, eos=eos, form=form)
    hard = plain_beam(toy, 7, time, eos=eos, normalize=False)
    expected = torch.tensor([[total for total, _ in hard]]).to(beam.score)
    torch.testing.assert_close(beam.score, expected, rtol=1e-6, atol=1e-6)
    soft = soft_beam_loss(toy, costs, k=7, alpha=0.4, eos=eos, form=form)
    assert all(torch.isfinite(g).all() for g in gradients(soft.sum(), toy))


def test_widths():
    assert beam_widths(4, 10, 3, eos=False) == [4, 4, 4]
    assert beam_widths(5, 2, 4, eos=False) == [2, 4, 5, 5]
    assert beam_widths(5, 2, 5, eos=True) == [2, 3, 4, 5, 5]
    assert beam_widths(3, 1, 2, eos=False) == [1, 1]


@pytest.mark.parametrize("form", FORMS[:2], ids=["reference", "dense"])
def test_one_step(form):
    toy, costs = ToyDecoder(vocab=5), random_costs(1, 1, 5)
    scores = step_scores(toy, ())
    m = scores.topk(2).values
    p = (-0.9 * (scores - m[:, None]) ** 2).softmax(-1)
    weights = (0.9 * (p @ scores)).softmax(-1)
    loss = soft_beam_loss(toy, costs, k=2, alpha=0.9, form=form)
    torch.testing.assert_close(loss[0], weights @ (p @ costs[0, 0]))


@names
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("alpha", [1.0, 1e6])
def test_ties_are_finite(alpha, eos, form):
    toy, costs = ToyDecoder(vocab=4), random_costs(1, 3, 4)
    with torch.no_grad():
        toy.out.zero_(), toy.out_bias.zero_()
    loss = soft_beam_loss(toy, costs, k=3, alpha=alpha, eos=eos, form=form)
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(grad).all() for grad in gradients(loss.sum(), toy))


def test_alphas_are_two():
    toy, costs = ToyDecoder(vocab=5), random_costs(1, 3, 5)
    both = soft_beam_loss(toy, costs, k=3, alpha=0.5)
    torch.testing.assert_close(
        both, soft_beam_loss(toy, costs, k=3, alpha=9.0, alpha_topk=0.5, alpha_final=0.5)
    )
    beam = soft_beam(toy, costs, k=3, alpha=0.5)
    apart = soft_beam_loss(toy, costs, k=3, alpha=0.5, alpha_final=4.0)
    torch.testing.assert_close(apart, ((4.0 * beam.score).softmax(-1) * beam.cost).sum(-1))


@names
def test_hard_scores_option_keeps_the_thresholds(form):
    toy, costs = ToyDecoder(vocab=5), random_costs(1, 1, 5)
    form = Form(reference=form.reference, candidates=form.candidates, tolerance=0.5, score="hard")
    beam = soft_beam(toy, costs, k=3, alpha=0.3, form=form)
    torch.testing.assert_close(beam.score[0], step_scores(toy, ()).topk(3).values)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"k": 0}, "k=0"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"alpha": float("inf")}, "alpha=inf"),
        ({"eos": 0}, "eos=0"),
        ({"eos": 9}, "eos=9"),
        ({"time": 5}, "time=5"),
        ({"lengths": torch.tensor([4])}, "lengths up to 4"),
    ],
)
def test_errors_name_the_argument(options, message):
    costs = random_costs(1, 3, 4)
    with pytest.raises(ValueError, match=message):
        soft_beam(ToyDecoder(vocab=4), costs, **{"k": 2, "alpha": 1.0, **options})


def test_errors_of_forms_and_missing_time():
    with pytest.raises(ValueError, match="candidates=0"):
        Form(candidates=0)
    with pytest.raises(ValueError, match="time=None"):
        soft_beam(ToyDecoder(vocab=4), k=2, alpha=1.0)
    with pytest.raises(ValueError, match="vocabulary's 4"):
        soft_beam(ToyDecoder(vocab=4), random_costs(1, 3, 5), k=2, alpha=1.0)


# Hinge pieces


def plain_augmented(toy, costs, k, scale, eos=None):
    """The hard cost-augmented beam in loops: (score + scale * cost, path) of its best."""
    time, vocab = costs.shape
    beam = [(0.0, ())]
    for t in range(time):
        candidates = []
        for total, prefix in beam:
            if eos is not None and eos in prefix:
                candidates.append((total + scale * float(costs[t, 0]), (*prefix, 0)))
                continue
            local = step_scores(toy, prefix).detach() + scale * costs[t]
            candidates += [(total + float(local[v]), (*prefix, v)) for v in range(vocab)]
        beam = sorted(candidates, reverse=True)[:k]
    return beam[0]


@names
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_soft_maximum_tends_to_the_hard_augmented_beam(scale, eos, form):
    for seed in range(3):
        toy, costs = ToyDecoder(vocab=4, seed=seed), random_costs(1, 3, 4, seed)
        total, path = plain_augmented(toy, costs[0], 3, scale, eos)
        options = {"k": 3, "cost_scale": scale, "eos": eos}
        soft = soft_beam_max(toy, costs, alpha=1e9, form=form, **options)
        torch.testing.assert_close(soft.item(), total, rtol=1e-6, atol=1e-6)
        hard, tokens = hard_beam_max(toy, costs, **options)
        torch.testing.assert_close(hard.item(), total)
        assert tuple(tokens[0].tolist()) == path


def test_the_soft_maximum_is_at_most_the_best_soft_score():
    toy, costs = ToyDecoder(vocab=5, batch=3), random_costs(3, 4, 5)
    beam = soft_beam(toy, costs, k=3, alpha=0.5, cost_scale=1.0)
    assert (soft_beam_max(toy, costs, k=3, alpha=0.5) <= beam.score.max(-1).values).all()


def test_the_hard_maximum_has_the_gradient_of_its_path():
    toy, costs = ToyDecoder(vocab=4), random_costs(1, 3, 4)
    top, tokens = hard_beam_max(toy, costs, k=2)
    path = tokens[0].tolist()
    rescored = sum(step_scores(toy, tuple(path[:t]))[v] for t, v in enumerate(path))
    torch.testing.assert_close(gradients(top.sum(), toy), gradients(rescored, toy))


@pytest.mark.parametrize("eos", [None, EOS])
def test_the_hard_maximum_of_a_padded_batch_is_that_of_its_rows(eos):
    toy, costs = ToyDecoder(vocab=4, batch=3), random_costs(3, 4, 4)
    lengths = torch.tensor([2, 4, 1])
    top, tokens = hard_beam_max(toy, costs, k=3, lengths=lengths, eos=eos)
    for row in range(3):
        alone, path = hard_beam_max(
            only(toy, row), costs[row : row + 1, : lengths[row]], k=3, eos=eos
        )
        torch.testing.assert_close(top[row], alone[0])
        assert tokens[row].tolist() == padded(tuple(path[0].tolist()), 4)


# Diagnostics


def test_diagnostics_fall_to_zero_as_alpha_grows_and_start_at_their_limits():
    toy, costs = ToyDecoder(vocab=5, batch=2), random_costs(2, 1, 5)
    soft, hard = (
        soft_beam(toy, costs, k=3, alpha=a, form=Form(diagnostics=True)).diagnostics
        for a in (1e-9, 1e9)
    )
    five = torch.tensor(5.0, dtype=torch.float64).log().expand(2)
    torch.testing.assert_close(soft.entropy, five, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(soft.overlap, torch.ones(2, dtype=torch.float64))
    for value in hard:
        torch.testing.assert_close(value, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("eos", [None, EOS])
def test_diagnostics_are_the_same_in_every_exact_form(eos):
    toy, costs = ToyDecoder(vocab=6, batch=2), random_costs(2, 3, 6)
    lengths = torch.tensor([3, 2])
    plain, fast = (
        soft_beam(toy, costs, k=3, alpha=0.8, eos=eos, lengths=lengths, form=form).diagnostics
        for form in (Form(reference=True, diagnostics=True), Form(diagnostics=True))
    )
    torch.testing.assert_close(fast, plain)
