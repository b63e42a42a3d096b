"""The long forms of what `make test` does in seconds: `make soak`, under twenty minutes.

pytest does not collect this file by itself.
"""

from statistics import linear_regression

import pytest

from support.forked_commands import OF_A_GRID, OF_SAMPLING, OF_TRAINING
from support.kills import kill_a_grid, kill_sampling, kill_training
from support.memory import endless, repeated, slope, watched

pytestmark = pytest.mark.timeout(1200)
MINUTES, WARM = 10.0, 2.0
LIMIT = 0.5  # megabytes a minute
COMMANDS, EACH = 30, 0.1  # megabytes a command


def test_training_is_killed_twenty_times(nursery, whole_run, tmp_path):
    hits = kill_training(nursery, whole_run, tmp_path, kills=20, seed=20)
    print(f"\ntraining killed {hits.total()} times: {dict(hits)}")
    assert set(hits) >= set(OF_TRAINING) and hits.total() >= 20


def test_sampling_is_killed_twenty_times(nursery, letters_mlm, whole_samples, tmp_path):
    hits = kill_sampling(nursery, letters_mlm, whole_samples, tmp_path, kills=20, seed=20)
    print(f"\nsampling killed {hits.total()} times: {dict(hits)}")
    assert set(hits) >= set(OF_SAMPLING) and hits.total() >= 20


def test_a_grid_is_killed_ten_times(nursery, data_dir, tmp_path):
    hits = kill_a_grid(nursery, data_dir, tmp_path, kills=10, seed=20)
    print(f"\na grid killed {hits.total()} times: {dict(hits)}")
    assert set(hits) >= set(OF_A_GRID) and hits.total() >= 10


def test_the_memory_of_ten_minutes_of_sampling(letters_mlm, nursery, tmp_path):
    out = tmp_path / "s.jsonl"
    nursery.begin(endless(letters_mlm, out))
    points = watched(nursery, out, every=1.0, enough=lambda p: p.minutes >= MINUTES)
    found, last = slope(points, warm=WARM), points[-1]
    print(
        f"\nsampled for {last.minutes:.1f} min, {last.written / 1e6:.1f} MB of samples: "
        f"{last.megabytes:.1f} MB in memory, slope {found:+.3f} MB/min (limit {LIMIT})"
    )
    assert found <= LIMIT, [(p.minutes, p.megabytes) for p in points[::20]]


def test_the_memory_of_many_commands(letters_mlm, tmp_path):
    after = repeated(letters_mlm, tmp_path / "s.jsonl", times=COMMANDS)
    warm = after[COMMANDS // 3 :]
    found = linear_regression(range(len(warm)), warm).slope
    print(
        f"\n{COMMANDS} commands in one process: {after[0]:.1f} to {after[-1]:.1f} MB in memory, "
        f"slope {found:+.3f} MB a command (limit {EACH})"
    )
    assert found <= EACH, after
