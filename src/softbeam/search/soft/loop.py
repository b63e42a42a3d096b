"""The continuous relaxation of beam search (Goyal et al. 2018, Algorithm 3), and its relatives.

Read `soft_beam_step` first, with Algorithm 3 beside it; `soft_beam` is the loop around it, and
`soft_beam_loss`, `soft_beam_max` and `soft_beam_decode` are its three uses. `Form()` chooses how a
step is computed: the plain reference here, or a faster form with the same value (`fast_beam`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from softbeam.search.decoders import forced_scores, gather, mix
from softbeam.search.relaxations import (
    follow_backpointers,
    length_mask,
    peaked_softmax,
    soft_indices,
    top_values,
    weighted_soft_indices,
    weighted_top_values,
)
from softbeam.search.soft.beam import FAST, PAD, REFERENCE, Diagnostics, Form, SoftBeam, lowest
from softbeam.search.soft.fast import Shared, fast_step
from softbeam.types import Decoder


def soft_beam_step(
    decoder: Decoder,
    beam: SoftBeam,
    cost: Float[Tensor, "batch vocab"],
    *,
    k: int,
    alpha: float,
    cost_scale: float = 0.0,
    form: Form = REFERENCE,
) -> SoftBeam:
    """One pass of the loop of Algorithm 3, in plain autograd: the readable form and the oracle.

    A `cost_scale` other than 0 augments line 5 by the cost, as in Sec. 2.5. The score of line 13
    is computed as m_i + sum p_i (s - m_i), which is the same and keeps its digits near +-1,000.
    """
    local, state = decoder.step(beam.state, beam.emb)
    s = beam.score[:, :, None] + local.unflatten(0, beam.score.shape)  # line 5
    s = s + cost_scale * cost[:, None, :] if cost_scale else s  # line 5 of Sec. 2.5
    m = top_values(s, k)  # line 7: Algorithm 2, line 3
    threshold = m.detach() if form.detach_threshold else m
    p = soft_indices(s, threshold, alpha)  # line 7: Algorithm 2, line 5
    back = p.sum(-1)  # line 9: b, soft back pointers
    word = p.sum(-2)  # line 10: a, soft successors
    above = s[:, None] - threshold[:, :, None, None]
    return beam._replace(
        state=mix(state, back),  # lines 14-16
        emb=(word @ decoder.embedding).flatten(0, 1),  # line 11
        score=threshold + torch.einsum("bkjv,bkjv->bk", p, above)  # line 13
        if form.score == "soft"
        else m,
        cost=torch.einsum("bkv,bv->bk", word, cost)  # line 12
        + torch.einsum("bkj,bj->bk", back, beam.cost),  # line 17
        finished=torch.zeros_like(m),
        real=torch.ones_like(m, dtype=torch.bool),
        p=p.detach(),
    )


def soft_beam_step_eos(
    decoder: Decoder,
    beam: SoftBeam,
    cost: Float[Tensor, "batch vocab"],
    *,
    k: int,
    alpha: float,
    eos: int,
    cost_scale: float = 0.0,
    form: Form = REFERENCE,
) -> SoftBeam:
    """`soft_beam_step` for sequences that end: finished mass f is carried forward (ours).

    Hard beams let a finished prefix compete unchanged: its one continuation is padding, at score
    0. Here prefix j is finished to the extent f_j, so row j of the cells has one more column,
    'stay', and the columns are weighted: 1 - f_j for each token, f_j for staying. The weights
    multiply the kernel exp(-alpha (s - m_i)^2), and the thresholds m_i are the scores of the i-th
    unit of weight (`weighted_top_values`), so that a cell nobody can reach sets no threshold.
    Both are free of the scale of the scores and of infinities, and continuous in f.

    With f = 0 this is Algorithm 3; with f in {0, 1} the cells are exactly those of the hard beam,
    so as alpha grows it becomes the hard carry-forward beam. The new f is the mass on 'stay' and
    on `eos`; a stay counts as PAD for the embedding and for the cost.
    """
    local, state = decoder.step(beam.state, beam.emb)
    s, weight = _cells_with_stay(beam, local, cost, cost_scale)
    m = _live_thresholds(s, weight, k)
    threshold = m.detach() if form.detach_threshold else m
    p = weighted_soft_indices(s, weight, threshold, alpha)
    back, word, stay = p.sum(-1), p[..., :-1].sum(-2), p[..., -1].sum(-1)
    ended = stay + word[..., eos]
    word = word + pad(stay[..., None], (PAD, word.shape[-1] - PAD - 1))
    above = s[:, None] - threshold[:, :, None, None]
    return beam._replace(
        state=mix(state, back),
        emb=(word @ decoder.embedding).flatten(0, 1),
        score=threshold + torch.einsum("bkjv,bkjv->bk", p, above) if form.score == "soft" else m,
        cost=torch.einsum("bkv,bv->bk", word, cost) + torch.einsum("bkj,bj->bk", back, beam.cost),
        finished=ended.clamp(0, 1),  # rounding may pass 1
        real=torch.ones_like(m, dtype=torch.bool),
        p=p.detach(),
    )


def _cells_with_stay(
    beam: SoftBeam, local: Tensor, cost: Tensor, cost_scale: float
) -> tuple[Tensor, Tensor]:
    """Scores and weights of the cells, 'stay' in the last column: both batch, prev, vocab + 1."""
    batch, width = beam.score.shape
    step = pad(local.unflatten(0, (batch, width)), (0, 1))  # staying scores 0
    if cost_scale:
        step = step + cost_scale * torch.cat([cost, cost[:, PAD, None]], -1)[:, None, :]
    f = beam.finished[:, :, None]
    return beam.score[:, :, None] + step, torch.cat([(1 - f).expand_as(step[..., :-1]), f], -1)


def _live_thresholds(s: Tensor, weight: Tensor, k: int) -> Tensor:
    """m: the k best units of weight. Each row's k best tokens and its stay are enough."""
    best = s[..., :-1].topk(min(k, s.shape[-1] - 1))
    scores = torch.cat([best.values, s[..., -1:]], -1).flatten(1)
    weights = torch.cat([weight[..., :-1].gather(-1, best.indices), weight[..., -1:]], -1)
    return weighted_top_values(scores, weights.flatten(1), k)


# The loop, and its uses


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
    """The soft beam after `time` steps (Goyal et al. 2018, Algorithm 3, lines 1-18).

    Starts from a beam of one (docs/errata.md: k equal rows would stay equal for ever) and is as
    wide as there are candidates until it reaches k. `time` is the length of `costs` unless given.
    With `lengths`, a row's scores and costs freeze after its own last step, so that its loss and
    gradient are those it would have alone. With `eos`, see `soft_beam_step_eos`.
    """
    time = _check(decoder, costs, k=k, alpha=alpha, time=time, lengths=lengths, eos=eos)
    beam = _start(decoder)
    none = decoder.embedding.new_zeros(1, 1).expand(len(beam.score), len(decoder.embedding))
    watched: list[Diagnostics] = []
    step: Callable[..., SoftBeam] = partial(_step, decoder)
    if not form.reference:
        step = partial(fast_step, Shared(decoder))
    if form.checkpoint:
        step = partial(checkpoint, step, use_reentrant=False)
    for t, width in enumerate(beam_widths(k, len(decoder.embedding), time, eos=eos is not None)):
        cost = none if costs is None else costs[:, t].to(beam.score.dtype)
        new = step(beam, cost, k=width, alpha=alpha, cost_scale=cost_scale, eos=eos, form=form)
        if form.diagnostics:
            watched.append(diagnose(new))
        beam = new if lengths is None else _freeze(new, beam, t < lengths)
    if form.diagnostics:
        beam = beam._replace(diagnostics=_mean_diagnostics(watched, beam.dropped, lengths))
    return beam if form.reference or form.diagnostics else beam._replace(p=None)


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
    decoder: Decoder,
    beam: SoftBeam,
    cost: Tensor,
    *,
    k: int,
    alpha: float,
    cost_scale: float,
    eos: int | None,
    form: Form,
) -> SoftBeam:
    if eos is None:
        return soft_beam_step(
            decoder, beam, cost, k=k, alpha=alpha, cost_scale=cost_scale, form=form
        )
    return soft_beam_step_eos(
        decoder, beam, cost, k=k, alpha=alpha, eos=eos, cost_scale=cost_scale, form=form
    )


def _freeze(new: SoftBeam, old: SoftBeam, running: Bool[Tensor, " batch"]) -> SoftBeam:
    """`new` in the rows still running; elsewhere the old scores, costs and finished mass.

    States and embeddings go on: nothing of them reaches a frozen row's loss or gradient, and a
    state that grows (a cache of keys) could not be put back. Where the beam has widened since, a
    frozen row is filled up with copies that are marked as not real.
    """
    if bool(running.all()):
        return new
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
    return peaked_softmax(beam.score.masked_fill(~beam.real, lowest(beam.score) / alpha), alpha)


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


def hard_beam_max(
    decoder: Decoder,
    costs: Float[Tensor, "batch time vocab"],
    *,
    k: int,
    cost_scale: float = 1.0,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
) -> tuple[Float[Tensor, " batch"], Int[Tensor, "batch time"]]:
    """Score + cost_scale * cost of the hard cost-augmented beam's best path, and the path.

    The discontinuous max-margin objective of Goyal et al. 2018, footnote 3: the search itself
    has no gradient; the score of the path it found has.
    """
    _check(decoder, costs, k=k, alpha=1.0, time=None, lengths=lengths, eos=eos)
    with torch.no_grad():
        tokens = _hard_best(decoder, costs, k=k, cost_scale=cost_scale, lengths=lengths, eos=eos)
    counted = _scored(tokens, lengths, eos)
    running = None if lengths is None else length_mask(lengths, tokens.shape[1])
    scores = forced_scores(decoder, tokens).gather(-1, tokens[..., None])[..., 0]
    cost = costs.to(scores.dtype).gather(-1, tokens[..., None])[..., 0]
    cost = cost if running is None else torch.where(running, cost, 0)
    return (torch.where(counted, scores, 0) + cost_scale * cost).sum(-1), tokens


def _hard_best(
    decoder: Decoder,
    costs: Tensor,
    *,
    k: int,
    cost_scale: float,
    lengths: Tensor | None,
    eos: int | None,
) -> Int[Tensor, "batch time"]:
    """The best path of Algorithm 1 on cost-augmented scores; finished prefixes are carried.

    A prefix that has ended (by `eos`, or by its row's length) has one live cell, the PAD column,
    at score 0; no path passes through a slot of score -inf while a finite one is left.
    """
    state, emb = decoder.start()
    batch, time, vocab = costs.shape
    score = emb.new_zeros(batch, 1)
    ended = torch.zeros_like(score, dtype=torch.bool)
    parents, tokens = [], []
    only_pad = torch.full((vocab,), float("-inf"), dtype=emb.dtype, device=emb.device)
    only_pad[PAD] = 0
    for t in range(time):
        local, state = decoder.step(state, emb)
        over = ended if lengths is None else ended | (t >= lengths)[:, None]
        step = torch.where(over[..., None], only_pad, local.unflatten(0, score.shape))
        cost = costs[:, t] if lengths is None else costs[:, t] * (t < lengths)[:, None]
        cells = (score[..., None] + step + cost_scale * cost[:, None].to(step.dtype)).flatten(1)
        score, index = cells.topk(min(k, cells.shape[1]))
        parent, token = index // vocab, index % vocab
        rows = (parent + torch.arange(batch, device=emb.device)[:, None] * step.shape[1]).flatten()
        state, emb = gather(state, rows), decoder.embedding[token.flatten()]
        ended = ended.gather(1, parent)
        ended = ended if eos is None else ended | (token == eos)
        parents.append(parent)
        tokens.append(token)
    return follow_backpointers(parents, tokens)[:, 0]


def _scored(
    tokens: Int[Tensor, "batch time"], lengths: Tensor | None, eos: int | None
) -> Bool[Tensor, "batch time"]:
    """True where a token's score counts: up to its row's length, and to the first `eos`."""
    counted = torch.ones_like(tokens, dtype=torch.bool)
    if lengths is not None:
        counted = length_mask(lengths, tokens.shape[1])
    if eos is not None:
        is_eos = (tokens == eos).long()
        counted = counted & (is_eos.cumsum(-1) - is_eos == 0)
    return counted


class SoftHypotheses(NamedTuple):
    """The paths of a soft beam, best soft score first; tokens past a length are padding."""

    tokens: Int[Tensor, "batch beam time"]
    lengths: Int[Tensor, "batch beam"]
    scores: Float[Tensor, "batch beam"]  # the soft beam's own
    hard_scores: Float[Tensor, "batch beam"]  # of the path, when its tokens are fed


@torch.no_grad()
def soft_beam_decode(
    decoder: Decoder,
    *,
    k: int,
    alpha: float,
    time: int,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
    marginal: bool = False,
) -> SoftHypotheses:
    """The hard paths along the MAP of the soft back pointers (Goyal et al. 2018, Sec. 2.4).

    The MAP is joint, the arg max over the cells of p_i; with `marginal`, those of the back
    pointers and of the successors are taken apart (they can differ while alpha is small). As
    alpha grows the paths and both scores become those of the hard beam.
    """
    _check(decoder, None, k=k, alpha=alpha, time=time, lengths=lengths, eos=eos)
    beam, parents, tokens = _start(decoder), [], []
    cost = decoder.embedding.new_zeros(1, 1).expand(len(beam.score), len(decoder.embedding))
    for t, width in enumerate(beam_widths(k, cost.shape[1], time, eos=eos is not None)):
        new = _step(
            decoder, beam, cost, k=width, alpha=alpha, cost_scale=0.0, eos=eos, form=REFERENCE
        )
        parent, token = _map_pointers(new.p, vocab=cost.shape[1], marginal=marginal)
        if lengths is not None:
            on = (t < lengths)[:, None]
            stay = torch.arange(width).to(parent).clamp_max(beam.score.shape[1] - 1)
            parent, token = torch.where(on, parent, stay), torch.where(on, token, PAD)
            new = _freeze(new, beam, t < lengths)
        parents.append(parent)
        tokens.append(token)
        beam = new
    return _rank_paths(decoder, beam, parents, tokens, lengths, eos)


def _map_pointers(p: Tensor | None, *, vocab: int, marginal: bool) -> tuple[Tensor, Tensor]:
    """Parent and token of each beam element; a 'stay' (column `vocab`) is PAD."""
    assert p is not None
    if marginal:
        word = p[..., :vocab].sum(-2)
        stay = p[..., vocab:].sum((-1, -2))
        word = word + pad(stay[..., None], (PAD, vocab - PAD - 1))
        return p.sum(-1).argmax(-1), word.argmax(-1)
    cell = p.flatten(2).argmax(-1)
    token = cell % p.shape[-1]
    return cell // p.shape[-1], torch.where(token == vocab, PAD, token)


def _rank_paths(
    decoder: Decoder,
    beam: SoftBeam,
    parents: list[Tensor],
    tokens: list[Tensor],
    lengths: Tensor | None,
    eos: int | None,
) -> SoftHypotheses:
    paths = follow_backpointers(parents, tokens)
    soft = beam.score.masked_fill(~beam.real, float("-inf"))
    scores, order = soft.sort(dim=-1, descending=True, stable=True)
    paths = paths.gather(1, order[..., None].expand_as(paths))
    counted = torch.stack([_scored(path, lengths, eos) for path in paths.unbind(1)], 1)
    hard = (_path_scores(decoder, paths) * counted).sum(-1).masked_fill(scores.isinf(), -torch.inf)
    return SoftHypotheses(torch.where(counted, paths, PAD), counted.sum(-1), scores, hard)


def _path_scores(
    decoder: Decoder, paths: Int[Tensor, "batch beam time"]
) -> Float[Tensor, "batch beam time"]:
    """The score of every token of every path when the path's own tokens are fed."""
    state, emb = decoder.start()
    batch, beam, time = paths.shape
    rows = torch.arange(batch, device=paths.device).repeat_interleave(beam)
    state, emb, flat = gather(state, rows), emb[rows], paths.flatten(0, 1)
    scores = []
    for t in range(time):
        local, state = decoder.step(state, emb)
        scores.append(local.gather(1, flat[:, t, None])[:, 0])
        emb = decoder.embedding[flat[:, t]]
    return torch.stack(scores, -1).unflatten(0, (batch, beam))


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


def _check(
    decoder: Decoder,
    costs: Tensor | None,
    *,
    k: int,
    alpha: float,
    time: int | None,
    lengths: Tensor | None,
    eos: int | None,
) -> int:
    """The number of steps; raises where an argument is out of bounds."""
    vocab = len(decoder.embedding)
    if k < 1:
        raise ValueError(f"k={k} is below 1")
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha={alpha} is not positive and finite")
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
