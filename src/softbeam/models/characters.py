"""Represent words by their characters, with a small convolutional network."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from softbeam.tensors import distinct_rows

SPAN = 4  # characters that a filter sees
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
        limit = (SPAN * EMBEDDING) ** -0.5
        self.filters = nn.Parameter(torch.empty(SPAN, EMBEDDING, width).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, characters: Int[Tensor, "batch source_time characters"]
    ) -> Float[Tensor, "batch source_time width"]:
        distinct, place = distinct_rows(characters.flatten(0, 1))
        return self.words(distinct)[place].unflatten(0, characters.shape[:2])

    def words(self, characters: Int[Tensor, "words characters"]) -> Float[Tensor, "words width"]:
        """Represent each word; one without characters is all zeros.

        A filter's value is a sum of one number for each character that it sees. These numbers are
        computed once for the whole alphabet, and then looked up.
        """
        if not characters.numel():
            return self.bias.new_zeros(len(characters), len(self.bias))
        alphabet = torch.arange(self.embed.num_embeddings, device=characters.device)
        embedded = self.embed.weight * (alphabet != 0)[:, None]
        table = torch.einsum("ae,sew->saw", embedded, self.filters).flatten(0, 1)
        seen = pad(characters, (0, SPAN - 1)).unfold(1, SPAN, 1)  # words, characters, span
        places = seen + len(alphabet) * torch.arange(SPAN, device=characters.device)
        values = embedding_bag(places.flatten(0, 1), table, mode="sum") + self.bias
        values = values.relu().unflatten(0, characters.shape) * (characters != 0)[:, :, None]
        return pad(values, (0, 0, 0, 1)).amax(1)
