"""Commands that are killed again and again until they have ended: training, sampling, a grid."""

import json
import random
from collections import Counter
from itertools import count
from pathlib import Path

from softbeam.sampling.texts.files import read_header, read_samples
from support.forked_commands import OF_A_GRID, OF_SAMPLING, OF_TRAINING, Nursery, enough, killed
from support.small_runs import files_of, result, sample_words, train_words


def kill_training(
    nursery: Nursery, whole: Path, folder: Path, *, kills: int, seed: int
) -> Counter[str]:
    """Runs killed so many times in all, beside a whole one; returns where they were hit."""
    data = whole.parent / "a.conll"
    epochs = [row["value"] for row in result(whole)[1] if row["kind"] == "dev"]
    assert max(epochs) > epochs[0], "or the best weights would be the first"
    hits, rng, numbers = Counter[str](), random.Random(seed), count()
    while not enough(hits, OF_TRAINING, kills):
        out = folder / f"killed-{next(numbers)}"
        words = train_words(data, out, "--resume")
        killed(nursery, words, OF_TRAINING, hits, kills=kills, rng=rng)
        assert result(out) == result(whole), hits
        assert files_of(out) == files_of(whole), "nothing half-made is left"
    return hits


def kill_sampling(
    nursery: Nursery, mlm: Path, whole: Path, folder: Path, *, kills: int, seed: int
) -> Counter[str]:
    """The same for files of samples; after each kill there is nothing but whole lines to read."""
    expected = list(read_samples(whole))
    hits, rng, numbers = Counter[str](), random.Random(seed), count()
    while not enough(hits, OF_SAMPLING, kills):
        out = folder / f"killed-{next(numbers)}.jsonl"

        def readable(out=out):
            if out.exists():
                assert read_header(out) == read_header(whole)
                found = list(read_samples(out))
                assert found == expected[: len(found)]

        words = sample_words(mlm, out, "--resume")
        killed(nursery, words, OF_SAMPLING, hits, kills=kills, rng=rng, after=readable)
        assert out.read_bytes() == whole.read_bytes(), hits
        assert not [p for p in folder.iterdir() if "part" in p.name or "checkpoint" in p.name]
    return hits


def grid_words(out: Path) -> list[str]:
    words = ["reproduce", "figure-6.1", "--preset", "tiny", "--out", str(out)]
    return [*words, "--seeds", "1", "--jobs", "1", "--quiet"]


def finished_cells(out: Path) -> dict[str, tuple[int, bytes]]:
    """The time and content of each result."""
    found = sorted((out / "results").glob("[!.]*")) if (out / "results").exists() else []
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def lines_of(out: Path) -> list:
    return [panel["lines"] for panel in json.loads((out / "figure-6.1.json").read_text())["panels"]]


def kill_a_grid(
    nursery: Nursery, data: Path, folder: Path, *, kills: int, seed: int
) -> Counter[str]:
    """The same for a grid, whose finished cells stay as they are; data is its data directory."""
    whole, variables = folder / "whole", {"SOFTBEAM_DATA": str(data)}
    end = nursery.life(grid_words(whole), variables=variables)
    assert end.code == 0, end.said
    hits, rng, numbers = Counter[str](), random.Random(seed), count()
    while not enough(hits, OF_A_GRID, kills):
        out, done = folder / f"killed-{next(numbers)}", {}

        def kept(out=out, done=done):
            now = finished_cells(out)
            assert now | done == now, "a finished cell was run again"
            done.update(now)

        words, chosen = grid_words(out), {"kills": kills, "rng": rng, "after": kept}
        killed(nursery, words, OF_A_GRID, hits, **chosen, variables=variables)
        kept()
        assert lines_of(out) == lines_of(whole), hits
    return hits
