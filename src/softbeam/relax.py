"""The continuous relaxation of beam search (Goyal et al. 2018, Algorithm 3), and its relatives.

Read `soft_beam_step` first, with Algorithm 3 beside it; `soft_beam` is the loop around it, and
`soft_beam_loss`, `soft_beam_max` and `soft_beam_decode` are its three uses. `Form()` chooses how a
step is computed: the plain reference, or a faster form with the same value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from softbeam.decoders import LocallyNormalized, forced_scores, gather, mix
from softbeam.ops import (
    MixRows,
    Readout,
    ReadoutAt,
    SharedTable,
    SoftSums,
    Tap,
    blocked_topk,
    follow_backpointers,
    length_mask,
    peaked_softmax,
    soft_indices,
    top_values,
    weighted_soft_indices,
    weighted_top_values,
)
from softbeam.types import Decoder, State

PAD = 0  # the token that follows the end of a sequence


@runtime_checkable
class ReadoutDecoder(Decoder, Protocol):
    """A decoder whose step is `advance`, then one linear layer: scores = hidden W^T + b.

    Optional: with it, the fast forms gather the layer's gradient over the steps, and a candidate
    pool touches only the candidates' rows of W. It also works inside `LocallyNormalized`.
    """

    @property
    def output_layer(self) -> tuple[Tensor, Tensor | None]: ...  # W (vocab hidden), b (vocab)
    def advance(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows hidden"], State]: ...


class SoftBeam(NamedTuple):
    """The beam between two steps; i-th slots hold mixtures that tend to the i-th best prefix."""

    state: State  # h, rows are batch-major
    emb: Float[Tensor, "rows emb"]  # e
    score: Float[Tensor, "batch beam"]  # s
    cost: Float[Tensor, "batch beam"]  # D
    finished: Float[Tensor, "batch beam"]  # f: the mass that has ended in EOS (0 without eos)
    real: Bool[Tensor, "batch beam"]  # False: filler, in a row that froze while narrower
    dropped: Float[Tensor, " batch"]  # largest bound on the mass a candidate pool left out
    p: Tensor | None = None  # the last relaxed indices; kept where a caller asks for them
    diagnostics: "Diagnostics | None" = None


class Diagnostics(NamedTuple):
    """How soft a soft beam was: means over the beam and over each row's own steps."""

    entropy: Float[Tensor, " batch"]  # of p_i, in nats
    overlap: Float[Tensor, " batch"]  # sum of min(p_i, p_j) over cells, mean over pairs i < j
    dropped: Float[Tensor, " batch"]  # largest bound on the mass a candidate pool left out


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a soft-beam step is computed. Without options: dense, exact, recomputing p backward.

    With `candidates`, whether a pool suffices is decided for a whole batch at every step, so the
    same sentence alone and in a batch agree to `tolerance` (in the other forms, to rounding).
    """

    reference: bool = False  # plain autograd of Algorithm 3: the oracle
    candidates: int | None = None  # only the N best cells of each beam row enter the relaxation
    tolerance: float = 1e-6  # ... where they provably hold all but this much mass; else dense
    score: Literal["soft", "hard"] = "soft"  # line 13, or the threshold m_i itself
    detach_threshold: bool = False  # no gradient through m_i
    checkpoint: bool = False  # keep only the beam between steps; compute each step twice
    diagnostics: bool = False  # fill SoftBeam.diagnostics

    def __post_init__(self) -> None:
        if self.candidates is not None and self.candidates < 1:
            raise ValueError(f"candidates={self.candidates} is below 1")
        if self.score not in ("soft", "hard"):
            raise ValueError(f"score={self.score!r} is neither 'soft' nor 'hard'")


FAST = Form()
REFERENCE = Form(reference=True)


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


# The fast forms: the same values as the two steps above, recomputing p in the backward pass


class _Cells(NamedTuple):
    """Candidate scores raw + offset, and how to take them with a gradient: all or a few."""

    raw: Float[Tensor, "batch prev vocab"]  # values only
    offset: Float[Tensor, "batch prev"]  # of a row's cells: its score, less log Z if normalized
    whole: Callable[[], Tensor]  # () -> batch prev vocab
    at: Callable[[Tensor], Tensor]  # indices (batch prev n) -> their scores


class _Shared:
    """What the steps of one soft beam share: the decoder, and the gradients of its tables."""

    def __init__(self, decoder: Decoder):
        self.decoder, self.inner, self.normalize = decoder, None, False
        self.table = SharedTable(decoder.embedding)
        self.pad = decoder.embedding[PAD]
        inner = decoder.decoder if type(decoder) is LocallyNormalized else decoder
        if isinstance(inner, ReadoutDecoder):
            weight, bias = inner.output_layer
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            self.inner, self.normalize = inner, inner is not decoder
            self.tables = SharedTable(weight), SharedTable(bias[:, None])

    def cells(self, beam: SoftBeam, augment: Tensor | None) -> tuple[_Cells, State]:
        """Algorithm 3, line 5; `augment` (batch vocab) is added as in Sec. 2.5."""
        if self.inner is not None:
            return self.linear_cells(self.inner, beam, augment)
        local, state = self.decoder.step(beam.state, beam.emb)
        local = local.unflatten(0, beam.score.shape)
        local = local if augment is None else local + augment[:, None]
        return _Cells(local.detach(), beam.score, lambda: local, partial(local.gather, -1)), state

    def linear_cells(
        self, decoder: ReadoutDecoder, beam: SoftBeam, augment: Tensor | None
    ) -> tuple[_Cells, State]:
        """The same where the decoder shows its output layer."""
        (w, b), shape, offset = self.tables, beam.score.shape, beam.score
        hidden, state = decoder.advance(beam.state, beam.emb)
        with torch.no_grad():
            raw = torch.addmm(b.table[:, 0], hidden, w.table.T)
        extra = None if augment is None else augment[:, None].expand(*shape, -1)

        def whole() -> Tensor:
            scores = Readout.apply(hidden, w.token, b.token, raw, w, b).unflatten(0, shape)
            return scores if extra is None else scores + extra

        def at(index: Tensor) -> Tensor:
            flat = index.flatten(0, 1)
            scores = ReadoutAt.apply(hidden, w.token, b.token, raw, flat, w, b).unflatten(0, shape)
            return scores if extra is None else scores + extra.gather(-1, index)

        values = raw.unflatten(0, shape)
        values = values if extra is None else values + extra
        if self.normalize:  # log Z has a gradient in every cell
            scores = Readout.apply(hidden, w.token, b.token, raw, w, b).unflatten(0, shape)
            offset = offset - scores.logsumexp(-1)
            scores = scores if extra is None else scores + extra
            return _Cells(values, offset, lambda: scores, partial(scores.gather, -1)), state
        return _Cells(values, offset, whole, at), state


class _Sums(NamedTuple):
    """What a step takes from p: sums over the cells."""

    m: Float[Tensor, "batch beam"]
    back: Float[Tensor, "batch beam prev"]
    rise: Float[Tensor, "batch beam"]  # sum p (s - m)
    emb: Float[Tensor, "batch beam emb"]
    cost: Float[Tensor, "batch beam"]
    ended: Float[Tensor, "batch beam"]
    p: Tensor | None


def _fast_step(
    shared: _Shared,
    beam: SoftBeam,
    cost: Tensor,
    *,
    k: int,
    alpha: float,
    cost_scale: float,
    eos: int | None,
    form: Form,
) -> SoftBeam:
    """`soft_beam_step` or `soft_beam_step_eos`, dense or over a pool of candidates."""
    cells, state = shared.cells(beam, cost_scale * cost if cost_scale else None)
    stay = None if eos is None else beam.score + cost_scale * cost[:, PAD, None]
    relaxation = _Relaxation(shared, beam, cost, stay, k, alpha, eos, form)
    index, dropped = relaxation.pool(cells)
    sums = relaxation.dense(cells) if index is None else relaxation.pooled(cells, index)
    return beam._replace(
        state=mix(state, sums.back),
        emb=sums.emb.flatten(0, 1),
        score=sums.m + sums.rise if form.score == "soft" else sums.m,
        cost=sums.cost + (sums.back @ beam.cost[..., None])[..., 0],
        finished=sums.ended.clamp(0, 1),
        real=torch.ones_like(sums.m, dtype=torch.bool),
        dropped=beam.dropped.maximum(dropped),
        p=sums.p,
    )


class _Relaxation(NamedTuple):
    """Lines 7-13 and 17 of Algorithm 3 for one step, with finished mass where `stay` is given."""

    shared: _Shared
    beam: SoftBeam
    cost: Tensor
    stay: Tensor | None  # the score of staying finished, batch prev
    k: int
    alpha: float
    eos: int | None
    form: Form

    def thresholds(self, top: Float[Tensor, "batch prev n"]) -> Tensor:
        """m, from at least the k best cells of each row."""
        if self.stay is None:
            return top.flatten(1).topk(self.k).values
        s, weight = self.with_stay(top[..., : self.k])
        return weighted_top_values(s.flatten(1), weight.flatten(1), self.k)

    def with_stay(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Cells and their weights, 'stay' in the last column."""
        assert self.stay is not None
        f = self.beam.finished[:, :, None]
        weight = torch.cat([(1 - f).expand_as(s), f], -1)
        return torch.cat([s, self.stay[..., None]], -1), weight

    def indices(self, s: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """p over the cells, and the cells; with 'stay' in the last column where there is one."""
        if self.stay is None:
            return soft_indices(s, m, self.alpha), s
        s, weight = self.with_stay(s)
        return weighted_soft_indices(s, weight, m, self.alpha), s

    def pool(self, cells: _Cells) -> tuple[Tensor | None, Tensor]:
        """Indices of the smallest pool, at most `candidates` a row, that holds all but `tolerance`.

        None where no pool does, or all cells are wanted; and the bound of each row.
        """
        limit, vocab = self.form.candidates or 0, cells.raw.shape[-1]
        n = min(16, limit)
        while limit and max(n, self.k) < vocab:
            index = self.best(cells, max(n, self.k))
            dropped = self.dropped(cells, index)
            worst = dropped[:, self.k :].amax(0).tolist()
            for size, value in enumerate(worst, self.k):
                if value <= self.form.tolerance:
                    return index[..., :size], dropped[:, size]
            if n == limit:
                break
            n = min(2 * n, limit)
        return None, torch.zeros_like(self.beam.dropped)

    def best(self, cells: _Cells, n: int) -> Int[Tensor, "batch prev n"]:
        """The n best tokens of each row."""
        return blocked_topk(cells.raw.flatten(0, 1), n).unflatten(0, self.beam.score.shape)

    @torch.no_grad()
    def dropped(self, cells: _Cells, index: Int[Tensor, "batch prev n"]) -> Tensor:
        """Upper bounds on the mass that pools of 0..n candidates leave out: batch, n + 1.

        The mass at `index` is known. Any other cell of row j scores at most tau_j, the least at
        `index`, and while tau_j <= m_i its weight is at most exp(-alpha (m_i - tau_j)^2).
        """
        s = cells.raw.gather(-1, index) + cells.offset[..., None]
        m = self.thresholds(s)[:, :, None]
        inside = (-self.alpha * (s[:, None] - m[..., None]).square()).exp()
        outside = (-self.alpha * (m - s[:, None, :, -1]).clamp_min(0).square()).exp()
        outside = outside * (cells.raw.shape[-1] - s.shape[-1])
        stay: float | Tensor = 0.0
        if self.stay is not None:
            going = (1 - self.beam.finished)[:, None]
            inside, outside = inside * going[..., None], outside * going
            stay = (-self.alpha * (self.stay[:, None] - m).square()).exp()
            stay = (stay * self.beam.finished[:, None]).sum(-1, keepdim=True)
        parts = torch.cat([inside.sum(-2), outside.sum(-1, keepdim=True)], -1)
        left_out = parts.flip(-1).cumsum(-1).flip(-1)  # cells from the n-th on
        return (left_out / (left_out[..., :1] + stay)).amax(1)

    def pooled(self, cells: _Cells, index: Int[Tensor, "batch prev n"]) -> _Sums:
        """Over the cells at `index` only, in plain autograd; rows of E are gathered."""
        s = cells.at(index) + cells.offset[..., None]
        m = self.thresholds(s)
        threshold = m.detach() if self.form.detach_threshold else m
        p, s = self.indices(s, threshold)
        token = p[..., : index.shape[-1]].flatten(2)
        flat, table = index.flatten(1), self.shared.table
        back, emb = p.sum(-1), MixRows.apply(token, table.token, flat, table)
        cost = (token @ self.cost.gather(1, flat)[..., None])[..., 0]
        ended = torch.zeros_like(m)
        if self.stay is not None:
            stay = p[..., -1].sum(-1)
            emb = emb + stay[..., None] * self.shared.pad
            cost = cost + stay * self.cost[:, PAD, None]
            ended = stay + (token * torch.eq(flat, self.eos or 0)[:, None]).sum(-1)
        above = s[:, None] - threshold[:, :, None, None]
        rise = (p * above).sum((-1, -2)) + (threshold - m)
        return _Sums(m, back, rise, emb, cost, ended, p.detach())

    def dense(self, cells: _Cells) -> _Sums:
        """Over all cells, by `ops.SoftSums`."""
        best = self.best(cells, min(self.k, cells.raw.shape[-1]))
        scores, top = Tap.apply(cells.whole(), best)
        m = self.thresholds(top + cells.offset[..., None])
        threshold = m.detach() if self.form.detach_threshold else m
        c = threshold[:, :, None] - cells.offset[:, None, :]
        bias = None if self.stay is None else _log_weight(1 - self.beam.finished)
        table = self.shared.table
        log_z, back, rise, emb, cost, ended = SoftSums.apply(
            scores, c, bias, table.token, table, self.cost, self.alpha, self.eos
        )
        if self.stay is not None:
            above = self.stay[:, None] - threshold[:, :, None]  # batch beam prev
            logit = _log_weight(self.beam.finished)[:, None] - self.alpha * above.square()
            total = torch.logaddexp(log_z, logit.logsumexp(-1))
            going, stays = (log_z - total).exp(), (logit - total[..., None]).exp()
            stay = stays.sum(-1)
            back = going[..., None] * back + stays
            rise = going * rise + (stays * above).sum(-1)
            emb = going[..., None] * emb + stay[..., None] * self.shared.pad
            cost = going * cost + stay * self.cost[:, PAD, None]
            ended = going * ended + stay
        p = None
        if self.form.diagnostics:
            with torch.no_grad():
                p = self.indices(cells.raw + cells.offset[..., None], m)[0]
        return _Sums(m, back, rise + (threshold - m), emb, cost, ended, p)


def _log_weight(weight: Tensor) -> Tensor:
    """log w; where w is 0, a finite number that a softmax turns into 0, without a gradient."""
    tiny = torch.finfo(weight.dtype).tiny
    return torch.where(weight > tiny, weight.clamp_min(tiny).log(), _lowest(weight))


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
        step = partial(_fast_step, _Shared(decoder))
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
    return peaked_softmax(beam.score.masked_fill(~beam.real, _lowest(beam.score) / alpha), alpha)


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


def _lowest(like: Tensor) -> float:
    """A finite number that a softmax turns into exactly 0."""
    return torch.finfo(like.dtype).min / 4


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
