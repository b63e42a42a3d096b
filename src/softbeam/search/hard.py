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

from softbeam.search.decoders import check_search, checked_scores, forced_scores
from softbeam.tensors import draw, gather, length_mask, nucleus, output_lengths
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
    beam, parents, tokens = first_beam(decoder, lengths), [], []
    for t in range(int(lengths.max())):
        cells, state = expand(decoder, beam)  # line 5
        if costs is not None:
            cells = cells + costs[:, t, None].to(cells.dtype)
        total, cell = best_cells(cells.flatten(1), k)  # line 6
        step = choose(decoder, beam, total, cell, over=lengths <= t + 1, eos=eos)  # line 7: b, y
        parents.append(step.parent)
        tokens.append(step.token)
        if step.finished.all():
            break
        beam = feed(decoder, beam, state, total, step)  # lines 9-10, of the parent (errata)
    return follow_backpointers(parents, tokens), total  # line 11


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


def choose(
    decoder: Decoder,
    beam: HardBeam,
    total: Float[Tensor, "batch new"],
    cell: Int[Tensor, "batch new"],
    *,
    over: Bool[Tensor, " batch"],
    eos: int | None,
) -> Step:
    """Read parents and tokens off the chosen cells; `over` says which sentences end here."""
    parent = cell // len(decoder.embedding)
    stayed = beam.finished.gather(1, parent)
    token = torch.where(stayed, 0, cell % len(decoder.embedding))
    finished = stayed | over[:, None] | total.isneginf()
    return Step(parent, token, finished if eos is None else finished | (token == eos))


def feed(
    decoder: Decoder, beam: HardBeam, state: State, total: Float[Tensor, "batch new"], step: Step
) -> HardBeam:
    """Feed the tokens of a step to the states of their parents."""
    batch, width = beam.total.shape
    rows = torch.arange(batch, device=total.device)[:, None] * width + step.parent
    emb = decoder.embedding[step.token.flatten()]
    return HardBeam(gather(state, rows.flatten()), emb, total, step.finished)


def check_beam_size(k: int, nbest: int) -> None:
    """Raises ValueError unless 1 <= nbest <= k."""
    if k < 1 or not 1 <= nbest <= k:
        raise ValueError(f"k={k} and nbest={nbest}: need 1 <= nbest <= k")


def live_beam_search(
    decoder: Decoder,
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int,
    nbest: int = 1,
    length_penalty: float = 0.0,
) -> Hypotheses:
    """Beam search as other toolkits have it (`generate`): finished hypotheses are kept apart.

    Of the 2k best continuations of a step, those among the first k that end join the finished, of
    whom the k best stay; the k best that do not end are extended. Where nothing ends early it is
    `beam_search`. A score of -inf marks places that a small space leaves empty.
    """
    check_beam_size(k, nbest)
    beam, time = first_beam(decoder, lengths.clamp(min=1)), int(lengths.max())
    batch, vocab = len(lengths), len(decoder.embedding)
    path = lengths.new_zeros(batch, 1, time)
    done, done_total = (
        lengths.new_zeros(batch, k, time),
        beam.total.new_full((batch, k), -torch.inf),
    )
    done_lengths = torch.zeros_like(done[:, :, 0])
    for t in range(time):
        cells, state = expand(decoder, beam)
        score, cell = best_cells(cells.flatten(1), 2 * k)
        parent, token = cell // vocab, cell % vocab
        grown = path.gather(1, parent[:, :, None].expand(-1, -1, time)).clone()
        grown[:, :, t] = token
        ends = (token == eos) | (lengths <= t + 1)[:, None]
        joins = (ends & (lengths > t)[:, None])[:, :k]
        finished = ranked(
            torch.cat([done, grown[:, :k]], 1),
            torch.cat([done_lengths, torch.full_like(cell[:, :k], t + 1)], 1),
            torch.cat([done_total, score[:, :k].masked_fill(~joins, float("-inf"))], 1),
            k,
            length_penalty,
        )
        done, done_lengths, done_total = finished
        total, place = score.masked_fill(ends, float("-inf")).topk(min(k, score.shape[1]))
        if total.isneginf().all():
            break
        path = grown.gather(1, place[:, :, None].expand(-1, -1, time))
        none = torch.zeros_like(place, dtype=torch.bool)
        step = Step(parent.gather(1, place), path[:, :, t], none)
        beam = feed(decoder, beam, state, total, step)
    return Hypotheses(*(part[:, :nbest] for part in finished))


def best_cells(
    scores: Float[Tensor, "batch cells"], k: int
) -> tuple[Float[Tensor, "batch beam"], Int[Tensor, "batch beam"]]:
    """The k best cells, or all if there are fewer; equal scores in the order of the cells."""
    n = min(k, scores.shape[1])
    values, cells = scores.topk(min(n + 1, scores.shape[1]))
    if ((values[:, 1:] == values[:, :-1]) & values[:, 1:].isfinite()).any():
        values, cells = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :n], cells[:, :n]


def ranked(
    path: Int[Tensor, "batch beam time"],
    lengths: Int[Tensor, "batch beam"],
    total: Float[Tensor, "batch beam"],
    nbest: int,
    length_penalty: float,
) -> Hypotheses:
    """The `nbest` by score / length**length_penalty, best first."""
    by = total / lengths.clamp(min=1).to(total.dtype) ** length_penalty
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
