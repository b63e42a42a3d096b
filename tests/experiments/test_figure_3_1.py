"""Figure 3.1: the hard objective jumps where a decision changes, the soft ones do not."""

import pytest

from softbeam.cli import main
from softbeam.experiments.figure_3_1 import along_a_line


@pytest.mark.slow
def test_only_the_hard_objective_jumps():
    """On a grid twice as fine a continuous function moves half as far at a step; a jump stays."""

    def largest_step(points: int) -> dict:
        _, losses = along_a_line((None, 1.0), points=points)
        return {alpha: (y[1:] - y[:-1]).abs().max().item() for alpha, y in losses.items()}

    coarse, fine = largest_step(60), largest_step(240)
    assert fine[None] > 0.8 * coarse[None]
    assert fine[1.0] < 0.35 * coarse[1.0]


@pytest.mark.slow
def test_sharper_relaxations_are_closer_to_the_hard_objective():
    _, losses = along_a_line((None, 1.0, 10.0, 1000.0), points=40)
    gaps = [(losses[a] - losses[None]).abs().median().item() for a in (1.0, 10.0, 1000.0)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.slow
def test_the_figure_is_drawn(tmp_path, capsys):
    assert main(["report", "figure-3.1", "--out", str(tmp_path / "f.png")]) == 0
    assert (tmp_path / "f.png").stat().st_size > 10_000
    assert main(["report", "figure-3.1", "--out", str(tmp_path / "f.frob")]) == 2
