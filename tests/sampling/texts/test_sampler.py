"""The sampler on texts: what stays, what is never sampled, and what law the samples have."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from softbeam.errors import UserError
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.texts.api import infill
from softbeam.sampling.texts.sampler import distance as distance_term, sampler
from softbeam.sampling.texts.settings import SamplingConfig
from support.text_laws import SMALL, distance, generator, joint, run
from support.tiny_bert import letter_mlm

TEXTS = ["AC[MASK]DE", "[MASK][MASK]KLA[MASK]CA", "<mask>"]


@pytest.fixture(scope="module")
def mlm():
    return letter_mlm()


VARIANTS = {
    "blocks": {"block": 2},
    "random blocks": {"block": "random"},
    "linear blocks": {"block": "linear", "order": "sequential"},
    "raw": {"energy": "raw", "temperature": 2.0},
    "uniform": {"proposal": "uniform"},
    "nucleus": {"nucleus": 0.7},
    "mixture": {"nucleus": 0.7, "epsilon": 0.1, "proposal_temperature": 0.8},
    "gibbs": {"kernel": "gibbs"},
    "exact gibbs": {"kernel": "exact-gibbs"},
    "annealed": {"anneal": (1.0, -0.4, 0.05)},
    "forced": {"forced": 1},
    "greedy": {"start": "greedy"},
    "random": {"start": "random"},
    "near": {"near": "self", "near_weight": 2.0},
    "lexicon": {"lexicon": ("A", "CA"), "lexicon_weight": 3.0},
    "few rows": {"rows": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_only_gaps_change_and_only_letters_stand_there(mlm, variant):
    made, records = run(mlm, TEXTS, replace(SMALL, **VARIANTS[variant]))
    gaps = made.tokens == mlm.mask_id
    assert torch.equal(made.free, gaps) and len(records) == 4
    for record in records:
        tokens = record.state.tokens
        assert torch.equal(tokens[~gaps], made.tokens[~gaps])
        assert bool(mlm.allowed[tokens[gaps]].all())
        assert record.state.energy.isfinite().all()
    assert len({tuple(r.state.tokens.flatten().tolist()) for r in records}) > 1


def test_rows_are_texts_by_chains(mlm):
    made, records = run(mlm, TEXTS, SMALL)
    shown = mlm.decode(records[-1].state.tokens)
    assert [len(text) for text in shown] == [5] * 3 + [8] * 3 + [1] * 3
    assert all(text[3:] == "DE" and text[:2] == "AC" for text in shown[:3])


def test_everything_may_be_free_and_then_only_the_frame_stays(mlm):
    config = replace(SMALL, free="all", start="text")
    made, records = run(mlm, ["ACDEF", "GHI"], config)
    assert made.free.sum(-1).tolist() == [5, 5, 5, 3, 3, 3]
    assert torch.equal(made.start(generator()), made.tokens)
    last = records[-1].state.tokens
    assert torch.equal(last[~made.free], made.tokens[~made.free])
    assert not torch.equal(last, made.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["mh", "gibbs", "exact-gibbs"])
@pytest.mark.parametrize("start", ["in-turn", "greedy", "random"])
def test_allowed_tokens_alone_are_sampled(mlm, kernel, start):
    config = replace(SMALL, allowed=("A", "K"), kernel=kernel, start=start)
    _, records = run(mlm, TEXTS, config)
    gaps = {text[2] for record in records for text in mlm.decode(record.state.tokens)[:3]}
    assert gaps <= {"A", "K"}


@pytest.mark.slow
def test_the_default_kernel_is_the_plain_one_token_by_token(mlm):
    made, records = run(mlm, TEXTS, SMALL)
    plain = metropolis_hastings(
        LocalEnergy(mlm), MaskedConditionals(mlm), temperature=SMALL.temperature
    )
    expected = list(made._replace(kernel=lambda _: plain).run(generator()))
    for one, other in zip(records, expected, strict=True):
        assert torch.equal(one.state.tokens, other.state.tokens)
        torch.testing.assert_close(one.state.energy, other.state.energy, rtol=1e-10, atol=0)


@pytest.mark.slow
def test_texts_of_different_lengths_at_once_have_the_laws_of_each_alone(mlm):
    """Against enumeration; another text beside it, longer or shorter, changes nothing."""
    texts = ["A[MASK]", "ACD[MASK]EFG", "L[MASK]"]  # of quick chains: 8 sweeps forget a start
    config = replace(SMALL, chains=300, sweeps=12, burn_in=8)
    _, records = run(mlm, texts, config)
    found = [Counter() for _ in texts]
    for record in records[8:]:
        for i, text in enumerate(mlm.decode(record.state.tokens)):
            found[i // 300][text] += 1
    for text, seen in zip(texts, found, strict=True):
        assert distance(seen, joint(mlm, text)) < 0.05


def test_texts_at_once_have_the_energies_and_proposals_of_each_alone(mlm):
    whole = sampler(mlm, TEXTS, replace(SMALL, start="greedy"))
    state = whole.kernel(1.0).init(whole.start(generator()))
    for i, text in enumerate(TEXTS):
        alone = sampler(mlm, [text], replace(SMALL, start="greedy"))
        own = alone.kernel(1.0).init(alone.start(generator()))
        rows = slice(3 * i, 3 * i + 3)
        assert torch.equal(state.tokens[rows, : own.tokens.shape[1]], own.tokens)
        torch.testing.assert_close(state.energy[rows], own.energy, rtol=1e-10, atol=0)
        both = [
            MaskedConditionals(mlm).log_probs(table, free)
            for table, free in ((own.tokens, alone.free), (state.tokens[rows], whole.free[rows]))
        ]
        torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_composition_changes_the_law_as_it_says(mlm):
    config = replace(SMALL, chains=600, sweeps=16, burn_in=12, near="LK", near_weight=0.8)
    config = replace(config, lexicon=("D",), lexicon_weight=0.6)
    _, records = run(mlm, ["L[MASK]"], config)
    found = Counter(t for r in records[12:] for t in mlm.decode(r.state.tokens))

    def weight(text: str) -> float:
        return 0.8 * sum(a != b for a, b in zip(text, "LK", strict=True)) - 0.6 * text.count("D")

    expected = joint(mlm, "L[MASK]", weight)
    assert distance(found, expected) < 0.05
    assert distance(found, joint(mlm, "L[MASK]")) > 0.05, "the terms matter"


def test_an_edit_distance_may_be_to_a_text_of_another_length(mlm):
    config = replace(SMALL, near="LKK", near_distance="edit")
    rows = mlm.encode(["LKA", "KKK"]).tokens
    term = distance_term(mlm, ["L[MASK]A", "L[MASK]A"], rows, replace(config, chains=1))
    assert term(rows).tolist() == [1.0, 1.0]
    term = distance_term(mlm, ["L[MASK]"], rows[:1], replace(config, chains=1))
    assert term(mlm.encode(["LK"]).tokens).tolist() == [1.0]


@pytest.mark.slow
def test_infilling_is_of_the_joint_distribution(mlm):
    text = "A[MASK]C[MASK]"
    found = infill(mlm, text, samples=4000, chains=100, burn_in=5)
    expected = joint(mlm, text)
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert distance(Counter({f.text: f.share for f in found}), expected) < 0.1
    energies = [one.energy for one in found]
    assert energies == sorted(energies)
    assert found[0].text == "A{}C{}".format(*found[0].tokens)
    again = LocalEnergy(mlm)(mlm.encode(found[0].text).tokens)
    assert found[0].energy == pytest.approx(float(again[0]), rel=1e-9)


def test_infilling_by_other_methods(mlm):
    greedy = infill(mlm, "A[MASK]C[MASK]", samples=50, method="greedy")
    assert len(greedy) == 1 and greedy[0].share == 1.0
    in_turn = infill(mlm, "A[MASK]C[MASK]", samples=50, method="in-turn")
    shares = [one.share * 50 for one in in_turn]
    assert sum(shares) == pytest.approx(50) and len(in_turn) > 1
    few = infill(mlm, "A[MASK]C[MASK]", samples=3, burn_in=5)
    assert sum(round(one.share * 3) for one in few) == 3


BAD_TEXTS = {
    "no gap": (["AC", "A[MASK]"], {}, r"text 0 has no \[MASK\].*--free all"),
    "empty": (["A", ""], {"free": "all"}, "text 1 has no token"),
    "no text": ([], {}, "no text"),
    "unknown": (["A?[MASK]"], {}, "has no token for a part"),
    "too long": (["A" * 60 + "[MASK]"], {}, "63 tokens; the model's limit is 40"),
    "gaps": (["A[MASK]"], {"start": "text"}, "text 0 has 1 gaps"),
    "not allowed": (
        ["AC"],
        {"start": "text", "free": "all", "allowed": ("A",)},
        "text 0 has 'C', which is not allowed there",
    ),
    "no token": (["[MASK]"], {"allowed": ("A", "frob")}, "--allowed frob: is no token"),
    "special": (["[MASK]"], {"allowed": ("[CLS]",)}, r"--allowed \[CLS\]: is a special"),
    "no word": (["[MASK]"], {"lexicon": ("A", "?")}, r"no tokens for '\?'"),
    "length": (["A[MASK]"], {"near": "ACD"}, "--near has 5 tokens and text 0 has 4"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_texts_that_cannot_be_sampled_are_a_sentence(mlm, case):
    texts, options, expected = BAD_TEXTS[case]
    with pytest.raises(UserError, match=expected):
        sampler(mlm, texts, replace(SMALL, **options))


BAD_SETTINGS = {
    "chains": ({"chains": 0}, "--chains 0: must be at least 1"),
    "burn-in": ({"burn_in": 50}, "--burn-in 50: must be at least 0 and below 50"),
    "forced": ({"forced": 11}, "--forced 11: must be at least 0 and at most 10"),
    "temperature": ({"temperature": 0.0}, "--temperature 0.0: must be at least 1e-06"),
    "both": ({"temperature": 2.0, "anneal": (1.0, -0.1, 0.1)}, "--anneal gives"),
    "floor": ({"anneal": (1.0, -0.1, 0.0)}, "floor 0.0: must be at least 1e-06"),
    "nucleus": ({"nucleus": 1.5}, "--nucleus 1.5"),
    "epsilon": ({"epsilon": -0.1}, "--epsilon -0.1"),
    "block": ({"block": 0}, "--block 0"),
    "exact block": ({"kernel": "exact-gibbs", "block": 2}, "--block 2: --kernel exact-gibbs"),
    "gibbs": ({"kernel": "gibbs", "temperature": 0.5}, "no target to temper"),
    "weight": ({"near_weight": float("nan")}, "--near-weight nan"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_settings_that_cannot_be_are_a_sentence(case):
    options, expected = BAD_SETTINGS[case]
    with pytest.raises(UserError, match=expected):
        SamplingConfig(**options)


def test_what_is_not_exact_says_so():
    assert SamplingConfig().caveats() == []
    assert "accepts every proposal" in SamplingConfig(kernel="gibbs").caveats()[0]
    assert "never reaches" in SamplingConfig(nucleus=0.9).caveats()[0]
    assert SamplingConfig(nucleus=0.9, epsilon=0.05).caveats() == []
    assert "target" in SamplingConfig(anneal=(1.0, -0.02, 0.05)).caveats()[0]


def test_annealing_falls_to_its_floor(mlm):
    config = replace(SMALL, sweeps=5, anneal=(1.0, -0.4, 0.05))
    _, records = run(mlm, TEXTS, config)
    assert [r.temperature for r in records] == pytest.approx([1.0, 0.6, 0.2, 0.05, 0.05])
