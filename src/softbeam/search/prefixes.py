"""A decoder whose scores may depend on the tokens that were chosen before."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.search.decoders import Wrapped
from softbeam.types import Decoder, State

Change = Callable[[Int[Tensor, "rows time"], Float[Tensor, "rows vocab"]], Tensor]


class WithPrefixes(Wrapped):
    """Changes the scores of each step by a function of all tokens so far.

    A step gets an embedding and not a token. So each embedding has one more column, which holds the
    number of its token, and the state has the tokens. It is for hard searches only: a mixture of
    embeddings has no number.

    Args:
        decoder: whose scores are changed.
        first: the tokens before each output, one at least; the decoder starts with the last one.
        change: gets the tokens of each row and the scores; returns the new scores.
    """

    def __init__(self, decoder: Decoder, first: Int[Tensor, "batch time"], change: Change):
        super().__init__(decoder)
        self.first, self.by = first, change
        table = decoder.embedding
        numbers = torch.arange(len(table), device=table.device, dtype=torch.float32)
        self.numbered = torch.cat([table, numbers[:, None]], 1)  # at least float32: exact

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self.numbered

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        state, emb = self.decoder.start()
        return (self.first[:, :-1], state), torch.cat([emb, self.first[:, -1:].float()], 1)

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        before, inner = state
        tokens = torch.cat([before, emb[:, -1:].round().long()], 1)
        scores, inner = self.decoder.step(inner, emb[:, :-1].to(self.decoder.embedding.dtype))
        return self.by(tokens, scores), (tokens, inner)

    def narrowed(self, sentences: Int[Tensor, " left"]) -> "WithPrefixes":
        self.first = self.first[sentences]
        return self
