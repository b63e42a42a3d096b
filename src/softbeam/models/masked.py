"""A bidirectional Transformer that scores masked positions: a `MaskedLM` to train from scratch.

Padding never changes a number, because nothing attends to it. The output layer runs only at the
masked cells.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from softbeam.models.layers import Layer, TransformerShape, check_sizes, embedding, kept_tokens
from softbeam.tensors import length_mask, lengths_of


class TiedMlm(nn.Module, ABC):
    """What masked Transformers share: embeddings that are also output weights, and their tokens.

    Args:
        vocab: number of tokens, including specials.
        shape: sizes of the network.
        pad_id: number of the padding token.
        mask_id: number of the token that hides another.
        specials: numbers of the tokens that no text holds, besides `pad_id` and `mask_id`.
    """

    def __init__(
        self,
        vocab: int,
        shape: TransformerShape,
        *,
        pad_id: int,
        mask_id: int,
        specials: Sequence[int] = (),
    ):
        super().__init__()
        check_sizes(vocab=vocab)
        kept = checked_specials(vocab, pad_id, mask_id, specials)
        self.pad_id, self.mask_id, self.longest = pad_id, mask_id, shape.longest
        self.embed = embedding(vocab, shape.width)
        self.position = embedding(shape.longest, shape.width)
        self.add_layers(shape)
        self.norm, self.dropout = shape.last_norm(), nn.Dropout(shape.dropout)
        self.dense = nn.Linear(shape.width, shape.width)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.register_buffer("kept", kept, persistent=False)

    @abstractmethod
    def add_layers(self, shape: TransformerShape) -> None:
        """Make the layers between embeddings and output."""

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self.get_buffer("kept")

    def embedded(self, ids: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time width"]:
        """Embed tokens and their positions. Raises ValueError if there are too many."""
        time = ids.shape[1]
        if time > self.longest:
            raise ValueError(f"tokens: {time} positions; the model's limit is {self.longest}")
        place = torch.arange(time, device=ids.device)
        embedded: Tensor = self.dropout(self.embed(ids) + self.position(place))
        return embedded

    def scores(self, states: Float[Tensor, "*cells width"]) -> Float[Tensor, "*cells vocab"]:
        """Apply the output layer."""
        return linear(gelu(self.dense(states)), self.embed.weight, self.bias)


class TransformerMlm(TiedMlm):
    """A `MaskedLM` over words, phonemes or subwords; its embeddings are also its output weights.

    Train it by cross-entropy of `logits` at random masks. With a `Vocabulary` v of the specials
    `MASKED`, pass `pad_id=v.id(PAD)`, `mask_id=v.id(MASK)`, and all five `specials`. `TiedMlm` has
    the arguments.
    """

    def add_layers(self, shape: TransformerShape) -> None:
        self.layers = shape.stack()

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Score the masked cells, each given the unmasked ones; `owner` is not read."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        ids = tokens.masked_fill(masked, self.mask_id)
        if bool((masked.sum(-1) == 1).all()):
            cells = self.states_alone(ids, lengths, masked)
        else:
            cells = self.states(ids, lengths)[masked]
        return self.scores(cells)

    def states(
        self, ids: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """Compute the state of each position, given the others within its row's length."""
        x, real = self.before_last(ids, lengths)
        return self.norm(self.layers[-1](x, real))

    def states_alone(
        self,
        ids: Int[Tensor, "rows time"],
        lengths: Int[Tensor, " rows"],
        cell: Bool[Tensor, "rows time"],
    ) -> Float[Tensor, "rows width"]:
        """Compute `states` at one cell of each row; the last layer runs only there."""
        x, real = self.before_last(ids, lengths)
        last = self.layers[-1]
        assert isinstance(last, Layer)
        y = last.attention_norm(x) if last.norm_first else x
        seen = last.attention(y[cell][:, None], last.attention.memory(y, real))
        return self.norm(last.attended(x[cell][:, None], seen, None))[:, 0]

    def before_last(
        self, ids: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "rows time width"], Bool[Tensor, "rows time"]]:
        """Compute the input of the last layer, and which positions are real."""
        x = self.embedded(ids)
        real = length_mask(lengths.clamp_min(1), ids.shape[1])  # attention to nothing would be NaN
        for layer in self.layers[:-1]:
            x = layer(x, real)
        return x, real


def checked_specials(
    vocab: int, pad_id: int, mask_id: int, specials: Sequence[int]
) -> Bool[Tensor, " vocab"]:
    """Mark the tokens that a text may hold. Raises ValueError if a special token is impossible."""
    outside = [i for i in (pad_id, mask_id, *specials) if not 0 <= i < vocab]
    if outside or pad_id == mask_id:
        raise ValueError(
            f"pad_id={pad_id}, mask_id={mask_id}, specials={list(specials)}: "
            f"pad_id and mask_id must differ, and all must be from 0 to {vocab - 1}"
        )
    return kept_tokens(vocab, [pad_id, mask_id, *specials])
