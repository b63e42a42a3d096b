"""The Transformer: torch's own layers, and a cache that can be gathered and mixed."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from softbeam.cli.train import parse_run
from softbeam.data.tasks import Translation
from softbeam.models.layers import TransformerShape
from softbeam.models.specs import Transformer
from softbeam.models.transformer import TransformerSeq2Seq
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.losses import feedback
from softbeam.objectives.scheduled_sampling import ScheduledSampling, TwoPassScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, SoftHinge
from softbeam.schedules import Constant, Moment
from softbeam.search.decoders import (
    LocallyNormalized,
    fed_scores,
    forced_scores as forced,
    stepwise_scores as stepwise,
)
from softbeam.search.hard import beam_search
from softbeam.search.soft.form import REFERENCE, Form
from softbeam.search.soft.loop import soft_beam_loss
from softbeam.tensors import mix
from softbeam.training.config import RunConfig, Stage
from softbeam.training.loop import train
from softbeam.training.searches import Beam
from softbeam.types import FedDecoder
from support import conformance
from support.objective_toys import batch_of, call, rows_of
from support.small_data import examples
from support.torch_layers import twins

KINDS = [{}, {"norm_first": False, "layers": 1}]
kinds = pytest.mark.parametrize("options", KINDS, ids=["before", "after"])
SOURCE = torch.tensor([[3, 4, 5, 6], [6, 2, 0, 0]])


def build(options: dict | None = None, seed: int = 0) -> TransformerSeq2Seq:
    torch.manual_seed(seed)
    sizes = {"width": 6, "layers": 2, "heads": 2, "hidden": 8, "longest": 12} | (options or {})
    made = TransformerSeq2Seq(9, 7, TransformerShape(dropout=0.0, **sizes))
    for parameter in made.parameters():  # far from uniform
        nn.init.normal_(parameter, std=0.7)
    return made.double().eval()


# Layers


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_is_torchs_decoder_layer_with_a_causal_mask(norm_first):
    layer, theirs = twins(norm_first)
    x, y = torch.randn(3, 5, 8).double(), torch.randn(3, 4, 8).double()
    seen = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    later = torch.ones(5, 5).triu(1).bool()
    gold = theirs(x, y, tgt_mask=later, memory_key_padding_mask=~seen)
    memory, cache = layer.remember(y, seen), layer.attention.empty(3)
    torch.testing.assert_close(layer.extend(x, cache, memory)[0], gold)
    first, cache = layer.extend(x[:, :2], cache, memory)
    rest, cache = layer.extend(x[:, 2:], cache, memory)
    torch.testing.assert_close(torch.cat([first, rest], 1), gold)
    assert cache.key.shape == (3, 2, 5, 4)


# The decoder


@kinds
def test_step_by_step_equals_all_at_once(options):
    decoder = build(options)(SOURCE)
    assert isinstance(decoder, FedDecoder)
    conformance.steps_equal_all_at_once(decoder, torch.tensor([[1, 2, 3, 4, 5, 6]] * 2))


@kinds
def test_gradients_are_those_of_all_steps_at_once(options):
    """Single steps add up the gradients of linear layers by themselves."""
    model, target = build(options), torch.tensor([[1, 2, 3], [4, 5, 6]])
    weights = torch.randn(2, 3, 7, dtype=torch.float64)
    losses = [(scores(model(SOURCE), target) * weights).sum() for scores in (stepwise, forced)]
    stepped, whole = (torch.autograd.grad(loss, list(model.parameters())) for loss in losses)
    torch.testing.assert_close(stepped, whole)


@kinds
def test_conforms(options):
    decoder = build(options)(SOURCE)
    conformance.a_beam_of_equal_rows_scores_equally(decoder)
    conformance.mixing_with_a_one_hot_gathers(decoder)
    conformance.own_predictions_fed_back_are_the_greedy_path(decoder, time=5)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("eos", [None, 2])
def test_soft_beams_tend_to_the_hard(options, eos):
    conformance.soft_beams_tend_to_the_hard(build(options)(SOURCE), time=3, eos=eos)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("eos", [None, 1])
def test_fast_soft_beams_equal_the_reference(options, eos):
    conformance.fast_soft_beams_equal_the_reference(build(options), SOURCE, [4, 2], eos)


@pytest.mark.slow
@pytest.mark.parametrize("form", [REFERENCE, Form()], ids=["reference", "fast"])
@pytest.mark.parametrize("eos", [None, 1])
def test_gradients_through_the_mixed_cache(form, eos):
    model = build({"layers": 1, "width": 4, "hidden": 4})
    costs = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(1)).double()

    def loss(*_):
        return soft_beam_loss(model(SOURCE), costs, k=2, alpha=0.5, eos=eos, form=form)

    knobs = {"check_undefined_grad": False, "fast_mode": True}  # along random directions
    assert torch.autograd.gradcheck(loss, [*model.parameters()], **knobs)


def test_a_mixed_cache_is_a_mixture_of_keys_and_values_position_by_position():
    decoder = build()(SOURCE[:1])
    state, emb = decoder.start()
    _, state = decoder.step(state, emb)
    three = tuple(type(c)(*(t.expand(3, -1, -1, -1) for t in c)) for c in state)
    _, three = decoder.step(three, decoder.embedding[[2, 3, 4]])
    weights = torch.tensor([[[0.2, 0.3, 0.5]]]).double()
    for before, after in zip(three, mix(three, weights), strict=True):
        for a, b in zip(before, after, strict=True):
            expected = sum(w * a[i] for i, w in enumerate(weights[0, 0]))
            torch.testing.assert_close(b[0], expected)


@pytest.mark.slow
@kinds
@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), extra=st.integers(0, 3))
def test_padding_never_changes_a_number(options, lengths, extra):
    conformance.padding_never_changes_a_number(build(options), examples(lengths), extra)


@kinds
def test_some_sources_can_be_left_out(options):
    batch = batch_of([5, 2, 4])
    conformance.some_sources_can_be_left_out(build(options)(batch.source), batch.target)


@kinds
def test_order_of_the_batch_does_not_matter(options):
    conformance.the_order_of_the_batch_does_not_matter(build(options), batch_of([2, 6, 4]))


OBJECTIVES = [
    CrossEntropy(),
    ScheduledSampling(gold=Constant(value=0.3), gold_epochs=0),
    TwoPassScheduledSampling(gold=Constant(value=0.3), gold_epochs=0),
    DirectLoss(k=3),
    DirectLoss(k=3, normalize=False, finish=True, extra=2),
    SoftHinge(k=2),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_gradient_reaches_every_parameter(objective):
    model = build({"longest": 7})
    loss = call(objective, model, batch_of([4, 3, 5]))
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("objective", OBJECTIVES[3:], ids=lambda o: type(o).__name__)
def test_a_sentence_has_the_same_loss_alone_and_in_a_batch(objective):
    model, lengths = build(), [2, 5, 3]
    whole = batch_of(lengths)
    rows = [rows_of(whole, [i], n) for i, n in enumerate(lengths)]
    alone = [call(objective, model, row).total for row in rows]
    torch.testing.assert_close(call(objective, model, whole).total, sum(alone))


def test_too_many_positions_are_refused():
    with pytest.raises(ValueError, match="13 positions; the model's limit is 12"):
        build()(torch.ones(1, 13).long())
    with pytest.raises(ValueError, match="13 positions; the model's limit is 12"):
        beam_search(build()(SOURCE), k=2, lengths=torch.tensor([13, 13]))


# Two-pass scheduled sampling


def both(decoder, target, gold, form=feedback.soft_argmax_embedding):
    knobs = {"feedback": form, "alpha": 1.5, "rng": torch.Generator().manual_seed(0)}
    return [
        scores(decoder, target, gold, **knobs)
        for scores in (feedback.mixed_scores, feedback.two_pass_scores)
    ]


def test_two_passes_are_one_while_a_single_prediction_is_fed():
    decoder, target = build()(SOURCE), torch.tensor([[1, 2, 3, 4, 5], [6, 5, 4, 3, 2]])
    for t in range(5):
        gold = torch.ones(2, 5, dtype=torch.bool)
        gold[:, t] = False
        torch.testing.assert_close(*both(decoder, target, gold))
    gold[:, 1] = False
    gold[:, 0] = False
    one, two = both(decoder, target, gold)
    torch.testing.assert_close(one[:, :2], two[:, :2])
    assert (one - two)[:, 2:].abs().max() > 1e-3


def test_two_passes_by_hand():
    """Predictions given gold prefixes, fed one step at a time, on a decoder without `fed`."""
    decoder, target = build()(SOURCE), torch.tensor([[1, 2, 3, 4], [6, 5, 4, 3]])
    gold = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1]]).bool()
    own = decoder.forced(target).argmax(-1)
    state, emb = decoder.start()
    expected = []
    for t in range(4):
        scores, state = decoder.step(state, emb)
        expected.append(scores)
        emb = decoder.embedding[torch.where(gold[:, t], target[:, t], own[:, t])]
    found = both(LocallyNormalized(decoder), target, gold, feedback.hard_argmax)[1]
    torch.testing.assert_close(found, torch.stack(expected, 1).log_softmax(-1))


def test_feeding_embeddings_is_the_same_at_once_and_step_by_step():
    class Plain:
        def __init__(self, inner):
            self.embedding, self.start, self.step = inner.embedding, inner.start, inner.step

    decoder, emb = build()(SOURCE), torch.randn(2, 5, 6).double()
    assert not isinstance(Plain(decoder), FedDecoder)
    torch.testing.assert_close(fed_scores(decoder, emb), fed_scores(Plain(decoder), emb))


def test_gold_in_the_first_epoch_is_cross_entropy():
    objective = TwoPassScheduledSampling(gold=Constant(value=0.0), gold_epochs=1)
    model, batch = build(), batch_of([4, 5])
    first = call(objective, model, batch, now=Moment(epoch=0))
    torch.testing.assert_close(first.total, call(CrossEntropy(), model, batch).total)
    later = call(objective, model, batch, now=Moment(epoch=1))
    assert later.log["gold_realised"] == 0.0 and not torch.equal(first.total, later.total)


# Runs


def test_a_run_names_it_on_the_command_line():
    words = ["translation", "--model", "Transformer", "--model.width", "32", "--model.layers", "1"]
    more = ["--objective", "two-pass-scheduled-sampling", "--finetune.epochs", "1"]
    config, _ = parse_run("train", words + more)
    assert config.model == Transformer(width=32, layers=1)
    assert isinstance(config.finetune.objective, TwoPassScheduledSampling)
    plain, _ = parse_run("train", words[:3])
    assert plain.model == Transformer()  # nothing of the recipe's LSTM
    made = config.model.build(9, 7)
    assert made.embed.weight.shape == (7, 32) and made.longest == 256


@pytest.mark.slow
def test_a_run_learns_to_copy_and_keeps_it_through_a_soft_beam(tmp_path):
    rng = torch.Generator().manual_seed(0)
    lines = [[chr(97 + i) for i in torch.randint(0, 6, (4,), generator=rng)] for _ in range(600)]
    for name in ("s", "t"):
        (tmp_path / name).write_text("".join(" ".join(line) + "\n" for line in lines))
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    config = RunConfig(
        data=Translation(source=source, target=target, subwords=0, dev_share=0.1),
        model=Transformer(width=32, layers=1, heads=4, dropout=0.0, longest=24),
        pretrain=Stage(objective=CrossEntropy(), epochs=12, lr=5e-3, warmup=20, tokens=200),
        finetune=Stage(objective=DirectLoss(k=2, finish=True), epochs=2, lr=1e-3, tokens=200),
        select=Beam(k=2),
    )
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["metrics"]["bleu"] > 90
