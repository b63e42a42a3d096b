"""The cells of a soft-beam step: their scores and thresholds, and the gradients of both.

A cell is a prefix of the beam and a token. `soft.pooled` and `soft.dense` sum over the cells,
`soft.fast` calls one of them.
"""

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
    pool: int  # most cells of each sentence that enter the relaxation; 0 for all
    peaks: list[Tensor]  # the largest scores are appended, to be checked after all steps
    numbers: Int[Tensor, " many"]  # 0, 1, ... to at least batch * beam

    @property
    def soft(self) -> bool:
        """Whether an element's score is that of line 13."""
        return self.how.form.score == "soft"


class Before(NamedTuple):
    """What a step is given."""

    source: Float[Tensor, "rows hidden"]  # the output layer's input, or the decoder's own scores
    score: Float[Tensor, "batch prev"]
    spent: Float[Tensor, "batch prev"]  # the cost so far
    finished: Float[Tensor, "batch prev"]


class After(NamedTuple):
    """What a step returns, apart from the mixed state."""

    emb: Float[Tensor, "slots emb"]
    score: Float[Tensor, "batch beam"]
    cost: Float[Tensor, "batch beam"]
    ended: Float[Tensor, "batch beam"]
    dropped: Float[Tensor, " batch"]  # a bound on the mass of the cells left out
    p: Tensor
    back: Float[Tensor, "batch beam prev"]


class Felt(NamedTuple):
    """Gradients of what a step returned; the mixed state's are in that of the back pointers."""

    emb: Float[Tensor, "slots emb"]
    score: Float[Tensor, "batch beam"]
    cost: Float[Tensor, "batch beam"]
    ended: Float[Tensor, "batch beam"]
    back: Float[Tensor, "batch beam prev"]


class Local(NamedTuple):
    """Scores of all tokens at a step, before the scores of their prefixes are added."""

    scores: Float[Tensor, "rows vocab"]
    offset: Float[Tensor, "batch prev"]  # of a row's cells: its score, less log Z if normalized
    softmax: Float[Tensor, "rows vocab"] | None  # of the scores if normalized


def local_scores(task: Task, source: Tensor, score: Float[Tensor, "batch prev"]) -> Local:
    """Algorithm 3, line 5, from hidden states and the output layer, or from scores themselves."""
    scores, offset, softmax = source, score, None
    if task.output is not None:
        scores = task.output.product(source)
        if task.normalize:
            best, softmax = scores.amax(-1), scores.softmax(-1)
            task.peaks.append(best)
            log_z = best.sub_(softmax.amax(-1).log_())  # the best token's is exp(best) / Z
            offset = score - log_z.view_as(score)
    if task.how.cost_scale:  # line 5 of Sec. 2.5
        added = task.how.cost_scale * task.cost[:, None]
        scores = (scores.unflatten(0, score.shape) + added).flatten(0, 1)
    return Local(scores, offset, softmax)


def of_sentences(which: Int[Tensor, " some"], task: Task, before: Before) -> tuple[Task, Before]:
    """The part of a step that is about some of the sentences."""
    source = before.source.unflatten(0, before.score.shape)[which].flatten(0, 1)
    part = Before(source, *(value[which] for value in before[1:]))
    return task._replace(cost=task.cost[which]), part


def scores_of(which: Int[Tensor, " some"], local: Local) -> Local:
    """The scores of some of the sentences, without a softmax."""
    scores = local.scores.unflatten(0, local.offset.shape)[which].flatten(0, 1)
    return Local(scores, local.offset[which], None)


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


def best_cells(
    scores: Float[Tensor, "rows vocab"], offset: Float[Tensor, "batch prev"], n: int
) -> tuple[Float[Tensor, "batch {n}"], Int[Tensor, "batch {n}"]]:
    """Scores and numbers (prefix * vocab + token) of each sentence's n best cells, best first.

    In a large vocabulary, the n best lie in the n blocks of tokens with the best maxima.
    """
    (batch, prev), vocab = offset.shape, scores.shape[1]
    block = min(range(16, 7, -1), key=lambda size: vocab % size)  # tokens of a block
    blocks, offset = vocab // block, offset[..., None]
    if blocks < 64 or prev * blocks < 2 * n:
        return (scores.view(batch, prev, -1) + offset).view(batch, -1).topk(n)
    tops = scores[:, : blocks * block].view(-1, block, blocks).amax(1).view(batch, prev, -1)
    chosen = tops.add_(offset).view(batch, -1).topk(n, sorted=False).indices
    parent = chosen.div(blocks, rounding_mode="floor")
    first = torch.add(chosen, parent, alpha=vocab - blocks)
    inside = torch.arange(0, blocks * block, blocks, device=scores.device)
    index = (first[..., None] + inside).view(batch, -1)
    near = scores.view(batch, -1).gather(1, index).view(batch, n, -1)
    near = near.add_(offset[..., 0].gather(1, parent)[..., None]).view(batch, -1)
    if blocks * block < vocab:
        rest = torch.arange(blocks * block, vocab, device=scores.device)
        rows = torch.arange(0, prev * vocab, vocab, device=scores.device)
        index = torch.cat([index, (rows[:, None] + rest).view(1, -1).expand(batch, -1)], 1)
        last = scores.view(batch, prev, -1)[..., blocks * block :] + offset
        near = torch.cat([near, last.view(batch, -1)], 1)
    s, best = near.topk(n)
    return s, index.gather(1, best)
