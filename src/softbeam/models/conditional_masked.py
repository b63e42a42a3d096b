"""Conditional masked language models (Mask-Predict, Ghazvininejad et al. 2019; thesis, Sec. 6.4).

A Transformer reads the source, with a [LENGTH] token before it whose state scores the lengths of
the target; another, without any order in time, scores masked target positions given all others
and the source. Bound to its sources it is a `MaskedLM`: mask-predict and every sampler run on it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from softbeam.models.layers import Layer, Memory, check_sizes, embedding, kept_tokens
from softbeam.tensors import length_mask, lengths_of


class ConditionalMlm(nn.Module):
    """Source encoder, length scores, and a bidirectional decoder; `forward` binds it to sources.

    Args:
        source_vocab: number of source tokens; 0 is padding.
        target_vocab: number of target tokens, specials among them; 0 is padding.
        mask_id: stands where a target token is hidden.
        specials: numbers of the target tokens that no text holds; 0 and `mask_id` always are.
        width: of the embeddings and of each layer.
        layers: on each side.
        heads: of each attention.
        hidden: width of the feed-forward layers; four times `width` unless given.
        longest: largest number of positions on each side.
        dropout: while training.
        norm_first: normalize before each part of a layer; the published models do it after.
        eps: added to variances; 1e-12 in the published models.
    """

    pad_id = 0

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        *,
        mask_id: int,
        specials: Sequence[int] = (),
        width: int = 256,
        layers: int = 3,
        heads: int = 4,
        hidden: int | None = None,
        longest: int = 256,
        dropout: float = 0.1,
        norm_first: bool = True,
        eps: float = 1e-5,
    ):
        super().__init__()
        check_sizes(width=width, layers=layers, heads=heads, longest=longest)
        self.mask_id, self.longest = mask_id, longest
        self.source_embed = embedding(source_vocab, width)
        self.source_position = embedding(longest, width)
        self.length_embed = embedding(longest, width)  # row 0 is [LENGTH], row n scores length n
        self.embed = embedding(target_vocab, width)  # also the output layer
        self.position = embedding(longest, width)

        def stack(source: bool) -> nn.ModuleList:
            knobs = (width, heads, hidden or 4 * width, dropout)
            return nn.ModuleList(
                Layer(*knobs, source=source, norm_first=norm_first, eps=eps) for _ in range(layers)
            )

        def last_norm() -> nn.Module:
            return nn.LayerNorm(width, eps) if norm_first else nn.Identity()

        self.encoder, self.encoder_norm = stack(source=False), last_norm()
        self.decoder, self.decoder_norm = stack(source=True), last_norm()
        self.dropout = nn.Dropout(dropout)
        kept = kept_tokens(target_vocab, [self.pad_id, mask_id, *specials])
        self.register_buffer("kept", kept, persistent=False)

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "Conditioned":
        return Conditioned(self, source)

    def encode(
        self, source: Int[Tensor, "batch source_time"]
    ) -> tuple[list[Memory], Float[Tensor, "batch longest"]]:
        """What each decoder layer looks at, and a score for each length of the target."""
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
        """What each target position knows of the others and of the source."""
        x = self.dropout(self.embed(ids) + self.position(self.places(ids)))
        for layer, memory in zip(self.decoder, memories, strict=True):
            x = layer(x, real, memory)
        states: Tensor = self.decoder_norm(x)
        return states

    def places(self, ids: Int[Tensor, "rows time"]) -> Int[Tensor, " time"]:
        time = ids.shape[1]
        if time > self.longest:
            raise ValueError(f"{time} positions; the model has {self.longest}")
        return torch.arange(time, device=ids.device)


class Conditioned:
    """A `ConditionalMlm` that has read its sources: a `MaskedLM` with scores of target lengths."""

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
        """Scores at the masked cells, each given the unmasked ones and its row's source."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        real = length_mask(lengths.clamp_min(1), tokens.shape[1])
        ids = tokens.masked_fill(masked, self.model.mask_id)
        memories = [memory.of(owner) for memory in self.memories]
        cells = self.model.states(ids, real, memories)[masked]
        return linear(cells, self.model.embed.weight)
