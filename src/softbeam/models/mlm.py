"""A bidirectional Transformer that scores masked positions: a `MaskedLM` to train from scratch.

Padding never changes a number: nothing attends to it. The output layer runs at the masked cells
alone.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from softbeam.models.mrf import lengths_of
from softbeam.ops import length_mask


class Block(nn.Module):
    """Self-attention over the real positions and a feed-forward layer, each normalized before."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.before_hidden = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, hidden)
        self.back = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "rows time width"], real: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time width"]:
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        seen = scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])
        x = x + self.dropout(self.joined(seen.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.back(gelu(self.hidden(self.before_hidden(x)))))


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
        sizes = {"vocab": vocab, "width": width, "layers": layers, "longest": longest}
        for name, value in (sizes | {"heads": heads}).items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if width % heads:
            raise ValueError(f"heads={heads} do not divide the width {width}")
        outside = [i for i in (pad_id, mask_id, *specials) if not 0 <= i < vocab]
        if outside or pad_id == mask_id:
            raise ValueError(
                f"pad_id={pad_id}, mask_id={mask_id}, specials={list(specials)}: "
                f"pad_id and mask_id differ, and all are numbers from 0 to {vocab - 1}"
            )
        self.pad_id, self.mask_id, self.longest = pad_id, mask_id, longest
        self.embed = nn.Embedding(vocab, width)
        self.position = nn.Embedding(longest, width)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden or 4 * width, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.dropout = nn.Dropout(dropout)
        kept = torch.ones(vocab, dtype=torch.bool)
        kept[[pad_id, mask_id, *specials]] = False
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
        cells = self.dense(self.states(ids, lengths)[masked])
        return linear(gelu(cells), self.embed.weight, self.bias)

    def states(
        self, ids: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """What each position knows of the others within its row's length."""
        time = ids.shape[1]
        if time > self.longest:
            raise ValueError(f"tokens: {time} positions; the model has {self.longest}")
        place = torch.arange(time, device=ids.device)
        x = self.dropout(self.embed(ids) + self.position(place))
        real = length_mask(lengths.clamp_min(1), time)  # attention to nothing is not a number
        for block in self.blocks:
            x = block(x, real)
        return self.norm(x)
