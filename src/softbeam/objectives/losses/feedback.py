"""What a decoder is fed next, as a function from scores to an embedding (2017, Sec. 3).

`feed` is the function; the six names below it are its forms that a configuration can name.
`mixed_scores` and `two_pass_scores` feed gold at some steps and the output of `feed` at the others.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.search.decoders import fed_scores, forced_scores
from softbeam.search.relaxations import gumbel_softmax, peaked_softmax, soft_argmax
from softbeam.tensors import draw
from softbeam.types import Decoder

Feedback = Callable[..., Tensor]  # (scores, embedding, *, alpha, rng) -> fed embedding


def feed(
    scores: Float[Tensor, "rows vocab"],
    embedding: Float[Tensor, "vocab emb"],
    *,
    choice: Literal["argmax", "sample"],
    form: Literal["hard", "soft", "straight_through"],
    alpha: float,
    rng: Generator,
) -> Float[Tensor, "rows emb"]:
    """The embedding of the best token, or of a token drawn from softmax(s) (2017, Sec. 3).

    Args:
        choice: argmax, or a sample (Bengio et al. 2015), which alone uses `rng`.
        form: hard feeds E[y] and passes no gradient to the scores. soft feeds the mixture
            softmax(alpha s) E (Sec. 3.1) or, for a sample, softmax(alpha (s + G)) E with fresh
            Gumbel noise G (Sec. 3.2); both tend to E[y] as alpha grows. straight_through feeds
            exactly E[y], with the soft form's gradient of the scores.
        alpha: inverse temperature; the hard form does not use it.
    """
    if form == "hard" and choice == "argmax":
        return embedding[scores.argmax(-1)]
    if form == "hard":
        return embedding[draw(scores.softmax(-1), rng)[:, 0]]
    if form == "soft" and choice == "argmax":
        return soft_argmax(scores, embedding, alpha)
    sampled = choice == "sample"
    p = gumbel_softmax(scores, alpha, rng) if sampled else peaked_softmax(scores, alpha)
    if form == "soft":
        return p @ embedding
    zero = (p - p.detach()) @ embedding.detach()  # exactly 0, with the gradient of the soft form
    return embedding[p.argmax(-1)] + zero


hard_argmax = partial(feed, choice="argmax", form="hard")
hard_sample = partial(feed, choice="sample", form="hard")
soft_argmax_embedding = partial(feed, choice="argmax", form="soft")
gumbel_soft_sample = partial(feed, choice="sample", form="soft")
straight_through_argmax = partial(feed, choice="argmax", form="straight_through")
straight_through_sample = partial(feed, choice="sample", form="straight_through")


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

    The first pass predicts every token given its gold prefix; the second is fed these predictions
    where not `gold`. It equals `mixed_scores` while at most one prediction of a row is fed: later
    predictions do not see earlier ones. A soft feedback has a gradient through both passes.
    """
    first = forced_scores(decoder, target)
    if bool(gold[:, :-1].all()):
        return first
    own = feedback(first.flatten(0, 1), decoder.embedding, alpha=alpha, rng=rng)
    own = own.unflatten(0, target.shape)
    emb = torch.where(gold[..., None], decoder.embedding[target], own)
    return fed_scores(decoder, torch.cat([decoder.start()[1][:, None], emb[:, :-1]], 1))
