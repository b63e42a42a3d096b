"""Relaxations of arg max and top-k (Goyal et al. 2017, Sec. 3; 2018, Algorithm 2)."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from softbeam.tensors import moved


def peaked_softmax(scores: Float[Tensor, "*rows n"], alpha: float) -> Float[Tensor, "*rows n"]:
    """softmax(alpha * scores): tends to the one-hot argmax as alpha grows (2018, Sec. 2.2)."""
    return (alpha * scores).softmax(-1)


def soft_argmax(
    scores: Float[Tensor, "rows vocab"], values: Float[Tensor, "vocab emb"], alpha: float
) -> Float[Tensor, "rows emb"]:
    """softmax(alpha s) mixed over `values`: tends to values[argmax s] (2017, Sec. 3.1)."""
    return peaked_softmax(scores, alpha) @ values


def gumbel_noise(like: Float[Tensor, "*shape"], rng: Generator) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise -log(-log U), finite, with the shape and type of `like`."""
    exponential = torch.empty_like(like, device=rng.device).exponential_(generator=rng)  # -log U
    exponential = moved(exponential, like.device)
    return -exponential.clamp_min(torch.finfo(like.dtype).tiny).log()


def gumbel_softmax(
    scores: Float[Tensor, "*rows n"], alpha: float, rng: Generator
) -> Float[Tensor, "*rows n"]:
    """softmax(alpha (s + G)), G fresh Gumbel noise (2017, Sec. 3.2).

    At every alpha the largest weight falls on y with probability softmax(s)[y]. The usual form
    has the temperature 1 / alpha.
    """
    return peaked_softmax(scores + gumbel_noise(scores, rng), alpha)


def soft_topk(
    scores: Float[Tensor, "batch prev vocab"],
    k: int,
    alpha: float,
    *,
    detach_threshold: bool = False,
) -> tuple[Float[Tensor, "batch {k}"], Float[Tensor, "batch {k} prev vocab"]]:
    """The k largest scores m of each matrix and their relaxed indices p (2018, Algorithm 2).

    Slice i of p is non-negative and sums to one. As alpha grows it concentrates on the cell
    that holds the i-th largest score, provided that the k largest scores are distinct. With
    `detach_threshold` no gradient of p passes through m.
    """
    cells = scores.shape[1] * scores.shape[2]
    if not 1 <= k <= cells:
        raise ValueError(f"k={k} is not within 1 and the {cells} cells of {tuple(scores.shape)}")
    m = scores.flatten(1).topk(k).values  # line 3
    return m, soft_indices(scores, m.detach() if detach_threshold else m, alpha)  # lines 4-5


def soft_indices(
    scores: Float[Tensor, "batch prev vocab"], m: Float[Tensor, "batch beam"], alpha: float
) -> Float[Tensor, "batch beam prev vocab"]:
    """peaked-softmax(-(s - m_i)^2) over the cells of each matrix (2018, Algorithm 2, line 5)."""
    distance = (scores.flatten(1)[:, None, :] - m[:, :, None]).square()
    return peaked_softmax(-distance, alpha).unflatten(-1, scores.shape[1:])


def weighted_top_values(
    scores: Float[Tensor, "batch cells"], weights: Float[Tensor, "batch cells"], k: int
) -> Float[Tensor, "batch {k}"]:
    """The mean score of the i-th unit of weight, cells taken from the best down, i = 1..k.

    With weights 0 and 1 these are exactly the k largest scores among the cells of weight 1.
    Between, they are continuous in scores and weights. Where all weights together are less than
    k, they are stretched to k.
    """
    s, order = scores.sort(dim=-1, descending=True, stable=True)
    w = weights.gather(-1, order)
    w = w * (k / w.sum(-1, keepdim=True)).clamp_min(1)
    end = w.cumsum(-1)[:, None, :]
    i = torch.arange(k, device=s.device, dtype=s.dtype)[:, None]
    share = (end.minimum(i + 1) - (end - w[:, None, :]).maximum(i)).clamp_min(0)
    share = share / share.sum(-1, keepdim=True)
    best = s[:, :1]
    return best + torch.einsum("bkc,bc->bk", share, s - best)


def weighted_soft_indices(
    scores: Float[Tensor, "batch prev cells"],
    weights: Float[Tensor, "batch prev cells"],
    m: Float[Tensor, "batch beam"],
    alpha: float,
) -> Float[Tensor, "batch beam prev cells"]:
    """`soft_indices` in which a cell of weight w counts w times: w exp(-alpha (s - m_i)^2).

    A cell of weight 0 gets exactly 0, without an infinity, and passes no gradient.
    """
    floor = torch.finfo(scores.dtype)
    log_w = weights.clamp_min(floor.tiny).log()
    distance = (scores.flatten(1)[:, None, :] - m[:, :, None]).square()
    logits = log_w.flatten(1)[:, None, :] - alpha * distance
    dead = (weights <= floor.tiny).flatten(1)[:, None, :]
    return logits.masked_fill(dead, floor.min).softmax(-1).unflatten(-1, scores.shape[1:])
