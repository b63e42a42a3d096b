"""The baselines as objectives: padding, order, gradients, randomness, configurations."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softbeam.models.lstm import Seq2Seq
from softbeam.objectives.hard_beam import BeamCrf, BeamSearchOptimization
from softbeam.objectives.likelihood import CrossEntropy, Distillation
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.runtime.allowed import allowing
from softbeam.schedules import Constant, Linear, Moment
from softbeam.training.config import RunConfig, Stage, from_yaml, modules_of, to_yaml
from support.objective_toys import EOS, START, Fixed, batch_of, build, call, rows_of, toy_batch
from support.toys import ToyDecoder, plain_beam, score, sequences, step_scores


def teacher_at(folder: Path) -> Seq2Seq:
    return build(seed=int(folder.name))


class MissedLetters(Reinforce):
    """An objective with a user's own cost."""

    def sentence_cost(self, predicted, gold) -> float:
        return float(len(set(gold) - set(predicted)))


TEACHER = Distillation(teacher=Path("5"), temperature=2.0).loaded(teacher_at)
CERTAIN = [  # no random choice
    BeamSearchOptimization(k=3),
    BeamSearchOptimization(k=4, finish=True, extra=2, delta="edit", normalize=True),
    BeamCrf(k=6),
    BeamCrf(k=6, finish=True, extra=1, cross_entropy=0.3),
    MinimumRisk(n=5, include_gold=True),
    MinimumRisk(n=4, metric="bleu", finish=True, extra=2, normalize=False),
    TEACHER,
]
RANDOM = [
    MinimumRisk(candidates="sample", n=6, metric="edit", finish=True, extra=1),
    Reinforce(baseline="none"),
    MissedLetters(baseline="running", finish=True, extra=2),
    Reinforce(baseline="greedy", gold_steps=Constant(value=2.0), cross_entropy=0.1),
]


def named(objective) -> str:
    return type(objective).__name__


@pytest.mark.parametrize("objective", CERTAIN + RANDOM, ids=named)
def test_gradient_reaches_every_parameter(objective):
    model = build(attention="bahdanau")
    loss = call(objective, model, batch_of([4, 3, 5]))
    assert loss.total.isfinite() and loss.size == 12
    assert all(isinstance(value, float) for value in loss.log.values())
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("objective", CERTAIN, ids=named)
@pytest.mark.parametrize("attention", ["fixed", "bahdanau"])
def test_a_sentence_has_the_same_loss_and_gradient_alone_and_in_a_batch(objective, attention):
    model, lengths = build(attention=attention), [2, 5, 3]
    whole = batch_of(lengths)
    rows = [rows_of(whole, [i], n) for i, n in enumerate(lengths)]

    def gradients(batch):
        total = call(objective, model, batch).total
        found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        zeros = [torch.zeros_like(p) for p in model.parameters()]
        return [total, *(z if g is None else g for g, z in zip(found, zeros, strict=True))]

    together, alone = gradients(whole), [gradients(row) for row in rows]
    for values in zip(together, *alone, strict=True):
        torch.testing.assert_close(values[0], sum(values[1:]))
    order = torch.tensor([2, 0, 1])
    moved = gradients(rows_of(whole, order))
    for one, two in zip(together, moved, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("objective", RANDOM, ids=named)
def test_same_seed_same_loss(objective):
    batch = batch_of([4, 5, 6])
    one, two, other = (call(objective, build(), batch, seed).total for seed in (3, 3, 4))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_cross_entropy_is_added_by_its_weight():
    model, batch = build(), batch_of([4, 3])
    plain, mixed = (BeamCrf(k=3, cross_entropy=weight) for weight in (0.0, 0.25))
    expected = call(plain, model, batch).total + 0.25 * call(CrossEntropy(), model, batch).total
    torch.testing.assert_close(call(mixed, model, batch).total, expected)


def test_outputs_that_run_on_are_rivals_only_with_extra_steps():
    """The CRF over a whole space: with `extra`, also the outputs longer than gold."""
    decoder, gold = ToyDecoder(vocab=3, seed=3), [2, EOS]
    for extra in (0, 1, 2):
        found = call(BeamCrf(k=60, finish=True, extra=extra), Fixed(decoder), toy_batch(gold)).total
        scores = [score(decoder, s, normalize=False) for s in sequences(3, len(gold) + extra, EOS)]
        z = torch.tensor(scores, dtype=torch.float64).exp().sum().log().item()
        assert found.item() == pytest.approx(z - score(decoder, (2, EOS), normalize=False))


def test_minimum_risk_of_a_beam_by_plain_loops():
    """n-best of plain beam search, weighed by hand; a sentence counts as often as its tokens."""
    decoder, gold = ToyDecoder(vocab=5, seed=1), [2, 3, 4, EOS]
    for include in (False, True):
        objective = MinimumRisk(n=3, sharpness=0.5, include_gold=include, finish=True, extra=1)
        found = call(objective, Fixed(decoder), toy_batch(gold))
        outputs = {s for _, s in plain_beam(decoder, 3, 5, eos=EOS)} | (
            {tuple(gold)} if include else set()
        )
        weights = {s: 2.718281828459045 ** (0.5 * score(decoder, s)) for s in outputs}
        risk = 0.0
        for s, weight in weights.items():
            right = sum(a == b for a, b in zip(s, gold, strict=False))
            risk += weight / sum(weights.values()) * (1 - right / max(len(s), 4))
        assert found.total.item() == pytest.approx(4 * risk)
        assert found.log["candidates"] == 3 + include


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["none", "running", "greedy"])
@pytest.mark.parametrize("gold_steps", [0, 1])
def test_the_mean_reinforce_gradient_is_that_of_the_expected_cost(baseline, gold_steps):
    """Many samples within 4 standard errors of enumeration, whatever the baseline."""
    rows, calls, gold = 50, 60, [2, 0]
    decoder = ToyDecoder(vocab=3, batch=rows, seed=6)
    decoder.memory.data[:] = decoder.memory.data[:1]
    objective = Reinforce(baseline=baseline, gold_steps=Constant(value=float(gold_steps)))
    model, batch, rng = Fixed(decoder), toy_batch(gold, rows), torch.Generator().manual_seed(1)
    found = []
    for _ in range(calls):
        total = objective(model, batch, now=START, rng=rng).total / rows
        found.append(torch.autograd.grad(total, decoder.out_bias)[0])
    wanted = torch.zeros((), dtype=torch.float64)
    for a, b in sequences(3, 2):
        first = step_scores(decoder, ()).softmax(-1)[a]
        second = step_scores(decoder, (a,)).softmax(-1)[b]
        if gold_steps == 0:
            wanted = wanted + first * second * ((a != 2) + (b != 0))
        elif a == 2:
            wanted = wanted + second * float(b != 0)
    if gold_steps:
        wanted = wanted - step_scores(decoder, ()).log_softmax(-1)[2]  # gold by cross-entropy
    gradient = torch.autograd.grad(wanted, decoder.out_bias)[0]
    each = torch.stack(found)
    error = each.std(0) / calls**0.5
    assert (each.mean(0) - gradient).abs().le(4 * error).all()
    assert (gradient.abs() > 4 * error).any(), "the test must be able to tell from zero"


def test_the_running_mean_remembers_earlier_batches_of_its_model_only():
    model, batch = build(), batch_of([4, 5])
    objective = Reinforce(baseline="running", momentum=0.5)
    first, second, third = (call(objective, model, batch, seed).log for seed in (1, 2, 3))
    assert first["baseline"] == 0.0 and second["baseline"] == pytest.approx(first["cost"])
    assert third["baseline"] == pytest.approx((first["cost"] + second["cost"]) / 2)
    assert call(objective, build(), batch).log["baseline"] == 0.0


def test_mixer_with_all_steps_gold_is_cross_entropy():
    model, batch = build(), batch_of([4, 5, 2])
    objective = Reinforce(gold_steps=Linear(start=6.0, slope=-2.0), finish=True, extra=2)
    all_gold = call(objective, model, batch)
    torch.testing.assert_close(all_gold.total, call(CrossEntropy(), model, batch).total)
    later = call(objective, model, batch, now=Moment(epoch=3))
    assert all_gold.log["gold_steps"] == 6.0 and later.log["gold_steps"] == 0.0
    assert all_gold.log["cost"] == 0.0


def test_a_student_equal_to_its_teacher_has_nothing_to_learn():
    batch = batch_of([4, 5])
    loss = call(TEACHER, teacher_at(Path("5")), batch)
    assert loss.total.item() == pytest.approx(0.0, abs=1e-12)
    assert call(TEACHER, build(seed=1), batch).total.item() > 0
    teacher = TEACHER.frozen
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    with pytest.raises(ValueError, match="teacher=5 has not been loaded"):
        call(Distillation(teacher=Path("5")), build(), batch)


def test_a_teacher_of_other_outputs_is_refused():
    objective = Distillation(teacher=Path("x")).loaded(lambda _: Seq2Seq(9, 8, hidden=6).double())
    with pytest.raises(ValueError, match="8 outputs, not 7"):
        call(objective, build(), batch_of([3]))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (MinimumRisk, {"candidates": "both"}),
        (MinimumRisk, {"metric": "rouge"}),
        (Reinforce, {"baseline": "mean"}),
    ],
)
def test_unknown_choices_are_refused(kind, wrong):
    """By the types where they are checked, else when called."""
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong.values()))):
        call(kind(**wrong), build(), batch_of([3]))


@pytest.mark.slow
@pytest.mark.parametrize("objective", CERTAIN + RANDOM, ids=named)
def test_configurations_survive_their_file(objective, tmp_path):
    config = RunConfig(finetune=Stage(objective=objective))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    with allowing(modules_of(config)):  # one class is of this file
        assert from_yaml(tmp_path / "config.yaml") == config


def test_the_knobs_load_without_torch():
    code = "import sys, softbeam.objectives.hard_beam; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "left"),
    [
        (BeamSearchOptimization(k=3), 0.5),
        (BeamCrf(k=3), 0.5),
        (MinimumRisk(n=4, include_gold=True), 0.5),
        (MinimumRisk(candidates="sample", n=6), 0.5),
        (Reinforce(baseline="greedy"), 0.75),  # without a warm start it commits early
    ],
)
def test_a_small_batch_is_learned(objective, left):
    """From random weights, 60 updates leave at most this share of the greedy outputs' errors."""
    torch.manual_seed(0)
    model = Seq2Seq(9, 7, embedding=8, hidden=12)
    batch, rng = batch_of([4, 5, 3, 4]), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    judge = MinimumRisk(n=1, normalize=False)

    def errors() -> float:
        with torch.no_grad():
            return call(judge, model, batch).total.item()

    before = errors()
    for update in range(60):
        optimizer.zero_grad()
        loss = objective(model, batch, now=Moment(update=update), rng=rng)
        (loss.total / loss.size).backward()
        optimizer.step()
    assert before >= 8 and errors() <= left * before
