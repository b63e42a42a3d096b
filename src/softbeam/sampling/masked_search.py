"""Mask-predict decoding of a conditional masked language model (Ghazvininejad et al. 2019, Sec. 3).

All positions are predicted at once. Then, in each iteration, the tokens with the lowest
probabilities are masked and predicted again. The result is one good text, not a sample.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.sampling.masking import packed_logits
from softbeam.tensors import length_mask, rank
from softbeam.types import Hypotheses, MaskedLM


def likeliest_lengths(
    scores: Float[Tensor, "batch longest"], candidates: int
) -> Int[Tensor, "batch candidates"]:
    """Find the lengths with the best scores, best first; column n of the scores is length n."""
    possible = int((scores > float("-inf")).sum(-1).min())
    if not 1 <= candidates <= possible:
        raise ValueError(f"candidates={candidates} must be from 1 to {possible}")
    return scores.topk(candidates, dim=-1).indices


@torch.no_grad()
def mask_predict(
    mlm: MaskedLM,
    lengths: Int[Tensor, " rows"],
    owner: Int[Tensor, " rows"] | None = None,
    *,
    iterations: int = 10,
) -> tuple[Int[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """Predict a text of each length, and the log-probability of each token when it was predicted.

    Iteration t masks the floor(N (1 - t / iterations)) of N tokens, at least one, that have the
    lowest log-probabilities; the others stay. Only allowed tokens are predicted.
    """
    if iterations < 1:
        raise ValueError(f"iterations={iterations} must be at least 1")
    real = length_mask(lengths, int(lengths.max()))
    tokens = torch.full(real.shape, mlm.pad_id, device=real.device)
    log_p = torch.zeros(real.shape, device=real.device)
    masked = real
    for iteration in range(iterations):
        if iteration:
            count = (lengths * (1 - iteration / iterations)).long().clamp(min=1)
            masked = least_sure(log_p.masked_fill(~real, float("inf")), count)
        logits = torch.cat(list(packed_logits(mlm, tokens, masked, owner)))
        best = logits.masked_fill(~mlm.allowed, float("-inf")).log_softmax(-1).max(-1)
        tokens = tokens.masked_scatter(masked, best.indices)
        log_p = log_p.masked_scatter(masked, best.values.to(log_p.dtype))
    return tokens, log_p


def least_sure(log_p: Float[Tensor, "rows time"], count: Int[Tensor, " rows"]) -> Tensor:
    """True at the `count` smallest values of each row; of equal values, at the first."""
    return rank(log_p) < count[:, None]


@torch.no_grad()
def mask_predict_decode(
    mlm: MaskedLM,
    length_scores: Float[Tensor, "batch longest"],
    *,
    candidates: int = 5,
    iterations: int = 10,
    nbest: int = 1,
) -> Hypotheses:
    """Predict a text of each of the likeliest lengths; return the best by mean log-probability."""
    batch = len(length_scores)
    lengths = likeliest_lengths(length_scores, candidates)
    owner = torch.arange(batch, device=lengths.device).repeat_interleave(candidates)
    tokens, log_p = mask_predict(mlm, lengths.flatten(), owner, iterations=iterations)
    mean = log_p.sum(-1).unflatten(0, (batch, candidates)) / lengths
    best = mean.topk(nbest, dim=-1)
    rows = best.indices[:, :, None].expand(-1, -1, tokens.shape[-1])
    return Hypotheses(
        tokens.unflatten(0, (batch, candidates)).gather(1, rows),
        lengths.gather(1, best.indices),
        best.values,
    )
