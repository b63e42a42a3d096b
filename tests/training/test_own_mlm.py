"""`softbeam train masked-lm`: three forms, from lines or FASTA to sample, score and infill."""

import json

import pytest
import torch

from softbeam import load_mlm
from softbeam.cli import main
from softbeam.data.texts import read_sequences
from softbeam.errors import UserError
from softbeam.models.catalogue import OWN
from softbeam.objectives.losses import masked as losses
from softbeam.runtime.files import load_checkpoint, save_checkpoint
from softbeam.sampling.chain_rule import ChainEnergy
from softbeam.sampling.texts.api import infill, sample, score
from softbeam.sampling.tiny import CountedMlm, TinyMLM

FASTA = ">one\nACDE\nfghi\n>two\n\n>three\nKLMN\n"
SMALL = ["--width", "16", "--layers", "3", "--heads", "2", "--longest", "16", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("own")
    (place / "texts.txt").write_text("".join(f"{a * 6}\n" for a in "xyz" * 40) + "\n")
    text = str(place / "texts.txt")
    for form in ("plain", "diffusion", "hollow"):
        words = ["train", "masked-lm", "--data.train", text, "--data.dev", text, "--form", form]
        words += ["--updates", "80", "--lr", "0.02", "--batch", "16"]
        assert main([*words, *SMALL, "--out", str(place / form)]) == 0
    return place


@pytest.mark.slow
@pytest.mark.parametrize("form", ["plain", "diffusion", "hollow"])
def test_a_trained_model_scores_samples_and_fills_texts(folder, form):
    mlm = load_mlm(str(folder / form), dtype="float64")
    right, wrong = score(mlm, ["xxxxxx", "xxyxxx"])
    assert right.score > wrong.score and right.tokens == list("xxxxxx")
    best = infill(mlm, "[MASK]zzzzz", samples=40, burn_in=2)[0]
    assert best.text == "zzzzzz"
    draws = sample(mlm, "yy[MASK]y<mask>y", chains=2, sweeps=4, burn_in=1)
    assert all(len(text) == 6 and text.startswith("yy") for text in draws.texts[0])
    summary = json.loads((folder / form / "summary.json").read_text())
    assert summary["vocabulary"] == 3 and summary["pseudo_log_likelihood"] > -1.0


@pytest.mark.slow
def test_a_hollow_model_is_read_in_one_pass_and_others_are_not(folder):
    for form, rows in (("hollow", 1), ("plain", 6)):
        counted = CountedMlm(load_mlm(str(folder / form)))
        score_rows(counted, counted.mlm)
        assert counted.rows == rows


def score_rows(counted, mlm):
    from softbeam.sampling.energies import LocalEnergy

    LocalEnergy(counted)(mlm.encode("xyzxyz").tokens)


@pytest.mark.slow
def test_a_folder_is_not_replaced_and_a_broken_file_is_a_sentence(folder, tmp_path, capsys):
    words = ["train", "masked-lm", "--train", str(folder / "texts.txt"), *SMALL, "--updates", "1"]
    assert main([*words, "--out", str(folder / "plain")]) == 2
    assert "holds a masked language model: --overwrite replaces it" in capsys.readouterr().err
    tensors, facts = load_checkpoint(folder / "plain" / OWN)
    for change in ({"form": "frob"}, {"tokens": [1]}, {"shape": {"width": 8}}, {"tokens": ["x"]}):
        save_checkpoint(tmp_path / OWN, tensors, facts | change)
        with pytest.raises(UserError, match="is no masked language model"):
            load_mlm(str(tmp_path))
    with pytest.raises(UserError, match="no token for 'ö'"):
        load_mlm(str(folder / "plain")).encode("xö")
    with pytest.raises(UserError, match="17 tokens; the model's limit is 16"):
        load_mlm(str(folder / "plain")).encode("x" * 17)


def test_fasta_is_read_as_sequences_and_lines_as_texts(tmp_path):
    (tmp_path / "a.fasta").write_text(FASTA)
    assert read_sequences(tmp_path / "a.fasta") == ["ACDEFGHI", "KLMN"]
    (tmp_path / "a.txt").write_text("a line\n\n another > one\n")
    assert read_sequences(tmp_path / "a.txt") == ["a line", "another > one"]
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="has no text"):
        read_sequences(tmp_path / "empty")


def test_the_diffusion_loss_is_the_mean_of_the_chain_rule_over_all_orders():
    """Exactly, by listing every number and choice of hidden tokens of a text of three."""
    mlm, text = TinyMLM(words=3, seed=2), torch.tensor([[3, 5, 4, 0]])
    from itertools import combinations, permutations

    orders = torch.tensor(list(permutations(range(3))))
    expected = float(ChainEnergy(mlm, orders)(text))
    total = 0.0
    for count in (1, 2, 3):
        choices = list(combinations(range(3), count))
        for chosen in choices:
            hidden = torch.zeros(1, 4, dtype=torch.bool)
            hidden[0, list(chosen)] = True
            loss = losses.any_order_cross_entropy(Allowed(mlm), text, hidden)
            assert loss.size == 3
            total += float(loss.total) / len(choices) / 3
    assert total == pytest.approx(expected, abs=1e-12)


class Allowed:
    """A model whose logits are those of its allowed tokens, as the chain rule normalizes them."""

    pad_id = 0

    def __init__(self, mlm):
        self.mlm, self.allowed = mlm, mlm.allowed

    def logits(self, tokens, masked, owner):
        logits = self.mlm.logits(tokens, masked, owner)
        return logits.masked_fill(~self.allowed, float("-inf"))
