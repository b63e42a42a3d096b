"""Losses, gradients and weights that are not finite: stopped, named, or skipped and counted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from softbeam.data.tasks import Tagging
from softbeam.errors import NotFinite, UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.runtime.files import load_checkpoint
from softbeam.training import loop
from softbeam.training.config import RunConfig, Stage
from softbeam.training.loop import train
from softbeam.training.optimization import check_step, quoted
from softbeam.training.runs import read_metrics
from softbeam.types import Loss


class Poisoned(torch.autograd.Function):
    """The identity, whose gradient is a value."""

    @staticmethod
    def forward(ctx, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(gradient, ctx.value), None


@pytest.fixture
def config(tmp_path) -> RunConfig:
    (tmp_path / "a.conll").write_text("".join(f"w{i % 9} T{i % 3}\nx{i} T0\n\n" for i in range(90)))
    return RunConfig(
        data=Tagging(train=str(tmp_path / "a.conll")),
        model=Lstm(embedding=8, hidden=8, encoder="uni", dropout=0.2),
        pretrain=Stage(objective=CrossEntropy(), epochs=2, lr=0.02, tokens=10),
        log_every=4,
        checkpoint_every=3,
    )


@pytest.fixture
def poison(monkeypatch):
    """Spoils the loss or the gradient of some updates, which are counted from 1."""

    def make(updates, *, loss: float | None = None, gradient: float | None = None) -> None:
        plain = CrossEntropy.__call__

        def poisoned(self, model, batch, *, now, rng) -> Loss:
            found = plain(self, model, batch, now=now, rng=rng)
            if now.update + 1 not in updates:
                return found
            if loss is not None:
                return found._replace(total=found.total * loss)
            return found._replace(total=Poisoned.apply(found.total, gradient))

        monkeypatch.setattr(CrossEntropy, "__call__", poisoned)

    return make


CASES = {
    "loss inf": ({"loss": float("inf")}, "the loss became inf"),
    "loss nan": ({"loss": float("nan")}, "the loss became nan"),
    "gradient inf": ({"gradient": float("inf")}, "the gradient's norm became"),
    "gradient nan": ({"gradient": float("nan")}, "the gradient's norm became nan (the loss is "),
}


@pytest.mark.parametrize("case", CASES)
def test_training_stops_names_the_sentences_and_keeps_its_checkpoint(
    case, config, tmp_path, poison
):
    knobs, expected = CASES[case]
    poison({8}, **knobs)
    seen = watched_sentences(config)
    with pytest.raises(UserError) as stop:
        train(config, tmp_path / "x", quiet=True)
    said = str(stop.value)
    assert said.startswith(expected) and "in pretrain, epoch 1, update 8, with" in said
    assert "--skip-nonfinite N" in said and "the last checkpoint is kept" in said
    assert seen[7][4] not in said and all(repr(sentence) in said for sentence in seen[7][:3])
    assert "and 2 more" in said
    tensors, facts = load_checkpoint(tmp_path / "x" / "checkpoint.safetensors")
    assert facts["update"] == 6
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def watched_sentences(config: RunConfig) -> list[list[str]]:
    """The sentences of each update of the first epoch, as they are in the file."""
    from softbeam.data.batches import Batches
    from softbeam.data.encoding import encode
    from softbeam.training.vocabularies import make_codecs

    corpus = config.data.load()
    batches = Batches(encode(corpus.split("train"), make_codecs(config, corpus)), tokens=10, seed=1)
    own = [" ".join(example.source) for example in corpus.split("train")]
    return [[own[i] for i in batch] for batch in batches.plan(0)]


@pytest.mark.slow
def test_a_stopped_run_goes_on_once_it_may_skip(config, tmp_path, poison):
    """The number may change between the two, and nothing else."""
    poison({8}, gradient=float("nan"))
    out, whole = tmp_path / "x", tmp_path / "y"
    with pytest.raises(UserError, match="update 8"):
        train(config, out, quiet=True)
    lenient = replace(config, skip_nonfinite=2)
    with pytest.raises(UserError, match="other settings"):
        train(replace(lenient, seed=2), out, quiet=True, resume=True)
    summary = train(lenient, out, quiet=True, resume=True)
    assert summary["skipped"] == 1
    train(lenient, whole, quiet=True)
    for name in ("model.safetensors", "config.yaml"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert without_time(out) == without_time(whole)


def without_time(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "tokens_per_s"} for r in read_metrics(folder)]


@pytest.mark.slow
def test_skipped_updates_are_counted_over_stages_and_logged(config, tmp_path, poison):
    poison({2, 5}, loss=float("nan"))
    two = replace(config, finetune=config.pretrain, skip_nonfinite=4)
    summary = train(two, tmp_path / "x", quiet=True)
    assert summary["skipped"] == 4
    rows = [row for row in read_metrics(tmp_path / "x") if row["kind"] == "skipped"]
    places = [(row["stage"], row["epoch"], row["update"]) for row in rows]
    assert places == [(s, 0, u) for s in ("pretrain", "finetune") for u in (2, 5)]
    assert rows[0]["what"] == "the loss became nan"
    assert rows[0]["sentences"] == watched_sentences(config)[1]
    with pytest.raises(UserError, match="finetune, epoch 1, update 5.*after 3 skipped updates"):
        train(replace(two, skip_nonfinite=3), tmp_path / "y", quiet=True)


@pytest.mark.slow
def test_an_update_whose_search_refuses_its_scores_is_skipped_too(config, tmp_path, monkeypatch):
    plain = CrossEntropy.__call__

    def refusing(self, model, batch, *, now, rng) -> Loss:
        if now.update == 2:
            raise NotFinite("the scores of the decoder hold NaN")
        return plain(self, model, batch, now=now, rng=rng)

    monkeypatch.setattr(CrossEntropy, "__call__", refusing)
    with pytest.raises(UserError, match="hold NaN in pretrain, epoch 1, update 3, with the sent"):
        train(config, tmp_path / "x", quiet=True)
    lenient = replace(config, skip_nonfinite=1)
    assert train(lenient, tmp_path / "y", quiet=True)["skipped"] == 1
    rows = [row for row in read_metrics(tmp_path / "y") if row["kind"] == "skipped"]
    assert [row["what"] for row in rows] == ["the scores of the decoder hold NaN"]


@pytest.mark.slow
def test_a_skipped_update_changes_no_weight(config, tmp_path, poison, monkeypatch):
    """Nor Adam's moments: the next update is as if the batch had not been."""
    poison({1, 2, 3, 4, 5}, gradient=float("inf"))
    before, after = [], []
    plain = loop.run_update

    def update(step, group, now, *, clip):
        learner, optimizer = step.learner, step.optimizer
        if now.update < 5:
            before.append([p.detach().clone() for p in learner.parameters()])
        try:
            return plain(step, group, now, clip=clip)
        finally:
            if now.update < 5:
                after.append([p.detach().clone() for p in learner.parameters()])
                assert not optimizer.state_dict()["state"]
                assert all(p.grad is None for p in learner.parameters())

    monkeypatch.setattr(loop, "run_update", update)
    train(replace(config, skip_nonfinite=5), tmp_path / "x", quiet=True)
    assert len(before) == 5
    for one, two in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_rate_that_diverges_leaves_the_last_good_checkpoint(config, tmp_path):
    """Nothing is poisoned here: the weights overflow by themselves."""
    wild = replace(config, pretrain=replace(config.pretrain, lr=3e37, warmup=0), checkpoint_every=1)
    with pytest.raises(UserError, match="became (inf|nan|infinite or not a number)") as stop:
        train(wild, tmp_path / "x", quiet=True)
    assert "the last checkpoint is kept" in str(stop.value)
    tensors, _ = load_checkpoint(tmp_path / "x" / "checkpoint.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 1000])
def test_weights_that_are_not_finite_are_never_saved(config, tmp_path, monkeypatch, every):
    """An optimizer that spoils one weight: neither a checkpoint nor a dev score comes of it."""
    plain, last = loop.run_update, len(watched_sentences(config))  # of the epoch

    def update(step, group, now, *, clip):
        found = plain(step, group, now, clip=clip)
        if now.update + 1 == last:
            next(iter(step.learner.parameters())).data.view(-1)[0] = float("nan")
        return found

    monkeypatch.setattr(loop, "run_update", update)
    out = tmp_path / "x"
    with pytest.raises(UserError, match=f"the weights became .* after update {last} of pretrain"):
        train(replace(config, checkpoint_every=every), out, quiet=True)
    kept = load_checkpoint(out / "checkpoint.safetensors")[1]["update"]
    assert kept == (last - 1 if every == 1 else 0)
    assert not (out / "model.safetensors").exists()
    assert not [row for row in read_metrics(out) if row["kind"] == "dev"]


@pytest.mark.slow
def test_the_command_says_it_in_one_sentence(config, tmp_path, poison, capsys):
    from softbeam.cli import main

    poison({1}, loss=float("inf"))
    words = ["train", "tagging", "--data.train", config.data.train, "--out", str(tmp_path / "x")]
    words += ["--model.hidden", "8", "--quiet"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("softbeam train: the ") and "became" in said
    assert main([*words, "--skip_nonfinite", "-1"]) == 2
    assert "--skip-nonfinite -1: must be at least 0" in capsys.readouterr().err


def test_what_is_finite_passes():
    check_step(1e30, torch.tensor(1e30))
    for loss, norm in ((float("nan"), 1.0), (1.0, float("inf")), (1.0, torch.tensor(float("nan")))):
        with pytest.raises(NotFinite):
            check_step(loss, norm)


@pytest.mark.slow
def test_long_sentences_are_cut():
    assert quoted(["a" * 200, "b"]) == repr("a" * 80 + "…") + ", 'b'"
    assert quoted(["a", "b", "c", "d"]) == "'a', 'b', 'c' and 1 more"
    assert json.dumps(quoted(["x\ny"])).count("\\n") == 1, "it stays one line"
