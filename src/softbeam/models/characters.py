"""Represent words by their characters, with a small convolutional network."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softbeam.tensors import distinct_rows

SPANS = (2, 3, 4)  # characters that a filter sees
EMBEDDING = 32  # width of the embedding of a character


class CharacterCnn(nn.Module):
    """Filters over the characters of a word, each with its largest value in the word.

    A word that occurs several times in a batch is computed once. Padding never changes a number:
    a filter has no value beyond the last character, and sees zeros there.

    Args:
        alphabet: number of characters; 0 is padding.
        width: number of filters.
    """

    def __init__(self, alphabet: int, width: int):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(alphabet, EMBEDDING)
        sizes = [width // len(SPANS) + (i < width % len(SPANS)) for i in range(len(SPANS))]
        self.filters = nn.ModuleList(
            nn.Conv1d(EMBEDDING, size, span)
            for size, span in zip(sizes, SPANS, strict=True)
            if size
        )

    def forward(
        self, characters: Int[Tensor, "batch source_time characters"]
    ) -> Float[Tensor, "batch source_time width"]:
        distinct, place = distinct_rows(characters.flatten(0, 1))
        return self.words(distinct)[place].unflatten(0, characters.shape[:2])

    def words(self, characters: Int[Tensor, "words characters"]) -> Float[Tensor, "words width"]:
        """Represent each word; one without characters is all zeros."""
        real = (characters != 0)[:, None]
        values = self.embed(characters).transpose(1, 2) * real  # words, embedding, characters
        values = nn.functional.pad(values, (0, max(SPANS)))
        largest = []
        for filters in self.filters:
            scores = filters(values)[:, :, : characters.shape[1]].relu() * real
            largest.append(nn.functional.pad(scores, (0, 1)).amax(-1))
        return torch.cat(largest, -1)
