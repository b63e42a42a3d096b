"""Schedules against their formulas."""

import math

import pytest

from softbeam.schedules import Constant, Exponential, InverseSigmoid, Linear, Moment


def values(schedule, epochs: int = 5) -> list[float]:
    return [schedule(Moment(epoch=e, update=100 * e)) for e in range(epochs)]


def test_formulas():
    assert values(Constant(value=2.5), 3) == [2.5, 2.5, 2.5]
    assert values(Exponential(start=2.0, growth=3.0, ceiling=30.0), 4) == pytest.approx(
        [2.0, 6.0, 18.0, 30.0]
    )
    assert values(Linear(start=1.0, slope=-0.4), 4) == pytest.approx([1.0, 0.6, 0.2, 0.0])
    k = 10.0
    expected = [k / (k + math.exp(e / k)) for e in range(4)]
    assert values(InverseSigmoid(k=k), 4) == pytest.approx(expected)


def test_the_unit_may_be_updates():
    assert Linear(start=0.0, slope=1.0, unit="update")(Moment(epoch=1, update=7)) == 7.0


def test_the_papers_decay_strengths():
    """k = 100 is nearly teacher forcing over 50 epochs; k = 1 starts at 0.27 after one."""
    assert min(values(InverseSigmoid(k=100.0), 50)) > 0.98
    assert InverseSigmoid(k=1.0)(Moment(epoch=1)) == pytest.approx(0.269, abs=1e-3)


def test_far_moments_do_not_overflow():
    far = Moment(epoch=10**6)
    assert InverseSigmoid(k=1.0)(far) == pytest.approx(0.0)
    assert Exponential(start=1.0, growth=2.0, ceiling=50.0)(far) == 50.0
    assert Exponential(start=1.0, growth=0.5)(far) == 0.0
