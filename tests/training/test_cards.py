"""Folders for others: cards that say what the records say, and folders that load elsewhere."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml
from huggingface_hub import ModelCard
from numpy import percentile
from numpy.random import default_rng

from softbeam.cli import main
from softbeam.data.catalogue import CORPORA
from softbeam.data.tasks import Supertags
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy, SelfNormalized
from softbeam.objectives.risk import MinimumRisk
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, SoftHinge
from softbeam.training import cards
from softbeam.training.api import train
from softbeam.training.config import RunConfig, Stage
from softbeam.training.publishing import data_facts, name_only
from softbeam.training.runs import load_run, read_metrics

TAGS = {"the": "D", "a": "D", "dog": "N", "cat": "N", "runs": "V", "sleeps": "V"}
TEXTS = [f"{d} {n} {v}" for d in ("the", "a") for n in ("dog", "cat") for v in ("runs", "sleeps")]
PAIRS = [(text, " ".join(TAGS[word] for word in text.split())) for text in TEXTS]
MIXED = [*PAIRS[:5], ("dog the", "D N"), ("runs cat", "N V")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    stage = Stage(objective=CrossEntropy(), epochs=4, lr=0.05, tokens=20)
    return train(
        "tagging",
        tmp_path_factory.mktemp("cards") / "run",
        examples=PAIRS,
        dev=PAIRS[:4],
        test=MIXED,
        model=Lstm(embedding=8, hidden=8),
        pretrain=stage,
        objective=DirectLoss(k=2, cross_entropy=0.5),
        finetune=Stage(epochs=1, lr=0.01, tokens=20),
        quiet=True,
    )


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "my-tagger"
    run.save_pretrained(out, license="apache-2.0")
    return out


def code_in(text: str) -> str:
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.slow
def test_the_metadata_are_those_of_the_hub(run, exported):
    data = ModelCard.load(exported / "README.md").data
    assert data.library_name == "softbeam" and data.license == "apache-2.0"
    assert data.pipeline_tag == "token-classification" and "softbeam" in data.tags
    dev, test = data.eval_results
    assert (data.model_name, dev.dataset_split, test.dataset_split) == ("my-tagger", "dev", "test")
    assert dev.metric_type == "accuracy" and dev.metric_value == run.summary["metrics"]["accuracy"]
    rows = [row for row in read_metrics(run.folder) if row.get("value") == dev.metric_value]
    assert dev.metric_args == {"interval_95": rows[-1]["interval"]}
    plain = yaml.safe_load((exported / "README.md").read_text().split("---")[1])
    assert plain["model-index"][0]["results"][1]["dataset"]["split"] == "test"


@pytest.mark.slow
def test_figures_and_their_intervals_are_those_of_plain_code(run, exported):
    """The bootstrap draws whole sentences, and a figure is a share of all their tokens."""
    outputs = [ranked[0].tokens for ranked in run.decode([source for source, _ in MIXED])]
    right = [
        sum(a == b for a, b in zip(out, gold.split(), strict=True))
        for out, (_, gold) in zip(outputs, MIXED, strict=True)
    ]
    sizes = [len(gold.split()) for _, gold in MIXED]
    figure = ModelCard.load(exported / "README.md").data.eval_results[1]
    assert figure.metric_value == pytest.approx(100 * sum(right) / sum(sizes))
    assert 0 < sum(right) < sum(sizes)
    rng, shares = default_rng(0), []
    for _ in range(200):
        drawn = rng.integers(len(MIXED), size=len(MIXED))
        shares.append(100 * sum(right[i] for i in drawn) / sum(sizes[i] for i in drawn))
    assert figure.metric_args["interval_95"] == pytest.approx([*percentile(shares, [2.5, 97.5])])
    text = (exported / "README.md").read_text()
    low, high = figure.metric_args["interval_95"]
    assert f"{figure.metric_value:.4g} | {low:.4g} to {high:.4g} | {len(MIXED)} |" in text


@pytest.mark.slow
def test_the_card_says_what_the_records_say(run, exported):
    text = (exported / "README.md").read_text()
    facts = json.loads((run.folder / "environment.json").read_text())
    said = ["`DirectLoss(cross_entropy=0.5, k=2)`", "Expected cost of the relaxed beam", "beam 2"]
    said += [f"| train examples | {len(PAIRS)} |", f"| test examples | {len(MIXED)} |"]
    said += [
        "| beam size | 2 |",
        "| scores | normalized |",
        f"| torch | {facts['packages']['torch']}",
    ]
    said += ["bootstrap", "goyal2017continuous", "(Goyal et al. 2018, Equation 2)"]
    assert [words for words in said if words not in text] == []
    alpha = json.loads((run.folder / "summary.json").read_text())["alpha"]
    assert f"| alpha | {alpha:.4g} |" in text
    assert "goyal2017differentiable" not in text and "goyal2019" not in text
    facts = (exported / "environment.json").read_text()
    assert str(run.folder.parent) not in text + facts, "paths of this machine stay here"


@pytest.mark.slow
def test_a_folder_loads_after_it_was_moved(run, exported, tmp_path, monkeypatch, capsys):
    there = shutil.copytree(exported, tmp_path / "elsewhere")
    assert not (there / "examples.jsonl").exists(), "the training data stay at home"
    again = load_run(there)
    assert again.decode(TEXTS) == run.decode(TEXTS)
    assert again.own_search() == run.own_search()
    monkeypatch.chdir(there)
    exec(code_in((there / "README.md").read_text()), {})
    assert len(capsys.readouterr().out.splitlines()) == 2
    alone = tmp_path / "alone"
    monkeypatch.setattr(run.config.data.__class__, "load", lambda self: gone())
    load_run(there).save_pretrained(alone)
    [dev] = ModelCard.load(alone / "README.md").data.eval_results
    assert dev.metric_value == run.summary["metrics"]["accuracy"]
    assert "| test examples | 7 |" in (alone / "README.md").read_text()
    with pytest.raises(UserError, match="gone"):
        load_run(there).save_pretrained(tmp_path / "more", split="test")


def gone():
    raise UserError("the data are gone")


class FakeApi:
    """The hub in a folder."""

    def __init__(self, root: Path):
        self.root, self.calls = root, []

    def __call__(self, token=None):
        self.calls.append(("token", token))
        return self

    def create_repo(self, repo_id, *, private, exist_ok):
        self.calls.append(("create", repo_id, private, exist_ok))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id)
        return SimpleNamespace(commit_url=f"hub/{repo_id}/commit/1", message=commit_message)


@pytest.mark.slow
def test_pushing_uploads_a_folder_that_its_own_card_loads(run, tmp_path, monkeypatch, capsys):
    hub = FakeApi(tmp_path)
    monkeypatch.setattr(cards, "HfApi", hub)
    done = run.push_to_hub("me/tagger", private=True, token="secret", split=None)
    assert done.commit_url == "hub/me/tagger/commit/1"
    assert hub.calls == [("token", "secret"), ("create", "me/tagger", True, True)]
    folder = tmp_path / "me" / "tagger"
    card = ModelCard.load(folder / "README.md")
    assert card.data.model_name == "tagger" and len(card.data.eval_results) == 1
    assert "secret" not in "".join(p.read_text(errors="ignore") for p in folder.iterdir())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name: str(tmp_path / name))
    exec(code_in(card.text), {})
    words = ["export", str(run.folder), "--push", "me/other", "--split", "none", "--quiet"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "hub/me/other/commit/1"
    monkeypatch.setattr(hub, "upload_folder", lambda **_: gone())
    assert main([*words[:3], "me/third", *words[4:]]) == 2
    assert "softbeam export: me/third cannot be pushed" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_a_folder_and_replaces_nothing_else(run, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["export", str(run.folder), "--out", str(out), "--quiet"]
    assert main(words) == 0
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    expected = "config.yaml metrics.jsonl model.safetensors README.md source.json summary.json"
    assert names == {*expected.split(), "target.json", "environment.json"}
    assert main(words) == 2
    assert "holds an exported run: --overwrite replaces it" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    (out / "notes.txt").write_text("mine")
    assert main([*words, "--overwrite"]) == 2
    assert main(["export", str(run.folder), "--out", str(run.folder), "--overwrite"]) == 2
    assert (run.folder / "examples.jsonl").exists() and (out / "notes.txt").exists()
    assert main(["export", str(run.folder)]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_corpus_of_the_catalogue_comes_with_its_licence(tmp_path):
    recorded = {"examples": {"train": 12543}, "files": {"train": "/home/me/data/train.gz"}}
    (tmp_path / "environment.json").write_text(json.dumps(recorded))
    facts = data_facts(tmp_path, RunConfig(data=Supertags()))
    assert facts["corpus"] == "ccg-ewt" and facts["train examples"] == "12,543"
    assert facts["licence of the corpus"] == CORPORA["ccg-ewt"].licence != ""
    own = data_facts(tmp_path, RunConfig(data=Supertags(train="a", dev="b")))
    assert own["corpus"] == "train.gz" and own["licence of the corpus"] is None


def test_papers_are_those_of_the_citing_page():
    def keys(*objectives):
        return [e.partition("{")[2].partition(",")[0] for e in cards.papers(objectives)]

    assert keys(CrossEntropy(), MinimumRisk()) == []
    assert keys(ScheduledSampling()) == ["goyal2017differentiable"]
    assert keys(SoftHinge(k=2, normalize=True)) == ["goyal2017continuous"]
    assert keys(DirectLoss(normalize=False)) == ["goyal2017continuous", "goyal2019empirical"]
    assert keys(SelfNormalized()) == ["goyal2019empirical"]
    assert cards.citation([CrossEntropy()]) == ""


def test_tables_hold_what_would_break_them():
    text = cards.table({"a|b": "c\nd", "left out": None, "n": 3})
    assert text.splitlines()[2:] == ["| a\\|b | c d |", "| n | 3 |"]
    assert name_only("/home/me/train.de + /home/me/train.en") == "train.de + train.en"
    odd = cards.Figure("bleu", 1.0, "test", "/tmp/my data (new)!").result("translation")
    assert odd.dataset_type == "tmp-my-data-new"


def test_a_readme_of_somebody_else_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    card = ModelCard(f"---\ntags: []\n---\n{cards.MADE}\n# new")
    cards.write_card(card, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").write_text(f"{cards.MADE} old")
    cards.write_card(card, tmp_path)
    assert "# new" in (tmp_path / "README.md").read_text()
