"""What a decoder is fed next: one function from scores to an embedding each (2017, Sec. 3).

All share one signature, so that `ScheduledSampling` takes any of them by name; gold feedback is
the caller's. `alpha` is the inverse temperature (hard forms ignore it) and `rng` the only source
of noise (deterministic forms ignore it).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.search.decoders import fed_scores, forced_scores
from softbeam.search.relaxations import gumbel_noise, peaked_softmax, soft_argmax
from softbeam.types import Decoder

Feedback = Callable[..., Tensor]  # (scores, embedding, *, alpha, rng) -> fed embedding


def hard_argmax(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """E[argmax s]: greedy feedback. No gradient reaches the scores."""
    return embedding[scores.argmax(-1)]


def hard_sample(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """E[y], y ~ softmax(s) at temperature 1 (Bengio et al. 2015): no gradient to the scores."""
    return embedding[scores.softmax(-1).multinomial(1, generator=rng)[:, 0]]


def soft_argmax_embedding(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """softmax(alpha s) E (Goyal et al. 2017, Sec. 3.1): tends to `hard_argmax` as alpha grows."""
    return soft_argmax(scores, embedding, alpha)


def gumbel_soft_sample(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """softmax(alpha (s + G)) E with fresh Gumbel noise G (Goyal et al. 2017, Sec. 3.2).

    Its largest weight falls on y with probability softmax(s)[y], whatever alpha is.
    """
    return soft_argmax(scores + gumbel_noise(scores, rng), embedding, alpha)


def straight_through_argmax(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """Forward exactly `hard_argmax`; the scores' gradient is that of the soft argmax."""
    return _straight_through(scores, embedding, alpha)


def straight_through_sample(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """Forward exactly E[argmax(s + G)]; the scores' gradient is that of the Gumbel-soft sample."""
    return _straight_through(scores + gumbel_noise(scores, rng), embedding, alpha)


def _straight_through(scores: Tensor, embedding: Tensor, alpha: float) -> Tensor:
    p = peaked_softmax(scores, alpha)
    zero = (p - p.detach()) @ embedding.detach()  # exactly 0, with the gradient of the soft form
    return embedding[scores.argmax(-1)] + zero


def mixed_scores(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    gold: Bool[Tensor, "batch time"],
    *,
    feedback: Feedback,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "batch time vocab"]:
    """Scores of every step when gold is fed after a step where `gold`, else the feedback (2017).

    With gold everywhere it is teacher forcing, in one fused call where the decoder can.
    """
    if bool(gold[:, :-1].all()):
        return forced_scores(decoder, target)
    state, emb = decoder.start()
    scores = []
    for t in range(target.shape[1]):
        score, state = decoder.step(state, emb)
        scores.append(score)
        own = feedback(score, decoder.embedding, alpha=alpha, rng=rng)
        emb = torch.where(gold[:, t, None], decoder.embedding[target[:, t]], own)
    return torch.stack(scores, 1)


def two_pass_scores(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    gold: Bool[Tensor, "batch time"],
    *,
    feedback: Feedback,
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "batch time vocab"]:
    """`mixed_scores` in two passes instead of one per token (Mihaylova and Martins 2019).

    The first predicts every token given its gold prefix; the second is fed these predictions where
    not `gold`. The same as `mixed_scores` while at most one prediction of a row is fed: later ones
    do not see the earlier. A soft feedback has a gradient through both passes.
    """
    first = forced_scores(decoder, target)
    if bool(gold[:, :-1].all()):
        return first
    own = feedback(first.flatten(0, 1), decoder.embedding, alpha=alpha, rng=rng)
    own = own.unflatten(0, target.shape)
    emb = torch.where(gold[..., None], decoder.embedding[target], own)
    return fed_scores(decoder, torch.cat([decoder.start()[1][:, None], emb[:, :-1]], 1))
