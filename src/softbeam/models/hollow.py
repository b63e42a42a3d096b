"""A hollow Transformer: the score of a position never depends on the token that stands there.

Two causal streams read the text, one from the left and one from the right. The state of the first
at t has seen the tokens before t, that of the second those after t. They meet at the output: layers
whose query at t attends to states of the first stream up to t, and of the second from t on. So one
pass gives log p(y_t | all other tokens) at every t, which takes a `TransformerMlm` a pass for each
position. It is the Transformer form of the bidirectional LSTM of the thesis, Sec. 6.2.3 (compare
Sun et al. 2023, "Score-based continuous-time discrete diffusion models").
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softbeam.models.layers import Layer, Memory, TransformerShape
from softbeam.models.masked import TiedMlm
from softbeam.tensors import length_mask, lengths_of


class HollowMlm(TiedMlm):
    """A `OnePassMlm` of characters, words or residues; its embeddings are also its output weights.

    Of `shape.layers` layers, each stream has a half, rounded down after one is left for the output;
    the rest, one or two, are at the output. So it has about as many weights as a `TransformerMlm`
    of the same shape with at least three layers. `TiedMlm` has the arguments; the embedding of
    padding also marks the ends of a text.
    """

    def add_layers(self, shape: TransformerShape) -> None:
        each = max((shape.layers - 1) // 2, 1)
        self.before, self.after = shape.stack(layers=each), shape.stack(layers=each)
        self.meeting = shape.stack(layers=max(shape.layers - 2 * each, 1))

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Score the masked cells, each given the unmasked ones; `owner` is not read."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        ids = tokens.masked_fill(masked, self.mask_id)
        return self.scores(self.states(ids, lengths)[masked])

    def every_logits(
        self, tokens: Int[Tensor, "rows time"], owner: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time vocab"]:
        """Score every cell given all others, in one pass; scores of padding mean nothing."""
        return self.scores(self.states(tokens, lengths_of(tokens != self.pad_id)))

    def states(
        self, ids: Int[Tensor, "rows time"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time width"]:
        """Compute the state of each position, given the other tokens within its row's length."""
        time = ids.shape[1]
        end = ids.new_full((len(ids), 1), self.pad_id)
        place = torch.arange(time, device=ids.device)
        real = length_mask(lengths, time)[:, None, None]
        itself = place == place[:, None]  # so that no query attends to nothing
        past = (place <= place[:, None])[None, None]
        future = (place >= place[:, None]) & real | itself
        left = self.stream(self.before, torch.cat([end, ids[:, :-1]], 1), past)
        right = self.stream(self.after, torch.cat([ids[:, 1:], end], 1), future)
        both = torch.cat([left, right], 1)
        seen = torch.cat([past.expand_as(future), future], -1)
        x = left + right
        for layer in self.meeting:
            assert isinstance(layer, Layer)
            y = layer.attention_norm(torch.cat([x, both], 1)) if layer.norm_first else None
            query, source = (x, both) if y is None else (y[:, :time], y[:, time:])
            memory = Memory(*layer.attention.cache(source), seen)
            x = layer.attended(x, layer.attention(query, memory), None)
        states: Tensor = self.norm(x)
        return states

    def stream(
        self,
        layers: nn.ModuleList,
        ids: Int[Tensor, "rows time"],
        seen: Bool[Tensor, "#rows 1 time time"],
    ) -> Float[Tensor, "rows time width"]:
        """Read shifted tokens in one direction."""
        x = self.embedded(ids)
        for layer in layers:
            assert isinstance(layer, Layer)
            y = layer.attention_norm(x) if layer.norm_first else x
            memory = Memory(*layer.attention.cache(y), seen)
            x = layer.attended(x, layer.attention(y, memory), None)
        return x
