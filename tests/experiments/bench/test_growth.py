"""Fitted exponents, and computations that grow faster than arithmetic says."""

import pytest

from softbeam.experiments.bench import growth
from softbeam.experiments.bench.growth import GROWTHS, Growth, fitted


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_power_is_found(power):
    sizes = (3, 7, 20)
    assert fitted(sizes, [0.01 * size**power for size in sizes]) == pytest.approx(power)


def test_work_that_is_done_twice_is_above_arithmetic(monkeypatch):
    spent = [0.0]
    monkeypatch.setattr(growth.time, "process_time", lambda: spent[0])

    def costing(power: float):
        def prepare(size: int):
            def call() -> None:
                spent[0] += size**power

            return call

        return prepare

    rows = [Growth(str(p), "T", 1, (2, 4, 8), costing(p)) for p in (0.9, 1.05, 1.5)]
    lines: list[str] = []
    results = growth.run(repeats=2, growths=rows, progress=lines.append)["rows"]
    assert [row["above"] for row in results] == [False, False, True]
    assert [row["exponent"] for row in results] == [0.9, 1.05, 1.5] and "ABOVE" in lines[2]


@pytest.mark.slow
@pytest.mark.parametrize("case", [g for g in GROWTHS if g.values[0] < 1000], ids=lambda g: g[:2])
def test_every_computation_runs(case):
    case.prepare(case.values[0] // 2)()
