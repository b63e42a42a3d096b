"""Runs whose words are read by characters, vectors of a file, or a Hugging Face encoder."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softbeam.cli import main
from softbeam.data.batches import Encoded, collate
from softbeam.data.readers import Example
from softbeam.data.tasks import Corpus, Tagging, Translation
from softbeam.data.vocabulary import Spelled, load_codec
from softbeam.errors import UserError
from softbeam.models.specs import HfEncoder, Lstm
from softbeam.objectives import OBJECTIVES, CrossEntropy, Distillation
from softbeam.training.config import RunConfig, from_yaml
from softbeam.training.runs import load_run
from softbeam.training.vocabularies import make_codecs
from support.objective_toys import call
from support.small_data import write_conll
from support.tiny_encoder import tagger, write_encoder

SHORT = ["--pretrain.epochs", "2", "--pretrain.tokens", "30", "--pretrain.lr", "0.02", "--quiet"]
NARROW = ["--model.hidden", "6", "--model.dropout", "0.1"]
ENCODER = ["--model", "HfEncoder", "--model.name", "encoder", *NARROW]
VECTORS = ["--model.vectors", "vectors.txt", "--model.characters", "5", *NARROW]


def words(out: str, *more: str) -> list[str]:
    data = ["--data.train", "train.conll", "--data.dev", "dev.conll"]
    return ["train", "tagging", *data, *SHORT, "--out", out, *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Runs on vectors and on a frozen and a fine-tuned encoder; their inputs are gone."""
    folder = tmp_path_factory.mktemp("encoders")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_conll(Path("train.conll"), 2)
        write_conll(Path("dev.conll"), 1)
        write_encoder(Path("encoder"))
        Path("vectors.txt").write_text("the 1 0 0\nTHE 9 9 9\ndog 0 1 0\nruns 0 0 1\nzebra 1 1 1\n")
        assert main(words("vectors", *VECTORS)) == 0
        assert main(words("frozen", *ENCODER, "--model.frozen", "true")) == 0
        assert main(words("tuned", *ENCODER, "--model.pooling", "mean")) == 0
        for name in ("encoder", "vectors.txt"):
            shutil.move(name, f"moved-{name}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "frozen", "tuned"])
def test_a_run_decodes_without_the_files_of_its_model(trained, name):
    run = load_run(trained / name)
    (best,) = run.decode(["the unheard dogs"])
    assert len(best[0].tokens) == 3
    moved = trained / "elsewhere" / name
    shutil.copytree(trained / name, moved)
    assert load_run(moved).decode(["the unheard dogs"])[0][0].tokens == best[0].tokens


def test_the_model_files_of_a_run_are_recorded(trained):
    record = json.loads((trained / "vectors" / "inputs.json").read_text())["inputs"]
    assert record["model.vectors"]["path"] == "vectors.txt"
    record = json.loads((trained / "tuned" / "inputs.json").read_text())["inputs"]
    assert {"model.name model.safetensors", "model.name tokenizer.json"} <= set(record)


def test_a_run_does_not_begin_again_with_another_encoder(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    shutil.move("moved-encoder", "encoder")
    config = json.loads(Path("encoder/config.json").read_text())
    Path("encoder/config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1}))
    assert main(words("tuned", *ENCODER, "--model.pooling", "mean", "--resume")) == 2
    assert "other content of model.name config.json" in capsys.readouterr().err


@pytest.mark.slow
def test_embeddings_begin_with_the_vectors_and_take_their_width(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    shutil.copy("moved-vectors.txt", "vectors.txt")
    assert main([w for w in words("again", *VECTORS) if w != "--quiet"]) == 0
    said = capsys.readouterr().out
    Path("vectors.txt").unlink()
    assert "vectors.txt: vectors of width 3 for 50.0% of the 6 words of train and dev" in said
    codec = load_codec(trained / "again" / "source.json")
    assert isinstance(codec, Spelled) and codec.words.vector_width == 3
    assert "zebra" not in codec.words.index and from_yaml(Path("again/config.yaml")).model.vectors
    spec = Lstm(vectors="moved-vectors.txt", characters=5, hidden=6)
    corpus = Tagging(train="train.conll", dev="dev.conll").load()
    codecs = make_codecs(RunConfig(data=Tagging(), model=spec), corpus)
    model = spec.build_for(codecs)
    spec.initialize(model, codecs, {"train": [e.source for e in corpus.split("train")]})
    rows = model.encoder.embed.weight
    for word, vector in {"the": [1, 0, 0], "dog": [0, 1, 0], "runs": [0, 0, 1]}.items():
        assert rows[codecs.source.words.index[word]].tolist() == vector
    assert rows[codecs.source.words.index["cat"]].abs().sum() > 0


def test_words_of_dev_that_have_a_vector_are_in_the_vocabulary(tmp_path):
    (tmp_path / "v").write_text("new 1 2\nonce 3 4\n")
    texts = {"train": [("old", "once")], "dev": [("New", "other")]}
    rare = [tuple(f"w{i}" for i in range(2000))] * 2
    spec = Lstm(vectors=str(tmp_path / "v"))
    config = RunConfig(data=Tagging(), model=spec)
    texts["train"] += rare
    corpus = Corpus({name: [Example(t, t) for t in split] for name, split in texts.items()})
    codec = make_codecs(config, corpus).source
    assert "once" in codec.index and "New" in codec.index  # seen once, and in dev alone
    assert "old" not in codec.index and "other" not in codec.index


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "frozen", "tuned"])
def test_a_stopped_run_goes_on_to_the_same_weights_without_the_files(trained, name, tmp_path):
    """The last checkpoint of a run is put back, as it is after a kill in its last epoch."""
    from softbeam.training import loop

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(trained)
        for moved in ("encoder", "vectors.txt"):
            patch.setattr(loop, "stop_here", stop_after(3))
            shutil.move(f"moved-{moved}", moved)
        config = from_yaml(Path(name) / "config.yaml")
        out = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            loop.train(replace(config, checkpoint_every=1), out, quiet=True)
        for moved in ("encoder", "vectors.txt"):
            shutil.move(moved, f"moved-{moved}")
        patch.undo()
        patch.chdir(trained)
        loop.train(replace(config, checkpoint_every=1), out, quiet=True, resume=True)
    wanted, weights = (load_file(f / "model.safetensors") for f in (trained / name, out))
    assert wanted.keys() == weights.keys()
    assert all(wanted[key].equal(weights[key]) for key in wanted)


def stop_after(count: int):
    """A `stop_here` that interrupts training after so many checks."""
    left = [count]

    def stop(signum, out):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return stop


LEFT_TO_RIGHT = [kind for kind in OBJECTIVES if kind.left_to_right]


@pytest.mark.parametrize("kind", LEFT_TO_RIGHT, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("frozen", [True, False])
def test_every_objective_steps_on_an_encoder(encoder_folder, kind, frozen):
    model, codecs = tagger(encoder_folder, frozen=frozen)
    objective = kind(teacher=Path("teacher")) if kind is Distillation else kind()
    objective = objective.loaded(lambda path: tagger(encoder_folder)[0])
    texts = ["the dog runs".split(), "a cat".split()]
    batch = collate([Encoded(codecs.source.encode(t), [len(w) % 3 for w in t]) for t in texts])
    weights = [p for p in model.parameters() if p.requires_grad]
    before = [w.clone() for w in weights]
    call(objective, model.train(), batch).total.backward()
    torch.optim.SGD(weights, lr=0.1).step()
    assert any(not w.equal(b) for w, b in zip(weights, before, strict=True))
    assert all(bool(w.isfinite().all()) for w in weights)


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def test_words_are_not_read_whole_where_the_task_has_subwords(tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("".join(f"Hund {i}\n" for i in range(99)))
    task = Translation(source=str(tmp_path / "source"), target=str(tmp_path / "target"), subwords=9)
    for setting in ({"characters": 8}, {"vectors": "v.txt"}):
        (name,) = setting
        model = Lstm(attention="bahdanau", **setting)
        with pytest.raises(UserError, match=rf"--model\.{name} .*: is for whole words"):
            make_codecs(RunConfig(data=task, model=model), task.load())


@pytest.mark.slow
def test_a_run_without_characters_is_no_start_of_one_with_them(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(words("plain", *NARROW, "--model.characters", "0")) == 0
    assert main(words("warm", *NARROW, "--warm_start", "plain")) == 2
    assert "characters 64: the run's vocabulary has no characters" in capsys.readouterr().err
    assert main(words("second", *ENCODER, "--warm_start", "plain")) == 2
    assert "vocabulary is not that of an encoder" in capsys.readouterr().err


def test_an_encoder_translates(encoder_folder, tmp_path):
    (tmp_path / "s").write_text("the dog runs\na cat sleeps\n" * 20)
    (tmp_path / "t").write_text("der Hund läuft\neine Katze schläft\n" * 20)
    task = Translation(source=str(tmp_path / "s"), target=str(tmp_path / "t"), subwords=60)
    model = HfEncoder(name=str(encoder_folder), attention="bahdanau", hidden=6)
    codecs = make_codecs(RunConfig(data=task, model=model), task.load())
    built = model.build_for(codecs)
    source, target = codecs.source.encode(["the", "dog"]), codecs.target.encode(["der", "Hund"])
    loss = call(CrossEntropy(), built, collate([Encoded(source, target)], eos=codecs.eos))
    assert loss.total.isfinite()
