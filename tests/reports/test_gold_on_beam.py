"""Gold on the beam, against plain loops that share no code with the package."""

import random
from functools import cache
from itertools import product

import pytest
import torch

from softbeam.data.encoding import Codecs
from softbeam.data.readers import Example
from softbeam.data.vocabulary import SOURCE, TARGET, Vocabulary
from softbeam.models.specs import Lstm
from softbeam.reports.gold_on_beam import OUTCOMES, beam_recovery, gold_fates, is_gold, outcome
from softbeam.search.decoders import LocallyNormalized
from softbeam.training.decoding import decode
from softbeam.training.searches import Beam
from softbeam.types import Hypotheses
from support.toys import ToyDecoder, plain_beam, score, step_scores

EOS, ROWS, LIMIT = 1, 3, 4


def toy(seed: int) -> ToyDecoder:
    return ToyDecoder(vocab=4, batch=ROWS, seed=seed)


@cache
def beam_after(steps: int, seed: int, row: int, k: int, eos: int | None, normalize: bool):
    """The beam after so many steps, from the start and in plain loops."""
    return plain_beam(toy(seed), k, steps, row=row, eos=eos, normalize=normalize)


def gold_of(which: int, seed, row, k, eos, normalize) -> tuple[int, ...]:
    """The beam's best, its last, the last of a wider one, or a random output; ended by eos."""
    beam = beam_after(LIMIT, seed, row, k, eos, normalize)
    wide = beam_after(LIMIT, seed, row, k + 2, eos, normalize)
    drawn = tuple(random.Random(row).choices([0, 2, 3], k=LIMIT))
    ended = (*drawn[:row], EOS)
    gold = [beam[0][1], beam[-1][1], wide[-1][1], drawn if eos is None else ended][which]
    return gold if eos is None or gold[-1] == EOS else ended


def plain_fall(gold, seed, row, k, eos, normalize) -> int:
    """The first number of steps after which the gold prefix is not in the beam."""
    for steps in range(1, LIMIT + 1):
        beam = beam_after(steps, seed, row, k, eos, normalize)
        if gold[:steps] not in [prefix for _, prefix in beam]:
            return steps
    return 0


def padded(golds, time: int, fill: int = 0) -> torch.Tensor:
    return torch.tensor([[*gold, *[fill] * (time - len(gold))] for gold in golds])


def recover(decoder, golds, *, normalize=False, time=LIMIT, fill=0, limits=None, **options):
    return beam_recovery(
        LocallyNormalized(decoder) if normalize else decoder,
        padded(golds, time, fill),
        lengths=torch.tensor([len(gold) for gold in golds]),
        limits=torch.tensor(limits or [LIMIT] * len(golds)),
        **options,
    )


CASES = [
    (seed, k, eos, normalize)
    for seed in range(2)
    for k in (1, 2, 4)
    for eos in (None, EOS)
    for normalize in (True, False)
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "k", "eos", "normalize"), CASES)
def test_recovery_equals_plain_loops(seed, k, eos, normalize):
    for which in range(4):
        golds = [gold_of(which, seed, row, k, eos, normalize) for row in range(ROWS)]
        found = recover(toy(seed), golds, k=k, eos=eos, normalize=normalize)
        for row, gold in enumerate(golds):
            best, path = beam_after(LIMIT, seed, row, k, eos, normalize)[0]
            assert found.fell[row] == plain_fall(gold, seed, row, k, eos, normalize)
            assert found.found[row] == (path == gold) and found.reachable[row]
            assert found.gold[row].item() == pytest.approx(
                score(toy(seed), gold, row, normalize=normalize)
            )
            assert found.best[row].item() == pytest.approx(best)


def test_the_cases_above_hold_every_fate():
    """Gold that stays, falls at any step, and is pushed off after its end."""
    seen = set()
    for case, which, row in product(CASES, range(4), range(ROWS)):
        seed, *rest = case
        gold = gold_of(which, seed, row, *rest)
        fell = plain_fall(gold, seed, row, *rest)
        seen.add("stays" if not fell else "after" if fell > len(gold) else fell)
    assert seen >= {"stays", "after", 1, 2, 3, 4}


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("fill", [0, -1])
def test_a_sentence_is_the_same_alone_and_in_a_padded_batch(eos, fill):
    limits = [2, 4, 3]
    decoder = toy(2)
    golds = [gold_of(row, 2, row, 2, eos, False) for row in range(ROWS)]
    if eos is None:
        golds = [gold[:limit] for gold, limit in zip(golds, limits, strict=True)]
    together = recover(decoder, golds, k=2, eos=eos, limits=limits, time=8, fill=fill)
    for row, gold in enumerate(golds):
        one = toy(2)
        one.memory.data = decoder.memory.data[row : row + 1]
        alone = recover(one, [gold], k=2, eos=eos, limits=limits[row : row + 1], time=len(gold))
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a[0], b[row])


def test_a_token_that_the_model_lacks_ends_gold_where_it_stands():
    decoder = ToyDecoder(vocab=4, batch=1, seed=0)
    best = plain_beam(decoder, 3, LIMIT, normalize=False)[0][1]
    assert recover(decoder, [best], k=3).fell.tolist() == [0]
    for place in range(LIMIT):
        gold = (*best[:place], -1, *best[place + 1 :])
        found = recover(decoder, [gold], k=3)
        assert found.fell.tolist() == [place + 1]
        assert not found.reachable.any() and not found.found.any()
    worst = step_scores(decoder, ()).argmin().item()
    assert recover(decoder, [(worst, *best[1:3], -1)], k=3).fell.tolist() == [1]
    assert recover(decoder, [(-1, worst, worst, worst)], k=3).fell.tolist() == [1]


def test_gold_longer_than_the_limit_ends_with_the_search():
    decoder = ToyDecoder(vocab=4, batch=1, seed=0)
    best = next(s for _, s in plain_beam(decoder, 64, 3, eos=EOS, normalize=False) if EOS not in s)
    found = recover(decoder, [(*best, EOS)], k=64, eos=EOS, limits=[3])
    assert found.fell.tolist() == [4] and not found.reachable.any()


def test_outputs_are_ranked_with_the_length_penalty():
    decoder = ToyDecoder(vocab=4, batch=1, seed=3)
    beam = plain_beam(decoder, 4, LIMIT, eos=EOS)
    gold = (2, EOS)
    found = recover(decoder, [gold], normalize=True, k=4, eos=EOS, length_penalty=1.0)
    assert found.best.item() == pytest.approx(max(s / len(y) for s, y in beam))
    assert found.gold.item() == pytest.approx(score(decoder, gold) / 2)


def test_outputs_of_different_lengths_are_different():
    """Token 0 is a label like any other; only the length tells it from padding."""
    found = Hypotheses(torch.tensor([[[2, 0]]]), torch.tensor([[2]]), torch.zeros(1, 1))
    assert not is_gold(found, torch.tensor([[2]]), torch.tensor([1])).any()
    assert is_gold(found, torch.tensor([[2, 0, 3]]), torch.tensor([2])).all()


def test_whose_fault_it_is():
    assert outcome(True, True, 1.0, 1.0) == "found"
    assert outcome(False, True, 2.0, 1.0) == "search error"
    assert outcome(False, True, 1.0, 1.0) == outcome(False, True, 0.0, 1.0) == "model error"
    assert outcome(False, False, 2.0, 1.0) == "out of reach"


def wide_errors(normalize: bool) -> tuple[int, int]:
    """Search errors of golds that are the exact best, with a beam of one and of the whole space."""
    counts = []
    decoder = ToyDecoder(vocab=4, batch=6, seed=1)
    golds = [plain_beam(decoder, 64, 3, row=r, normalize=normalize)[0][1] for r in range(6)]
    for k in (1, 64):
        found = recover(decoder, golds, k=k, normalize=normalize, limits=[3] * 6, time=3)
        rows = zip(*(values.tolist() for values in found[1:]), strict=True)
        fates = [outcome(*row) for row in rows]
        assert set(fates) <= {"found", "search error"}, "the exact best is never the model's error"
        counts.append(fates.count("search error"))
    return counts[0], counts[1]


def test_a_beam_of_the_whole_space_makes_no_search_error():
    narrow, exact = wide_errors(normalize=False)
    assert narrow > 0 and exact == 0


def random_examples(rng: random.Random, same_length: bool) -> list[Example]:
    def draw(letters: str, n: int) -> tuple[str, ...]:
        return tuple(rng.choice(letters) for _ in range(n))

    sizes = [(n, n if same_length else rng.randint(1, 3)) for n in (1, 2, 2, 3, 3, 4) * 4]
    return [Example(draw("abc", n), draw("xy", m)) for n, m in sizes]


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", ["tagging", "transcription"])
def test_fates_agree_with_what_decoding_gives(kind, normalize):
    """The search whose fates are told is the one of decode, for every setting of it."""
    tagging = kind == "tagging"
    examples = random_examples(random.Random(0), tagging)
    codecs = Codecs(
        Vocabulary(["a", "b", "c"], SOURCE), Vocabulary(["x", "y"], () if tagging else TARGET)
    )
    torch.manual_seed(4)
    size = Lstm(hidden=8, embedding=8, attention="fixed" if tagging else "bahdanau")
    model = size.build(len(codecs.source), len(codecs.target))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    options = {"max_ratio": 1.0, "max_extra": 1, "length_penalty": 2.0}
    search = Beam(k=3, normalize=normalize, **options)
    found = decode(model, [e.source for e in examples], codecs, search)
    own = [Example(e.source, tuple(f[0].tokens)) for e, f in zip(examples, found, strict=True)]
    examples = [*examples[::2], *own[1::2]]  # half of the golds are what the search gives
    outputs = [tuple(f[0].tokens) for f in [*found[::2], *found[1::2]]]
    fates = gold_fates(model, examples, codecs, search, tokens=20)
    for example, output, fate in zip(examples, outputs, fates, strict=True):
        assert fate.length == len(example.target) + (not tagging)
        too_long = fate.length > len(example.source) + (not tagging)  # by its end mark, mostly
        assert (fate.outcome == "out of reach") == too_long
        if not too_long:
            assert (fate.outcome == "found") == (output == example.target)
        assert fate.outcome in OUTCOMES and (fate.outcome != "found" or fate.fell == 0)
    seen = {fate.outcome for fate in fates}
    assert seen >= {"found", "model error"} and ("out of reach" in seen) == (not tagging)
