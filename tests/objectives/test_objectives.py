"""Search-aware objectives: limits, bounds, padding, schedules, and what they log."""

from dataclasses import replace

import pytest
import torch

from softbeam.data.batches import Encoded, collate
from softbeam.objectives.base import run_on
from softbeam.objectives.costs import Cost, DoubledO, Hamming, Windowed
from softbeam.objectives.likelihood import CrossEntropy, SelfNormalized
from softbeam.objectives.losses import feedback
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, HardHinge, SoftHinge, gold_score
from softbeam.schedules import Constant, InverseSigmoid, Linear, Moment
from softbeam.search.decoders import LocallyNormalized, forced_scores
from softbeam.search.soft.form import Form
from softbeam.training.config import Stage, from_text, to_json, to_yaml
from softbeam.training.recipes import tagging
from support.objective_toys import EOS, Fixed, batch_of, build, call, rows_of, toy_batch
from support.toys import ToyDecoder, plain_beam, score

OBJECTIVES = [
    ScheduledSampling(gold=Constant(value=0.3), gold_epochs=0),
    *(
        ScheduledSampling(feedback=name, gold=Constant(value=0.0), gold_epochs=0)
        for name in ("gumbel_soft_sample", "straight_through_argmax", "straight_through_sample")
    ),
    DirectLoss(k=3),
    DirectLoss(k=2, normalize=False, cross_entropy=0.5),
    DirectLoss(k=3, finish=True, extra=2, cost=Windowed()),
    SoftHinge(k=3),
    HardHinge(k=3),
]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("normalize", [True, False])
def test_direct_loss_tends_to_the_errors_of_the_hard_beam(k, normalize):
    for seed in range(3):
        decoder = ToyDecoder(vocab=5, seed=seed)
        batch = toy_batch([2, 3, 1, 4])
        objective = DirectLoss(k=k, alpha=Constant(value=1e7), normalize=normalize)
        found = call(objective, Fixed(decoder), batch).total
        best = plain_beam(decoder, k, 4, normalize=normalize)[0][1]
        wrong = sum(a != b for a, b in zip(best, [2, 3, 1, 4], strict=True))
        assert found.item() == pytest.approx(wrong, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_direct_loss_with_an_end_charges_for_the_lengths_difference(seed):
    """Carried forward, an output that ends early pays for the positions it leaves out."""
    decoder, target = ToyDecoder(vocab=5, seed=seed), [2, 3, 4, EOS]
    objective = DirectLoss(k=3, alpha=Constant(value=1e7), finish=True, extra=2)
    found = call(objective, Fixed(decoder), toy_batch(target)).total
    best = [*plain_beam(decoder, 3, 6, eos=EOS)[0][1]]
    padded = best + [0] * (6 - len(best))
    wrong = sum(a != b for a, b in zip(padded, [*target, 0, 0], strict=True))
    assert found.item() == pytest.approx(wrong, abs=1e-6)


@pytest.mark.parametrize("kind", [SoftHinge, HardHinge])
def test_hinges_tend_to_the_hard_margin(kind):
    decoder, target = ToyDecoder(vocab=3, seed=1), (2, 0, 1)
    objective = kind(k=30, alpha=Constant(value=1e7))
    found = call(objective, Fixed(decoder), toy_batch(list(target))).total.item()
    gold = score(decoder, target)
    worst = max(
        score(decoder, (a, b, c)) + (a != 2) + (b != 0) + (c != 1)
        for a in range(3)
        for b in range(3)
        for c in range(3)
    )
    assert found == pytest.approx(max(0.0, worst - gold), abs=1e-6)


def test_the_hinge_bounds_the_errors_of_a_wide_hard_beam_and_reaches_zero():
    """As wide as the space: hinge >= cost of the best output; 0 once gold wins by its margin."""
    for seed in range(5):
        decoder, target = ToyDecoder(vocab=3, seed=seed), [2, 0, 1]
        hinge = call(SoftHinge(k=27, alpha=Constant(value=1e6)), Fixed(decoder), toy_batch(target))
        cost = call(DirectLoss(k=27, alpha=Constant(value=1e6)), Fixed(decoder), toy_batch(target))
        assert hinge.total.item() >= cost.total.item() - 1e-6
    decoder = ToyDecoder(vocab=3, seed=0)
    decoder.out.data.zero_()
    decoder.out_bias.data = torch.tensor([-50.0, -50.0, 50.0], dtype=torch.float64)
    sure = call(SoftHinge(k=3, alpha=Constant(value=5.0)), Fixed(decoder), toy_batch([2, 2, 2]))
    assert sure.total.item() == 0.0 and sure.log["hinge_zero"] == 1.0


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_gradient_reaches_every_parameter(objective):
    model = build(attention="bahdanau")
    loss = call(objective, model, batch_of([4, 3, 5]))
    assert loss.total.isfinite() and loss.size == 12
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("objective", [o for o in OBJECTIVES[4:]], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("attention", ["fixed", "bahdanau"])
def test_a_sentence_has_the_same_loss_and_gradient_alone_and_in_a_batch(objective, attention):
    model, lengths = build(attention=attention, encoder="bi"), [2, 5, 3]
    whole = batch_of(lengths)
    rows = [rows_of(whole, [i], n) for i, n in enumerate(lengths)]

    def gradients(batch):
        total = call(objective, model, batch).total
        return [total, *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)]

    together, alone = gradients(whole), [gradients(row) for row in rows]
    for i, value in enumerate(together):
        if value is not None:
            torch.testing.assert_close(value, sum(a[i] for a in alone if a[i] is not None))


def test_self_normalization_penalizes_log_z_of_real_tokens_alone():
    model, batch = build(), batch_of([4, 2])
    plain = call(CrossEntropy(), model, batch).total
    found = call(SelfNormalized(penalty=0.3), model, batch)
    scores, expected = forced_scores(model(batch.source), batch.target), 0.0
    log_z = [scores[i, t].exp().sum().log().item() for i, n in enumerate([4, 2]) for t in range(n)]
    expected = plain.item() + 0.3 * sum(z * z for z in log_z)
    assert found.total.item() == pytest.approx(expected)
    assert found.log["log_z_mean"] == pytest.approx(sum(log_z) / 6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_interpolation_adds_cross_entropy(smoothing):
    model, batch = build(), batch_of([4, 3])
    plain, mixed = DirectLoss(k=2), DirectLoss(k=2, cross_entropy=0.25, smoothing=smoothing)
    gold = call(CrossEntropy(smoothing=smoothing), model, batch).total
    expected = call(plain, model, batch).total + 0.25 * gold
    torch.testing.assert_close(call(mixed, model, batch).total, expected)


def test_the_target_score_is_a_plain_sum():
    decoder, target = ToyDecoder(vocab=5, seed=2), (2, 3, 4)
    found = gold_score(LocallyNormalized(decoder), toy_batch(list(target)))
    assert found.item() == pytest.approx(score(decoder, target))


def test_running_on_adds_padding_as_gold():
    longer = run_on(batch_of([3, 2]), 2)
    assert longer.target.shape == (2, 5) and longer.target[1].tolist()[2:] == [0, 0, 0]
    assert longer.mask.sum(1).tolist() == longer.ends.lengths.tolist() == [5, 4]


class Flat(Cost):
    """A cost of a user's own, of a wrong shape."""

    def __call__(self, batch, vocab):
        return torch.ones(2)


def test_a_cost_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="a cost must have the shape .2, 3, 7., not .2,."):
        call(DirectLoss(cost=Flat()), build(), batch_of([2, 3]))


def test_costs():
    batch = collate([Encoded([1, 1, 1], [2, 0, 3]), Encoded([1], [0])])
    cost = Hamming()(batch, 4)
    assert cost[0, 0].tolist() == [1, 1, 0, 1] and cost[1, 1].tolist() == [0, 0, 0, 0]
    doubled = DoubledO(label=0)(batch, 4)
    assert doubled[0, 0].tolist() == [2, 1, 0, 1] and doubled[0, 1].tolist() == [0, 1, 1, 1]
    near = Windowed(width=1, penalty=0.5)(batch, 4)
    assert near[0, 0].tolist() == [0.5, 1, 0, 1] and near[0, 1].tolist() == [0, 1, 0.5, 0.5]
    assert near[1, 0].tolist() == [0, 1, 1, 1], "no neighbour: plain Hamming"


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (Constant(value=0.7), 0.7),
        (Constant(value=0.0), 0.0),
        (Linear(start=1.0, slope=-0.2), 0.4),
        (InverseSigmoid(k=2.0), 2 / (2 + 2.718281828**1.5)),
    ],
)
@pytest.mark.parametrize("per", ["token", "step", "sequence"])
def test_the_expected_gold_fraction_of_each_schedule(gold, expected, per):
    objective = ScheduledSampling(gold=gold, per=per)
    batch, rng = batch_of([6] * 8), torch.Generator().manual_seed(0)
    drawn = torch.stack([objective.coins(batch, gold(Moment(epoch=3)), rng) for _ in range(800)])
    fraction = drawn.double().mean()
    independent = {"token": 48, "step": 6, "sequence": 8}[per] * 800
    error = (expected * (1 - expected) / independent) ** 0.5
    assert abs(fraction.item() - expected) <= 4 * error + 1e-12
    assert drawn.shape == (800, 8, 6)
    if per == "step":
        assert (drawn == drawn[:, :1]).all()
    if per == "sequence":
        assert (drawn == drawn[:, :, :1]).all()


def test_the_first_epoch_is_gold_and_the_realised_fraction_is_logged():
    model, batch = build(), batch_of([4, 5])
    objective = ScheduledSampling(gold=Constant(value=0.0), gold_epochs=1)
    first = call(objective, model, batch, now=Moment(epoch=0))
    torch.testing.assert_close(first.total, call(CrossEntropy(), model, batch).total)
    assert first.log["gold_realised"] == 1.0
    second = call(objective, model, batch, now=Moment(epoch=1))
    assert second.log["gold_realised"] == 0.0 and not torch.equal(first.total, second.total)


def test_own_predictions_fed_back_are_the_greedy_path():
    decoder = ToyDecoder(vocab=5, batch=3, seed=2)
    never = torch.zeros(3, 4, dtype=torch.bool)
    target = torch.randint(0, 5, (3, 4))
    scores = feedback.mixed_scores(
        decoder, target, never, feedback=feedback.hard_argmax, alpha=1.0, rng=torch.Generator()
    )
    own = scores.argmax(-1)
    torch.testing.assert_close(scores, forced_scores(decoder, own))


def test_same_seed_same_loss():
    model, batch = build(), batch_of([4, 5])
    objective = ScheduledSampling(
        feedback="gumbel_soft_sample", gold=Constant(value=0.5), gold_epochs=0
    )
    one, two = (call(objective, model, batch, seed=3).total for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, call(objective, model, batch, 4).total)


def test_diagnostics_come_with_the_logged_updates():
    model, batch = build(), batch_of([4, 5])
    objective = DirectLoss(k=2, diagnose_every=10)
    logged = call(objective, model, batch, now=Moment(update=9)).log
    assert {"beam_entropy", "beam_overlap", "beam_dropped", "alpha"} <= set(logged)
    assert logged["beam_entropy"] > 0 and 0 <= logged["beam_overlap"] <= 1
    assert "beam_entropy" not in call(objective, model, batch, now=Moment(update=10)).log


def test_the_penalty_beside_a_soft_beam_is_that_of_the_self_normalized_objective():
    """Summed over real tokens: what SelfNormalized has more than CrossEntropy, weighted."""
    model, batch = build(attention="bahdanau"), batch_of([4, 2, 5])
    plain = call(DirectLoss(k=2, normalize=False), model, batch)
    both = call(
        DirectLoss(k=2, normalize=False, cross_entropy=0.5, log_z_penalty=0.2), model, batch
    )
    gold = call(CrossEntropy(), model, batch).total
    penalty = call(SelfNormalized(penalty=1.0), model, batch).total - gold
    torch.testing.assert_close(both.total, plain.total + 0.5 * gold + 0.2 * penalty)
    assert penalty > 0 and "log_z_mean" in both.log


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_gold_on_beam_is_the_share_of_targets_that_a_plain_beam_finds(k, finish):
    batch = batch_of([1, 2, 3, 2, 1, 2], seed=4)
    model = build(attention="bahdanau")
    objective = DirectLoss(k=k, finish=finish, diagnose_every=1, extra=1 if finish else 0)
    found = []
    for row, length in enumerate(batch.ends.lengths.tolist()):
        alone = rows_of(batch, [row], length)
        gold, time = tuple(alone.target[0].tolist()), length + (1 if finish else 0)
        paths = plain_beam(model(alone.source), k, time, eos=EOS if finish else None)
        found.append(gold in [path for _, path in paths])
    log = call(objective, model, batch).log
    assert log["gold_on_beam"] == pytest.approx(sum(found) / len(found))
    assert 0 < sum(found) or k == 1


def test_a_form_is_a_setting_of_a_run():
    form = Form(checkpoint=True, detach_threshold=True)
    config = replace(tagging(), finetune=Stage(objective=DirectLoss(k=2, form=form), epochs=1))
    assert from_text(to_yaml(config)) == config
    plain = replace(config, finetune=Stage(objective=DirectLoss(k=2), epochs=1))
    assert "form" in to_json(config) and "form" not in to_json(plain), "as identities of before"
