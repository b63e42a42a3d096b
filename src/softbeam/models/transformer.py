"""A Transformer encoder and decoder; the decoder's state is its cache of keys and values.

`TransformerSeq2Seq(...)(source)` is a `Decoder` bound to the source, like that of `models.lstm`.
The cache grows by one position at each step. The rows of a beam are equally long, so that
gathering or mixing them keeps positions apart, and gradients flow through a mixed cache. Padding
never changes a number, because nothing attends to it.
"""

from copy import copy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from softbeam.models.layers import Cache, Layer, Memory, TransformerShape, embedding
from softbeam.models.shared import shared

State = tuple[Cache, ...]  # of each layer


class TransformerSeq2Seq(nn.Module):
    """Encoder, decoder and output layer. Calling the model binds a `Decoder` to a source.

    The target's embeddings are also the output weights; positions are learned.

    Args:
        source_vocab: number of source tokens; 0 is padding.
        target_vocab: number of target tokens.
        shape: sizes of both sides.
    """

    def __init__(self, source_vocab: int, target_vocab: int, shape: TransformerShape):
        super().__init__()
        width, self.longest = shape.width, shape.longest
        self.source_embed = embedding(source_vocab, width)
        self.source_position = embedding(shape.longest, width)
        self.embed = embedding(target_vocab, width)  # also the output layer
        self.position = embedding(shape.longest, width)
        self.bos = nn.Parameter(torch.randn(width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(target_vocab))
        self.encoder, self.encoder_norm = shape.stack(), shape.last_norm()
        self.decoder, self.decoder_norm = shape.stack(source=True), shape.last_norm()
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "TransformerDecoder":
        real = source != 0
        return TransformerDecoder(self, self.encode(source, real), real)

    def encode(
        self, source: Int[Tensor, "batch source_time"], real: Bool[Tensor, "batch source_time"]
    ) -> Float[Tensor, "batch source_time width"]:
        """Encode the sources."""
        places = self.places(0, source.shape[1], source.device)
        x = self.dropout(self.source_embed(source) + self.source_position(places))
        for layer in self.encoder:
            x = layer(x, real)
        return self.encoder_norm(x)

    def places(self, first: int, count: int, device: torch.device) -> Int[Tensor, " {count}"]:
        """The numbers of `count` positions, starting with `first`."""
        if first + count > self.longest:
            raise ValueError(f"{first + count} positions; the model's limit is {self.longest}")
        return torch.arange(first, first + count, device=device)


class TransformerDecoder:
    """A `FusedDecoder`: `TransformerSeq2Seq` bound to its encoded source."""

    def __init__(
        self,
        model: TransformerSeq2Seq,
        encoded: Float[Tensor, "batch source_time width"],
        real: Bool[Tensor, "batch source_time"],
    ):
        self.model = model
        self.layers = [layer for layer in model.decoder if isinstance(layer, Layer)]
        self.memories: list[Memory] = [layer.remember(encoded, real) for layer in self.layers]
        self.shared: list[Layer] = []  # the layers of a search that needs gradients

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self.model.embed.weight

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the scores; relaxations sum their gradients over the steps."""
        return self.model.embed.weight, self.model.bias

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        self.shared = []
        batch = len(self.memories[0].key)
        state = tuple(layer.attention.empty(batch) for layer in self.layers)
        return state, self.model.bos.expand(batch, -1)

    def select(self, sentences: Int[Tensor, " left"]) -> "TransformerDecoder":
        """The decoder of some of the sources."""
        other = copy(self)
        other.memories, other.shared = [memory.of(sentences) for memory in self.memories], []
        return other

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        hidden, state = self.advance(state, emb)
        return linear(hidden, *self.output_layer), state

    def advance(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows hidden"], State]:
        """Run one step up to the output layer."""
        if torch.is_grad_enabled() and not self.shared:
            self.shared = [shared(layer) for layer in self.layers]
        layers = self.shared if torch.is_grad_enabled() else self.layers
        hidden, state = self.extend(state, emb[:, None], layers)
        return hidden[:, 0], state

    def forced(self, target: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given the gold prefix, in one call."""
        bos = self.model.bos.expand(len(target), 1, -1)
        return self.fed(torch.cat([bos, self.model.embed(target[:, :-1])], 1))

    def fed(self, emb: Float[Tensor, "batch time emb"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given these input embeddings, in one call."""
        return linear(self.extend(self.start()[0], emb, self.layers)[0], *self.output_layer)

    def extend(
        self, state: State, emb: Float[Tensor, "rows time emb"], layers: list[Layer]
    ) -> tuple[Float[Tensor, "rows time hidden"], State]:
        """Compute the positions after the cached ones; return their states and the new cache."""
        model = self.model
        places = model.places(state[0].key.shape[2], emb.shape[1], emb.device)
        x = model.dropout(emb + model.position(places))
        caches = []
        for layer, cache, memory in zip(layers, state, self.memories, strict=True):
            x, cache = layer.extend(x, cache, memory)
            caches.append(cache)
        return model.decoder_norm(x), tuple(caches)
