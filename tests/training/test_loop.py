"""The loop: reproducible, exact under accumulation, warm-started, restarted, selected on dev."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softbeam.data.tasks import Tagging, Translation
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.training import many
from softbeam.training.config import RunConfig, Stage, from_text, from_yaml, to_json, to_yaml
from softbeam.training.loop import train
from softbeam.training.optimization import lr_shape, make_optimizer
from softbeam.training.recipes import RECIPES
from softbeam.training.recording import Recorder, names_of
from softbeam.training.runs import load_run, read_metrics
from softbeam.training.searches import Beam, Greedy
from softbeam.types import Batch
from support.descent import gradients
from support.objective_toys import rows_of
from support.small_data import write_tagging


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig(
        data=Tagging(
            train=write_tagging(tmp_path / "a.conll", 150, 1),
            dev=write_tagging(tmp_path / "b.conll", 40, 2),
        ),
        model=Lstm(embedding=16, hidden=16, encoder="uni"),
        pretrain=Stage(objective=CrossEntropy(), epochs=3, lr=0.02, tokens=100),
        log_every=2,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_bit_for_bit(config, tmp_path):
    one = replace(config, model=replace(config.model, dropout=0.2))
    train(one, tmp_path / "x", quiet=True)
    train(one, tmp_path / "y", quiet=True)
    train(replace(one, seed=2), tmp_path / "z", quiet=True)
    assert same(weights(tmp_path / "x"), weights(tmp_path / "y"))
    assert not same(weights(tmp_path / "x"), weights(tmp_path / "z"))


def test_only_training_flushes_numbers_too_small_to_matter(config, tmp_path, monkeypatch):
    def halved(*_, **__):
        return {"tiny": float(torch.tensor([1e-39]) * 0.5)}

    monkeypatch.setattr("softbeam.training.loop.train_once", halved)
    assert train(config, tmp_path / "run", quiet=True)["tiny"] == 0.0
    assert halved()["tiny"] > 0.0


@pytest.mark.slow
def test_a_run_folder_says_everything_and_loads(config, tmp_path):
    out = tmp_path / "run"
    summary = train(replace(config, pretrain=replace(config.pretrain, epochs=8)), out, quiet=True)
    assert summary["metrics"]["accuracy"] > 90, "the task is deterministic"
    names = "config.yaml source.json target.json metrics.jsonl model.safetensors environment.json"
    assert set(names.split()) <= {f.name for f in out.iterdir()}
    rows = read_metrics(out)
    assert {r["kind"] for r in rows} == {"train", "dev"}
    assert rows[0]["update"] == 2 and rows[0]["tokens_per_s"] > 0
    normalizers = [r["log_z"] for r in rows if r["kind"] == "dev"]
    assert all(set(n) == {"train", "dev"} and n["dev"]["variance"] >= 0 for n in normalizers)
    facts = json.loads((out / "environment.json").read_text())
    assert facts["packages"]["torch"] and facts["examples"]["train"] == 150
    assert load_run(out).evaluate("dev", Greedy()).metrics == summary["metrics"]


@pytest.mark.slow
def test_a_saved_configuration_runs_again_to_the_same_weights(config, tmp_path):
    train(config, tmp_path / "x", quiet=True)
    train(from_yaml(tmp_path / "x" / "config.yaml"), tmp_path / "y", quiet=True)
    assert same(weights(tmp_path / "x"), weights(tmp_path / "y"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_prints_itself_and_reloads(name, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(RECIPES[name]()))
    assert from_yaml(path) == RECIPES[name]()


def test_accumulated_batches_give_the_gradient_of_one_large_batch(config, tmp_path):
    """Also where the parts have different numbers of tokens: a mean of means would not."""
    source = torch.tensor([[2, 3, 4, 5], [3, 4, 0, 0], [5, 0, 0, 0]])
    target = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0], [2, 0, 0, 0]])
    whole = Batch.of(source, target, (source != 0).sum(1))
    parts = [rows_of(whole, [i]) for i in range(3)]
    one = gradients(config, tmp_path / "x", [[whole]])
    three = gradients(config, tmp_path / "y", [parts])
    for a, b in zip(one, three, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_warm_start_continues_from_the_other_run(config, tmp_path):
    train(config, tmp_path / "x", quiet=True)
    frozen = replace(config.pretrain, lr=1e-12, epochs=1)
    second = replace(config, warm_start=str(tmp_path / "x"), pretrain=frozen)
    train(second, tmp_path / "y", quiet=True)
    before, after = weights(tmp_path / "x"), weights(tmp_path / "y")
    for name in before:
        torch.testing.assert_close(before[name], after[name])


@pytest.mark.slow
def test_stages_follow_one_another(config, tmp_path):
    both = replace(config, finetune=replace(config.pretrain, epochs=2, lr=0.005))
    train(both, tmp_path / "x", quiet=True)
    rows = [r for r in read_metrics(tmp_path / "x") if r["kind"] == "dev"]
    assert [r["stage"] for r in rows] == ["pretrain"] * 3 + ["finetune"] * 2


@pytest.mark.slow
def test_a_stage_that_never_feeds_own_predictions_says_so(config, tmp_path, capsys):
    for epochs, told in ((1, True), (2, False)):
        stage = replace(config.pretrain, objective=ScheduledSampling(), epochs=epochs)
        train(replace(config, pretrain=stage), tmp_path / f"{epochs}")
        said = "pretrain: only gold is fed in 1 epoch(s): gold_epochs is 1"
        assert (said in capsys.readouterr().err) is told


@pytest.mark.slow
def test_a_second_stage_that_gets_no_better_says_what_to_try(config, tmp_path, capsys):
    """Steps too small to change an output: the first epoch stays the best of the stage."""
    said = "finetune: best after the first of 2 epochs; try a lower --finetune.lr"
    search = " or --finetune.objective.search_dropout shared"
    for objective, more in ((ScheduledSampling(gold_epochs=0), search), (CrossEntropy(), "")):
        stage = Stage(objective=objective, epochs=2, lr=1e-12, tokens=100, warmup=0)
        train(replace(config, finetune=stage), tmp_path / type(objective).__name__)
        assert f"{said}{more}\n" in capsys.readouterr().err
    better = replace(config, finetune=replace(config.pretrain, epochs=2, lr=0.005))
    train(better, tmp_path / "better")
    assert "best after" not in capsys.readouterr().err


@pytest.mark.slow
def test_restarts_keep_the_best_on_dev(config, tmp_path):
    out = tmp_path / "x"
    summary = many.train(replace(config, restarts=2), out, quiet=True)
    assert summary["score"] == max(summary["restart_scores"])
    winner = out / f"restart-{summary['restart']}"
    assert same(weights(out), weights(winner))
    assert load_run(out).config.seed == load_run(winner).config.seed


@pytest.mark.slow
def test_early_stopping_and_the_best_epoch(config, tmp_path):
    stage = replace(config.pretrain, epochs=30, lr=1e-12, patience=2)
    summary = train(replace(config, pretrain=stage), tmp_path / "x", quiet=True)
    rows = [r for r in read_metrics(tmp_path / "x") if r["kind"] == "dev"]
    assert len(rows) == 3 and summary["epoch"] == 0


@pytest.mark.slow
def test_tensorboard_gets_the_same_numbers(config, tmp_path):
    train(replace(config, tensorboard=True), tmp_path / "x", quiet=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "x" / "tensorboard"))
    events.Reload()
    logged = [r["loss"] for r in read_metrics(tmp_path / "x") if r["kind"] == "train"]
    seen = [e.value for e in events.Scalars("train/loss")]
    assert seen == pytest.approx(logged)


@pytest.mark.slow
def test_wandb_gets_the_same_numbers_offline(config, tmp_path, monkeypatch):
    """In one run of its own file, whose steps go on in the second stage."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    for name, value in {"MODE": "offline", "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    second = replace(config.pretrain, epochs=1)
    two = replace(config, pretrain=replace(config.pretrain, epochs=1), finetune=second)
    try:
        train(replace(two, track="wandb", tensorboard=True), tmp_path / "x", quiet=True)
    finally:
        wandb.teardown()
    file = DataStore()
    [path] = (tmp_path / "x" / "wandb").glob("offline-run-*/run-*.wandb")
    file.open_for_scan(str(path))
    seen, settings = {}, {}
    while (data := file.scan_data()) is not None:
        record = Record.FromString(data)
        for item in record.history.item:
            at = seen.setdefault(record.history.step.num, {})
            at["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        settings |= {item.key: item.value_json for item in record.run.config.update}
    assert json.loads(settings["model"])["class_path"] == "Lstm"
    rows, last = read_metrics(tmp_path / "x"), 0
    before = max(row["update"] for row in rows if row["stage"] == "pretrain")
    for row in rows:
        step = row["update"] + before * (row["stage"] == "finetune")
        assert step >= last
        last, name = step, "loss" if row["kind"] == "train" else "value"
        assert seen[step][f"{row['kind']}/{name}"] == pytest.approx(row[name])
    assert (tmp_path / "x" / "tensorboard").is_dir()


def test_trackers_count_on_in_a_resumed_run(tmp_path):
    path, logged = tmp_path / "metrics.jsonl", []

    class Accelerator:
        trackers: list = []

        def log(self, numbers, step):
            logged.append((numbers, step))

    rows = [("pretrain", 2), ("pretrain", 5), ("finetune", 3), ("finetune", 4)]
    path.write_text("")
    for stage, update in rows:
        recorder = Recorder(path, path.stat().st_size, Accelerator())
        recorder.log("train", stage=stage, update=update, loss=0.5)
        recorder.close()
    assert logged == [({"train/loss": 0.5}, step) for step in (2, 5, 8, 9)]


@pytest.mark.parametrize("word", ["track: tensorboard", "tensorboard: true", "track: wandb"])
def test_old_and_new_words_for_trackers_are_read(word):
    config = from_text(f"{word}\n")
    assert names_of(config) == [word.split(":")[1].strip().replace("true", "tensorboard")]
    assert names_of(from_text("tensorboard: false\n")) == []
    assert '"track"' not in to_json(from_text("tensorboard: false\n"))  # as cells of before


def test_learning_rate_shapes():
    flat = Stage(warmup=4)
    assert [lr_shape(flat, u, 10) for u in (0, 3, 4, 9)] == pytest.approx([0.2, 0.8, 1.0, 1.0])
    assert lr_shape(Stage(schedule="linear", warmup=0), 5, 10) == pytest.approx(0.5)
    assert lr_shape(Stage(schedule="cosine", warmup=0), 5, 10) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_optimizers(name):
    made = make_optimizer(torch.nn.Linear(2, 2), Stage(optimizer=name, weight_decay=0.1))
    assert type(made).__name__.lower() == name


@pytest.mark.slow
@pytest.mark.parametrize("subwords", [0, 60])
def test_translation_from_two_files(tmp_path, subwords):
    """Copying three-letter words: learnt with words and with subwords."""
    rng = torch.Generator().manual_seed(0)
    words = ["abc", "bca", "cab", "aab"]
    lines = []
    for _ in range(300):
        chosen = torch.randint(
            0, 4, (int(torch.randint(1, 5, (1,), generator=rng)),), generator=rng
        )
        lines.append(" ".join(words[i] for i in chosen))
    (tmp_path / "s").write_text("\n".join(lines) + "\n")
    (tmp_path / "t").write_text("\n".join(line.upper() for line in lines) + "\n")
    config = RunConfig(
        data=Translation(
            source=str(tmp_path / "s"),
            target=str(tmp_path / "t"),
            subwords=subwords,
            dev_share=0.2,
        ),
        model=Lstm(attention="bahdanau", embedding=32, hidden=32),
        pretrain=Stage(objective=CrossEntropy(), epochs=20, lr=0.01, tokens=60),
        select=Beam(k=2),
    )
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["metrics"]["chrf"] > 90
    assert "tok:13a" in summary["metrics"]["signature"]
