"""Fast forms of a soft-beam step, equal to `soft_beam_step` and `soft_beam_step_eos` in value.

A step is one autograd function after the decoder's own, over a pool of candidates or over all
cells. It keeps nothing of size k x k x V, and gradients of the embedding and of the output layer
are added up over the steps. `search.soft.loop.soft_beams` calls it.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from softbeam.errors import NotFinite
from softbeam.search.decoders import LocallyNormalized, checked_scores
from softbeam.search.soft.beam import ALL_FORBIDDEN, Relaxation, SoftBeam, with_finite_scores
from softbeam.search.soft.cells import (
    After,
    Before,
    Felt,
    Task,
    local_scores,
    of_sentences,
    scores_of,
)
from softbeam.search.soft.dense import dense_gradients, dense_step
from softbeam.search.soft.form import Form
from softbeam.search.soft.pooled import chosen_pool, pooled_gradients, pooled_step
from softbeam.tensors import SharedTable, heaviest, map_state
from softbeam.types import Decoder, ProjectingDecoder, ReadoutDecoder, State

ALL = 128  # largest vocabulary of which all tokens are candidates by default ...
POOLED = 64  # ... and candidates of larger ones
PROJECTED = 128  # largest vocabulary whose embeddings go through the decoder's input layer at once


def pool_sizes(form: Form, k: int, table: Float[Tensor, "vocab emb"]) -> list[int]:
    """Numbers of best cells of a sentence to try, in turn; 0 is all of them.

    On a CPU each step takes as few as it needs, or else all; elsewhere a few may do for all steps.
    """
    vocab = len(table)
    candidates = form.candidates or (POOLED if vocab > ALL else vocab)
    if candidates >= vocab:
        return [0]
    most = max(k, min(k * candidates, vocab - 1))  # the first step has one row alone
    few = min(most, max(k, candidates))
    return [most] if table.device.type == "cpu" else [*sorted({few, most}), 0]


class FastSteps:
    """The steps of one soft beam over a decoder.

    `pool` is the number of cells of each sentence that enter the relaxation, 0 for all.
    """

    def __init__(self, decoder: Decoder):
        self.pool, self.normalize = 0, False
        self.decoder, self.readout, self.output = decoder, None, None
        self.peaks: list[Tensor] = []  # the largest scores of every step
        self.numbers = torch.arange(0)
        inner = decoder.decoder if type(decoder) is LocallyNormalized else decoder
        if isinstance(inner, ReadoutDecoder):
            weight, bias = inner.output_layer
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            if not bool(bias.isneginf().any()):  # forbidden tokens need the decoder's own scores
                self.normalize, self.output = inner is not decoder, SharedTable(weight, bias)
                if isinstance(inner, ProjectingDecoder) and len(weight) <= PROJECTED:
                    inner = inner.projected()
                self.decoder = self.readout = inner
        self.embedding = SharedTable(self.decoder.embedding)

    def __call__(
        self, beam: SoftBeam, cost: Tensor, relaxation: Relaxation, eos: int | None
    ) -> SoftBeam:
        """`soft_beam_step` or `soft_beam_step_eos`."""
        source, state = self.advanced(beam, relaxation.alpha)
        many = len(beam.score) * max(relaxation.k, beam.score.shape[1])
        if many > len(self.numbers):
            self.numbers = torch.arange(many, device=source.device)
        shared = self.output, self.normalize, self.embedding
        task = Task(*shared, cost, relaxation, eos, self.pool, self.peaks, self.numbers)
        alone = relaxation.k == beam.score.shape[1] == 1  # the only row has weight 1
        emb, score, spent, finished, dropped, p, back, *mixed = SoftStep.apply(
            *(task, source, beam.score, beam.cost, beam.finished),
            *(None if self.output is None else self.output.token, self.embedding.token),
            *([] if alone else floating(state)),
        )
        return SoftBeam(
            state=state if alone else with_floating(state, mixed, back),
            emb=emb,
            score=score,
            cost=spent,
            finished=finished,
            real=torch.ones_like(score, dtype=torch.bool),
            dropped=beam.dropped.maximum(dropped),
            p=p,
        )

    def advanced(self, beam: SoftBeam, alpha: float) -> tuple[Tensor, State]:
        """The input of the output layer, or else the decoder's own scores; and the new state."""
        if self.readout is not None:
            return self.readout.advance(beam.state, beam.emb)
        local, state = self.decoder.step(beam.state, beam.emb)
        best = local.detach().amax(-1, keepdim=True)
        self.peaks.append(best.view_as(beam.score).amax(1))
        return with_finite_scores(local, best, alpha), state

    def check(self) -> None:
        """Raises NotFinite if a score was NaN or +inf, or a step forbade every token."""
        peaks = torch.cat([peak.flatten() for peak in self.peaks])
        self.peaks.clear()
        if not bool(peaks.isfinite().all()):
            checked_scores(peaks[~peaks.isfinite()][:1, None])  # the first is the cause of others
            raise NotFinite(ALL_FORBIDDEN)


class SoftStep(torch.autograd.Function):
    """Lines 5-17 of Algorithm 3. Returns an `After` and the mixed state."""

    @staticmethod
    def forward(
        ctx: Any,
        task: Task,
        source: Tensor,
        score: Tensor,
        spent: Tensor,
        finished: Tensor,
        w_token: Tensor | None,
        e_token: Tensor,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        before = Before(source, score, spent, finished)
        local = local_scores(task, source, score)
        pool = chosen_pool(task, local, before) if task.pool else None
        wide = None if pool is None else pool.wide
        kept_apart: tuple[Tensor | None, ...] = ()
        if pool is None:
            after, kept = dense_step(task, before, local)
        else:
            after, kept = pooled_step(task, before, local, pool)
        if wide is not None:
            part = of_sentences(wide, task, before)
            some, kept_apart = dense_step(*part, scores_of(wide, local))
            after = with_sentences(after, some, wide)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(after.dropped, after.p, after.back)
        ctx.save_for_backward(*before, after.back, *kept, *kept_apart, *state)
        ctx.task, ctx.pooled, ctx.wide = task, pool is not None, wide
        ctx.sizes = len(kept), len(kept_apart)
        return *after, *mixed(after.back, state)  # lines 14-16

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        before, back = Before(*islice(saved, 4)), next(saved)
        kept, kept_apart = (tuple(islice(saved, size)) for size in ctx.sizes)
        d_back, d_state = mixed_gradients(back, tuple(saved), grads[7:])
        d_emb, d_score, d_cost, d_ended = grads[:4]
        none = torch.zeros_like(back[..., 0])  # of what nothing reads, as after the last step
        if d_emb is None:
            d_emb = none.new_zeros(none.numel(), ctx.task.embedding.table.shape[1])
        d_cost = none if d_cost is None else d_cost
        felt = Felt(
            d_emb,
            none if d_score is None else d_score,
            d_cost,
            none if d_ended is None else d_ended,
            d_back,
        )
        if not ctx.pooled:
            found = dense_gradients(ctx.task, before, kept, felt)
        elif ctx.wide is None:
            found = pooled_gradients(ctx.task, before, kept, felt)
        else:
            found = gradients_apart(ctx.task, before, ctx.wide, kept, kept_apart, felt)
        d_source, d_before, d_finished = found
        d_spent = torch.bmm(d_cost[:, None], back)[:, 0]
        return None, d_source, d_before, d_spent, d_finished, None, None, *d_state


def with_sentences(after: After, some: After, which: Int[Tensor, " some"]) -> After:
    """The outcome of a step with that of some sentences in the places of theirs; p stays."""
    emb = after.emb.view(len(after.score), -1).index_copy_(0, which, some.emb.view(len(which), -1))
    values = {
        name: getattr(after, name).index_copy(0, which, getattr(some, name))
        for name in ("score", "cost", "ended", "dropped", "back")
    }
    return after._replace(emb=emb.view_as(after.emb), **values)


def gradients_apart(
    task: Task,
    before: Before,
    wide: Int[Tensor, " some"],
    kept: tuple[Any, ...],
    kept_apart: tuple[Any, ...],
    felt: Felt,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of a step that some sentences took over all cells and the others over a pool."""
    shape = felt.score.shape
    felt = felt._replace(emb=felt.emb.unflatten(0, shape))
    theirs, others = (
        Felt(*some)._replace(emb=some[0].flatten(0, 1))
        for some in (
            [value[wide] for value in felt],
            [value.index_fill(0, wide, 0) for value in felt],
        )
    )
    source, offset, finished = pooled_gradients(task, before, kept, others)
    some = dense_gradients(*of_sentences(wide, task, before), kept_apart, theirs)
    rows = source.view(*before.score.shape, -1)
    rows.index_copy_(0, wide, some[0].view(len(wide), *rows.shape[1:]))
    offset.index_copy_(0, wide, some[1])
    if finished is not None and some[2] is not None:
        finished.index_copy_(0, wide, some[2])
    return source, offset, finished


def mixed(back: Float[Tensor, "batch beam prev"], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Weighted sums of a state's rows (Algorithm 3, lines 14-16)."""
    batch, beam, prev = back.shape
    return tuple(
        torch.bmm(back, rows.reshape(batch, prev, -1)).view(batch * beam, *rows.shape[1:])
        for rows in state
    )


def mixed_gradients(
    back: Float[Tensor, "batch beam prev"], state: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Gradients of `back` and of the state's tensors, given those of `mixed`."""
    (batch, beam, prev), turned = back.shape, back.mT
    d_back: Tensor | None = None
    d_state: list[Tensor | None] = []
    for rows, grad in zip(state, grads, strict=True):
        if grad is None:
            d_state.append(None)
            continue
        grad = grad.reshape(batch, beam, -1)
        other = rows.reshape(batch, prev, -1).mT
        d_back = torch.bmm(grad, other) if d_back is None else d_back.baddbmm_(grad, other)
        d_state.append(torch.bmm(turned, grad).view_as(rows))
    return torch.zeros_like(back) if d_back is None else d_back, tuple(d_state)


def floating(state: State) -> list[Tensor]:
    """The floating-point tensors of a state."""
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            tensors.append(tensor)
        return tensor

    map_state(keep, state)
    return tensors


def with_floating(state: State, tensors: list[Tensor], back: Tensor) -> State:
    """A state with these floating-point tensors; other tensors are gathered along `back`."""
    mixed = iter(tensors)

    def new(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return next(mixed)
        return heaviest(tensor.unflatten(0, (len(back), -1)), back).flatten(0, 1)

    return map_state(new, state)
