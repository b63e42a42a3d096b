"""Scores of given targets, wrappers that turn one `Decoder` into another, and checks."""

from copy import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.errors import NotFinite
from softbeam.schedules import LARGEST_ALPHA
from softbeam.types import Decoder, FedDecoder, FusedDecoder, SelectingDecoder, State

PAD = 0  # the token that follows the end of a sequence


def forced_scores(
    decoder: Decoder, target: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time vocab"]:
    """Scores of every step given the gold prefix, in one call if the decoder can, else a loop."""
    if isinstance(decoder, FusedDecoder):
        return decoder.forced(target)
    return stepwise_scores(decoder, target)


def stepwise_scores(
    decoder: Decoder, target: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time vocab"]:
    """Scores of every step given the gold prefix, by one `step` per position: the oracle."""
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

    def around(self, decoder: Decoder) -> "Wrapped":
        """The same wrapper around another decoder."""
        other = copy(self)
        other.decoder = decoder
        return other

    def narrowed(self, sentences: Int[Tensor, " left"]) -> "Wrapped":
        """The wrapper when only some sentences are left, around the decoder of these."""
        return self


def selected(decoder: Decoder, sentences: Int[Tensor, " left"]) -> Decoder | None:
    """The decoder of some of its sources alone; None if it has no `select`."""
    if isinstance(decoder, Wrapped):
        inner = selected(decoder.decoder, sentences)
        return None if inner is None else decoder.around(inner).narrowed(sentences)
    return decoder.select(sentences) if isinstance(decoder, SelectingDecoder) else None


class LocallyNormalized(Wrapped):
    """Step scores as log-probabilities: the whole difference between local and global."""

    def change(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)


class Forbidding(Wrapped):
    """Never chooses some tokens (padding, <s>): their scores are -inf."""

    def __init__(self, decoder: Decoder, tokens: Any):
        super().__init__(decoder)
        self.tokens = list(tokens)

    def change(self, scores: Tensor) -> Tensor:
        index = torch.tensor(self.tokens, device=scores.device, dtype=torch.long)
        return scores.index_fill(-1, index, float("-inf"))


def checked_scores(scores: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Return the scores; -inf forbids a token. Raises NotFinite if a score is NaN or +inf."""
    best = scores.detach().amax(-1)  # NaN if the row has one
    if not bool((best < torch.inf).all()):
        wrong = "NaN" if bool(best.isnan().any()) else "+inf"
        raise NotFinite(f"the scores of the decoder hold {wrong} (-inf alone may forbid tokens)")
    return scores


def check_alpha(alpha: float, name: str = "alpha") -> None:
    """Raises ValueError if an inverse temperature is out of bounds."""
    if not 0 < alpha <= LARGEST_ALPHA:
        raise ValueError(f"{name}={alpha} is not above 0 and at most {LARGEST_ALPHA:g}")


def check_search(
    decoder: Decoder,
    costs: Tensor | None,
    *,
    k: int,
    alpha: float = 1.0,
    time: int | None = None,
    lengths: Tensor | None,
    eos: int | None,
) -> int:
    """The number of steps of a search. Raises ValueError if an argument is out of bounds."""
    vocab = len(decoder.embedding)
    if k < 1:
        raise ValueError(f"k={k} is below 1")
    check_alpha(alpha)
    if eos is not None and not (0 <= eos < vocab and eos != PAD):
        raise ValueError(f"eos={eos} is not a token of 0..{vocab - 1} other than padding ({PAD})")
    if costs is None and time is None:
        raise ValueError("time=None: without costs the number of steps must be given")
    if costs is not None and costs.shape[2] != vocab:
        raise ValueError(f"costs {tuple(costs.shape)} do not end in the vocabulary's {vocab}")
    steps = time if time is not None else costs.shape[1]  # type: ignore[union-attr]
    if steps < 1 or (costs is not None and steps > costs.shape[1]):
        limit = "" if costs is None else f" and the {costs.shape[1]} steps of costs"
        raise ValueError(f"time={steps} is not within 1{limit}")
    if lengths is not None and int(lengths.max()) > steps:
        raise ValueError(f"lengths up to {int(lengths.max())} exceed the {steps} steps")
    return steps if lengths is None or costs is None else max(1, int(lengths.max()))
