"""The demo's parts, small; the whole of it is run with networking blocked elsewhere."""

import pytest
import torch

from softbeam.experiments.demo import demo, listed, sampled, telling
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import degenerate_gibbs
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import TinyMLM


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


@pytest.mark.slow
def test_the_whole_story(tmp_path, capsys):
    rows = demo(tmp_path / "demo", words=400, quiet=True)
    assert [row.get("training", row.get("sampler")) for row in rows] == [
        "cross-entropy",
        "more cross-entropy",
        "scheduled sampling",
        "soft beam, local",
        "soft beam, global",
        "all texts listed",
        "Metropolis-Hastings",
        "degenerate Gibbs",
    ]
    said = capsys.readouterr().out
    assert all(f"- {line}" in said for line in telling(rows[:5], rows[5:]))
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "Soft beams" in page and "Alpha of the relaxation" in page
