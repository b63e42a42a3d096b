"""Hard search over any `Decoder`: greedy, ancestral sampling and beam search (Algorithm 1).

Outputs either end with `eos` or have the given length; both are limits per sentence, so that a
sentence's output does not depend on the batch it is in.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from softbeam.search.decoders import (
    LocallyNormalized,
    check_search,
    checked_scores,
    forced_scores,
    selected,
)
from softbeam.tensors import best_columns, draw, gather, length_mask, nucleus, output_lengths
from softbeam.types import Decoder, Hypotheses, State

Choose = Callable[[Tensor], Tensor]  # scores of a step -> a token for each row


def greedy(
    decoder: Decoder, *, lengths: Int[Tensor, " batch"], eos: int | None = None
) -> Hypotheses:
    """The best token of each step in turn; ties go to the smaller number."""
    return one_by_one(decoder, lambda scores: scores.argmax(-1), lengths=lengths, eos=eos)


def ancestral_sample(
    decoder: Decoder,
    *,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    rng: Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Hypotheses:
    """Draw each token in turn from softmax(scores / temperature), optionally truncated."""
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be positive; for the limit use greedy")

    def choose(scores: Tensor) -> Tensor:
        p = checked_scores((scores / temperature).softmax(-1))  # NaN if all tokens are forbidden
        p = truncate(p, top_k=top_k, top_p=top_p)
        return draw(p, rng).squeeze(-1)

    return one_by_one(decoder, choose, lengths=lengths, eos=eos)


def truncate(
    p: Float[Tensor, "rows vocab"], *, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "rows vocab"]:
    """Keep the `top_k` largest probabilities, then the fewest that reach `top_p`; renormalize."""
    if top_k is not None:
        if top_k < 1:
            raise ValueError(f"top_k={top_k} must be at least 1")
        kept = p.topk(min(top_k, p.shape[-1])).indices
        p = torch.zeros_like(p).scatter(-1, kept, p.gather(-1, kept))
        p = p / p.sum(-1, keepdim=True)
    if top_p is not None:
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p={top_p} must be in (0, 1]")
        p = p * nucleus(p, top_p)
        p = p / p.sum(-1, keepdim=True)
    return p


def one_by_one(
    decoder: Decoder, choose: Choose, *, lengths: Int[Tensor, " batch"], eos: int | None
) -> Hypotheses:
    """Choose one token for each sentence at each step and feed it back."""
    state, emb = decoder.start()
    live = lengths > 0
    total = emb.new_zeros(emb.shape[0])
    tokens = []
    for t in range(int(lengths.max())):
        scores, state = decoder.step(state, emb)
        token = choose(checked_scores(scores))
        total = total + torch.where(live, scores.gather(1, token[:, None]).squeeze(1), 0.0)
        tokens.append(torch.where(live, token, 0))
        live = live & (lengths > t + 1)
        if eos is not None:
            live = live & (token != eos)
        if not live.any():
            break
        emb = decoder.embedding[token]
    path = torch.stack(tokens, 1)[:, None]
    return Hypotheses(path, output_lengths(path, eos, lengths[:, None]), total[:, None])


def beam_search(
    decoder: Decoder,
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    nbest: int = 1,
    length_penalty: float = 0.0,
) -> Hypotheses:
    """The `nbest` of `k` hypotheses kept at each step (Goyal et al. 2018, Algorithm 1).

    Starts from a beam of one; a finished hypothesis keeps its place with its score while others
    are longer. With k = 1 it is greedy; as wide as the space it is exact. Equal scores are ordered
    by (parent, token). `length_penalty` p ranks the final beam by score / length**p.
    """
    check_beam_size(k, nbest)
    path, total = last_beam(decoder, k=k, lengths=lengths, eos=eos)
    return ranked(path, output_lengths(path, eos, lengths[:, None]), total, nbest, length_penalty)


def last_beam(
    decoder: Decoder,
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    costs: Float[Tensor, "batch time vocab"] | None = None,
) -> tuple[Int[Tensor, "batch beam steps"], Float[Tensor, "batch beam"]]:
    """Paths and scores of the last beam of Algorithm 1, best first.

    `costs` are added to the scores of the cells; a finished prefix pays for padding.
    """
    beam, searched, steps = first_beam(decoder, lengths), Searched(decoder, len(lengths)), []
    for t in range(int(lengths.max())):
        rows = searched.sentences
        cost = None if costs is None else costs[rows, t]
        cells, state = continuations(searched.decoder, beam, k, cost)  # line 5
        total, parent, token = best_continuations(cells, k)  # line 6
        over = lengths[rows] <= t + 1
        step = choose(beam, total, parent, token, over=over, eos=eos)  # line 7: b, y
        steps.append((rows, total, step))
        going = searched.leave(step.finished.all(1))
        if going is None:
            break
        beam = feed(decoder, beam, state, total, step, going)  # lines 9-10, of the parent (errata)
    return whole_batch(steps, len(lengths))  # line 11


class HardBeam(NamedTuple):
    """A hard beam between two steps."""

    state: State
    emb: Float[Tensor, "rows emb"]
    total: Float[Tensor, "batch beam"]
    finished: Bool[Tensor, "batch beam"]


class Step(NamedTuple):
    """The choice of a step: where each new prefix comes from, its token, and whether it ends."""

    parent: Int[Tensor, "batch beam"]
    token: Int[Tensor, "batch beam"]
    finished: Bool[Tensor, "batch beam"]


class Searched:
    """The sentences that are still searched, and the decoder of these alone.

    Attributes:
        sentences: their numbers in the whole batch.
        decoder: bound to them.
    """

    def __init__(self, decoder: Decoder, batch: int):
        self.decoder = decoder
        self.sentences = torch.arange(batch, device=decoder.embedding.device)

    def leave(self, finished: Bool[Tensor, " batch"]) -> Int[Tensor, " left"] | None:
        """The places of the sentences that go on; None if all are finished.

        Finished sentences go on too where the decoder cannot leave them out, or where they are so
        few that it would not pay.
        """
        count = int((~finished).sum())
        if count == 0:
            return None
        everything = torch.arange(len(finished), device=finished.device)
        if count > 0.9 * len(finished):
            return everything
        going = (~finished).nonzero()[:, 0]
        decoder = selected(self.decoder, going)
        if decoder is None:
            return everything
        self.decoder, self.sentences = decoder, self.sentences[going]
        return going


def whole_batch(
    steps: Sequence[tuple[Tensor, Tensor, Step]], batch: int
) -> tuple[Int[Tensor, "batch beam steps"], Float[Tensor, "batch beam"]]:
    """Paths and scores of all sentences, from (sentences, scores, choice) of each step."""
    width = steps[-1][1].shape[1]
    total = steps[0][1].new_full((batch, width), -torch.inf)
    parents, tokens, slots = [], [], 1
    for rows, score, step in steps:
        now = score.shape[1]
        stay = torch.arange(now, device=rows.device).clamp_max(slots - 1).expand(batch, now)
        parents.append(stay.index_copy(0, rows, step.parent))
        tokens.append(torch.zeros_like(stay).index_copy(0, rows, step.token))
        total[rows, :now], slots = score, now
    return follow_backpointers(parents, tokens), total


def first_beam(decoder: Decoder, lengths: Int[Tensor, " batch"]) -> HardBeam:
    """A beam of one empty prefix."""
    state, emb = decoder.start()
    return HardBeam(state, emb, emb.new_zeros(len(emb), 1), (lengths < 1)[:, None])


def expand(decoder: Decoder, beam: HardBeam) -> tuple[Float[Tensor, "batch prev vocab"], State]:
    """Scores of all cells; a live prefix is followed by any token, a finished one by padding at 0.

    The state belongs to the prefixes of `beam`.
    """
    local, state = decoder.step(beam.state, beam.emb)
    local = checked_scores(local).unflatten(0, beam.total.shape)
    stay = torch.full_like(local, float("-inf"))
    stay[:, :, 0] = 0.0
    return beam.total[:, :, None] + torch.where(beam.finished[:, :, None], stay, local), state


class Continuations(NamedTuple):
    """The best continuations of each prefix, best first; equal ones by the number of the token."""

    total: Float[Tensor, "batch prev n"]
    token: Int[Tensor, "batch prev n"]


def continuations(
    decoder: Decoder, beam: HardBeam, k: int, cost: Float[Tensor, "batch vocab"] | None = None
) -> tuple[Continuations, State]:
    """The k best cells of each row of `expand`, without a pass over all cells where it can be.

    The normalizer of `LocallyNormalized` is taken off the best cells alone.
    """
    shape, log_z = beam.total.shape, None
    inner = decoder.decoder if type(decoder) is LocallyNormalized else decoder
    local, state = inner.step(beam.state, beam.emb)
    if inner is not decoder:
        log_z = local.logsumexp(-1, keepdim=True)
    if cost is not None:
        local = local + cost.to(local.dtype).repeat_interleave(shape[1], 0)
    total, token = best_of_rows(local, beam.total.flatten()[:, None], log_z, k)
    first = torch.arange(total.shape[1], device=total.device) == 0
    stay = beam.total if cost is None else beam.total + cost[:, :1].to(beam.total.dtype)
    alone = stay[:, :, None].where(first, -torch.inf)
    ended = beam.finished[:, :, None]
    cells = Continuations(
        torch.where(ended, alone, total.unflatten(0, shape)),
        torch.where(ended, 0, token.unflatten(0, shape)),
    )
    return cells, state


def best_of_rows(
    local: Float[Tensor, "rows vocab"],
    base: Float[Tensor, "rows 1"],
    log_z: Float[Tensor, "rows 1"] | None,
    k: int,
) -> tuple[Float[Tensor, "rows n"], Int[Tensor, "rows n"]]:
    """The k best of base + (local - log_z) in each row, and their columns; all if there are fewer.

    Equal sums are in the order of the columns. Raises NotFinite if a score is NaN or +inf.
    """

    def summed(scores: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        return base[rows] + (scores if log_z is None else scores - log_z[rows])

    n = min(k, local.shape[1])
    token = best_columns(local, min(n + 1, local.shape[1]))
    top = local.gather(1, token)
    total = summed(checked_scores(top))
    token, order = token.sort(-1)
    total, order = total.gather(1, order).sort(dim=-1, descending=True, stable=True)
    token = token.gather(1, order)
    if local.shape[1] > n:
        tied = (total[:, n - 1] == total[:, n]) & total[:, n].isfinite()
        if bool(tied.any()):  # the last place is contested, maybe by cells that are not among these
            rows = tied.nonzero()[:, 0]
            sums, cells = summed(local[rows], rows).sort(dim=-1, descending=True, stable=True)
            total = total.index_copy(0, rows, sums[:, : n + 1])
            token = token.index_copy(0, rows, cells[:, : n + 1])
    return total[:, :n], token[:, :n]


def best_continuations(
    cells: Continuations, k: int
) -> tuple[Float[Tensor, "batch new"], Int[Tensor, "batch new"], Int[Tensor, "batch new"]]:
    """Scores, parents and tokens of the k best; equal scores by (parent, token)."""
    order = cells.total.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, :k]
    total, token = (part.flatten(1).gather(1, order) for part in cells)
    return total, order // cells.total.shape[2], token


def choose(
    beam: HardBeam,
    total: Float[Tensor, "batch new"],
    parent: Int[Tensor, "batch new"],
    token: Int[Tensor, "batch new"],
    *,
    over: Bool[Tensor, " batch"],
    eos: int | None,
) -> Step:
    """The choice of a step; `over` says which sentences end here."""
    stayed = beam.finished.gather(1, parent)
    token = torch.where(stayed, 0, token)
    finished = stayed | over[:, None] | total.isneginf()
    return Step(parent, token, finished if eos is None else finished | (token == eos))


def feed(
    decoder: Decoder,
    beam: HardBeam,
    state: State,
    total: Float[Tensor, "batch new"],
    step: Step,
    going: Int[Tensor, " left"] | None = None,
) -> HardBeam:
    """Feed the tokens of a step to the states of their parents, for the sentences that go on."""
    batch, width = beam.total.shape
    rows = torch.arange(batch, device=total.device)[:, None] * width + step.parent
    token, finished = step.token, step.finished
    if going is not None:
        rows, token, total, finished = (part[going] for part in (rows, token, total, finished))
    emb = decoder.embedding[token.flatten()]
    return HardBeam(gather(state, rows.flatten()), emb, total, finished)


def check_beam_size(k: int, nbest: int) -> None:
    """Raises ValueError unless 1 <= nbest <= k."""
    if k < 1 or not 1 <= nbest <= k:
        raise ValueError(f"k={k} and nbest={nbest}: need 1 <= nbest <= k")


def by_length(
    total: Float[Tensor, "*rows"], lengths: Int[Tensor, "*rows"], length_penalty: float
) -> Float[Tensor, "*rows"]:
    """score / length**length_penalty."""
    return total / lengths.clamp(min=1).to(total.dtype) ** length_penalty


def best_cells(
    scores: Float[Tensor, "batch cells"], k: int
) -> tuple[Float[Tensor, "batch beam"], Int[Tensor, "batch beam"]]:
    """The k best cells, or all if there are fewer; equal scores in the order of the cells."""
    return best_of_rows(scores, scores.new_zeros(()).expand(len(scores), 1), None, k)


def ranked(
    path: Int[Tensor, "batch beam time"],
    lengths: Int[Tensor, "batch beam"],
    total: Float[Tensor, "batch beam"],
    nbest: int,
    length_penalty: float,
) -> Hypotheses:
    """The `nbest` by score / length**length_penalty, best first."""
    by = by_length(total, lengths, length_penalty)
    order = by.sort(dim=-1, descending=True, stable=True).indices[:, :nbest]
    tokens = path.gather(1, order[:, :, None].expand(-1, -1, path.shape[2]))
    return Hypotheses(tokens, lengths.gather(1, order), total.gather(1, order))


def follow_backpointers(
    parents: Sequence[Int[Tensor, "batch _"]], tokens: Sequence[Int[Tensor, "batch _"]]
) -> Int[Tensor, "batch beam time"]:
    """The token path that ends in each slot of the last beam (2018, Algorithm 1, line 11).

    One pair of tensors for each step; beams may widen from step to step.
    """
    slot = torch.arange(tokens[-1].shape[1], device=tokens[-1].device).expand_as(tokens[-1])
    path = []
    for parent, token in zip(reversed(parents), reversed(tokens), strict=True):
        path.append(token.gather(1, slot))
        slot = parent.gather(1, slot)
    return torch.stack(path[::-1], -1)


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
    has no gradient; the score of the best path has.
    """
    check_search(decoder, costs, k=k, lengths=lengths, eos=eos)
    batch, time = costs.shape[:2]
    if lengths is None:
        lengths = torch.full((batch,), time, device=costs.device)
    costs = cost_scale * costs * length_mask(lengths, time)[:, :, None]
    with torch.no_grad():
        path, _ = last_beam(decoder, k=k, lengths=lengths, eos=eos, costs=costs)
    tokens = pad(path[:, 0], (0, time - path.shape[2]))
    scores = forced_scores(decoder, tokens).gather(-1, tokens[..., None])[..., 0]
    counted = length_mask(output_lengths(tokens, eos, lengths), time)
    cost = costs.to(scores.dtype).gather(-1, tokens[..., None])[..., 0]
    return (torch.where(counted, scores, 0) + cost).sum(-1), tokens
