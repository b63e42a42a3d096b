"""Joint infilling: all fillings by plain loops, whole words, and the command."""

import itertools
import json
import re

import pytest
import torch

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.sampling.texts import infill as infilling
from softbeam.sampling.texts.api import infill, sample, score
from softbeam.sampling.texts.settings import SamplingConfig
from support.tiny_bert import PIECES, letter_mlm, piece_mlm

FIRST = ["a", "cat", "en", "con"]
LATER = ["##cat", "##ch", "##sj"]
CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def mlm():
    return piece_mlm()


def log_table(mlm, ids: list[int]) -> torch.Tensor:
    """log-probabilities at every position of a row of the model itself."""
    with torch.no_grad():
        return mlm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


def plain_energy(mlm, before, filling, after, law: str) -> float:
    """-log of what a filling weighs, by one call of the model for each masked row."""
    ids = [CLS, *(PIECES.index(name) for name in (*before, *filling, *after)), SEP]
    first = 1 + len(before)
    gap = range(first, first + len(filling))
    total = 0.0
    if law == "local":
        for site in range(1, len(ids) - 1):
            total -= float(log_table(mlm, [*ids[:site], MASK, *ids[site + 1 :]])[site, ids[site]])
        return total
    texts = torch.tensor([i for i in range(5, len(PIECES))])
    for site in gap:
        row = [MASK if i in gap and i >= site else token for i, token in enumerate(ids)]
        logits = log_table(mlm, row)[site]
        total -= float(logits[ids[site]] - logits[texts].logsumexp(0))
    return total


def words(pieces: int) -> list[tuple[str, ...]]:
    return [
        (first, *later)
        for n in range(pieces)
        for first in FIRST
        for later in itertools.product(LATER, repeat=n)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("law", ["local", "chain-rule"])
def test_all_words_of_all_lengths_share_one_law(mlm, law):
    """exp(-energy) over the words of one to three pieces, with energies by plain loops."""
    found = infill(mlm, "a [WORD] .", method="enumerate", energy=law)
    energies = {word: plain_energy(mlm, ["a"], word, ["."], law) for word in words(3)}
    total = sum(2.718281828459045**-e for e in energies.values())
    assert {tuple(filling.tokens) for filling in found} == set(energies)
    for filling in found:
        energy = energies[tuple(filling.tokens)]
        assert filling.energy == pytest.approx(energy, abs=1e-9)
        assert filling.share == pytest.approx(2.718281828459045**-energy / total, abs=1e-9)
        assert filling.text == "a " + "".join(filling.tokens).replace("##", "") + "."
    assert [f.energy for f in found] == sorted(f.energy for f in found)
    lengths = {len(filling.tokens) for filling in found}
    assert lengths == {1, 2, 3}


def test_a_length_of_the_chain_rule_weighs_as_much_as_its_masks_are_one_word(mlm):
    found = infill(mlm, "a [WORD] .", method="enumerate", energy="chain-rule", pieces=2)
    weights = []
    for n in (1, 2):  # all fillings of n masks, of which some are one word
        every = infill(mlm, "a" + " [MASK]" * n + " .", method="enumerate", energy="chain-rule")
        assert sum(2.718281828459045**-f.energy for f in every) == pytest.approx(1, abs=1e-9)
        weights.append(sum(f.share for f in every if tuple(f.tokens) in words(2)))
    for n in (1, 2):
        share = sum(filling.share for filling in found if len(filling.tokens) == n)
        assert share == pytest.approx(weights[n - 1] / sum(weights), abs=1e-9)


@pytest.mark.slow
def test_chains_over_words_and_tokens_have_the_law_of_all_fillings(mlm):
    text, settings = "[WORD] en [MASK] .", {"energy": "chain-rule", "pieces": 2}
    exact = infill(mlm, text, method="enumerate", **settings)
    n = 1500
    drawn = infill(mlm, text, samples=n, chains=300, burn_in=5, seed=2, **settings)
    p = {tuple(filling.tokens): filling.share for filling in exact}
    q = {tuple(filling.tokens): filling.share for filling in drawn}
    distance = sum(abs(share - q.get(key, 0)) for key, share in p.items()) / 2
    assert set(q) <= set(p)
    assert distance < sum(share**0.5 for share in p.values()) / n**0.5  # twice the expected one
    other = infill(mlm, text, method="enumerate", energy="local", pieces=2)  # must differ
    wrong = {tuple(filling.tokens): filling.share for filling in other}
    assert sum(abs(wrong[key] - q.get(key, 0)) for key in wrong) / 2 > 2 * distance


@pytest.mark.parametrize("method", ["mh", "in-turn", "greedy"])
def test_gaps_of_words_hold_words_alone(mlm, method):
    few = {"samples": 12, "chains": 6, "burn_in": 1, "method": method, "energy": "chain-rule"}
    for filling in infill(mlm, "[WORD] - [WORD] .", **few):
        assert re.fullmatch(r"[a-z]+ - [a-z]+\.", filling.text), filling
    loose = infill(mlm, "[MASK][MASK] .", samples=20, method="in-turn")
    assert any(not re.fullmatch(r"[a-z]+\.", filling.text) for filling in loose)


def test_samples_have_words_of_their_own_lengths(mlm):
    drawn = sample(mlm, "en [WORD] .", chains=4, sweeps=3, burn_in=1, energy="chain-rule")
    assert all(re.fullmatch(r"en [a-z]+\.", text) for text in drawn.texts[0])
    lengths = {int(n) for n in (drawn.tokens[0] != mlm.pad_id).sum(-1).flatten()}
    assert len(lengths) > 1
    for text, energy in zip(drawn.texts[0], drawn.energy[0].flatten().tolist(), strict=True):
        ids = mlm.word_ids(text)
        assert energy > 0 and ids[0] == PIECES.index("en")


def test_auto_lists_few_fillings_and_samples_many(mlm, monkeypatch):
    monkeypatch.setattr(infilling, "ENUMERATED", 10)
    few = {"samples": 16, "burn_in": 1}
    assert infill(mlm, "a [MASK]", method="auto", **few) == infill(
        mlm, "a [MASK]", method="enumerate"
    )
    assert infill(mlm, "a [WORD]", method="auto", **few) == infill(mlm, "a [WORD]", **few)
    monkeypatch.setattr(infilling, "MOST_ENUMERATED", 99)
    with pytest.raises(UserError, match="number of fillings 100: must be at most 99"):
        infill(mlm, "[MASK][MASK]", method="enumerate")


def test_the_score_of_the_chain_rule_is_that_of_plain_loops(mlm):
    for row in score(mlm, ["a cat .", "en", "concatch a ."], energy="chain-rule"):
        assert row.score == pytest.approx(-plain_energy(mlm, [], row.tokens, [], "chain"), abs=1e-9)
        assert row.score == pytest.approx(sum(row.scores), abs=1e-12)


@pytest.mark.slow
def test_the_command_prints_what_the_function_returns(tmp_path, capsys):
    made = piece_mlm()
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    words = ["infill", "--mlm", str(tmp_path), "--text", "a [WORD] [MASK]", "--method", "auto"]
    words += ["--energy", "chain-rule", "--pieces", "2", "--dtype", "float64", "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["fillings"]
    found = infill(made, "a [WORD] [MASK]", method="auto", energy="chain-rule", pieces=2)
    assert [filling._asdict() for filling in found] == rows


BAD = {
    "no pieces": (letter_mlm, {}, r"\[WORD\]: the model's tokens are no pieces of words"),
    "too many": (piece_mlm, {"pieces": 21}, "--pieces 21: must be at least 1 and at most 20"),
    "strided": (piece_mlm, {"energy": "strided"}, "--energy strided: .WORD. needs local, raw or"),
    "free": (piece_mlm, {"free": "all"}, r"--free all: \[WORD\] needs mask"),
    "fix": (piece_mlm, {"fix": "1"}, r"--fix 1: \[WORD\] needs none"),
    "block": (piece_mlm, {"block": 2}, r"--block 2: \[WORD\] needs 1"),
    "near": (piece_mlm, {"near": "a"}, r"--near with \[WORD\]: give a text and --near-distance"),
    "no word": (piece_mlm, {"allowed": (".",)}, r"\[WORD\]: no allowed token begins or continues"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_filled_is_refused(case):
    make, settings, expected = BAD[case]
    with pytest.raises(UserError, match=expected):
        infill(make(), "A[WORD]" if make is letter_mlm else "a [WORD]", **settings)
    if case == "strided":
        with pytest.raises(UserError, match="--energy chain-rule: --lengths needs local"):
            SamplingConfig(lengths="1-2", energy="chain-rule")
