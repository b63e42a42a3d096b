"""Simple functions of texts: terms of a composed energy, and features for diagnostics.

Each is a callable from texts to numbers, like an `Energy`. `WeightedSum` combines them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from softbeam.tensors import may_stand, moved
from softbeam.types import WordParts


@dataclass(frozen=True, eq=False)
class HammingDistance:
    """The number of positions at which each chain differs from a text of its own."""

    text: Int[Tensor, "chain time"]

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return (tokens != self.text).sum(-1).to(torch.get_default_dtype())

    def chosen(self, chains: Int[Tensor, " rows"]) -> "HammingDistance":
        return HammingDistance(self.text[chains])


@dataclass(frozen=True)
class EditDistance:
    """The edit distance between each chain and a text of its own, which may have any length.

    Args:
        texts: the tokens of each chain's text.
        pad_id: the number of the padding token, which does not count.
    """

    texts: Sequence[Sequence[int]]
    pad_id: int

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        rows = [[i for i in row if i != self.pad_id] for row in tokens.tolist()]
        edits = [Levenshtein.distance(a, list(b)) for a, b in zip(rows, self.texts, strict=True)]
        return torch.tensor(edits, dtype=torch.get_default_dtype(), device=tokens.device)

    def chosen(self, chains: Int[Tensor, " rows"]) -> "EditDistance":
        return EditDistance([self.texts[i] for i in chains.tolist()], self.pad_id)


@dataclass(frozen=True)
class PhraseCount:
    """The number of occurrences of any of the phrases, which may overlap.

    Args:
        phrases: the tokens of each phrase.
        words: where words begin and end, to count no phrase inside of a longer word.
    """

    phrases: Sequence[Sequence[int]]
    words: WordParts | None = None

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        total = torch.zeros(len(tokens), device=tokens.device)
        for size in sorted({len(phrase) for phrase in self.phrases}):
            if not 0 < size <= tokens.shape[1]:
                continue
            same = [list(phrase) for phrase in self.phrases if len(phrase) == size]
            windows = tokens.unfold(1, size, 1)[:, :, None]
            matches = (windows == torch.tensor(same, device=tokens.device)).all(-1).any(-1)
            if self.words is not None:
                edges = self.words.boundaries(tokens)
                matches = matches & edges[:, : matches.shape[1]] & edges[:, size:]
            total = total + matches.sum(-1)
        return total


@dataclass(frozen=True, eq=False)
class LengthEnergy:
    """An offset for each length: states how likely texts of different lengths are to be.

    Args:
        offsets: the energy of texts of 0, 1, 2, ... tokens; longer ones have an infinite energy.
        pad_id: the number of the padding token, which does not count.
        frame: the number of fixed tokens around a text, which do not count.
    """

    offsets: Float[Tensor, " lengths"]
    pad_id: int
    frame: int = 0

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        lengths = (tokens != self.pad_id).sum(-1) - self.frame
        table = torch.cat([self.offsets, self.offsets.new_full((1,), float("inf"))])
        return table[lengths.clamp_max(len(self.offsets))]


@dataclass(frozen=True, eq=False)
class RepeatedPhrases:
    """The number of phrases of `size` tokens that have occurred before in the same text.

    Occurrences may overlap: in AAAA, with a size of 2, AA occurs three times and is repeated twice.

    Args:
        size: tokens of a phrase.
        counted: the tokens of phrases; one with any other token, such as padding, does not count.
    """

    size: int
    counted: Bool[Tensor, " vocab"]

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        if tokens.shape[1] < self.size:
            return torch.zeros(len(tokens), device=tokens.device)
        phrases = tokens.unfold(1, self.size, 1)
        whole = may_stand(tokens, moved(self.counted, tokens.device)).unfold(1, self.size, 1)
        whole = whole.all(-1)
        equal = (phrases[:, :, None] == phrases[:, None]).all(-1) & whole[:, :, None]
        return equal.tril(-1).any(-1).sum(-1).to(torch.get_default_dtype())
