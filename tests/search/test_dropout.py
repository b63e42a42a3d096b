"""Dropout while a search is trained: none, a mask for each sentence, or for each row and step."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from softbeam.cli.train import parse_run
from softbeam.models.layers import TransformerShape
from softbeam.models.lstm import LstmDecoder, Seq2Seq
from softbeam.models.transformer import TransformerSeq2Seq
from softbeam.objectives.hard_beam import BeamCrf, BeamSearchOptimization
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, HardHinge, SoftHinge
from softbeam.schedules import Constant, Moment
from softbeam.search.decoders import LocallyNormalized, forced_scores, selected
from softbeam.search.dropout import searching, shared_dropout, without_dropout
from softbeam.training.config import from_text, from_yaml, to_json
from softbeam.training.recipes import RECIPES
from softbeam.types import Batch, Ends

VOCAB = 7
SOURCE = torch.tensor([[3, 4, 5, 2], [2, 6, 0, 0], [5, 5, 3, 0]])
TARGET = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [2, 2, 1, 0]])
BATCH = Batch(SOURCE, TARGET, TARGET > 0, Ends((TARGET > 0).sum(1)))
OLD = Path(__file__).parents[1] / "fixtures" / "run_before_packages" / "finished" / "config.yaml"


def tagger(**settings) -> Seq2Seq:
    torch.manual_seed(0)
    model = Seq2Seq(VOCAB, VOCAB, embedding=6, hidden=5, dropout=0.5, **settings)
    return model.double().train()


def transformer() -> TransformerSeq2Seq:
    torch.manual_seed(0)
    shape = TransformerShape(width=8, layers=2, heads=2, longest=9, dropout=0.5)
    return TransformerSeq2Seq(VOCAB, VOCAB, shape).double().train()


MODELS = {
    "tagger": tagger,
    "two layers": lambda: tagger(layers=2),
    "attention": lambda: tagger(attention="bahdanau"),
    "transformer": transformer,
}


def loss(objective, model) -> torch.Tensor:
    rng = torch.Generator().manual_seed(1)
    return objective(model, BATCH, now=Moment(epoch=3, update=5), rng=rng).total


OBJECTIVES = {
    "direct loss": DirectLoss(k=2, cross_entropy=1.0),
    "soft hinge": SoftHinge(k=2),
    "hard hinge": HardHinge(k=2),
    "bso": BeamSearchOptimization(k=3),
    "crf": BeamCrf(k=2),
    "risk": MinimumRisk(n=2),
    "reinforce": Reinforce(baseline="none"),
    "scheduled sampling": ScheduledSampling(gold=Constant(value=0.0)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_without_dropout_training_searches_the_model_that_is_tested(name):
    objective, model = OBJECTIVES[name], tagger()
    assert objective.search_dropout == "none"
    trained = loss(objective, model)
    assert_close(trained, loss(objective, model.eval()))
    trained.backward()
    assert model.train().dropout.p == 0.5 and model.output.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_can_be_without_dropout(name):
    model = MODELS[name]()
    with without_dropout(model):
        quiet = forced_scores(model(SOURCE), TARGET)
    assert not torch.allclose(forced_scores(model(SOURCE), TARGET), quiet), "it is back"
    assert_close(quiet, forced_scores(model.eval()(SOURCE), TARGET))
    with pytest.raises(RuntimeError, match="stop"), without_dropout(model):
        raise RuntimeError("stop")
    assert model.dropout.p == 0.5


@pytest.mark.parametrize("name", MODELS)
def test_rows_and_steps_of_a_sentence_share_their_masks(name):
    """Equal rows stay equal, with each step's scores those of a whole pass with the same masks."""
    model = MODELS[name]()
    decoder = shared_dropout(model, model(SOURCE), len(SOURCE))
    state, emb = decoder.start()
    single = forced_scores(decoder, TARGET)
    assert_close(forced_scores(decoder, TARGET), single, msg="the masks are drawn once")
    doubled = decoder.embedding[TARGET].repeat_interleave(2, 0)
    scores, state = decoder.step(state, emb)
    state = repeated(state)
    for t in range(3):
        scores, state = decoder.step(state, doubled[:, t])
        pairs = scores.unflatten(0, (3, 2))
        assert_close(pairs[:, 0], pairs[:, 1])
        assert_close(pairs[:, 0], single[:, t + 1])
    own = model(SOURCE)
    state, emb = own.start()
    scores, state = own.step(state, emb)
    scores, _ = own.step(repeated(state), doubled[:, 0])
    assert not torch.allclose(scores[0::2], scores[1::2]), "must fail: its own dropout differs"
    assert "forward" not in vars(model.dropout), "the modules are as before"


def repeated(state):
    if isinstance(state, torch.Tensor):
        return state.repeat_interleave(2, 0)
    if isinstance(state, tuple):
        parts = [repeated(part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def test_a_mask_is_a_model_with_some_of_its_weights():
    """Against a copy without dropout whose columns are scaled as the masks of one sentence say."""
    model = tagger()
    bound = model(SOURCE)
    decoder = shared_dropout(model, bound, 3)
    scores = forced_scores(decoder, TARGET)
    first, last = (decoder.masks.drawn[id(model.dropout), n] for n in (0, 1))
    assert set(first.unique().tolist()) == {0.0, 2.0}
    for row in range(3):
        thinned = copy.deepcopy(model).eval()
        with torch.no_grad():
            thinned.recurrence.lstm.weight_ih_l0[:, :6] *= first[row]
            thinned.output.weight *= last[row]
        alone = LstmDecoder(thinned, bound.encoded)
        assert_close(scores[row], forced_scores(alone, TARGET)[row])


def test_sentences_that_are_left_keep_their_masks():
    model = tagger()
    decoder = LocallyNormalized(shared_dropout(model, model(SOURCE), 3))
    all_three = forced_scores(decoder, TARGET)
    left = torch.tensor([2, 0])
    few = selected(decoder, left)
    assert_close(forced_scores(few, TARGET[left]), all_three[left])
    assert_close(forced_scores(decoder, TARGET), all_three)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_soft_beam_may_share_its_dropout(normalize):
    """Its limit is the model without dropout; fast and plain forms take the same masks."""
    model, objective = tagger(), DirectLoss(k=2, search_dropout="shared", normalize=normalize)
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(loss(objective, model))
    assert_close(losses[0], losses[1])
    assert not torch.isclose(losses[0], losses[2])
    losses[0].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert_close(loss(objective, model), loss(DirectLoss(k=2, normalize=normalize), model))


def test_an_unknown_kind_is_refused():
    model = tagger().eval()
    with (
        pytest.raises(ValueError, match="search_dropout='some' is none of none, shared"),
        searching(model, "some"),
    ):
        pass
    with searching(model, "shared") as bound:
        assert bound is model, "nothing to share where there is no dropout"


def test_runs_of_before_had_independent_dropout():
    """A file or a text without the setting is of such a run; new runs have none."""
    old = from_yaml(OLD)
    assert old.finetune.objective.search_dropout == "independent"
    assert '"search_dropout"' not in to_json(old) and from_text(to_json(old)) == old
    new = replace(old, finetune=replace(old.finetune, objective=DirectLoss()))
    assert new.finetune.objective.search_dropout == "none"
    assert '"search_dropout": "none"' in to_json(new) and from_text(to_json(new)) == new
    assert RECIPES["tagging"]().finetune.warmup == "auto"


@pytest.mark.parametrize("flag", ["search_dropout", "search-dropout"])
@pytest.mark.parametrize("mode", ["none", "shared", "independent"])
def test_every_kind_can_be_given_on_the_command_line(flag, mode):
    """`none` is a value of this flag, not another word for null."""
    words = ["tagging", "--objective", "direct-loss", f"--finetune.objective.{flag}", mode]
    config = parse_run("train", words)[0]
    assert config.finetune.objective.search_dropout == mode
    assert from_text(to_json(config)) == config
