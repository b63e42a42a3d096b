"""Small corpora for tests: tagged sentences as files, and random encoded examples."""

import random
from pathlib import Path

import torch

from softbeam.data.batches import Encoded

TAGS = {"the": "D", "a": "D", "dog": "N", "cat": "N", "runs": "V", "sleeps": "V"}
SENTENCES = [
    f"{d} {n} {v}" for d in ("the", "a") for n in ("dog", "cat") for v in ("runs", "sleeps")
]


def write_conll(path: Path, times: int) -> Path:
    blocks = ["".join(f"{w}\t{TAGS[w]}\n" for w in s.split()) for s in SENTENCES * times]
    path.write_text("\n".join(blocks))
    return path


def write_tagging(path: Path, sentences: int, seed: int) -> str:
    """Labels that follow from the word and its predecessor: easy to learn, impossible to guess."""
    rng = torch.Generator().manual_seed(seed)
    lines = []
    for _ in range(sentences):
        words = torch.randint(0, 6, (int(torch.randint(2, 8, (1,), generator=rng)),), generator=rng)
        before = 0
        for word in words.tolist():
            lines.append(f"w{word} T{(word + before) % 3}")
            before = word
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def write_data(folder: Path) -> Path:
    rng = random.Random(1)
    lines = []
    for _ in range(60):
        for _ in range(rng.randint(2, 7)):
            word = rng.randint(0, 7)
            lines.append(f"w{word} T{word % 3}")
        lines.append("")
    (folder / "a.conll").write_text("\n".join(lines) + "\n")
    return folder / "a.conll"


def examples(lengths: list[int], seed: int = 0) -> list[Encoded]:
    rng = torch.Generator().manual_seed(seed)

    def draw(high: int, n: int) -> list[int]:
        return torch.randint(1, high, (n,), generator=rng).tolist()

    return [Encoded(draw(9, n), draw(7, n)) for n in lengths]
