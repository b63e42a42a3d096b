"""The command line as a user meets it: real processes, exit codes, one sentence for bad use."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from softbeam.cli import COMMANDS, main
from softbeam.data import readers, task
from softbeam.experiments.bench import soft_beam
from softbeam.reports import analysis
from softbeam.training import decoding, loop, runs
from softbeam.training.config import objective_names
from softbeam.training.recipes import RECIPES
from support.small_data import write_conll


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A tagger trained on files by the command of the README."""
    folder = tmp_path_factory.mktemp("cli")
    words = ["train", "tagging"]
    words += ["--data.train", str(write_conll(folder / "a.conll", 20))]
    words += ["--data.dev", str(write_conll(folder / "b.conll", 2))]
    words += ["--pretrain.epochs", "4", "--pretrain.lr", "0.02", "--pretrain.tokens", "60"]
    words += ["--model.hidden", "16", "--out", str(folder / "run"), "--seed", "1", "--quiet"]
    assert main(words) == 0
    return folder / "run"


def last_json(text: str) -> dict:
    found = json.loads(text.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_train_then_evaluate_then_decode(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--search", "beam", "--beam", "3", "--json", "--quiet"]) == 0
    found = last_json(capsys.readouterr().out)
    assert found["metrics"]["accuracy"] == 100.0 and found["search"]["k"] == 3
    new = tmp_path / "new.txt"
    new.write_text("the cat runs\na dog sleeps\n")
    assert main(["decode", str(run), "--input", str(new), "--quiet"]) == 0
    assert capsys.readouterr().out == "D N V\nD N V\n"


def test_two_runs_are_compared_on_the_same_sentences(run, capsys):
    words = ["evaluate", str(run), "--against", str(run), "--json", "--quiet"]
    assert main(words) == 0
    found = last_json(capsys.readouterr().out)["against"]
    assert found["difference"] == 0.0 and found["p_value"] == 1.0


@pytest.mark.slow
def test_raw_and_normalized_scores_are_checked_side_by_side(run, capsys):
    assert main(["evaluate", str(run), "--check-normalization", "--json", "--quiet"]) == 0
    shown = capsys.readouterr().out
    found = last_json(shown)["normalization"]
    assert found["beam"] == 3 and found["metric"] == "accuracy", "greedy search could not tell"
    words = ["evaluate", str(run), "--search", "beam", "--beam", "3", "--json", "--quiet"]
    for name, normalize in (("raw", "false"), ("normalized", "true")):
        assert main([*words, "--normalize", normalize]) == 0
        alone = last_json(capsys.readouterr().out)["metrics"]["accuracy"]
        assert found[name] == alone and f"{name:24} {alone:.4g}" in shown
    assert {"log_z_mean", "log_z_variance", "p_value", "advice"} <= set(found)


@pytest.mark.parametrize("options", [[], ["--marginal", "true"]])
def test_soft_beam_decoding_of_a_sure_model_is_its_beam(run, tmp_path, capsys, options):
    new = tmp_path / "new.txt"
    new.write_text("the cat runs\na dog sleeps\n")
    words = ["decode", str(run), "--input", str(new), "--search", "soft-beam", "--beam", "3"]
    assert main([*words, "--alpha", "50", "--quiet", *options]) == 0
    assert capsys.readouterr().out == "D N V\nD N V\n"


def test_nbest_lists_are_ordered_and_numbered(run, tmp_path, capsys):
    new = tmp_path / "new.txt"
    new.write_text("the cat runs\na dog sleeps\n")
    words = ["decode", str(run), "--input", str(new), "--search", "beam", "--nbest", "3", "--quiet"]
    assert main(words) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [r[0] for r in rows] == ["0"] * 3 + ["1"] * 3 and rows[0][2] == "D N V"
    scores = [float(r[1]) for r in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    out = tmp_path / "out.jsonl"
    assert main([*words, "--format", "jsonl", "--output", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["input"] == "the cat runs" and lines[0]["rank"] == 0 and len(lines) == 6


def test_a_printed_configuration_can_be_given_back(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "ccg", "--model.encoder", "uni", "--pretrain.lr", "0.5", "--print_config"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    path = tmp_path / "c.yaml"
    path.write_text(printed)
    with pytest.raises(SystemExit):
        main(["train", "ccg", "--config", str(path), "--print_config"])
    again = capsys.readouterr().out
    assert "encoder: uni" in again and "lr: 0.5" in again
    assert again == printed


def test_short_forms_reach_the_second_stage(capsys):
    words = ["train", "ccg", "--objective", "direct-loss", "--beam", "5"]
    with pytest.raises(SystemExit):
        main([*words, "--finetune.objective.cost", "DoubledO", "--print_config"])
    printed = capsys.readouterr().out
    assert "class_path: DirectLoss" in printed and "k: 5" in printed
    assert "class_path: DoubledO" in printed


BAD = {
    "unknown command": (["frob"], "no command 'frob'"),
    "unknown recipe": (["train", "frob"], "no recipe 'frob'; there are tagging"),
    "unknown field": (["train", "stress", "--data.wordz", "3"], "wordz"),
    "wrong type": (["train", "stress", "--pretrain.lr", "fast"], "pretrain.lr"),
    "unknown choice": (["train", "stress", "--model.encoder", "tri"], "tri"),
    "not positive": (["train", "stress", "--pretrain.lr", "0"], "must be above 0"),
    "nothing to do": (["train", "stress", "--pretrain.epochs", "0"], "nothing to train"),
    "no objective": (
        ["train", "stress", "--objective", "frob"],
        "no objective 'frob'; there are cross-entropy",
    ),
    "no file": (["train", "tagging"], "--data.train PATH"),
    "missing file": (["train", "tagging", "--data.train", "/no/such.conll"], "such.conll"),
    "no run": (["evaluate", "/no/such/run"], "is not a run folder"),
    "no input": (["decode", "RUN"], "input"),
    "missing input": (["decode", "RUN", "--input", "/no/such.txt"], "such.txt"),
    "no split": (["evaluate", "RUN", "--split", "frob"], "no split 'frob'"),
    "beam of none": (["evaluate", "RUN", "--search", "beam", "--beam", "0"], "--beam 0"),
    "too many": (["evaluate", "RUN", "--search", "beam", "--nbest", "9"], "--nbest 9"),
    "no softness": (["evaluate", "RUN", "--search", "soft-beam", "--alpha", "0"], "--alpha 0"),
    "no check": (
        ["evaluate", "RUN", "--search", "beam", "--beam", "1", "--check-normalization"],
        "--beam 1",
    ),
    "no run to analyze": (["analyze", "/no/such/run"], "is not a run folder"),
    "twice": (["analyze", "RUN", "RUN"], "given twice"),
    "beams of none": (["analyze", "RUN", "--beams", "3,0"], "--beams 0"),
    "beams of letters": (["analyze", "RUN", "--beams", "3,x"], "beams"),
    "nothing to analyze": (["analyze", "RUN", "--limit", "0"], "--limit 0"),
    "no split to analyze": (["analyze", "RUN", "--split", "frob"], "no split 'frob'"),
    "no place for figures": (["analyze", "RUN", "--out", "UNDER"], "cannot be written"),
    "no corpus": (["data", "show", "frob"], "frob"),
    "no name": (["data", "fetch"], "needs a name"),
    "no runs": (["report", "/no/such"], "no run"),
    "bench of nothing": (["bench", "frob"], "frob"),
    "bench of no model": (["bench", "soft-beam", "--model", "rnn"], "lstm, transformer"),
    "no rounds": (["bench", "train", "--repeats", "0"], "--repeats 0"),
    "no words": (["demo", "--words", "0"], "--words 0"),
    "unwritable": (
        ["decode", "RUN", "--input", "INPUT", "--output", "UNDER"],
        "cannot be written",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_bad_use_is_one_sentence_and_exit_code_2(case, run, tmp_path, capsys):
    words, expected = BAD[case]
    (tmp_path / "in.txt").write_text("the cat runs\n")
    places = {"RUN": str(run), "INPUT": str(tmp_path / "in.txt")}
    places["UNDER"] = str(tmp_path / "in.txt" / "out")
    code = main([places.get(word, word) for word in words])
    shown = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and expected in shown[-1], shown
    assert len(shown) == 1 and "Traceback" not in shown[0]


@pytest.mark.slow
def test_skip_bad_goes_on_and_says_so(tmp_path, capsys):
    path = write_conll(tmp_path / "a.conll", 20)
    path.write_text(path.read_text() + "\nbroken\n")
    words = ["train", "tagging", "--data.train", str(path), "--out", str(tmp_path / "run")]
    words += ["--pretrain.epochs", "1", "--model.hidden", "8"]
    assert main(words) == 2
    assert "a.conll" in capsys.readouterr().err
    assert main([*words, "--skip-bad"]) == 0
    assert "skipped 1 bad" in capsys.readouterr().out


HELP = """
import contextlib, io, json, sys
from softbeam.cli import main
pages = {}
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            code = main([*words, "--help"])
        except SystemExit as ended:
            code = ended.code
    heavy = {"torch", "transformers", "accelerate", "matplotlib"}
    heavy |= set() if words else {"jsonargparse", "yaml"}  # the overview needs no parser
    heavy = sorted(heavy & set(sys.modules))
    pages[" ".join(words)] = [code, shown.getvalue(), heavy]
json.dump(pages, sys.stdout)
"""
PAGES = [[], *([c] for c in COMMANDS), *(["train", r] for r in RECIPES)]
PAGES += [["bench", "train"], ["bench", "soft-beam"]]


@pytest.fixture(scope="module")
def pages() -> dict[str, list]:
    """Every help page from one interpreter: exit code, text, heavy modules loaded so far."""
    done = subprocess.run(
        [sys.executable, "-c", HELP],
        input=json.dumps(PAGES),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", PAGES)
def test_help_is_helpful_and_loads_nothing_heavy(words, pages):
    """Half a second leaves no time for torch; what is imported is the test, not the clock."""
    code, shown, heavy = pages[" ".join(words)]
    assert (code, heavy) == (0, [])
    assert "usage: softbeam" in shown
    assert not re.search(r"<(function|class|.*object at)|lambda", shown)
    searches = words[:1] in (["decode"], ["evaluate"], ["compare"], ["sweep"]) or len(words) > 1
    assert ("--search" in shown) == (searches and words[0] != "bench")
    if words[:1] == ["train"] and len(words) > 1:
        assert "--data.max-length" in shown and "--model.hidden" in shown
        assert "--checkpoint-every" in shown and "--checkpoint_every" not in shown
        assert all(name in shown for name in objective_names())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_the_soft_beam_benchmark_prints_rows(model, capsys, monkeypatch):
    # The memory of a form is that of a process of its own: one form of one model is measured.
    peaks = [{"peak_mb": 1.0}] if model == "transformer" else []

    def once(*args, **options):
        peaks.append(peaks[0] if peaks else in_child(*args, **options))
        return peaks[-1]

    in_child = soft_beam.in_child
    monkeypatch.setattr(soft_beam, "in_child", once)
    monkeypatch.setattr(soft_beam, "Case", partial(soft_beam.Case, batch=2, steps=3))
    words = ["--model", model, "--vocab", "10", "--k", "2", "--repeats", "1", "--json"]
    assert main(["bench", "soft-beam", *words]) == 0
    row = last_json(capsys.readouterr().out)["rows"][0]
    forms = {"ce", "reference", "dense", "pooled", "checkpointed"}
    assert {"vocab", "k"} | {f"{form}_s" for form in forms} <= set(row)
    assert row["peak_mb"].keys() == forms and all(mb > 0 for mb in row["peak_mb"].values())


@pytest.mark.slow
def test_the_training_benchmark_prints_rows(capsys):
    assert main(["bench", "train", "--repeats", "1", "--json"]) == 0
    assert all(row["ratio"] > 0 for row in last_json(capsys.readouterr().out)["rows"])


def test_the_catalogue_is_listed(capsys):
    assert main(["data", "list", "--json"]) == 0
    found = last_json(capsys.readouterr().out)["corpora"]
    assert {"cmudict", "multi30k", "ccg-ewt", "conll2003-de"} <= set(found)
    assert main(["data", "show", "multi30k"]) == 0
    assert "raw/train.de.gz" in capsys.readouterr().out


@pytest.mark.slow
def test_the_installed_command_runs():
    command = Path(sys.executable).with_name("softbeam")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("softbeam ")


@pytest.mark.slow
def test_the_package_runs_as_a_module():
    words = [sys.executable, "-m", "softbeam", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("softbeam ")


def test_evaluate_reads_and_encodes_the_data_once(run, capsys, monkeypatch):
    reads, encodings = [], []
    read, encode = readers.read_columns, runs.encode

    def counted_read(path, **options):
        reads.append(path)
        return read(path, **options)

    def counted_encode(examples, codecs):
        encodings.append(len(examples))
        return encode(examples, codecs)

    monkeypatch.setattr(task, "LOADED", {})
    monkeypatch.setattr(readers, "read_columns", counted_read)
    for module in (runs, decoding, analysis):
        monkeypatch.setattr(module, "encode", counted_encode)
    words = ["evaluate", str(run), "--against", str(run), "--check-normalization", "--quiet"]
    assert main(words) == 0
    assert len(reads) == len(set(reads)) == 2
    assert encodings == [16, 16], "once with the vocabulary of each run"


@pytest.mark.slow
def test_dev_is_encoded_once_a_run(tmp_path, monkeypatch):
    encodings = []
    encode = loop.encode
    for module in (loop, decoding):
        monkeypatch.setattr(
            module,
            "encode",
            lambda examples, codecs: encodings.append(len(examples)) or encode(examples, codecs),
        )
    words = ["train", "tagging", "--data.train", str(write_conll(tmp_path / "a.conll", 3))]
    words += ["--data.dev", str(write_conll(tmp_path / "b.conll", 1)), "--pretrain.epochs", "3"]
    assert main([*words, "--model.hidden", "4", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert sorted(encodings) == [8, 24]
