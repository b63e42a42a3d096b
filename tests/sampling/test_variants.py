"""Scores of variants, against the published formulas in plain loops over the model itself."""

import pytest
import torch

from softbeam.sampling.texts.mutants import (
    SCORES,
    Variant,
    listed_variants,
    plan,
    scored,
    single_substitutions,
)
from softbeam.sampling.variants import masked_marginals
from support.tiny_bert import letter_mlm, letter_tokenizer, small

WILD = "ACDEFGHI"
VARIANTS = ["K1K", "A1C", "D3E", "A1C:I8L", "C2A:D3A:E4A"]
FRAME = "EVQLVESGGGLVQPGGSLRLSCAAS"


class Naive:
    """The formulas of Meier et al. (2021), one call of the model for each probability."""

    def __init__(self, mlm):
        self.model, self.tokenizer = mlm.model, mlm.tokenizer

    def log_p(self, sequence, masked, place, letter):
        """log p(letter at place | sequence with these places masked), places from 0."""
        ids = self.tokenizer(sequence)["input_ids"]
        for m in masked:
            ids[m + 1] = self.tokenizer.mask_token_id  # after the first special token
        logits = self.model(input_ids=torch.tensor([ids])).logits[0, place + 1].double()
        index = self.tokenizer.convert_tokens_to_ids(letter)
        return float(logits[index] - logits.exp().sum().log())

    def pll(self, sequence):
        return sum(self.log_p(sequence, [t], t, letter) for t, letter in enumerate(sequence))

    def score(self, name, x, y):
        if name == "pseudo-log-likelihood":
            return self.pll(y) - self.pll(x)
        changed = [t for t in range(len(x)) if x[t] != y[t]]
        context, masked = {
            "masked-marginal": (x, changed),
            "wild-type-marginal": (x, []),
            "mutant-marginal": (y, []),
        }[name]
        return sum(
            self.log_p(context, masked, t, y[t]) - self.log_p(context, masked, t, x[t])
            for t in changed
        )


def variants_of(texts, wild):
    return listed_variants([t for t in texts if t != "K1K"], wild, "here")


def compared(mlm, wild, variants, names, tolerance):
    """Compare all scores with the formulas; gives the scores."""
    naive, rows = Naive(mlm), scored(mlm, plan(mlm, wild, variants, names), rows=4)
    for variant, scores in rows:
        for name, value in scores.items():
            if value is None:
                assert len(variant.sequence) != len(wild) and name != "pseudo-log-likelihood"
                continue
            expected = naive.score(name, wild, variant.sequence)
            assert value == pytest.approx(expected, abs=tolerance), (variant.mutant, name)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_each_score_is_its_published_formula(family):
    """Also through the plain path of a model that has no fast rows, and for other lengths."""
    from softbeam.models.huggingface.masked import HfMaskedLM

    mlm = HfMaskedLM(small(family).double(), letter_tokenizer())
    variants = [
        *variants_of(VARIANTS, WILD),
        Variant("", "ACDEFHI", {}),
        Variant("", "ACKKDEFGHI", {}),
    ]
    rows = compared(mlm, WILD, variants, SCORES, 1e-9)
    distinct = {round(value, 6) for value in rows[0].scores.values()}
    assert len(distinct) == 4, "the four definitions differ"
    assert rows[-1].scores["masked-marginal"] is None


def test_insertions_alone():
    mlm = letter_mlm()
    (row,) = compared(mlm, WILD, [Variant("", WILD + "A", {})], SCORES[2:], 1e-9)
    assert row.scores["mutant-marginal"] is None


def test_several_positions_are_masked_together():
    """Must fail: the sum of single masked marginals, which public programs compute."""
    mlm = letter_mlm()
    single = scored(mlm, plan(mlm, WILD, variants_of(["A1C", "I8L"], WILD), SCORES[:1]), rows=8)
    both = scored(mlm, plan(mlm, WILD, variants_of(["A1C:I8L"], WILD), SCORES[:1]), rows=8)
    total = sum(row.scores["masked-marginal"] for row in single)
    assert abs(total - both[0].scores["masked-marginal"]) > 1e-3


@pytest.mark.slow
def test_order_and_company_do_not_matter():
    mlm = letter_mlm()
    variants = single_substitutions(WILD, "ACDEFGHIKL", range(1, 9))
    assert len(variants) == 8 * 9 and variants[0].mutant == "A1C"
    whole = scored(mlm, plan(mlm, WILD, variants, SCORES), rows=256)
    turned = scored(mlm, plan(mlm, WILD, variants[::-1], SCORES), rows=3)[::-1]
    for a, b in zip(whole, turned, strict=True):
        assert a.variant == b.variant
        assert a.scores == pytest.approx(b.scores, abs=1e-9)
    wild = torch.tensor([2, 7, 8, 3])
    assert masked_marginals(mlm, wild, wild[None]).tolist() == [0.0], "the wild type"
    assert masked_marginals(mlm, wild, wild[None][:0]).shape == (0,)


@pytest.mark.slow
def test_a_real_model(real):
    mlm = real("sapiens-vh", dtype="float64")
    few = variants_of(["E1Q", "G9P:G10S", "L18W"], FRAME)
    rows = compared(mlm, FRAME, [*few, Variant("", FRAME[:8] + FRAME[9:], {})], SCORES, 1e-9)
    likely, _, unlikely, _ = (row.scores["masked-marginal"] for row in rows)
    assert likely > unlikely, "human chains begin with E or Q, and have no W there"
