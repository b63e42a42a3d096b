"""The demo's parts, and the whole of it, small and with networking blocked."""

import io
import json
import shlex
from pathlib import Path

import pytest
import torch

from softbeam.cli import main
from softbeam.experiments.demo import conclusions, listed, sampled, what_next
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import TinyMLM
from support.fenced import fenced, write_dictionary


def test_listing_all_texts_is_the_mean_by_plain_loops():
    mlm = TinyMLM(words=4)
    energy, total, z = LocalEnergy(mlm), 0.0, 0.0
    letters = mlm.allowed.nonzero()[:, 0].tolist()
    for a in letters:
        for b in letters:
            for c in letters:
                value = float(energy(torch.tensor([[a, b, c]])).detach().double())
                weight = torch.tensor(-value).double().exp().item()
                total, z = total + weight * value, z + weight
    assert listed(mlm, energy) == pytest.approx(total / z, rel=1e-5)


@pytest.mark.slow
def test_the_exact_sampler_finds_the_mean_and_the_other_does_not():
    mlm = TinyMLM(words=4)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    truth = listed(mlm, energy)
    mh = sampled(mlm, fast_metropolis_hastings(energy, propose), chains=200, sweeps=60)
    gibbs = sampled(mlm, degenerate_gibbs(propose, energy), chains=200, sweeps=60)
    assert abs(mh.mean - truth) < 4 * mh.error
    assert abs(gibbs.mean - truth) > 8 * gibbs.error


DEMO = """
import json
from pathlib import Path
from softbeam.experiments.demo import Size, demo
size = Size(words=300, tokens=500, epochs=1, chains=20, sweeps=15, held_out_words=100)
tables = demo(Path("the demo"), size=size, quiet=False)
Path("tables.json").write_text(json.dumps(tables))
"""


@pytest.fixture(scope="module")
def fenced_demo(tmp_path_factory) -> tuple[Path, str]:
    """A folder in which a small demo was run without network, and what it printed."""
    folder = tmp_path_factory.mktemp("fenced")
    data = write_dictionary(folder / "data")
    done = fenced(["-c", DEMO], folder, SOFTBEAM_DATA=str(data))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_the_demo_needs_no_network(fenced_demo):
    folder, said = fenced_demo
    assert "Metropolis-Hastings" in said and (folder / "the demo" / "report.html").is_file()
    assert not (folder / "network").exists(), (folder / "network").read_text()


@pytest.mark.slow
def test_the_whole_story(fenced_demo, capsys, monkeypatch):
    folder, said = fenced_demo
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SOFTBEAM_DATA", str(folder / "data"))
    tables = json.loads((folder / "tables.json").read_text())
    trained = ["cross-entropy", "more cross-entropy", "scheduled sampling"]
    trained += ["soft beam, local", "soft beam, global"]
    assert [row["training"] for row in tables["accuracy"]] == trained
    assert [row["training"] for row in tables["differences"]] == trained[2:]
    samplers = ["all texts listed", "Metropolis-Hastings", "degenerate Gibbs"]
    assert [row["sampler"] for row in tables["sampling"]] == samplers
    assert all(f"- {line}" in said for line in conclusions(tables))
    page = (folder / "the demo" / "report.html").read_text()
    assert all(name in page for name in (*trained, *samplers))  # both halves
    assert "Soft beams" in page and "Training loss, direct-loss" in page
    commands = what_next(Path("the demo"))
    assert all(command in said for command in commands)
    decode, evaluate, train, sample, report = map(shlex.split, commands)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"knowledge\n")))
    assert main(decode[decode.index("softbeam") + 1 :]) == 0
    assert len(capsys.readouterr().out.split()) == len("knowledge")
    assert main(evaluate[1:]) == 0
    row, shown = tables["differences"][-1]["as trained"], capsys.readouterr().out
    assert f"{row['difference']:.4g}" in shown
    with pytest.raises(SystemExit) as end:  # as --help ends; nothing is trained or fetched
        main([*train[1:], "--print_config"])
    assert end.value.code == 0
    assert sample[:2] == ["softbeam", "sample"] and report[:2] == ["softbeam", "report"]


def test_a_gain_is_claimed_only_if_its_interval_is_above_zero():
    def rows(low: float, high: float) -> dict:
        found = {"difference": (low + high) / 2, "interval": (low, high)}
        right = {"greedy": 1.0, "beam 3": 60.0, "beam 3 raw": 64.0, "words": 1.0, "words raw": 2.0}
        trained = ("more cross-entropy", "soft beam, global")
        sampled = {"energy": 5.0, "±": 0.1, "off": 1.0}
        return {
            "accuracy": [{"training": name} | right for name in trained],
            "differences": [{"training": trained[1], "as trained": found, "both raw": found}],
            "sampling": [sampled] * 3,
        }

    assert "no clear gain" in conclusions(rows(-1.0, 2.0))[1]
    clear = conclusions(rows(1.0, 2.0))
    assert "no clear gain" not in clear[1] and "+4.0 need no training" in clear[1]
    assert "+1.5 [+1.0, +2.0]" in clear[0]
