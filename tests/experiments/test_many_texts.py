"""Samples, scores and fillings of a cluster are those of one process, byte for byte."""

import contextlib
import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.experiments.many_texts import Model, groups, loaded, state
from softbeam.runtime.files import load_checkpoint, save_checkpoint
from softbeam.sampling.texts.files import begin, checkpoint_of, make_header, write_samples
from softbeam.sampling.texts.settings import SamplingConfig
from support.processes import wait_for
from support.tiny_bert import letter_mlm, write_letter_mlm

TEXTS = [f"{'AC' * (n % 4)}[MASK]D[MASK]{'E' * (n % 3)}" for n in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("texts")
    write_letter_mlm(made / "mlm")
    (made / "gaps.txt").write_text("\n".join(TEXTS) + "\n")
    whole = [text.replace("[MASK]", "K") for text in TEXTS]
    (made / "whole.txt").write_text("\n".join(whole) + "\n")
    (made / "few.txt").write_text("\n".join(TEXTS[:20]) + "\n")
    return made


@pytest.fixture(autouse=True, scope="module")
def no_plots():
    """They take longer than the samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softbeam.sampling.texts.summary.write_plot", lambda texts, path: None)
        yield


def sampled(folder: Path, out: Path, *more: str, texts: str = "few.txt") -> list[str]:
    words = ["sample", "--mlm", str(folder / "mlm"), "--input", str(folder / texts)]
    words += ["--chains", "2", "--sweeps", "3", "--burn-in", "1", "--at-once", "4"]
    return [*words, "--out", str(out), *more]


def said(words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert main(words) == 0
    return text.getvalue()


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory) -> Path:
    """The samples of a few texts by one process."""
    out = tmp_path_factory.mktemp("alone") / "samples.jsonl"
    said(sampled(folder, out, "--quiet"))
    return out


@pytest.mark.slow
def test_a_cluster_writes_the_same_samples(folder, pair, tmp_path, capsys):
    out = tmp_path / "samples.jsonl"
    large, many = ["--at-once", "16"], {"texts": "gaps.txt"}
    said(sampled(folder, tmp_path / "alone" / "samples.jsonl", "--quiet", *large, **many))
    one = (tmp_path / "alone" / "samples.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "alone")
    table = said(sampled(folder, out, "--cluster", pair[0].address, *large, **many))
    assert len(one.splitlines()) == 1 + 200 * 2 * 3 and out.read_bytes() == one
    assert {path.name for path in tmp_path.iterdir()} == {"samples.jsonl", "samples.json"}
    assert table.splitlines()[0].split()[:4] == ["text", "accept", "self", "novel"]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sample  ")]
    assert len(lines) == 25 and "  texts 8 to 15  by worker" in "\n".join(lines)


@pytest.mark.slow
def test_a_lost_worker_costs_its_group(folder, alone, farm, tmp_path):
    """Both workers are killed in the middle; another one does the rest."""
    scheduler, out = farm.scheduler(), tmp_path / "samples.jsonl"
    workers = [farm.worker(scheduler, warm=True) for _ in range(2)]
    words = sampled(folder, out, "--cluster", scheduler.address, "--quiet")
    results = tmp_path / "samples.jsonl.parts" / "results"
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(main, words)
        wait_for(results)
        while not list(results.glob("*.json")):
            pass
        for worker in workers:
            worker.kill()
        before = {path.name: path.stat().st_mtime_ns for path in results.glob("*.json")}
        assert 0 < len(before) < 10
        farm.worker(scheduler, warm=True)
        assert command.result(60) == 0
    assert out.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_a_stopped_command_goes_on_with_the_groups_that_are_there(
    folder, alone, pair, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "samples.jsonl"
    words = sampled(folder, out, "--cluster", pair[0].address, "--quiet")

    def full(*_: object) -> None:
        raise UserError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("softbeam.experiments.many_texts.files.write_groups", full)
        assert main(words) == 2
    parts = tmp_path / "samples.jsonl.parts"
    finished = {p: p.stat().st_mtime_ns for p in (parts / "results").iterdir()}
    assert len(finished) == 10
    next(iter(finished)).unlink()
    assert main(words) == 2 and "--resume goes on with it" in capsys.readouterr().err
    assert said([*words, "--resume"]) and out.read_bytes() == alone.read_bytes()
    assert not parts.exists()
    save_checkpoint(checkpoint_of(out), {}, {})
    out.with_suffix(".json").unlink()
    same = "softbeam.cli.sample.files.resumed_header"
    monkeypatch.setattr(same, lambda out, header, accept: header)
    assert main([*words, "--resume"]) == 2
    assert "was begun without --cluster; resume it without" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["score", "--input", "whole.txt", "--per-token", "--format", "jsonl"],
        ["infill", "--input", "few.txt", "--samples", "20", "--burn-in", "1", "--json"],
    ],
)
def test_a_cluster_prints_the_same(words, folder, pair, monkeypatch):
    monkeypatch.chdir(folder)
    words = [*words, "--mlm", "mlm", "--quiet"]
    one = said(words)
    assert said([*words, "--cluster", pair[0].address]) == one and len(one.splitlines()) >= 10
    assert not (folder / f"{words[0]}.parts").exists()


@pytest.mark.slow
def test_a_folder_of_somebody_else_is_not_touched(folder, pair, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("a")
    words = ["score", "--mlm", str(folder / "mlm"), "--text", "AC", "--cluster", pair[0].address]
    assert main([*words, "--parts", str(tmp_path / "mine")]) == 2
    assert "softbeam did not write what is in it" in capsys.readouterr().err
    (tmp_path / "mine" / "a.txt").rename(tmp_path / "a.txt")
    (tmp_path / "mine" / "photos").mkdir()
    (tmp_path / "mine" / "photos" / "b.txt").write_text("b")
    said([*words, "--parts", str(tmp_path / "mine")])
    assert [p.name for p in (tmp_path / "mine").rglob("*")] == ["photos", "b.txt"]


def test_a_worker_with_other_files_of_the_model_is_refused(folder):
    model = Model(
        mlm=str(folder / "mlm"),
        dtype="float32",
        device="cpu",
        threads=1,
        trust_remote_code=False,
        files="0" * 16,
    )
    with pytest.raises(UserError, match="the files of .*mlm are not those that the command has"):
        loaded(model)
    assert len(state(model.mlm)) == 16
    cells = groups("score", model, TEXTS, 16, {})
    assert [text for cell in cells for text in cell.texts] == TEXTS
    assert str(cells[-1]) == "texts 192 to 199" and [c.number for c in cells] == list(range(13))


@pytest.mark.slow
def test_a_text_does_not_depend_on_those_of_other_groups(tmp_path):
    """Its random numbers are its group's: other groups may be another worker's."""
    mlm, config = letter_mlm(), SamplingConfig(chains=2, sweeps=4, burn_in=1, at_once=2)
    rows = []
    for name, first in (("a", "AC[MASK]"), ("b", "[MASK][MASK]KLA")):
        header = make_header("letters", [first, "D[MASK]E[MASK]"], config, 1)
        write_samples(mlm, header, config, tmp_path / name, quiet=True)
        rows.append((tmp_path / name).read_text().splitlines()[-8:])
    assert rows[0] == rows[1] and '"index": 1' in rows[0][0]


def test_what_processes_of_torchrun_have_begun_cannot_go_on(tmp_path):
    out, config = tmp_path / "s.jsonl", SamplingConfig(chains=2, sweeps=4, burn_in=1)
    header = make_header("letters", ["A[MASK]"], config, 1)
    write_samples(letter_mlm(), header, config, out, every=0.0, quiet=True)
    tensors, facts = load_checkpoint(checkpoint_of(out))
    save_checkpoint(checkpoint_of(out), tensors, facts | {"processes": 2})
    with pytest.raises(UserError, match="started by 2 processes of torchrun"):
        begin(out, header, resume=True)
