"""Ends and holes: where outputs end, and labels that the vocabulary does not know."""

import itertools

import pytest
import torch

from softbeam.data.batches import collate
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example
from softbeam.data.vocabulary import SOURCE, TARGET, Vocabulary
from softbeam.objectives.hard_beam import BeamCrf, BeamSearchOptimization
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, HardHinge, SoftHinge
from softbeam.schedules import Constant
from softbeam.types import Batch
from support.objective_toys import Fixed, build, call
from support.toys import ToyDecoder, plain_beam, score

LABELS = Vocabulary(["A", "B", "C", "D", "E"])
NEW = Example(("v", "w", "x", "y"), ("B", "never seen", "D", "E"))
OLD = Example(("v", "w"), ("C", "A"))


def tagged(*examples: Example) -> Batch:
    """Examples of tagging in numbers; labels that `LABELS` lacks are unknown."""
    words = Vocabulary(["v", "w", "x", "y"], SOURCE)
    return collate(encode(examples, Codecs(words, LABELS)))


HARD = Constant(value=1e7)
SEARCHES = [
    DirectLoss(k=3, alpha=Constant(value=2.0)),
    SoftHinge(k=3, alpha=Constant(value=2.0)),
    HardHinge(k=3),
    BeamSearchOptimization(k=3, delta="hamming"),
    BeamCrf(k=4),
    MinimumRisk(n=4, include_gold=True),
    Reinforce(gold_steps=Constant(value=3.0)),
    ScheduledSampling(gold=Constant(value=0.5), gold_epochs=0),
]


def named(objective) -> str:
    return type(objective).__name__


def test_lengths_are_those_of_the_examples_and_the_end_mark_is_the_vocabularys():
    batch = tagged(NEW, OLD)
    assert batch.ends.lengths.tolist() == [4, 2] and batch.ends.eos is None
    assert batch.mask.tolist() == [[True, False, True, True], [True, True, False, False]]
    codecs = Codecs(LABELS, Vocabulary(["a", "b"], TARGET))
    encoded = encode([Example(("A",), ("b", "z"))], codecs)
    batch = collate(encoded, eos=codecs.eos)
    assert batch.ends.eos == codecs.target.id("</s>") == batch.target[0, -1]
    assert batch.ends.lengths.tolist() == [3]


@pytest.mark.parametrize("k", [1, 3])
def test_a_search_goes_to_the_end_of_a_target_with_an_unknown_label(k):
    """The direct loss is the hard beam's errors at the known labels, the last one too."""
    for seed in range(4):
        decoder = ToyDecoder(vocab=5, seed=seed)
        found = call(DirectLoss(k=k, alpha=HARD), Fixed(decoder), tagged(NEW)).total
        best = plain_beam(decoder, k, 4)[0][1]
        wrong = (best[0] != 1) + (best[2] != 3) + (best[3] != 4)
        assert found.item() == pytest.approx(wrong, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SoftHinge, HardHinge])
def test_a_hinge_compares_outputs_of_the_same_length(kind):
    """Gold has its best label where it is unknown, and any label is free there."""
    for seed in range(2):
        decoder = ToyDecoder(vocab=5, seed=seed)
        found = call(kind(k=125, alpha=HARD), Fixed(decoder), tagged(NEW)).total
        first = [score(decoder, (1, label)) for label in range(5)]
        gold = score(decoder, (1, first.index(max(first)), 3, 4))
        worst = max(
            score(decoder, path) + (path[0] != 1) + (path[2] != 3) + (path[3] != 4)
            for path in itertools.product(range(5), repeat=4)
        )
        assert found.item() == pytest.approx(max(0.0, worst - gold), abs=1e-5)


def test_a_label_that_is_unknown_counts_as_an_error_of_every_output():
    decoder = ToyDecoder(vocab=5, seed=1)
    found = call(MinimumRisk(n=1), Fixed(decoder), tagged(NEW))
    best = plain_beam(decoder, 1, 4)[0][1]
    wrong = (best[0] != 1) + 1 + (best[2] != 3) + (best[3] != 4)
    assert found.log["risk"] == pytest.approx(wrong / 4)


@pytest.mark.parametrize("objective", SEARCHES, ids=named)
def test_what_stands_at_an_unknown_label_is_not_read(objective):
    model, batch = build(), tagged(NEW, OLD)
    target = batch.target.clone()
    target[0, 1] = 3
    one, two = (call(objective, model, x).total for x in (batch, batch._replace(target=target)))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("objective", SEARCHES[:6], ids=named)
def test_an_unknown_label_changes_nothing_for_the_other_sentences(objective):
    model = build()
    together = call(objective, model, tagged(NEW, OLD)).total
    alone = sum(call(objective, model, tagged(example)).total for example in (NEW, OLD))
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("kind", [DirectLoss, SoftHinge, BeamCrf, MinimumRisk])
def test_finishing_needs_an_end_mark(kind):
    with pytest.raises(ValueError, match="no end mark"):
        call(kind(finish=True), build(), tagged(OLD))
