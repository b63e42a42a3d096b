"""Audits: exact samplers pass at the stated rate, wrong ones fail, corrected ones pass."""

import json
import sys
from functools import partial

import pytest
import torch

from softbeam.cli import main
from softbeam.sampling.audit import Figure, audit, described, frequencies
from softbeam.sampling.certificates import certify
from softbeam.sampling.correcting import correct, corrected
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.oracles import MarkovOracle, TableOracle, every
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.unmasking import NAMES, in_steps
from softbeam.types import Kernel

TABLE = TableOracle.random(3, 3, scale=1.0, seed=5)
CHAIN = MarkovOracle.random(4, 12, scale=1.5, seed=1)


def exactly(oracle):
    return lambda mlm, tokens, hidden, rng: oracle.sample(len(tokens), rng)


@pytest.mark.parametrize("oracle", [TABLE, CHAIN])
def test_figures_of_a_few_texts_in_plain_loops(oracle):
    texts = oracle.sample(50, torch.Generator().manual_seed(0))
    figures, rows = described(texts, oracle), texts.tolist()
    repeated = [a == b for row in rows for a, b in zip(row, row[1:], strict=False)]
    assert figures["repeated tokens"] == pytest.approx(sum(repeated) / len(repeated))
    shares = frequencies(texts, oracle.vocab)
    for t in range(oracle.time - 1):
        seen = [(row[t], row[t + 1]) for row in rows]
        for a in range(oracle.vocab):
            for b in range(oracle.vocab):
                assert float(shares[t, a, b]) == pytest.approx(seen.count((a, b)) / 50)
    if oracle is TABLE:
        listed = [tuple(row) for row in rows]
        p = {
            tuple(row): float((-oracle.energy(torch.tensor([row]))).exp())
            for row in every(3, 3).tolist()
        }
        gaps = [abs(listed.count(text) / 50 - q) for text, q in p.items()]
        assert figures["total variation"] == pytest.approx(sum(gaps) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("oracle", [TABLE, CHAIN])
def test_a_right_sampler_passes_again_and_again(oracle):
    worst = [
        max(figure.off for figure in audit(exactly(oracle), oracle, draws=500, seed=seed).figures)
        for seed in range(40)
    ]
    assert max(worst) < 5.0  # 240 figures, of which one in ten thousand may be larger
    assert max(worst) > 1.5  # and they do vary


@pytest.mark.slow
def test_wrong_samplers_fail_and_corrected_ones_pass():
    alone = audit(partial(in_steps, steps=3), TABLE, draws=4000)
    assert alone.holds and alone.rows == 3
    for name, steps in (("random", 1), ("confidence", 3), ("margin", 1)):
        wrong = audit(NAMES[name](steps), TABLE, draws=4000)
        assert not wrong.holds and wrong.rows == steps
    mended = corrected(NAMES["confidence"](1), TABLE.energy, passes=12, stride=2)
    assert audit(mended, TABLE, draws=4000).holds


@pytest.mark.slow
def test_a_draft_and_passes_beat_more_steps_by_confidence_at_equal_rows():
    draft, more = NAMES["confidence"](2), NAMES["confidence"](8)
    better = audit(corrected(draft, CHAIN.energy, passes=3, stride=2), CHAIN, draws=2000)
    worse = audit(more, CHAIN, draws=2000)
    assert better.rows == worse.rows == 8
    pairs = [next(f.value for f in a.figures if f.name == "pairs") for a in (better, worse)]
    assert pairs[0] < pairs[1]


def test_texts_that_are_none_are_refused():
    for broken in (lambda m, t, h, r: t, lambda m, t, h, r: t[:1] * 0):
        with pytest.raises(ValueError, match="returned no"):
            audit(broken, TABLE, draws=10)


def test_a_figure_is_off_by_standard_deviations():
    assert Figure("energy", 3.0, 2.0, 0.25, False).off == 4.0
    assert Figure("energy", 1.0, 2.0, 0.25, False).off == 4.0
    assert Figure("pairs", 1.0, 2.0, 0.25, True).off == 0.0  # nearer than exact draws


def test_passes_visit_each_free_position_once_in_strides():
    visited = []

    def step(state, positions, rng):
        visited.append(positions.long().tolist())
        return state, None

    kernel = Kernel(lambda tokens: type("State", (), {"tokens": tokens}), step)
    free = torch.tensor([[True, False, True, True], [True, True, False, False]])
    rng = torch.Generator()
    correct(torch.zeros(2, 4).long(), free, kernel, passes=1, stride=2, rng=rng)
    assert visited == [[[1, 0, 0, 1], [1, 0, 0, 0]], [[0, 0, 1, 0], [0, 1, 0, 0]]]
    visited.clear()
    correct(torch.zeros(2, 4).long(), free, kernel, passes=1, stride=0, rng=rng)
    assert [sum(map(sum, v)) for v in visited] == [2, 2, 1]


@pytest.mark.slow
def test_masks_that_look_at_the_text_fail_the_certificate():
    oracle = TableOracle.random(3, 2, scale=1.0, seed=2)
    texts, right = every(3, 2), metropolis_hastings(oracle.energy, MaskedConditionals(oracle))

    def least_confident(state, positions, rng):
        """Mask the position whose token is less likely, as confidence-ordered samplers do."""
        scores = []
        for t in range(2):
            masked = torch.zeros_like(state.tokens).bool()
            masked[:, t] = True
            cells = oracle.logits(state.tokens, masked, state.tokens[:, 0])
            scores.append(cells.gather(1, state.tokens[:, t : t + 1])[:, 0])
        worst = torch.stack(scores, 1).argmin(1, keepdim=True)
        chosen = torch.zeros_like(positions).scatter(1, worst, True)
        return right.step(state, chosen & positions, rng)

    wrong = Kernel(right.init, least_confident)
    assert all(c.holds for c in certify(right, oracle.energy, texts, block=2))
    failed = [c.name for c in certify(wrong, oracle.energy, texts, block=2) if not c.holds]
    assert "invariant" in failed


@pytest.mark.slow
def test_the_command_says_which_law_and_ends_with_it(tmp_path, monkeypatch, capsys):
    small = ["--words", "2", "--time", "2", "--draws", "500", "--json"]
    (tmp_path / "mine.py").write_text(
        "def zeros(mlm, tokens, hidden, rng):\n    return tokens * 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    codes = [main(["audit", name, *small]) for name in ("random", "mine:zeros")]
    sys.modules.pop("mine")
    lines = capsys.readouterr().out.splitlines()
    results = [json.loads(line) for line in lines if line.startswith("{")]
    assert codes == [0, 1] and [result["holds"] for result in results] == [True, False]
    assert results[0]["rows"] == 2.0  # four steps are asked for, two positions are there
    assert "ANOTHER LAW" in lines[-2]
    assert main(["audit", "list"]) == 0 and "confidence" in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none"], "no sampler 'none'; there are random"),
        (["no.such:thing"], "the sampler 'no.such:thing' cannot be loaded"),
        (["random", "--steps", "0"], "--steps 0: must be at least 1"),
        (["random", "--words", "99", "--time", "8"], "more than 100000 texts"),
        (["random", "--scale", "-1"], "--scale -1.0"),
    ],
)
def test_what_cannot_be_audited_is_said_on_one_line(words, sentence, capsys):
    assert main(["audit", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
