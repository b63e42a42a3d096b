"""Two processes train as one does with the same global batches, and go on after a kill."""

import json
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softbeam.cli import main
from softbeam.data.batches import Batches, Encoded, Position, collate
from softbeam.data.tasks import Tagging
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.hard_beam import BeamCrf
from softbeam.objectives.likelihood import CrossEntropy, SelfNormalized
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.runtime import ranks
from softbeam.training.config import RunConfig, Stage, to_yaml
from softbeam.training.loop import train
from softbeam.training.runs import read_metrics
from support.descent import descended
from support.processes import end, module, ranks_of, torchrun, wait_for
from support.small_data import write_tagging


@pytest.fixture
def double():
    """In float64 rounding cannot hide a difference, nor Adam make one of it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pretend(monkeypatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")


def test_one_process_sends_nothing():
    assert (ranks.rank(), ranks.world(), ranks.first()) == (0, 1, True)
    with ranks.joined():
        ranks.wait()
        assert ranks.summed([1.5, 2.0]) == [1.5, 2.0] and ranks.largest(3) == 3
        assert ranks.from_first({"a": 1}) == {"a": 1} and ranks.gathered("x") == ["x"]
        assert ranks.stacked(torch.ones(2)).shape == (1, 2)
    assert ranks.own_seed(7) == 7


def test_shares_of_a_batch_are_all_of_it(monkeypatch):
    examples = [Encoded([i + 1] * 3, [i] * 3) for i in range(5)]
    batches = Batches(examples, tokens=12, seed=1)
    whole = [batch for _, batch in batches.epoch(Position())]
    shares = []
    for rank in range(3):
        pretend(monkeypatch, rank, 3)
        shares.append([batch for _, batch in batches.epoch(Position())])
        assert ranks.own_seed(7) != 7 or rank == 0
    for number, batch in enumerate(whole):
        rows = [row for share in shares for row in share[number].source.tolist()]
        assert sorted(rows) == sorted(batch.source.tolist())
    assert any(not len(batch.target) for share in shares for batch in share)


def test_no_examples_are_an_empty_batch():
    batch = collate([])
    assert batch.source.shape == batch.target.shape == batch.mask.shape == (0, 1)


def test_commands_that_are_not_for_several_processes_say_so(monkeypatch, capsys):
    pretend(monkeypatch, 1, 2)
    assert main(["reproduce", "table-6.1"]) == 2
    assert "torchrun is for train only" in capsys.readouterr().err


# Equality


def configs(folder: Path) -> dict[str, RunConfig]:
    """Deterministic objectives without dropout; batches down to one sentence."""
    base = RunConfig(
        data=Tagging(
            train=write_tagging(folder / "a.conll", 60, 1),
            dev=write_tagging(folder / "b.conll", 20, 2),
        ),
        model=Lstm(embedding=8, hidden=8),
        pretrain=Stage(objective=CrossEntropy(), epochs=2, lr=0.01, tokens=60),
        log_every=1,
    )
    first = base.pretrain
    small = replace(first, tokens=7, accumulation=3, clip=0.5)
    return {
        "single": replace(base, finetune=replace(first, objective=DirectLoss())),
        "cross-entropy": base,
        "accumulation": replace(base, pretrain=small),
        "self-normalized": replace(base, pretrain=replace(first, objective=SelfNormalized())),
        "direct-loss": replace(base, finetune=replace(first, objective=DirectLoss(k=2))),
        "beam-crf": replace(base, finetune=replace(small, objective=BeamCrf(k=2), epochs=1)),
        "dropout": replace(
            base,
            model=replace(base.model, dropout=0.3),
            pretrain=replace(first, objective=ScheduledSampling(gold_epochs=0)),
            checkpoint_every=2,
            restarts=2,
        ),
    }


@pytest.fixture(scope="module")
def together(nursery, tmp_path_factory) -> tuple[Path, dict[str, RunConfig]]:
    """All of them trained by two processes, which are started once."""
    folder = tmp_path_factory.mktemp("together")
    made = configs(folder)
    for name, config in made.items():
        (folder / f"{name}.yaml").write_text(to_yaml(config))
    end = nursery.life([str(folder)], program="support.rank_programs:train_all", ranks=2)
    assert end.code == 0, end.said
    return folder, made


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(folder) if row["kind"] == "train"]


DETERMINISTIC = ("cross-entropy", "accumulation", "self-normalized", "direct-loss", "beam-crf")


@pytest.mark.slow
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_two_processes_give_the_loss_and_the_weights_of_one(name, together, tmp_path, double):
    folder, made = together
    summary = train(made[name], tmp_path / "one", quiet=True)
    one, two = losses(tmp_path / "one"), losses(folder / name)
    assert len(one) > 6 and one == pytest.approx(two, rel=0, abs=1e-9)
    weights = [load_file(f / "model.safetensors") for f in (tmp_path / "one", folder / name)]
    for key in weights[0]:
        torch.testing.assert_close(weights[0][key], weights[1][key], rtol=0, atol=1e-9)
    found = json.loads((folder / name / "summary.json").read_text())
    assert found["metrics"] == summary["metrics"]


@pytest.mark.slow
def test_gradients_are_sums_divided_once(together, tmp_path):
    folder, made = together
    descended(made["cross-entropy"], tmp_path / "one")
    one, two = (
        load_file(f / "weights.safetensors") for f in (tmp_path / "one", folder / "descended")
    )
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_in_single_precision_the_losses_are_equal_to_1e_6(together, tmp_path):
    folder, made = together
    train(made["single"], tmp_path / "one", quiet=True)
    assert load_file(tmp_path / "one" / "model.safetensors")["bos"].dtype == torch.float32
    assert losses(tmp_path / "one") == pytest.approx(losses(folder / "single"), rel=0, abs=1e-6)


@pytest.mark.slow
def test_random_objectives_and_restarts_run_together(together):
    folder, _ = together
    for rank in range(2):  # progress goes to stderr, and nothing was printed twice
        assert (folder / f"said-{rank}").read_text() == ""
    rows = read_metrics(folder / "dropout")
    assert {row["kind"] for row in rows} == {"train", "dev"}
    updates = [row["update"] for row in rows if row["kind"] == "train"]
    assert updates == list(range(1, len(updates) + 1))
    assert json.loads((folder / "dropout" / "summary.json").read_text())["restart"] in (0, 1)
    assert not list(folder.glob("**/checkpoint.safetensors"))


# Going on


def command(folder: Path, out: Path, *more: str) -> list[str]:
    words = ["train", "tagging", "--data.train", str(folder / "a.conll")]
    words += ["--data.dev", str(folder / "b.conll"), "--out", str(out), "--quiet"]
    words += ["--pretrain.epochs", "2", "--pretrain.tokens", "40", "--model.hidden", "12"]
    words += ["--model.dropout", "0.3", "--checkpoint_every", "3", "--log_every", "1"]
    words += ["--objective", "scheduled-sampling", "--finetune.epochs", "4"]
    words += ["--finetune.tokens", "40", "--finetune.objective.gold_epochs", "0"]
    return [*words, *more]


def without_time(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "tokens_per_s"} for r in read_metrics(folder)]


@pytest.mark.slow
def test_killed_and_resumed_they_end_with_the_same_weights(together, nursery, tmp_path):
    """Dropout and coins of both processes go on; one of the two is killed while it trains."""
    folder, out = together[0], tmp_path / "killed"
    whole = nursery.life(command(folder, tmp_path / "whole", "--json"), ranks=2)
    said = whole.said.splitlines()
    assert whole.code == 0 and len(said) == len({*said}) > 3, "one process alone speaks"
    nursery.begin(command(folder, out), ranks=2)
    wait_for(out / "checkpoint.safetensors")
    ranks_of(nursery)[1].kill()
    assert nursery.end().code != 0
    assert (out / "checkpoint.safetensors").exists() and not (out / "summary.json").exists()
    assert nursery.life(command(folder, out, "--resume"), ranks=2).code == 0
    whole, resumed = (load_file(f / "model.safetensors") for f in (tmp_path / "whole", out))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    assert without_time(tmp_path / "whole") == without_time(out)


@pytest.mark.slow
def test_a_signal_stops_all_of_them_after_one_update_and_one_process_can_go_on(
    together, nursery, tmp_path, capsys
):
    out = tmp_path / "stopped"
    nursery.begin(command(together[0], out), ranks=2)
    wait_for(out / "checkpoint.safetensors")
    ranks_of(nursery)[1].terminate()  # not the one that writes
    said = nursery.end().said
    assert said.count("--resume goes on with") == 2, said
    assert not (out / "summary.json").exists()
    assert main([*command(together[0], out, "--resume")]) == 0
    assert "begun by 2 processes and goes on with 1" in capsys.readouterr().err
    updates = [row["update"] for row in read_metrics(out) if row.get("stage") == "finetune"]
    assert sorted(set(updates)) == list(range(1, max(updates) + 1))


STOPPED = """
import json, os, signal, sys
from softbeam.cli import main
from softbeam.runtime import ranks
assert main(json.loads(sys.argv[1])) == 0
ranks.BEAT, ranks.PATIENT_BEATS = 0.1, 10
with ranks.joined():
    ranks.wait()
    if ranks.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ranks.wait()
"""


@pytest.mark.slow
def test_a_process_that_stops_is_named(tmp_path):
    """The others would wait for it for days; torchrun then kills it. Before, a run is trained."""
    write_tagging(tmp_path / "a.conll", 60, 1)
    write_tagging(tmp_path / "b.conll", 20, 2)
    words = command(tmp_path, tmp_path / "run", "--pretrain.epochs", "1", "--finetune.epochs", "1")
    started = torchrun(module(tmp_path, "stopped", STOPPED), json.dumps(words))
    with subprocess.Popen(started, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        said = next(line for line in launcher.stderr if "has not answered" in line)
        end(launcher)
    assert (tmp_path / "run" / "summary.json").is_file()
    expected = "softbeam: rank 0 ends: rank 1 has not answered for 1 s (stopped, or its machine is"
    assert said.startswith(expected)


def test_silence_is_counted_in_own_beats():
    store = torch.distributed.HashStore()
    one, two, three = (ranks.Watch(store, rank=rank, world=3) for rank in range(3))
    for _ in range(3 * ranks.PATIENT_BEATS):
        assert one.beat() is None and two.beat() is None and three.beat() is None
    three.leave()
    for beat in range(2 * ranks.PATIENT_BEATS):
        assert one.beat() is None, "the third has left, and the second is slow"
        if beat % ranks.PATIENT_BEATS == 0:
            two.beat()
    named = [one.beat() for _ in range(ranks.PATIENT_BEATS + 1)]
    assert named[-1] == 1 and two.beat() is None


def test_a_process_that_does_not_start_is_named(monkeypatch):
    pretend(monkeypatch, 0, 2)
    monkeypatch.setattr(ranks, "START", timedelta(seconds=0.1))
    with pytest.raises(UserError, match="rank 1 of 2 did not start within 0 s"):
        ranks._assemble(torch.distributed.HashStore())
