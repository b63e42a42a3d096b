"""A bidirectional Transformer that scores masked positions: a `MaskedLM` to train from scratch.

Padding never changes a number: nothing attends to it. The output layer runs at the masked cells
alone.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from softbeam.models.layers import Layer, check_sizes, embedding, kept_tokens
from softbeam.tensors import length_mask, lengths_of


class TransformerMlm(nn.Module):
    """A `MaskedLM` over words, phonemes or subwords; its embeddings are its output weights too.

    Trained by cross-entropy of `logits` at random masks, which has a gradient. Of a `Vocabulary`
    with the specials `MASKED`: `pad_id=v.id(PAD)`, `mask_id=v.id(MASK)`, and all five `specials`.

    Args:
        vocab: number of tokens, specials among them.
        pad_id: fills rows up.
        mask_id: stands where a token is hidden.
        specials: numbers of the tokens that no text holds; `pad_id` and `mask_id` always are.
        width: of the embeddings and of each layer.
        layers: number of blocks.
        heads: of each attention; they share the width.
        hidden: width of the feed-forward layers; four times `width` unless given.
        longest: largest number of positions.
        dropout: while training.
    """

    def __init__(
        self,
        vocab: int,
        *,
        pad_id: int,
        mask_id: int,
        specials: Sequence[int] = (),
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        hidden: int | None = None,
        longest: int = 256,
        dropout: float = 0.1,
    ):
        super().__init__()
        check_sizes(vocab=vocab, width=width, layers=layers, longest=longest, heads=heads)
        outside = [i for i in (pad_id, mask_id, *specials) if not 0 <= i < vocab]
        if outside or pad_id == mask_id:
            raise ValueError(
                f"pad_id={pad_id}, mask_id={mask_id}, specials={list(specials)}: "
                f"pad_id and mask_id differ, and all are numbers from 0 to {vocab - 1}"
            )
        self.pad_id, self.mask_id, self.longest = pad_id, mask_id, longest
        self.embed = embedding(vocab, width)
        self.position = embedding(longest, width)
        self.layers = nn.ModuleList(
            Layer(width, heads, hidden or 4 * width, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.dropout = nn.Dropout(dropout)
        kept = kept_tokens(vocab, [pad_id, mask_id, *specials])
        self.register_buffer("kept", kept, persistent=False)

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self.get_buffer("kept")

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Scores at the masked cells, each given the unmasked ones; `owner` is not read."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        ids = tokens.masked_fill(masked, self.mask_id)
        if bool((masked.sum(-1) == 1).all()):
            cells = self.states_alone(ids, lengths, masked)
        else:
            cells = self.states(ids, lengths)[masked]
        return linear(gelu(self.dense(cells)), self.embed.weight, self.bias)

    def states(
        self, ids: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """What each position knows of the others within its row's length."""
        x, real = self.before_last(ids, lengths)
        return self.norm(self.layers[-1](x, real))

    def states_alone(
        self,
        ids: Int[Tensor, "rows time"],
        lengths: Int[Tensor, " rows"],
        cell: Bool[Tensor, "rows time"],
    ) -> Float[Tensor, "rows width"]:
        """`states` at one cell of each row: of the others, the last layer needs keys and values."""
        x, real = self.before_last(ids, lengths)
        last = self.layers[-1]
        assert isinstance(last, Layer)
        y = last.attention_norm(x)
        seen = last.attention(y[cell][:, None], last.attention.memory(y, real))
        x = last.added(x[cell][:, None], seen, last.attention_norm)
        hidden = last.back(gelu(last.hidden(last.hidden_norm(x))))
        return self.norm(last.added(x, hidden, last.hidden_norm))[:, 0]

    def before_last(
        self, ids: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "rows time width"], Bool[Tensor, "rows time"]]:
        """What the last layer is given, and which positions are real."""
        time = ids.shape[1]
        if time > self.longest:
            raise ValueError(f"tokens: {time} positions; the model has {self.longest}")
        place = torch.arange(time, device=ids.device)
        x = self.dropout(self.embed(ids) + self.position(place))
        real = length_mask(lengths.clamp_min(1), time)  # attention to nothing is not a number
        for layer in self.layers[:-1]:
            x = layer(x, real)
        return x, real
