"""How long sampling will take: rows as the model really gets them, and times in words."""

import re

import pytest
import torch

from softbeam.cli import main
from softbeam.sampling.masking import WrappedMlm
from softbeam.sampling.texts import estimate
from softbeam.sampling.texts.estimate import advice, duration, estimated, sweep_work, trial
from softbeam.sampling.texts.sampler import generator, samplers
from softbeam.sampling.texts.settings import SamplingConfig
from support.tiny_bert import letter_mlm, write_letter_mlm

TEXTS = ["ACDE[MASK]FG[MASK][MASK]HI", "A[MASK][MASK][MASK]CDEFGH"]


class Counting(WrappedMlm):
    """A model that counts its rows, and whose time is a number of seconds for each of them."""

    def __init__(self, mlm, clock=None):
        super().__init__(mlm)
        self.rows, self.clock = 0, clock

    def logits(self, tokens, masked, owner):
        self.rows += len(tokens)
        if self.clock is not None:
            self.clock[0] += 0.1 * len(tokens)
        return super().logits(tokens, masked, owner)

    def __getattr__(self, name):
        return getattr(self.mlm, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"proposal_temperature": 0.1},
        {"block": 2},
        {"block": "random"},
        {"kernel": "gibbs"},
        {"kernel": "exact-gibbs", "chains": 2},
        {"proposal": "uniform"},
        {"free": "all"},
        {"allowed": ("A", "C")},
    ],
    ids=str,
)
def test_the_rows_of_a_sweep_are_about_those_that_the_model_gets(settings):
    mlm = Counting(letter_mlm())
    config = SamplingConfig(**{"chains": 4, "sweeps": 4, "burn_in": 0} | settings)
    (group,) = samplers(mlm, TEXTS, config)
    expected = sweep_work(mlm, group, config, trial(mlm, group, config).changed).rows
    records = group.run(generator(config, 0))
    mlm.rows = 0
    assert len(list(records)) == config.sweeps
    assert mlm.rows / config.sweeps == pytest.approx(expected, rel=0.3)


def test_an_estimate_is_rows_times_the_seconds_of_a_row(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(estimate.time, "monotonic", lambda: clock[0])
    mlm = Counting(letter_mlm(), clock)
    config = SamplingConfig(chains=4, sweeps=50, kernel="gibbs")
    groups = samplers(mlm, TEXTS[:1], config)
    seconds, *_ = trial(mlm, groups[0], config)
    assert seconds == pytest.approx(0.1) and clock[0] < 2, "a short trial"
    rows = 4 * 3 * (1 + 11)  # chains, positions, the row of a proposal and those of an energy
    assert sweep_work(mlm, groups[0], config, 1.0).rows == rows
    minutes = rows * 50 * 0.1 / 60
    said = estimated(mlm, groups, config, sweeps=50)
    assert said == (
        f"about {minutes:.0f} min for 4 chains x 50 sweeps of 3 positions "
        f"({rows * 50:,} rows of the model, less than 1 MB of samples); "
        f"--sweeps 5 --burn-in 1 takes {minutes * 6:.0f} s"
    )
    assert estimated(mlm, groups, config, sweeps=25).startswith(f"about {minutes / 2:.0f} min ")
    every = samplers(mlm, TEXTS, config)
    assert "for 2 texts x 4 chains x 50 sweeps" in estimated(mlm, every, config, sweeps=50)


def test_advice_can_be_followed():
    for config in (SamplingConfig(), SamplingConfig(burn_in=2), SamplingConfig(sweeps=2000)):
        flags = re.findall(r"--(\S+) (\d+)", advice(config, 10_000.0))
        fewer = {name.replace("-", "_"): int(value) for name, value in flags}
        assert SamplingConfig(**{"burn_in": config.burn_in} | fewer).sweeps == config.sweeps // 10
    assert advice(SamplingConfig(), 500.0) == ""
    assert advice(SamplingConfig(sweeps=1, burn_in=0), 1e6) == ""


def test_times_in_words():
    shown = {0.01: "1 s", 40: "40 s", 1080: "18 min", 10_800: "3 h", 400_000: "5 days"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


@pytest.mark.slow
def test_the_command_says_it_and_draws_the_same_samples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_letter_mlm(tmp_path / "mlm")
    words = ["sample", "--mlm", "mlm", "--text", TEXTS[0], "--chains", "2", "--sweeps", "4"]
    words += ["--burn-in", "1"]
    assert main([*words, "--out", "a.jsonl"]) == 0
    assert "about 1 s for 2 chains x 4 sweeps of 3 positions (" in capsys.readouterr().err
    assert main([*words, "--out", "b.jsonl", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines()[1:]
    assert estimate.LINE + 13 * estimate.CELL == pytest.approx(len(lines[0]), rel=0.2)


def test_progress_within_a_sweep_counts_its_steps():
    config = SamplingConfig(chains=2, sweeps=2, burn_in=0)
    (group,) = samplers(letter_mlm(), TEXTS[:1], config)
    shares: list[float] = []
    for _ in group.run(generator(config, 0), on_step=shares.append):
        shares.append(0.0)
    assert torch.tensor(shares).tolist() == pytest.approx([1 / 3, 2 / 3, 1, 0] * 2)
