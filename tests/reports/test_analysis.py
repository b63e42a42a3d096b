"""Measures by hand and against other programs; runs side by side from their folders."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from softbeam.cli import main
from softbeam.data.batches import Encoded
from softbeam.data.encoding import Codecs
from softbeam.data.task import Task
from softbeam.data.tasks import Tagging, Translation
from softbeam.data.vocabulary import SOURCE, Vocabulary, save_codec
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.reports import analysis_charts
from softbeam.reports.analysis import (
    advice,
    after_first_error,
    analyze,
    check_normalization,
    comparable,
    gold_fed_marks,
    labels,
    length_ratio,
    marks_by_edits,
    marks_by_position,
    nearest,
    ngram_overlap,
    own_beam,
    quality_by_length,
    recovery_figures,
)
from softbeam.reports.charts import require_charts
from softbeam.reports.gold_on_beam import Fate
from softbeam.search.decoders import stepwise_scores
from softbeam.training import metrics
from softbeam.training.config import RunConfig, to_yaml
from softbeam.training.kinds import KINDS, Problems
from softbeam.training.runs import load_run, save_weights
from softbeam.training.searches import Beam, Greedy, SoftBeamSearch
from softbeam.training.vocabularies import make_codecs

# Outputs against references


def test_overlap_by_hand():
    """the the cat: the reference has one "the", so the second matches nothing."""
    one, two, *_ = ngram_overlap([["the", "the", "cat"]], [["the", "cat", "sat", "down"]])
    assert one == {"n": 1, "matches": 2, "precision": pytest.approx(200 / 3), "recall": 50.0}
    assert two == {"n": 2, "matches": 1, "precision": 50.0, "recall": pytest.approx(100 / 3)}


def test_overlap_of_nothing_is_none():
    short = ngram_overlap([["a"]], [["a"]])
    assert short[0]["precision"] == 100.0 and short[1]["precision"] is None
    empty = ngram_overlap([[]], [["a"]])
    assert empty[0]["precision"] is None and empty[0]["recall"] == 0.0
    assert length_ratio([[]], [["a"]]) == 0.0 and length_ratio([[]], [[]]) is None


@pytest.mark.parametrize("seed", range(5))
def test_precision_is_that_of_bleu_and_recall_its_mirror(seed):
    rng = random.Random(seed)
    golds, outputs = ([rng.choices("abcd", k=rng.randint(4, 12)) for _ in "1234"] for _ in "ab")
    found = ngram_overlap(outputs, golds)
    theirs = metrics.bleu(
        [" ".join(o) for o in outputs], [[" ".join(g)] for g in golds], tokenize="none"
    )
    for row, precision in zip(found, theirs["precisions"], strict=True):
        if row["matches"]:  # sacrebleu smooths a precision of 0
            assert row["precision"] == pytest.approx(precision)
    assert length_ratio(outputs, golds) == pytest.approx(theirs["length_ratio"])
    mirror = ngram_overlap(golds, outputs)
    assert [row["recall"] for row in found] == [row["precision"] for row in mirror]


def test_of_several_references_the_nearest_counts():
    references = [[("a", "b"), ("a", "c", "d"), ("a", "c")]]
    assert nearest([["a", "c"]], references) == [("a", "c")]
    assert nearest([["x", "c", "d"]], references) == [("a", "c", "d")]


def test_translations_are_compared_in_the_tokens_of_bleu():
    outputs, golds = comparable(KINDS["translation"], [["A", "dog,", "runs."]], [[("A", "dog.")]])
    assert outputs == [["A", "dog", ",", "runs", "."]] and golds == [["A", "dog", "."]]
    kept, _ = comparable(KINDS["transcription"], [["dog,"]], [[("dog",)]])
    assert kept == [["dog,"]]


# After a first error


def test_accuracy_after_an_error_by_hand():
    right, wrong = True, False
    marks = [[right, wrong, wrong, right, right], [right, right], [wrong, right]]
    fed = [[right, wrong, right, right, wrong], [right, right], [wrong, right]]
    rows = after_first_error(marks, fed, depth=2)
    assert [row["distance"] for row in rows] == [0, 1, 2, 3]
    assert [row["places"] for row in rows] == [5, 2, 1, 1]
    assert [row["accuracy"] for row in rows] == [60.0, 50.0, 100.0, 100.0]
    assert [row["gold_fed"] for row in rows] == [60.0, 100.0, 100.0, 0.0]
    alone = after_first_error(marks, depth=2)
    assert [row["gold_fed"] for row in alone] == [None] * 4
    assert [row["accuracy"] for row in alone] == [row["accuracy"] for row in rows]


def test_without_errors_nothing_comes_after_one():
    rows = after_first_error([[True] * 3, []], depth=1)
    assert [row["places"] for row in rows] == [3, 0, 0]
    assert [row["accuracy"] for row in rows] == [100.0, None, None]


def edits(a, b) -> int:
    """Edit distance by the textbook's table."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y)))
    return row[-1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_an_alignment_has_as_few_errors_as_can_be(predicted, gold):
    marks = marks_by_edits(predicted, gold)
    assert marks.count(False) == edits(predicted, gold)
    assert max(len(predicted), len(gold)) <= len(marks) <= len(predicted) + len(gold)


def test_a_word_too_many_is_one_error():
    assert marks_by_edits("axbcd", "abcd") == [True, False, True, True, True]
    assert marks_by_edits("acd", "abcd") == [True, False, True, True]
    assert marks_by_position("axcd", "abcd") == [True, False, True, True]


# Gold on the beam


def test_recovery_figures_by_hand():
    fates = [
        Fate(4, 0, "found"),
        Fate(4, 0, "model error"),
        Fate(4, 2, "search error"),
        Fate(2, 3, "model error"),  # pushed off after its end
        Fate(10, 1, "out of reach"),
    ]
    found = recovery_figures(fates)
    assert found["survived"] == 40.0 and found["best_of_survived"] == 50.0
    assert found["outcomes"] == {
        "found": 20.0,
        "search error": 20.0,
        "model error": 40.0,
        "out of reach": 20.0,
    }
    assert found["fell"] == [0, 0, 2, 3, 1] and found["median_step_of_fall"] == 2
    assert found["fell_by_tenth"] == [1, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert found["fell_after_end"] == 1
    assert found["on_beam"][0] == {"step": 1, "sentences": 5, "share": 80.0}
    assert found["on_beam"][1] == {"step": 2, "sentences": 5, "share": 60.0}
    assert found["on_beam"][2] == {"step": 3, "sentences": 4, "share": 50.0}
    assert found["on_beam"][4] == {"step": 5, "sentences": 1, "share": 0.0}


def test_a_step_lies_in_the_tenth_in_which_it_ends():
    third = recovery_figures([Fate(3, 1, "model error")])["fell_by_tenth"]
    assert third.index(1) == 3, "a third is within the fourth tenth"
    for length in (1, 3, 7, 10, 23):
        tenths = recovery_figures([Fate(length, length, "model error")])["fell_by_tenth"]
        assert tenths == [0] * 9 + [1]


def test_gold_that_always_stays_has_no_step_of_fall():
    found = recovery_figures([Fate(3, 0, "found")])
    assert found["median_step_of_fall"] is None and found["survived"] == 100.0
    assert recovery_figures([Fate(3, 1, "model error")])["best_of_survived"] is None


# Source lengths


def test_translations_by_length_are_those_of_bleu_by_length():
    texts = ["a b c d e", "a b c x e f g", "k l m n o p"]
    golds = ["a b c d e", "a b c d e f g", "k l m n o q"]
    sources = [("s",) * n for n in (3, 12, 40)]
    material = Problems(sources, [[tuple(g.split())] for g in golds])
    edges = KINDS["translation"].length_edges([len(s) for s in material.sources])
    found = quality_by_length(
        KINDS["translation"], "bleu", [t.split() for t in texts], material, edges
    )
    theirs = metrics.bleu_by_length(texts, [[g] for g in golds], [3, 12, 40])
    for row, other in zip(found, theirs, strict=True):
        assert row.pop("value") == other["score"]
        assert all(other[name] == value for name, value in row.items())


def test_other_lengths_are_cut_into_about_five():
    material = Problems([("s",) * n for n in range(1, 101)], [[("x",)]] * 100)
    edges = KINDS["tagging"].length_edges([len(s) for s in material.sources])
    assert edges == [21, 41, 61, 81]
    found = quality_by_length(
        KINDS["transcription"], "sequence_error_rate", [["y"]] * 100, material, edges
    )
    assert [row["sentences"] for row in found] == [21, 20, 20, 20, 19]
    assert [row["value"] for row in found] == [100.0] * 5
    same = Problems([("s", "s")] * 3, [[("x", "x")]] * 3)
    assert KINDS["tagging"].length_edges([len(s) for s in same.sources]) == []


def test_a_bucket_without_spans_has_no_f1():
    material = Problems([("s",), ("s", "s")], [[("O",)], [("B-X", "O")]])
    found = quality_by_length(KINDS["tagging"], "f1", [["O"], ["B-X", "O"]], material, [1])
    assert [row["value"] for row in found] == [None, 100.0]


# Raw or normalized scores


class AfterB:
    """Says A nine times out of ten; every score after a B is higher by `shift`."""

    def __init__(self, batch: int, shift: float):
        self.batch, self.shift = batch, shift
        self.embedding = torch.eye(2)

    def start(self):
        return (), torch.zeros(self.batch, 2)

    def step(self, state, emb):
        return torch.tensor([0.9, 0.1]).log() + self.shift * emb[:, 1:], state


class AfterBModel(nn.Module):
    def __init__(self, shift: float):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(shift))

    def forward(self, source):
        return AfterB(len(source), self.weight.item())


def checked(label: str, shift: float) -> dict:
    """The check on 40 sentences of three tokens whose gold is one label, but for the last."""
    codecs = Codecs(Vocabulary(["w"], SOURCE), Vocabulary(["A", "B"]))
    material = Problems([("w",) * 3] * 40, [[(label, label, "A")]] * 40)
    search = Beam(k=3)
    return check_normalization(AfterBModel(shift), material, KINDS["tagging"], codecs, search)


def test_a_local_model_fails_with_raw_scores():
    found = checked("A", shift=5.0)
    assert found["normalized"] == 100.0 and found["raw"] == pytest.approx(100 / 3)
    assert found["log_z_mean"] == pytest.approx(0.0, abs=1e-6)
    assert "--normalize true" in found["advice"] and found["p_value"] < 0.05


def test_a_global_model_fails_with_normalized_scores():
    found = checked("B", shift=5.0)
    assert found["raw"] == 100.0 and found["normalized"] == pytest.approx(100 / 3)
    assert found["log_z_mean"] == pytest.approx(10 / 3, rel=1e-5)  # 0, 5 and 5
    assert found["log_z_variance"] == pytest.approx(50 / 9, rel=1e-5)
    assert "--normalize false" in found["advice"]


def test_where_both_are_the_same_there_is_no_advice():
    found = checked("A", shift=0.0)
    assert found["raw"] == found["normalized"] == 100.0 and found["advice"] is None


def test_small_differences_give_no_advice():
    assert advice("bleu", 0.4) is None and advice("bleu", -0.4) is None
    assert advice("sequence_error_rate", 2.0) == (
        "raw scores cost 2.0 points of sequence error rate, the mark of a locally normalized "
        "model: decode it with --normalize true"
    )


def test_a_beam_of_one_cannot_check():
    codecs = Codecs(Vocabulary(["w"], SOURCE), Vocabulary(["A", "B"]))
    with pytest.raises(ValueError, match="k=1"):
        material = Problems([("w",)], [[("A",)]])
        check_normalization(AfterBModel(0.0), material, KINDS["tagging"], codecs, Beam(k=1))


def test_one_beam_for_all_runs():
    assert own_beam([Greedy(), SoftBeamSearch(k=9)]) == 3
    assert own_beam([Greedy(), Beam(k=4), Beam(k=1)]) == 4


# Runs


def conll(path: Path, sentences: int) -> str:
    lines = [f"w{(i * j) % 7} T{(i + j) % 3}" for i in range(sentences) for j in range(i % 4 + 1)]
    blocks = ["\n".join(lines[i : i + 3]) for i in range(0, len(lines), 3)]
    path.write_text("\n\n".join(blocks) + "\n")
    return str(path)


def untrained(folder: Path, task: Task, *, seed: int = 1, beam: int = 2) -> Path:
    """A run folder whose weights are as they were drawn."""
    attention = "fixed" if task.kind == "tagging" else "bahdanau"
    config = RunConfig(
        data=task,
        model=Lstm(hidden=8, embedding=8, attention=attention),
        select=Beam(k=beam, max_extra=2),
    )
    codecs = make_codecs(config, task.load())
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config))
    save_codec(codecs.source, folder / "source.json")
    save_codec(codecs.target, folder / "target.json")
    model = config.model.build(len(codecs.source), len(codecs.target))
    save_weights(model, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Two taggers of the same data, one of other data, and a translator."""
    folder = tmp_path_factory.mktemp("analysis")
    data = Tagging(train=conll(folder / "a.conll", 40), dev=conll(folder / "b.conll", 20))
    other = Tagging(train=data.train, dev=conll(folder / "c.conll", 12))
    pairs = [f"x{i % 5} y{i % 3} z\tu{i % 5} , v{i % 2} w ." for i in range(40)]
    (folder / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    text = Translation(source=str(folder / "pairs.tsv"), subwords=0, dev_share=0.3)
    return {
        "one": untrained(folder / "one", data),
        "two": untrained(folder / "two", data, seed=2, beam=3),
        "other": untrained(folder / "other", other),
        "text": untrained(folder / "text", text),
    }


def shape(value):
    """The keys of nested results, without their values."""
    if isinstance(value, dict):
        return {name: shape(inside) for name, inside in value.items()}
    return [shape(inside) for inside in value] if isinstance(value, list) else None


@pytest.mark.slow
def test_runs_side_by_side(runs, tmp_path, capsys):
    words = ["analyze", str(runs["one"]), str(runs["two"]), "--beams", "3,1", "--limit", "9"]
    assert main([*words, "--out", str(tmp_path), "--quiet", "--json"]) == 0
    text, _, last = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    found = json.loads(last)
    assert found == json.loads((tmp_path / "analysis.json").read_text())
    assert list(found["runs"]) == ["one", "two"] and found["sentences"] == 9
    assert found["metric"] == "accuracy" and found["beam"] == 3
    one, two = found["runs"].values()
    assert shape(one) == shape(two) and one != two
    assert [row["beam"] for row in one["beam_curve"]] == [1, 3]
    at_3 = one["beam_curve"][1]["value"]
    assert one["normalization"]["normalized"] == at_3, "the same search twice"
    places = sum(row["places"] for row in one["after_first_error"])
    right = sum(row["places"] * (row["accuracy"] or 0) for row in one["after_first_error"])
    assert right / places == pytest.approx(at_3)
    assert sum(row["sentences"] for row in one["by_source_length"]) == 9
    assert len(one["gold_on_beam"]["fell"]) == 9 and one["length_ratio"] == 1.0
    names = {"beam-curve", "gold-on-beam", "after-first-error", "quality-by-length"}
    drawn = {path.name for path in tmp_path.iterdir()} - {"analysis.json"}
    assert drawn == {f"{name}.{form}" for name in names for form in ("png", "svg")}
    assert (tmp_path / "beam-curve.png").read_bytes().startswith(b"\x89PNG")
    heads = [line.split() for line in text.splitlines() if line.split() == ["one", "two"]]
    assert len(heads) == text.count("\n\n") - 1, "a table with both runs in each section"
    assert f"{at_3:.2f}" in text and "NaN" not in last


@pytest.mark.slow
def test_raw_scores_on_request_and_outputs_of_any_length(runs):
    found = analyze([runs["text"]], beams=[1, 2], normalize=False, quiet=True)
    run = found["runs"]["text"]
    assert found["task"] == "translation" and found["metric"] == "bleu"
    assert not run["normalize"] and run["normalization"]["raw"] == run["beam_curve"][1]["value"]
    assert {row["gold_fed"] for row in run["after_first_error"]} == {None}
    assert "length-ratio-curve" in analysis_charts.panels(found)
    text = analysis_charts.as_text(found)
    assert "length of outputs over references" in text and " raw\n" in text
    local = analyze([runs["text"]], beams=[1], quiet=True)["runs"]["text"]
    assert local["normalize"], "as the run's own select"


def test_gold_fed_marks_are_those_of_forced_scores(runs):
    model = load_run(runs["one"]).model
    examples = [Encoded([2, 3, 4], [0, 1, 2]), Encoded([3], [1]), Encoded([4, 2], [1, 1])]
    found = gold_fed_marks(model, examples, tokens=4)
    for example, marks in zip(examples, found, strict=True):
        gold = torch.tensor([example.target])
        scores = stepwise_scores(model(torch.tensor([example.source])), gold)
        assert marks == (scores.argmax(-1) == gold)[0].tolist()
    always_first = AfterBModel(0.0)
    assert gold_fed_marks(always_first, [Encoded([2, 2, 2], [0, -1, 1])]) == [[True, False, False]]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["one", "text"], "one is a run of tagging but text of translation"),
        (["one", "other"], "one and other have different dev splits"),
        (["one", "one"], "given twice"),
    ],
)
def test_only_runs_of_one_task_stand_side_by_side(runs, names, expected):
    with pytest.raises(UserError, match=expected):
        analyze([runs[name] for name in names], beams=[1], quiet=True)


def test_runs_are_named_by_their_folders_where_these_differ():
    assert labels([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert labels([Path("/x/a"), Path("/y/a")]) == ["/x/a", "/y/a"]


def test_buckets_are_named_by_their_ends():
    assert [analysis_charts.bucket_label(*ends) for ends in ((1, 6), (7, 7), (8, None))] == [
        "1-6",
        "7",
        "8+",
    ]


def test_what_would_stop_the_figures_is_said_first(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        require_charts(tmp_path / "file" / "under")
    require_charts(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists(), "only a check"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"softbeam\[report\]"):
        require_charts(tmp_path)
