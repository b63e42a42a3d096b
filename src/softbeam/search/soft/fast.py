"""Fast forms of a soft-beam step, equal to `soft_beam_step` and `soft_beam_step_eos` in value.

A step is one autograd function after the decoder's own: `PooledStep` over a pool of candidates, or
`DenseStep` over all cells. Neither keeps anything of size k x k x V, and gradients of the embedding
and of the output layer are computed once for all steps. `search.soft.loop.soft_beams` calls them.
"""

import torch
from torch import Tensor

from softbeam.errors import NotFinite
from softbeam.search.decoders import LocallyNormalized, checked_scores
from softbeam.search.soft.beam import ALL_FORBIDDEN, Relaxation, SoftBeam, with_finite_scores
from softbeam.search.soft.cells import Task
from softbeam.search.soft.dense import DenseStep
from softbeam.search.soft.form import Form
from softbeam.search.soft.pooled import PooledStep
from softbeam.tensors import SharedTable, heaviest, map_state
from softbeam.types import Decoder, ProjectingDecoder, ReadoutDecoder, State

PROJECTED = 128  # largest vocabulary whose embeddings go through the decoder's input layer at once


def pool_sizes(form: Form, k: int, vocab: int, device: torch.device) -> list[int]:
    """Numbers of best cells of a sentence to try, in turn; 0, the last, is all of them.

    On a CPU each step takes as few as it needs; elsewhere a few may do for all steps.
    """
    if form.candidates is None or form.candidates >= vocab:
        return [0]
    most = max(k, min(k * form.candidates, vocab - 1))  # the first step has one row alone
    few = min(most, max(k, form.candidates))
    return [few, most, 0] if few < most and device.type != "cpu" else [most, 0]


class FastSteps:
    """The steps of one soft beam over a decoder.

    Args:
        decoder: the decoder.
        pool: cells of each sentence that enter the relaxation; 0 for all.
    """

    def __init__(self, decoder: Decoder, pool: int):
        self.pool, self.normalize = pool, False
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
        emb, score, spent, finished, dropped, p, back, *mixed = self.function.apply(
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

    @property
    def function(self) -> type[PooledStep] | type[DenseStep]:
        return PooledStep if self.pool else DenseStep

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
