"""Rows of decoder states, and wrappers that turn one `Decoder` into another."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.types import Decoder, FedDecoder, FusedDecoder, State


def select(keep: Bool[Tensor, " rows"], state: State, otherwise: State) -> State:
    """`state` where `keep`, `otherwise` elsewhere, row by row."""
    if isinstance(state, Tensor):
        return torch.where(keep.view(-1, *[1] * (state.dim() - 1)), state, otherwise)
    if isinstance(state, tuple):
        parts = [select(keep, a, b) for a, b in zip(state, otherwise, strict=True)]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def forced_scores(
    decoder: Decoder, target: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time vocab"]:
    """Scores of every step given the gold prefix: fused where the decoder can, else a loop."""
    if isinstance(decoder, FusedDecoder):
        return decoder.forced(target)
    return stepwise_scores(decoder, target)


def stepwise_scores(
    decoder: Decoder, target: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time vocab"]:
    """The same by one `step` per position; the oracle of the conformance suite."""
    state, emb = decoder.start()
    scores = []
    for t in range(target.shape[1]):
        score, state = decoder.step(state, emb)
        scores.append(score)
        emb = decoder.embedding[target[:, t]]
    return torch.stack(scores, 1)


def fed_scores(
    decoder: Decoder, emb: Float[Tensor, "batch time emb"]
) -> Float[Tensor, "batch time vocab"]:
    """Scores of every step when these embeddings are fed: in one call where the decoder can."""
    if isinstance(decoder, FedDecoder):
        return decoder.fed(emb)
    state, _ = decoder.start()
    scores = []
    for fed in emb.unbind(1):
        score, state = decoder.step(state, fed)
        scores.append(score)
    return torch.stack(scores, 1)


class Wrapped:
    """A decoder that passes everything through; wrappers override what they change."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder

    @property
    def embedding(self) -> Tensor:
        return self.decoder.embedding

    def start(self) -> tuple[State, Tensor]:
        return self.decoder.start()

    def step(self, state: State, emb: Tensor) -> tuple[Tensor, State]:
        scores, state = self.decoder.step(state, emb)
        return self.change(scores), state

    def forced(self, target: Tensor) -> Tensor:
        return self.change(forced_scores(self.decoder, target))

    def fed(self, emb: Tensor) -> Tensor:
        return self.change(fed_scores(self.decoder, emb))

    def change(self, scores: Tensor) -> Tensor:
        return scores


class LocallyNormalized(Wrapped):
    """Step scores as log-probabilities: the whole difference between local and global."""

    def change(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)


class Forbidding(Wrapped):
    """Never chooses some tokens (padding, <s>): their scores are -inf. For hard search only."""

    def __init__(self, decoder: Decoder, tokens: Any):
        super().__init__(decoder)
        self.tokens = list(tokens)

    def change(self, scores: Tensor) -> Tensor:
        index = torch.tensor(self.tokens, device=scores.device, dtype=torch.long)
        return scores.index_fill(-1, index, float("-inf"))
