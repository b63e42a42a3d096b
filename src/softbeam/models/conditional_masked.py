"""Conditional masked language models (Mask-Predict, Ghazvininejad et al. 2019; thesis, Sec. 6.4).

One Transformer reads the source, with a [LENGTH] token before it whose state scores the lengths of
the target. Another, which sees both directions, scores masked target positions given all others and
the source. Bound to its sources, the model is a `MaskedLM`, for mask-predict and all samplers.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from softbeam.models.layers import Layer, Memory, TransformerShape, embedding, kept_tokens
from softbeam.tensors import length_mask, lengths_of


class ConditionalMlm(nn.Module):
    """Source encoder, length scores, and a bidirectional decoder. Calling it binds it to sources.

    Args:
        source_vocab: number of source tokens; 0 is padding.
        target_vocab: number of target tokens, specials among them; 0 is padding.
        shape: sizes of both sides. The published models have `norm_first` False and `eps` 1e-12.
        mask_id: number of the token that hides a target token.
        specials: numbers of the target tokens that no text holds, besides 0 and `mask_id`.
    """

    pad_id = 0

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        shape: TransformerShape,
        *,
        mask_id: int,
        specials: Sequence[int] = (),
    ):
        super().__init__()
        width, longest = shape.width, shape.longest
        self.mask_id, self.longest = mask_id, longest
        self.source_embed = embedding(source_vocab, width)
        self.source_position = embedding(longest, width)
        self.length_embed = embedding(longest, width)  # row 0 is [LENGTH], row n scores length n
        self.embed = embedding(target_vocab, width)  # also the output layer
        self.position = embedding(longest, width)
        self.encoder, self.encoder_norm = shape.stack(), shape.last_norm()
        self.decoder, self.decoder_norm = shape.stack(source=True), shape.last_norm()
        self.dropout = nn.Dropout(shape.dropout)
        kept = kept_tokens(target_vocab, [self.pad_id, mask_id, *specials])
        self.register_buffer("kept", kept, persistent=False)

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "Conditioned":
        return Conditioned(self, source)

    def encode(
        self, source: Int[Tensor, "batch source_time"]
    ) -> tuple[list[Memory], Float[Tensor, "batch longest"]]:
        """Compute the memory of each decoder layer, and a score for each target length."""
        real = source != self.pad_id
        x = self.source_embed(source) + self.source_position(self.places(source))
        first = self.length_embed.weight[0].expand(len(source), 1, -1)
        x = self.dropout(torch.cat([first, x], 1))
        read = torch.cat([torch.ones_like(real[:, :1]), real], 1)
        for layer in self.encoder:
            x = layer(x, read)
        x = self.encoder_norm(x)
        lengths = linear(x[:, 0], self.length_embed.weight)
        never = torch.arange(self.longest, device=source.device) == 0
        layers = (layer for layer in self.decoder if isinstance(layer, Layer))
        memories = [layer.remember(x[:, 1:], real) for layer in layers]
        return memories, lengths.masked_fill(never, float("-inf"))

    def states(
        self,
        ids: Int[Tensor, "rows time"],
        real: Bool[Tensor, "rows time"],
        memories: list[Memory],
    ) -> Float[Tensor, "rows time width"]:
        """Compute the state of each target position, given the others and the source."""
        x = self.dropout(self.embed(ids) + self.position(self.places(ids)))
        for layer, memory in zip(self.decoder, memories, strict=True):
            x = layer(x, real, memory)
        states: Tensor = self.decoder_norm(x)
        return states

    def places(self, ids: Int[Tensor, "rows time"]) -> Int[Tensor, " time"]:
        """The numbers of the positions."""
        time = ids.shape[1]
        if time > self.longest:
            raise ValueError(f"{time} positions; the model's limit is {self.longest}")
        return torch.arange(time, device=ids.device)


class Conditioned:
    """A `ConditionalMlm` bound to its sources: a `MaskedLM` with scores of target lengths."""

    def __init__(self, model: ConditionalMlm, source: Int[Tensor, "batch source_time"]):
        self.model = model
        self.memories, self.length_scores = model.encode(source)

    @property
    def pad_id(self) -> int:
        return self.model.pad_id

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self.model.get_buffer("kept")

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Score the masked cells, each given the unmasked ones and its row's source."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        real = length_mask(lengths.clamp_min(1), tokens.shape[1])
        ids = tokens.masked_fill(masked, self.model.mask_id)
        memories = [memory.of(owner) for memory in self.memories]
        cells = self.model.states(ids, real, memories)[masked]
        return linear(cells, self.model.embed.weight)
