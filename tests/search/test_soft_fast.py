"""The fast forms equal the plain reference: values to 1e-6, gradients to 1e-5, in float64."""

import json
from functools import partial

import pytest
import torch

from softbeam.experiments.bench import soft_beam as bench
from softbeam.runtime.synchronizations import count_synchronizations
from softbeam.search.decoders import LocallyNormalized, stepwise_scores
from softbeam.search.relaxations import soft_topk
from softbeam.search.soft import fast
from softbeam.search.soft.cells import best_cells
from softbeam.search.soft.form import REFERENCE, Form
from softbeam.search.soft.loop import expected_cost, expected_score, soft_beam, soft_beam_loss
from softbeam.tensors import SharedTable
from softbeam.types import ReadoutDecoder
from support.pretended_device import NAME, pretended_device
from support.toys import ToyDecoder

EOS = 2


class ReadoutToy(ToyDecoder):
    """The toy decoder with its output layer in view."""

    @property
    def output_layer(self):
        return 2.0 * self.out, self.out_bias

    def advance(self, state, emb):
        _, state = super().step(state, emb)
        return state[0][0], state


def random_costs(batch: int, time: int, vocab: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(5)
    return torch.rand(batch, time, vocab, generator=g, dtype=torch.float64)


def value_and_gradients(toy, decoder, costs, *, alpha, form, maximum=False, **options):
    beam = soft_beam(decoder, costs, alpha=alpha, form=form, **options)
    value = (expected_score if maximum else expected_cost)(beam, alpha)
    weights = torch.arange(1.0, 1 + len(value), dtype=value.dtype)
    grads = torch.autograd.grad((value * weights).sum(), list(toy.parameters()))
    return value.detach(), grads


def assert_equal_to_reference(toy, costs, *, form, normalize=False, **options):
    decoder = LocallyNormalized(toy) if normalize else toy
    plain = Form(reference=True, score=form.score, detach_threshold=form.detach_threshold)
    value, grads = value_and_gradients(toy, decoder, costs, form=form, **options)
    expected, expected_grads = value_and_gradients(toy, decoder, costs, form=plain, **options)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    for got, want in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


decoders = pytest.mark.parametrize("kind", [ToyDecoder, ReadoutToy])
endings = pytest.mark.parametrize("eos", [None, EOS])


@pytest.mark.slow
@decoders
@endings
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("k,alpha", [(1, 0.5), (3, 0.2), (3, 50.0), (5, 2.0)])
def test_dense_equals_the_reference(kind, eos, normalize, k, alpha):
    toy, costs = kind(vocab=7, batch=3, seed=k), random_costs(3, 4, 7)
    lengths = torch.tensor([4, 2, 3])
    for form in (Form(), Form(checkpoint=True)):
        assert_equal_to_reference(
            toy, costs, form=form, normalize=normalize, k=k, alpha=alpha, eos=eos, lengths=lengths
        )


@pytest.mark.slow
@decoders
@endings
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("alpha,scale", [(1.0, 1.0), (30.0, 1.0), (4.0, 9.0)])
def test_pooled_equals_the_reference_whether_or_not_it_falls_back(
    kind, eos, normalize, alpha, scale
):
    toy, costs = kind(vocab=40, batch=3, scale=1.5 * scale**0.5), random_costs(3, 4, 40)
    form = Form(candidates=24, tolerance=1e-9)
    assert_equal_to_reference(toy, costs, form=form, normalize=normalize, k=3, alpha=alpha, eos=eos)


@decoders
@endings
def test_the_pool_is_used_where_it_suffices_and_its_bound_is_one(kind, eos):
    """The bound is above the mass that the reference puts outside the pool, and below 1e-3."""
    toy, costs = kind(vocab=60, batch=2, scale=4.0, seed=3), random_costs(2, 1, 60)
    tolerance = 1e-3
    beam = soft_beam(
        toy, costs, k=3, alpha=6.0, eos=eos, form=Form(candidates=30, tolerance=tolerance)
    )
    assert (beam.dropped > 0).all() and (beam.dropped <= tolerance).all()
    scores, _ = toy.step(*toy.start())
    p = soft_topk(scores[:, None], 3, 6.0)[1][:, :, 0]
    best = p.sort(-1, descending=True).values
    diagnosed = soft_beam(
        toy,
        costs,
        k=3,
        alpha=6.0,
        eos=eos,
        form=Form(candidates=30, tolerance=tolerance, diagnostics=True),
    )
    size = diagnosed.p.shape[-1] - (eos is not None)
    chosen = scores.topk(size).indices[:, None].expand(-1, 3, -1)
    outside = 1 - p.gather(-1, chosen).sum(-1)
    assert size < 60 and (outside.amax(-1) <= beam.dropped + 1e-15).all()
    assert (best[..., :size].sum(-1) >= 1 - tolerance).all()


def test_a_flat_distribution_falls_back_to_the_dense_form():
    toy, costs = ReadoutToy(vocab=60), random_costs(1, 3, 60)
    beam = soft_beam(toy, costs, k=3, alpha=1e-3, form=Form(candidates=20))
    torch.testing.assert_close(beam.dropped, torch.zeros(1, dtype=torch.float64))
    reference = soft_beam(toy, costs, k=3, alpha=1e-3, form=REFERENCE)
    torch.testing.assert_close(beam.score, reference.score)


def test_by_default_large_vocabularies_are_pooled_and_small_ones_are_not():
    for vocab, pooled in ((100, False), (200, True)):
        toy, costs = ReadoutToy(vocab=vocab, scale=6.0), random_costs(1, 2, vocab)
        for form, expected in ((Form(), pooled), (Form(candidates=vocab), False)):
            beam = soft_beam(toy, costs, k=2, alpha=9.0, form=form)
            assert bool(beam.dropped.any()) == expected


@decoders
@endings
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("alpha,candidates", [(20.0, 6), (4.0, 9)])
def test_only_sentences_that_need_more_cells_than_the_pool_take_all(
    kind, eos, normalize, alpha, candidates, monkeypatch
):
    """One of five sentences is flat and takes all cells; a step's values and gradients agree."""
    sizes: dict[str, list[int]] = {}
    for step in (fast.dense_step, fast.pooled_step):

        def spied(task, before, *args, step=step):
            sizes.setdefault(step.__name__, []).append(len(before.score))
            return step(task, before, *args)

        monkeypatch.setattr(fast, step.__name__, spied)
    toy, costs = kind(vocab=40, batch=5, scale=3.0), random_costs(5, 6, 40)
    form = Form(candidates=candidates, tolerance=1e-9)
    options = {"k": 3, "alpha": alpha, "eos": eos, "lengths": torch.tensor([6, 3, 5, 6, 4])}
    assert_equal_to_reference(toy, costs, form=form, normalize=normalize, **options)
    assert set(sizes["pooled_step"]) == {5}
    assert any(0 < n < 5 for n in sizes["dense_step"]), "some sentences of a step"
    sizes.clear()
    assert_equal_to_reference(
        toy, costs, form=Form(candidates=candidates, tolerance=1e-9, checkpoint=True), **options
    )
    assert any(0 < n < 5 for n in sizes["dense_step"])


@pytest.mark.parametrize(
    "alpha,expected",
    [(100.0, [8] * 5), (30.0, [8] * 5 + [24] * 3), (4.0, [8] * 2 + [24] * 5 + [0])],
)
def test_elsewhere_only_the_steps_after_the_last_good_one_are_repeated(
    alpha, expected, monkeypatch
):
    """On a device the size of a pool is fixed; its bound is read after two steps and after all."""
    torch.manual_seed(0)
    model, costs = bench.LstmModel(60, hidden=6, batch=2), random_costs(2, 5, 60).float()
    with torch.no_grad():
        model.sharpen(30.0)
        plain = soft_beam_loss(model.bound(), costs, k=3, alpha=alpha, form=REFERENCE)
    sizes = []

    def noted(task, *args, scores=fast.local_scores):
        sizes.append(task.pool)
        return scores(task, *args)

    monkeypatch.setattr(fast, "local_scores", noted)
    with pretended_device() as device:
        model, model.source = model.to(device), model.source.to(device)
        form = Form(candidates=8)
        loss = soft_beam_loss(model.bound(), costs.to(device), k=3, alpha=alpha, form=form)
        torch.testing.assert_close(loss.detach().cpu(), plain, rtol=1e-4, atol=1e-4)
    assert sizes == expected


def test_a_small_alpha_in_float32():
    """Filler is far below all scores, also where its score must be divided by alpha."""
    toy, costs = ReadoutToy(vocab=6, batch=2).float(), random_costs(2, 3, 6).float()
    lengths = torch.tensor([1, 3])
    for form in (Form(), REFERENCE):
        beam = soft_beam(toy, costs, k=8, alpha=0.01, lengths=lengths, form=form)
        assert beam.real[0].sum() == 6 and beam.real[1].all()
        weights = (0.01 * beam.score[0, :6]).softmax(0)
        expected = (weights * beam.cost[0, :6]).sum()
        torch.testing.assert_close(expected_cost(beam, 0.01)[0], expected)


def test_products_of_a_packed_table_are_those_of_the_table():
    table = SharedTable(torch.randn(5000, 8), torch.randn(5000))
    rows = torch.randn(3, 16)[:, :8]
    assert table.bias is not None
    first, second = table.product(rows), table.product(rows)
    torch.testing.assert_close(first, rows @ table.table.T + table.bias)
    torch.testing.assert_close(second, first)


@decoders
@endings
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("candidates", [None, 20])
def test_cost_augmented_forms_equal_the_reference(kind, eos, normalize, candidates):
    toy, costs = kind(vocab=30, batch=2, scale=3.0), random_costs(2, 3, 30)
    form = Form(candidates=candidates, tolerance=1e-9)
    assert_equal_to_reference(
        toy,
        costs,
        form=form,
        normalize=normalize,
        k=3,
        alpha=9.0,
        eos=eos,
        cost_scale=0.7,
        maximum=True,
    )


@endings
@pytest.mark.parametrize("candidates", [None, 20])
@pytest.mark.parametrize("options", [{"score": "hard"}, {"detach_threshold": True}])
def test_options_mean_the_same_in_every_form(eos, candidates, options):
    toy, costs = ReadoutToy(vocab=30, batch=2, scale=3.0), random_costs(2, 3, 30)
    form = Form(candidates=candidates, tolerance=1e-9, **options)
    assert_equal_to_reference(toy, costs, form=form, k=3, alpha=9.0, eos=eos)


@endings
@pytest.mark.parametrize("candidates", [None, 4])
def test_a_second_backward_pass_gives_the_same_gradients(eos, candidates):
    """What a table gathered in one pass must not leak into the next, complete or not."""
    toy, costs = ReadoutToy(vocab=6, batch=2), random_costs(2, 3, 6)
    form = Form(candidates=candidates, tolerance=0.9)
    loss = soft_beam_loss(toy, costs, k=2, alpha=1.0, eos=eos, form=form).sum()
    some = torch.autograd.grad(loss, [toy.bos], retain_graph=True)
    first = torch.autograd.grad(loss, list(toy.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(toy.parameters()))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(some[0], first[[n for n, _ in toy.named_parameters()].index("bos")])


@pytest.mark.parametrize("frozen", ["E", "out"])
def test_frozen_tables_get_no_gradient_and_the_rest_does(frozen):
    toy, costs = ReadoutToy(vocab=6, batch=2), random_costs(2, 3, 6)
    for form in (REFERENCE, Form(), Form(candidates=4, tolerance=0.9)):
        getattr(toy, frozen).requires_grad_(False)
        toy.zero_grad()
        soft_beam_loss(toy, costs, k=2, alpha=1.0, form=form).sum().backward()
        for name, value in toy.named_parameters():
            assert (value.grad is None) == (name == frozen)


@pytest.mark.parametrize("candidates", [None, 4])
def test_very_large_alpha_in_float32_is_hard(candidates):
    toy, costs = ReadoutToy(vocab=6, batch=2).float(), random_costs(2, 3, 6).float()
    form = Form(candidates=candidates)
    for shift in (0.0, 1000.0):
        with torch.no_grad():
            toy.out_bias.add_(shift)
        fast, plain = (
            soft_beam_loss(toy, costs, k=3, alpha=1e12, form=f) for f in (form, REFERENCE)
        )
        torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-3)


@endings
@pytest.mark.parametrize("candidates", [None, 4])
@pytest.mark.parametrize("options", [{"score": "soft"}, {"score": "hard"}])
@pytest.mark.parametrize("normalize", [False, True])
def test_gradcheck_of_the_final_scores_and_costs(eos, candidates, options, normalize):
    """A pool is a function of its own, whatever mass it leaves out."""
    toy, costs = ReadoutToy(vocab=6, batch=2, hidden=3, scale=2.0), random_costs(2, 3, 6)
    decoder = LocallyNormalized(toy) if normalize else toy
    form = Form(candidates=candidates, tolerance=1.0, **options)

    def final(*values):
        beam = soft_beam(decoder, costs, k=2, alpha=0.7, eos=eos, form=form)
        return torch.cat([beam.score, beam.cost, beam.finished])

    assert torch.autograd.gradcheck(final, tuple(toy.parameters()), fast_mode=True)


def test_nothing_of_the_size_of_p_is_kept_between_steps():
    """The largest tensor saved for backward is a step's scores, not beam times as many."""
    toy, costs = ReadoutToy(vocab=50, batch=2), random_costs(2, 4, 50)
    sizes = {}
    for name, form in (("dense", Form()), ("reference", REFERENCE)):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(t.numel()) or t, lambda t: t
        ):
            soft_beam_loss(toy, costs, k=3, alpha=0.5, form=form)
        sizes[name] = max(kept)
    assert sizes["reference"] == 2 * 3 * 3 * 50
    assert sizes["dense"] == 2 * 3 * 50


@pytest.mark.parametrize("vocab,n", [(5, 5), (1000, 3), (1284, 60), (5000, 16), (8013, 64)])
def test_the_best_cells_are_those_of_topk(vocab, n):
    g = torch.Generator().manual_seed(n)
    scores, offset = torch.randn(6, vocab, generator=g), torch.randn(2, 3, generator=g)
    expected = (scores.view(2, 3, vocab) + offset[..., None]).flatten(1).topk(n)
    s, index = best_cells(scores, offset, n)
    torch.testing.assert_close(s, expected.values)
    torch.testing.assert_close(index, expected.indices)


def test_decoders_show_their_output_layer():
    assert isinstance(ReadoutToy(vocab=4), ReadoutDecoder)
    assert not isinstance(ToyDecoder(vocab=4), ReadoutDecoder)
    decoder = bench.LstmModel(7, hidden=4, batch=2).bound()
    assert isinstance(decoder, ReadoutDecoder)
    target = torch.tensor([[1, 2, 3], [4, 5, 6]])
    torch.testing.assert_close(stepwise_scores(decoder, target), decoder.forced(target))


@pytest.mark.slow
def test_the_benchmark_reports_every_form(monkeypatch):
    monkeypatch.setattr(bench, "in_child", lambda *_, **__: {"peak_mb": 1.0})  # of a process
    monkeypatch.setattr(bench, "Case", partial(bench.Case, batch=2, steps=3))
    out = bench.run(vocab=(10,), k=(2,), repeats=1)
    (row,) = out["rows"]
    for key in ("ce_s", "reference_s", "dense_s", "pooled_s", "dense_ratio", "dropped_bound"):
        assert row[key] >= 0
    assert set(row["peak_mb"]) == set(bench.FORMS)
    json.dumps(out)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [None, 8])
@endings
def test_more_steps_wait_no_more_often_for_the_device(candidates, eos):
    """The loop over steps synchronizes nothing; what is checked is checked before or after it."""
    counts = []
    with pretended_device() as device:
        model = bench.LstmModel(40, hidden=4, batch=2).to(device)
        model.source = model.source.to(device)
        form = Form(candidates=candidates, tolerance=1.0)
        for time in (4, 9):
            costs = torch.rand(2, time, 40).to(device)
            counts.append(
                count_synchronizations(
                    lambda costs=costs: (
                        soft_beam_loss(model.bound(), costs, k=3, alpha=2.0, eos=eos, form=form)
                        .sum()
                        .backward()
                    ),
                    device=NAME,
                )
            )
    assert counts[0] == counts[1] <= 8
