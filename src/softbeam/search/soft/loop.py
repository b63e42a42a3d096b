"""The continuous relaxation of beam search (Goyal et al. 2018, Algorithm 3).

Read `soft_beam_step` first, with Algorithm 3 beside it. `soft_beams` is the loop around it,
`soft_beam` its last beam, and `soft_beam_loss`, `soft_beam_max` and `soft_beam_decode` are its
uses. `Form()` chooses how a step is computed: plainly, or in a faster form of equal value.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softbeam.search.decoders import check_alpha, check_search
from softbeam.search.relaxations import peaked_softmax
from softbeam.search.soft.beam import Diagnostics, Relaxation, SoftBeam, lowest
from softbeam.search.soft.fast import FastSteps, pool_sizes
from softbeam.search.soft.form import FAST, Form
from softbeam.search.soft.step import soft_beam_step, soft_beam_step_eos
from softbeam.tensors import length_mask, random_state, set_random_state
from softbeam.types import Decoder


def soft_beams(
    decoder: Decoder,
    relaxation: Relaxation,
    costs: Float[Tensor, "batch time vocab"] | None = None,
    *,
    time: int | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
) -> Iterator[SoftBeam]:
    """Yield the soft beam after each step (Goyal et al. 2018, Algorithm 3, lines 1-18).

    Starts from a beam of one (docs/errata.md: k equal rows would stay equal for ever) and is as
    wide as there are candidates until it reaches k. `time` is the length of `costs` unless given.
    With `lengths`, a row's scores and costs freeze after its own last step, so that its loss and
    gradient are those it would have alone. With `eos`, see `soft_beam_step_eos`.
    """
    k, alpha, _, form = relaxation
    time = check_search(decoder, costs, k=k, alpha=alpha, time=time, lengths=lengths, eos=eos)
    vocab = len(decoder.embedding)
    if costs is None:
        costs = decoder.embedding.new_zeros(1, 1, 1).expand(len(decoder.start()[1]), time, vocab)
    run = partial(_run, relaxation, costs[:, :time], lengths, eos)
    if form.reference:
        yield from run(decoder, partial(_step, decoder), ())
    else:
        sizes = pool_sizes(form, k, decoder.embedding)
        yield from _fast_beams(decoder, run, sizes, time, form.tolerance)


def _fast_beams(
    decoder: Decoder,
    run: Callable[..., Iterator[SoftBeam]],
    sizes: list[int],
    time: int,
    tolerance: float,
) -> list[SoftBeam]:
    """The beams of a search in its fast form, with as many candidates as the tolerance asks for.

    On a CPU a step sees how many it needs. Elsewhere the host would have to wait for the number.
    There the bound on the mass left out is read after the second step and after the last, and
    the steps after the last good one are repeated with more candidates and the same dropout.
    """
    device, steps = decoder.embedding.device, FastSteps(decoder)
    beams: list[SoftBeam] = []
    randoms: list[Tensor] = []  # before each step
    for pool in sizes:
        steps.pool, left = pool, run(steps.decoder, steps, tuple(beams))
        while len(beams) < time:
            if len(sizes) > 1:
                randoms.append(random_state(device))
            beams.append(next(left))
            if len(sizes) > 1 and len(beams) in (2, time):
                bounds = torch.stack([beam.dropped.amax() for beam in beams])  # they never fall
                good = len(beams) - int(bounds.gt(tolerance).sum())
                if good < len(beams):
                    set_random_state(randoms[good], device)
                    del beams[good:], randoms[good:]
                    break
        else:
            break
    steps.check()
    return beams


def _run(
    relaxation: Relaxation,
    costs: Float[Tensor, "batch time vocab"],
    lengths: Int[Tensor, " batch"] | None,
    eos: int | None,
    decoder: Decoder,
    step: Callable[..., SoftBeam],
    before: tuple[SoftBeam, ...],
) -> Iterator[SoftBeam]:
    """Yield the beam after each step of `step`; those `before` are not repeated."""
    beam, vocab, time = before[-1] if before else _start(decoder), costs.shape[2], costs.shape[1]
    shortest = time if lengths is None else int(lengths.min())
    if relaxation.form.checkpoint:
        step = partial(checkpoint, step, use_reentrant=False)
    widths = beam_widths(relaxation.k, vocab, time, eos=eos is not None)
    for t in range(len(before), time):
        cost = costs[:, t].to(beam.score.dtype)
        new = step(beam, cost, relaxation._replace(k=widths[t]), eos)
        beam = new if lengths is None or t < shortest else _freeze(new, beam, t < lengths)
        yield beam


def soft_beam(
    decoder: Decoder,
    costs: Float[Tensor, "batch time vocab"] | None = None,
    *,
    k: int,
    alpha: float,
    time: int | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
    cost_scale: float = 0.0,
    form: Form = FAST,
) -> SoftBeam:
    """The last of `soft_beams`: the soft beam after all steps of Algorithm 3."""
    relaxation, watched = Relaxation(k, alpha, cost_scale, form), []
    for beam in soft_beams(decoder, relaxation, costs, time=time, lengths=lengths, eos=eos):
        if form.diagnostics:
            watched.append(diagnose(beam))
    if form.diagnostics:
        return beam._replace(diagnostics=_mean_diagnostics(watched, beam.dropped, lengths))
    return beam if form.reference else beam._replace(p=None)


def beam_widths(k: int, vocab: int, time: int, *, eos: bool) -> list[int]:
    """How many slots the beam has after each step: the number of candidates, until it is k."""
    widths: list[int] = []
    going, ended = 1, 0  # prefixes while none has been dropped
    for _ in range(time):
        cells = going * vocab + ended
        widths.append(k if widths and widths[-1] == k else min(k, cells))
        going, ended = (going * (vocab - 1), ended + going) if eos else (cells, 0)
    return widths


def _start(decoder: Decoder) -> SoftBeam:
    state, emb = decoder.start()  # line 1
    zeros = decoder.embedding.new_zeros(len(emb), 1)
    real = torch.ones_like(zeros, dtype=torch.bool)
    return SoftBeam(state, emb, zeros, zeros, zeros, real, zeros[:, 0])


def _step(
    decoder: Decoder, beam: SoftBeam, cost: Tensor, relaxation: Relaxation, eos: int | None
) -> SoftBeam:
    """The step of Algorithm 3, or its sibling for sequences that end."""
    settings = relaxation._asdict()
    if eos is None:
        return soft_beam_step(decoder, beam, cost, **settings)
    return soft_beam_step_eos(decoder, beam, cost, eos=eos, **settings)


def _freeze(new: SoftBeam, old: SoftBeam, running: Bool[Tensor, " batch"]) -> SoftBeam:
    """`new` in the rows still running; elsewhere the old scores, costs and finished mass.

    States and embeddings are the new ones: they do not reach a frozen row's loss or gradient, and
    a state that grows (a cache of keys) could not be put back. Where the beam has widened since, a
    frozen row is filled up with copies that are marked as not real.
    """
    slots = torch.arange(new.score.shape[1], device=new.score.device)
    filled = slots.clamp_max(old.score.shape[1] - 1)
    on = running[:, None]
    return new._replace(
        score=torch.where(on, new.score, old.score[:, filled]),
        cost=torch.where(on, new.cost, old.cost[:, filled]),
        finished=torch.where(on, new.finished, old.finished[:, filled]),
        real=on | (old.real[:, filled] & (slots == filled)),
        dropped=torch.where(running, new.dropped, old.dropped),
    )


def final_weights(beam: SoftBeam, alpha: float) -> Float[Tensor, "batch beam"]:
    """peaked-softmax(s_T): which element is the best, in a soft manner (Algorithm 3, line 19)."""
    check_alpha(alpha, "alpha_final")
    return peaked_softmax(
        beam.score.masked_fill(~beam.real, lowest(beam.score) / max(alpha, 1.0)), alpha
    )


def expected_cost(beam: SoftBeam, alpha: float) -> Float[Tensor, " batch"]:
    """peaked-softmax(s_T) . D_T: the direct loss of each row (Algorithm 3, line 19)."""
    return (final_weights(beam, alpha) * beam.cost).sum(-1)


def expected_score(beam: SoftBeam, alpha: float) -> Float[Tensor, " batch"]:
    """peaked-softmax(s_T) . s_T: the soft maximum of Sec. 2.5; never above the largest score."""
    best = beam.score.max(-1, keepdim=True).values
    return best[:, 0] + (final_weights(beam, alpha) * (beam.score - best)).sum(-1)


def soft_beam_loss(
    decoder: Decoder,
    costs: Float[Tensor, "batch time vocab"],
    *,
    k: int,
    alpha: float,
    alpha_topk: float | None = None,
    alpha_final: float | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
    form: Form = FAST,
) -> Float[Tensor, " batch"]:
    """The expected cost of the relaxed beam's best element, a sum over time (2018, Equation 2).

    As alpha grows it tends to the cost of the hard beam's best sequence. `alpha_topk` (Algorithm
    2, line 5; in units of 1 / score^2) and `alpha_final` (Algorithm 3, line 19; 1 / score) are
    both `alpha` unless given.
    """
    beam = soft_beam(
        decoder,
        costs,
        k=k,
        alpha=alpha if alpha_topk is None else alpha_topk,
        lengths=lengths,
        eos=eos,
        form=form,
    )
    return expected_cost(beam, alpha if alpha_final is None else alpha_final)


def soft_beam_max(
    decoder: Decoder,
    costs: Float[Tensor, "batch time vocab"],
    *,
    k: int,
    alpha: float,
    alpha_topk: float | None = None,
    alpha_final: float | None = None,
    cost_scale: float = 1.0,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
    form: Form = FAST,
) -> Float[Tensor, " batch"]:
    """s_max, the soft maximum of score + cost_scale * cost over the soft beam (2018, Sec. 2.5).

    As alpha grows it tends to the best score of the hard cost-augmented beam. The soft hinge is
    relu(s_max - s(y*)).
    """
    beam = soft_beam(
        decoder,
        costs,
        k=k,
        alpha=alpha if alpha_topk is None else alpha_topk,
        lengths=lengths,
        eos=eos,
        cost_scale=cost_scale,
        form=form,
    )
    return expected_score(beam, alpha if alpha_final is None else alpha_final)


@torch.no_grad()
def diagnose(beam: SoftBeam) -> Diagnostics:
    """Entropy of p_i and overlap of pairs p_i, p_j at a beam's last step, a value per row."""
    assert beam.p is not None
    p = beam.p.flatten(2)
    k = p.shape[1]
    entropy = -torch.special.xlogy(p, p).sum(-1).mean(-1)
    overlap = torch.zeros_like(entropy)
    for i in range(1, k):
        overlap += torch.minimum(p[:, :i], p[:, i, None]).sum((-1, -2)) / (k * (k - 1) / 2)
    return Diagnostics(entropy, overlap, beam.dropped)


def _mean_diagnostics(
    steps: list[Diagnostics], dropped: Tensor, lengths: Tensor | None
) -> Diagnostics:
    entropy = torch.stack([step.entropy for step in steps], -1)
    overlap = torch.stack([step.overlap for step in steps], -1)
    on = torch.ones_like(entropy)
    if lengths is not None:
        on = length_mask(lengths, len(steps)).to(entropy)
    count = on.sum(-1).clamp_min(1)
    return Diagnostics((entropy * on).sum(-1) / count, (overlap * on).sum(-1) / count, dropped)
