"""evaluate and decode as a user meets them: the run's own search, own files, pipes."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from softbeam import load_run
from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.training.config import from_yaml
from softbeam.training.searches import Beam
from support.small_data import write_conll

SMALL = ["--model.hidden", "12", "--model.embedding", "8", "--threads", "1", "--quiet"]
QUICK = ["--pretrain.epochs", "3", "--pretrain.lr", "0.02", "--pretrain.tokens", "60"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A tagger trained by cross-entropy, one trained with raw scores, and a translator."""
    folder = tmp_path_factory.mktemp("runs")
    write_conll(folder / "a.conll", 12), write_conll(folder / "b.conll", 1)
    data = ["--data.train", str(folder / "a.conll"), "--data.dev", str(folder / "b.conll")]
    train = ["train", "tagging", *data, *SMALL]
    assert main([*train, *QUICK, "--out", str(folder / "ce")]) == 0
    second = ["--objective", "direct-loss", "--beam", "2", "--finetune.epochs", "1"]
    raw = ["--finetune.objective.normalize", "false", "--warm-start", str(folder / "ce")]
    assert main([*train, *second, *raw, "--out", str(folder / "raw")]) == 0
    pairs = [("ein Hund .", "a dog ."), ("eine Katze .", "a cat ."), ("ja , gut .", "yes , good .")]
    text = "".join(f"{a}\t{b}\n" for a, b in pairs)
    (folder / "mt.tsv").write_text(text * 40)
    (folder / "dev.tsv").write_text(text)
    words = ["--data.train", str(folder / "mt.tsv"), "--data.dev", str(folder / "dev.tsv")]
    words += ["--data.subwords", "0", "--data.min_count", "1"]
    mt = [
        "train",
        "translation",
        *words,
        *SMALL,
        *QUICK,
        "--pretrain.epochs",
        "6",
        "--model.dropout",
        "0",
    ]
    mt += ["--model.hidden", "24", "--pretrain.lr", "0.04"]
    assert main([*mt, "--out", str(folder / "mt")]) == 0
    return folder


@pytest.fixture
def piped(monkeypatch):
    """A function that puts a text where standard input is."""

    def put(text: str) -> None:
        stream = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stream)

    return put


def shown(capsys, *words) -> tuple[dict[str, str], dict]:
    """The table that a command prints, by the first word of a line, and its JSON."""
    assert main([*map(str, words), "--quiet", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return {line[:24].strip(): line[25:] for line in lines}, json.loads(last)


@pytest.mark.slow
def test_dev_is_searched_as_the_objective_is_trained(here):
    assert from_yaml(here / "raw" / "config.yaml").select == Beam(k=2, normalize=False)


def test_a_run_is_evaluated_as_it_was_trained(here, capsys):
    table, record = shown(capsys, "evaluate", here / "raw")
    assert table["split"] == "dev, 8 sentences" and table["corpus"] == str(here / "b.conll")
    assert table["search"] == "beam 2" and table["scores"] == "raw"
    assert table["trained"] == "direct-loss, beam 2, raw scores, alpha 1"
    assert record["search"]["normalize"] is False and record["corpus"] == table["corpus"]
    assert record["metrics"] == load_run(here / "raw").evaluate().metrics


def test_a_named_beam_keeps_the_scores_of_the_run(here, capsys):
    table, record = shown(capsys, "evaluate", here / "raw", "--search", "beam", "--beam", "3")
    assert table["scores"] == "raw" and record["search"]["k"] == 3
    table, _ = shown(capsys, "evaluate", here / "ce", "--beam", "3")
    assert table["search"] == "beam 3" and table["scores"] == "normalized"
    table, _ = shown(capsys, "evaluate", here / "raw", "--search", "soft-beam")
    assert table["search"] == "soft-beam 2" and table["alpha"] == "1"


def test_the_other_run_is_searched_as_it_was_trained_too(here, capsys):
    _, record = shown(capsys, "evaluate", here / "raw", "--against", here / "ce")
    assert record["against"]["search"]["method"] == "greedy"
    _, record = shown(capsys, "evaluate", here / "raw", "--against", here / "ce", "--beam", "3")
    assert record["against"]["search"] | {"normalize": False} == record["search"]
    assert record["against"]["search"]["normalize"] is True


def test_several_seeds_are_compared_pair_by_pair(here, capsys):
    seeds = ["--with", here / "ce", "--against", f"{here / 'ce'},{here / 'raw'}"]
    _, record = shown(capsys, "evaluate", here / "raw", *seeds)
    pairs = [load_run(here / name).evaluate().metrics["accuracy"] for name in ("raw", "ce")]
    assert record["against"]["difference"] == pytest.approx(0.0), "raw - ce and ce - raw"
    assert record["against"]["over"] == "seeds and sentences" and len(pairs) == 2
    _, record = shown(capsys, "evaluate", here / "raw", "--against", here / "ce")
    assert record["against"]["difference"] == pytest.approx(pairs[0] - pairs[1])
    assert record["against"]["over"] == "sentences"
    words = ["evaluate", here / "raw", "--with", here / "ce", "--against", here / "ce", "--quiet"]
    assert main(list(map(str, words))) == 2
    assert "give each seed its partner" in capsys.readouterr().err


def test_new_labelled_files_are_scored(here, tmp_path, capsys):
    (tmp_path / "new.conll").write_text("1 the D\n2 dog X\n\n1 a D\n2 cat N\n")
    words = ["evaluate", here / "ce", "--data.test", tmp_path / "new.conll", "--data.word", "1"]
    table, record = shown(capsys, *words)
    assert table["split"] == "test, 2 sentences" and table["corpus"].endswith("new.conll")
    assert record["metrics"] == {"accuracy": 75.0, "sequence_accuracy": 50.0}
    assert main([*map(str, words), "--quiet", "--against", str(here / "raw")]) == 0
    assert main([*map(str, words), "--quiet", "--split", "dev"]) == 2
    assert "--data.test is the split test" in capsys.readouterr().err


def test_new_pairs_are_scored_in_python_too(here):
    run = load_run(here / "ce")
    pairs = [("the dog", "D N"), (["a", "cat"], ["D", "X"])]
    assert run.evaluate(examples=pairs).metrics["accuracy"] == 75.0
    assert run.evaluate("dev").metrics["accuracy"] == 100.0, "the run itself is as it was"
    with pytest.raises(UserError, match="dev example 1: 2 tokens but 1 labels"):
        run.evaluate(examples=[("the dog", "D")])
    with pytest.raises(UserError, match="there are no examples"):
        run.evaluate(examples=[])


def test_translations_are_scored_from_a_tsv_or_two_files(here, tmp_path, capsys):
    (tmp_path / "x.de").write_text("ein Hund .\n")
    (tmp_path / "x.en").write_text("a dog .\n")
    (tmp_path / "x.tsv").write_text("ein Hund .\ta dog .\n")
    both = ["--data.test-source", tmp_path / "x.de", "--data.test-target", tmp_path / "x.en"]
    table, two = shown(capsys, "evaluate", here / "mt", *both)
    _, one = shown(capsys, "evaluate", here / "mt", "--data.test", tmp_path / "x.tsv")
    assert one["metrics"] == two["metrics"] and table["corpus"].count(str(tmp_path)) == 2
    assert main(["evaluate", str(here / "mt"), *map(str, both[:2])]) == 2
    assert "give both" in capsys.readouterr().err


def test_no_python_lists_are_printed(here, capsys):
    assert main(["evaluate", str(here / "mt"), "--quiet", "--against", str(here / "mt")]) == 0
    printed = capsys.readouterr().out
    assert not set("[]{}'") & set(printed) and "None" not in printed
    assert "bleu by source length" in printed and "0 to 0" in printed


def test_a_pipe_is_read_and_written(here, capsys, piped):
    piped("the\tx\ndog\ty\n\n# c\na\tz\n")
    assert main(["decode", str(here / "ce")]) == 0
    captured = capsys.readouterr()
    assert captured.out == "the\tx\tD\ndog\ty\tN\n\n# c\na\tz\tD\n\n"
    assert "read as conll" in captured.err
    piped("the dog\n\na cat\n")
    assert main(["decode", str(here / "ce"), "--input", "-", "--quiet"]) == 0
    assert capsys.readouterr().out == "D N\n\nD N\n"


def test_a_terminal_is_not_read(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["decode", str(here / "ce")]) == 2
    assert "--input is missing" in capsys.readouterr().err


def test_translations_are_detokenized_and_a_line_each(here, capsys, piped):
    piped("ja , gut .\nein Hund .\n")
    assert main(["decode", str(here / "mt"), "--quiet"]) == 0
    assert capsys.readouterr().out == "yes, good.\na dog.\n"
    assert main(["decode", str(here / "mt"), "--format", "conll", "--quiet"]) == 2
    assert "--format conll: is for tagging" in capsys.readouterr().err


def test_derivations_are_sent_to_the_right_recipe(tmp_path, capsys):
    (tmp_path / "x.auto").write_text("ID=1\n(<L N NN NN dog N>)\n")
    assert main(["train", "tagging", "--data.train", str(tmp_path / "x.auto")]) == 2
    assert "softbeam train ccg --data.train" in capsys.readouterr().err


def test_a_single_file_that_is_no_tsv_is_explained(tmp_path, capsys):
    (tmp_path / "x.de").write_text("ein Hund\n")
    assert main(["train", "translation", "--data.source", str(tmp_path / "x.de")]) == 2
    assert "without --data.target PATH it is read as a TSV of both sides" in capsys.readouterr().err
