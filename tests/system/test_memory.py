"""Sampling takes no more memory the longer it lasts: the short form of a test of `make soak`."""

import pytest

from support.memory import Measured, endless, growth, slope, watched

WARM, ENOUGH = 200_000, 280_000  # bytes of samples; at 150,000 one last block of 1.8 MB is taken
LIMIT = 1.0  # megabytes in between: 3 kB for each of about 370 lines


@pytest.mark.slow
@pytest.mark.parametrize("leak", [False, True], ids=["as it is", "with a leak"])
def test_memory_does_not_grow_while_it_samples(letters_mlm, nursery, tmp_path, leak):
    out = tmp_path / "s.jsonl"
    program = "support.memory:main_with_a_leak" if leak else "softbeam.cli:main"
    nursery.begin(endless(letters_mlm, out), program=program)
    points = watched(nursery, out, every=0.02, enough=lambda p: p.written >= ENOUGH)
    assert (growth(points, warm=WARM) > LIMIT) == leak, points[:: len(points) // 10]


def test_a_slope_is_of_what_comes_after_the_warm_up():
    points = [Measured(m / 10, 0, 90.0 if m < 20 else 100 + 0.3 * m / 10) for m in range(100)]
    assert slope(points, warm=2.0) == pytest.approx(0.3)
    assert slope(points, warm=0.0) > 1.0
