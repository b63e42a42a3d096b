"""A hollow model beside a plain one: scores, chains, and what is refused."""

import json

import pytest
import torch

from softbeam.cli import main
from softbeam.experiments.bench import hollow
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals

TEXTS = ["abcabcab", "bcabcabc", "cabcabca", "aabbccaa", "abababab"]
SIZES = "--width 8 --layers 3 --heads 2 --updates 3 --longest 8 --quiet".split()


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for form in ("plain", "hollow"):
        out = ["--out", str(tmp_path / form)]
        words = ["train", "masked-lm", "--train", str(tmp_path / "texts.txt"), *SIZES, *out]
        assert main([*words, "--dev", str(tmp_path / "texts.txt"), "--form", form]) == 0
    return tmp_path


def words(folder, plain="plain"):
    named = ["--plain", str(folder / plain), "--hollow", str(folder / "hollow")]
    sizes = "--time 8 --chains 2 --steps 40 --scored 5".split()
    return ["bench", "hollow", *named, "--texts", str(folder / "texts.txt"), *sizes]


@pytest.mark.slow
def test_scores_are_energies_and_chains_those_of_the_plain_kernel(folders, capsys):
    assert main([*words(folders), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for row in found["rows"]:
        mlm = hollow.loaded(str(folders / row["form"]))
        tokens = mlm.encode(TEXTS).tokens
        assert row["nats"] == pytest.approx(float(LocalEnergy(mlm)(tokens).sum()) / 40, abs=1e-5)
        assert row["ess"] > 1 and row["ess_per_s"] > 0
    plain, other = found["rows"]
    assert other["rows_per_proposal"] < plain["rows_per_proposal"]
    mlm = hollow.loaded(str(folders / "hollow"))
    kernel = metropolis_hastings(LocalEnergy(mlm), MaskedConditionals(mlm))
    rng, state = torch.Generator().manual_seed(1), kernel.init(tokens[:2])
    energies = []
    for positions in hollow.some_blocks(torch.ones(2, 8).bool(), 40, 1):
        state, _ = kernel.step(state, positions, rng)
        energies.append(state.energy)
    expected = float(torch.stack(energies)[4:].mean())
    assert other["energy"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_models_of_another_kind_are_refused(folders, capsys):
    assert main(words(folders, plain="hollow")) == 2
    assert "--plain and --hollow" in capsys.readouterr().err
    assert main(words(folders, plain="nothing")) == 2
    assert "has no model of softbeam train masked-lm" in capsys.readouterr().err
