"""A GRU encoder and decoder without attention: the source is the decoder's first state.

`GruSeq2Seq(...)(source)` is a `Decoder` bound to the source, like those of `models.lstm` and
`models.transformer`. The state is one vector for each row.
"""

from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

State = tuple[Tensor]  # of the GRU: rows hidden


class GruSeq2Seq(nn.Module):
    """Encoder, decoder and output layer. Calling the model binds a `Decoder` to a source.

    Args:
        source_vocab: number of source tokens; 0 is padding.
        target_vocab: number of target tokens.
        width: of embeddings and states.
        start: the target token that each output starts with.
    """

    def __init__(self, source_vocab: int, target_vocab: int, width: int, start: int):
        super().__init__()
        self.start_id = start
        self.source_embed = nn.Embedding(source_vocab, width)
        self.embed = nn.Embedding(target_vocab, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, target_vocab)

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "GruDecoder":
        states, _ = self.encoder(self.source_embed(source))
        last = (source != 0).sum(1).sub(1).clamp(min=0)
        return GruDecoder(self, states[torch.arange(len(source), device=source.device), last])


class GruDecoder:
    """A `FusedDecoder`: `GruSeq2Seq` bound to its encoded source."""

    def __init__(self, model: GruSeq2Seq, first: Float[Tensor, "batch hidden"]):
        self.model, self.first = model, first

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self.model.embed.weight

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the scores; relaxations sum their gradients over the steps."""
        return self.model.output.weight, self.model.output.bias

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        return (self.first,), self.embedding[self.model.start_id].expand(len(self.first), -1)

    def select(self, sentences: Int[Tensor, " left"]) -> "GruDecoder":
        """The decoder of some of the sources."""
        other = copy(self)
        other.first = self.first[sentences]
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
        _, hidden = self.model.decoder(emb[:, None], state[0][None].contiguous())
        return hidden[0], (hidden[0],)

    def forced(self, target: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given the gold prefix, in one call."""
        return self.fed(torch.cat([self.start()[1][:, None], self.embedding[target[:, :-1]]], 1))

    def fed(self, emb: Float[Tensor, "batch time emb"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given these input embeddings, in one call."""
        hidden, _ = self.model.decoder(emb, self.first[None].contiguous())
        return linear(hidden, *self.output_layer)
