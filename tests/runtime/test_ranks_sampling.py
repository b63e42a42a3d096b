"""Samples, scores and fillings of two processes are those of one, in the same order."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.runtime import ranks
from softbeam.sampling.texts.files import begin, checkpoint_of, make_header, write_samples
from softbeam.sampling.texts.settings import SamplingConfig
from support.processes import ranks_of, wait_for
from support.tiny_bert import letter_mlm, write_letter_mlm


def test_blocks_are_all_of_it_in_order(monkeypatch):
    for world in (1, 2, 3, 5):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for n in (0, 1, 2, 7):
            found = []
            for rank in range(world):
                monkeypatch.setenv("RANK", str(rank))
                found += list(ranks.block(n))
            assert found == list(range(n))


def test_work_in_turn_keeps_the_order():
    assert list(ranks.in_turn("abc", str.upper)) == ["A", "B", "C"]


def test_standard_input_is_not_for_several_processes(monkeypatch, capsys):
    around = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    assert main(["score", "--mlm", "M", "--input", "-"]) == 2
    assert "under torchrun give a file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_text_does_not_depend_on_those_of_other_groups(tmp_path):
    """Its random numbers are its group's: other groups may be another process's."""
    mlm, config = letter_mlm(), SamplingConfig(chains=2, sweeps=4, burn_in=1, at_once=2)
    rows = []
    for name, first in (("a", "AC[MASK]"), ("b", "[MASK][MASK]KLA")):
        header = make_header("letters", [first, "D[MASK]E[MASK]"], config, 1)
        write_samples(mlm, header, config, tmp_path / name, quiet=True)
        rows.append((tmp_path / name).read_text().splitlines()[-8:])
    assert rows[0] == rows[1] and '"index": 1' in rows[0][0]


def test_another_number_of_processes_cannot_go_on(tmp_path, monkeypatch):
    out, config = tmp_path / "s.jsonl", SamplingConfig(chains=2, sweeps=4, burn_in=1)
    header = make_header("letters", ["A[MASK]"], config, 1)
    write_samples(letter_mlm(), header, config, out, every=0.0, quiet=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="started by 1 processes, not 2"):
        begin(out, header, resume=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("sampling")
    write_letter_mlm(made / "mlm")
    texts = [f"{'AC' * n}[MASK]D[MASK]{'E' * (n % 3)}" for n in range(1, 6)]
    (made / "gaps.txt").write_text("\n".join(texts) + "\n")
    whole = [text.replace("[MASK]", "K") for text in texts]
    (made / "whole.txt").write_text("\n".join(whole * 11) + "\n")
    return made


def commands(folder: Path, out: Path) -> dict[str, list[str]]:
    """Samples in three groups, scores in four parts, fillings of five texts."""
    mlm = ["--mlm", str(folder / "mlm"), "--quiet"]
    gaps, whole = (["--input", str(folder / name)] for name in ("gaps.txt", "whole.txt"))
    sample = ["sample", *mlm, *gaps, "--chains", "2", "--at-once", "4", "--sweeps", "5"]
    infill = ["infill", *mlm, *gaps, "--samples", "12", "--burn-in", "2", "--chains", "4"]
    return {
        "sample": [*sample, "--burn-in", "1", "--out", str(out / "samples.jsonl")],
        "score": ["score", *mlm, *whole, "--per-token", "--format", "jsonl"],
        "infill": [*infill, "--json"],
    }


@pytest.fixture(scope="module")
def both(folder, nursery, tmp_path_factory) -> tuple[Path, Path]:
    """What one process and what two have said and written."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    for name, words in commands(folder, one).items():
        with (one / f"{name}.said-0").open("w") as file, contextlib.redirect_stdout(file):
            assert main(words) == 0
    (two / "commands.json").write_text(json.dumps(commands(folder, two)))
    end = nursery.life([str(two)], program="support.rank_programs:run_commands", ranks=2)
    assert end.code == 0, end.said
    return one, two


@pytest.mark.slow
def test_two_processes_write_the_same_samples(both):
    one, two = both
    lines = (one / "samples.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + 5 * 2 * 5
    assert (two / "samples.jsonl").read_bytes() == (one / "samples.jsonl").read_bytes()
    names = {path.name for path in two.iterdir() if path.name.startswith("samples")}
    assert names == {"samples.jsonl", "samples.json", "samples.png"}
    tables = [(f / "sample.said-0").read_text().split("ESS")[0] for f in both]
    assert tables[0] == tables[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["score", "infill"])
def test_two_processes_say_the_same_in_the_same_order(name, both):
    one, two = ((f / f"{name}.said-0").read_text() for f in both)
    assert one == two and len(one.splitlines()) >= 10
    assert (both[1] / f"{name}.said-1").read_text() == ""


@pytest.mark.slow
def test_killed_samplers_go_on_to_the_same_file(folder, nursery, tmp_path):
    words = commands(folder, tmp_path)["sample"]
    more = ["--sweeps", "60", "--checkpoint-every", "0"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words, *more]) == 0
    whole = (tmp_path / "samples.jsonl").read_bytes()
    out = tmp_path / "killed.jsonl"
    command = [*words, *more, "--out", str(out)]
    second = tmp_path / "killed.jsonl.1-of-2"
    nursery.begin(command, ranks=2)
    wait_for(checkpoint_of(out), checkpoint_of(second))
    ranks_of(nursery)[1].kill()
    assert nursery.end().code != 0
    assert not out.with_suffix(".json").exists()
    assert nursery.life([*command, "--resume"], ranks=2).code == 0
    assert out.read_bytes() == whole
    assert not second.exists() and not checkpoint_of(out).exists()
