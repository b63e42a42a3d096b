"""The cells of a soft-beam step: their scores and thresholds, and the gradients of both.

A cell is a prefix of the beam and a token. `soft.pooled` and `soft.dense` sum over the cells.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.search.decoders import PAD
from softbeam.search.relaxations import weighted_top_values
from softbeam.search.soft.beam import Relaxation, lowest
from softbeam.tensors import SharedTable


class Task(NamedTuple):
    """What a step computes, apart from the tensors that get a gradient."""

    output: SharedTable | None  # W and b of the scores; None if the decoder gives scores itself
    normalize: bool
    embedding: SharedTable  # E
    cost: Float[Tensor, "batch vocab"]
    how: Relaxation
    eos: int | None
    pool: int  # cells of each sentence that enter the relaxation; 0 for all
    peaks: list[Tensor]  # the largest scores are appended, to be checked after all steps
    numbers: Int[Tensor, " many"]  # 0, 1, ... to at least batch * beam

    @property
    def soft(self) -> bool:
        """Whether an element's score is that of line 13."""
        return self.how.form.score == "soft"


class Local(NamedTuple):
    """Scores of all tokens at a step, before the scores of their prefixes are added."""

    scores: Float[Tensor, "rows vocab"]
    offset: Float[Tensor, "batch prev"]  # of a row's cells: its score, less log Z if normalized
    exps: Float[Tensor, "rows vocab"] | None  # exp(score - best) if normalized ...
    sums: Float[Tensor, "rows 1"] | None  # ... and their sums


def local_scores(task: Task, source: Tensor, score: Float[Tensor, "batch prev"]) -> Local:
    """Algorithm 3, line 5, from hidden states and the output layer, or from scores themselves."""
    scores, offset, exps, sums = source, score, None, None
    if task.output is not None:
        assert task.output.bias is not None
        scores = torch.addmm(task.output.bias, source, task.output.table.T)
        if task.normalize:
            best = scores.amax(-1, keepdim=True)
            task.peaks.append(best)
            exps = (scores - best).exp_()
            sums = exps.sum(-1, keepdim=True)
            offset = score - sums.log().add_(best).view_as(score)
    if task.how.cost_scale:  # line 5 of Sec. 2.5
        added = task.how.cost_scale * task.cost[:, None]
        scores = (scores.unflatten(0, score.shape) + added).flatten(0, 1)
    return Local(scores, offset, exps, sums)


def log_z_gradients(
    task: Task,
    hidden: Float[Tensor, "rows hidden"],
    d_hidden: Float[Tensor, "rows hidden"],
    d_offset: Float[Tensor, "batch prev"],
    exps: Float[Tensor, "rows vocab"] | None,
    sums: Float[Tensor, "rows 1"] | None,
) -> Float[Tensor, "rows hidden"]:
    """Add the gradient of -log Z, a softmax, to that of `hidden` and to the output layer's."""
    if task.output is None or exps is None or sums is None:
        return d_hidden
    softmax = exps * (d_offset.reshape(-1, 1) / sums).neg_()
    task.output.add(softmax, hidden)
    return d_hidden.addmm_(softmax, task.output.table)


def stay_scores(task: Task, score: Float[Tensor, "batch prev"]) -> Float[Tensor, "batch prev"]:
    """Scores of prefixes that stay finished."""
    return score + task.how.cost_scale * task.cost[:, PAD, None] if task.how.cost_scale else score


def thresholds(
    task: Task,
    top: Float[Tensor, "batch prev n"],
    stay: Float[Tensor, "batch prev"],
    finished: Float[Tensor, "batch prev"],
) -> Float[Tensor, "batch beam"]:
    """m, from at least the k best tokens of each row (Algorithm 2, line 3)."""
    k = task.how.k
    if task.eos is None:
        return top.flatten(1).topk(k).values
    top, f = top[..., :k], finished[:, :, None]
    weight = torch.cat([(1 - f).expand_as(top), f], -1)
    s = torch.cat([top, stay[..., None]], -1)
    return weighted_top_values(s.flatten(1), weight.flatten(1), k)


def threshold_gradient(
    task: Task, d_score: Float[Tensor, "batch beam"], d_x: Float[Tensor, "batch beam"]
) -> Float[Tensor, "batch beam"]:
    """The gradient of m, which is in x = s - m (`d_x` are sums over cells) and in the score."""
    if not task.how.form.detach_threshold:
        return d_score - d_x
    return torch.zeros_like(d_score) if task.soft else d_score


def threshold_gradients(
    task: Task,
    inputs: tuple[Tensor, Tensor, Tensor],
    d_score: Float[Tensor, "batch beam"],
    d_x: Float[Tensor, "batch beam"],
) -> tuple[Tensor, ...]:
    """Gradients of the inputs of `thresholds`, through m; without `eos`, of the first alone."""
    d_m, top = threshold_gradient(task, d_score, d_x), inputs[0].flatten(1)
    if task.eos is None:
        which = top.topk(task.how.k).indices
        d_top = torch.zeros_like(top).scatter_(1, which, d_m)
        return (d_top.view_as(inputs[0]),)
    with torch.enable_grad():
        given = [value.detach().requires_grad_() for value in inputs]
        return torch.autograd.grad(thresholds(task, *given), given, d_m)


def log_weight(weight: Tensor) -> Tensor:
    """log w; where w is 0, a finite number that a softmax turns into 0, without a gradient."""
    tiny = torch.finfo(weight.dtype).tiny
    return torch.where(weight > tiny, weight.clamp_min(tiny).log(), lowest(weight))


def weight_gradient(
    finished: Float[Tensor, "batch prev"],
    going: Float[Tensor, "batch prev"],
    stays: Float[Tensor, "batch prev"],
) -> Float[Tensor, "batch prev"]:
    """The gradient of f, given those of `log_weight` of 1 - f and of f."""

    def through(weight: Tensor, grad: Tensor) -> Tensor:
        tiny = torch.finfo(weight.dtype).tiny
        return torch.where(weight > tiny, grad / weight.clamp_min(tiny), 0.0)

    return through(finished, stays) - through(1 - finished, going)


def mixed(back: Float[Tensor, "batch beam prev"], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Weighted sums of a state's rows (Algorithm 3, lines 14-16)."""
    batch, beam, prev = back.shape
    return tuple(
        torch.bmm(back, rows.reshape(batch, prev, -1)).view(batch * beam, *rows.shape[1:])
        for rows in state
    )


def mixed_gradients(
    back: Float[Tensor, "batch beam prev"], state: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Gradients of `back` and of the state's tensors, given those of `mixed`."""
    (batch, beam, prev), turned = back.shape, back.mT
    d_back, d_state = torch.zeros_like(back), []
    for rows, grad in zip(state, grads, strict=True):
        grad = grad.reshape(batch, beam, -1)
        d_back.baddbmm_(grad, rows.reshape(batch, prev, -1).mT)
        d_state.append(torch.bmm(turned, grad).view_as(rows))
    return d_back, tuple(d_state)


def best_cells(
    scores: Float[Tensor, "rows vocab"], offset: Float[Tensor, "batch prev"], n: int
) -> tuple[Float[Tensor, "batch {n}"], Int[Tensor, "batch {n}"]]:
    """Scores and numbers (prefix * vocab + token) of each sentence's n best cells, best first.

    In a large vocabulary, the n best lie in the n blocks of tokens with the best maxima.
    """
    (batch, prev), vocab = offset.shape, scores.shape[1]
    block = 16
    blocks = vocab // block
    if vocab < 4096 or blocks < 4 * n:
        return (scores.view(batch, prev, -1) + offset[..., None]).view(batch, -1).topk(n)
    tops = scores[:, : blocks * block].unflatten(1, (block, blocks)).amax(1)
    chosen = (tops.view(batch, prev, -1) + offset[..., None]).view(batch, -1).topk(n).indices
    first = chosen + torch.div(chosen, blocks, rounding_mode="floor") * (vocab - blocks)
    inside = torch.arange(0, blocks * block, blocks, device=scores.device)
    index = (first[:, None] + inside[:, None]).flatten(1)
    if blocks * block < vocab:
        rest = torch.arange(blocks * block, vocab, device=scores.device)
        rows = torch.arange(0, prev * vocab, vocab, device=scores.device)
        index = torch.cat([index, (rows[:, None] + rest).flatten().expand(batch, -1)], 1)
    near = scores.view(batch, -1).gather(1, index) + offset.gather(1, index // vocab)
    s, best = near.topk(n)
    return s, index.gather(1, best)
