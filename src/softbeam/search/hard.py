"""Hard search over any `Decoder`: greedy, ancestral sampling and beam search.

Outputs either end with `eos` or have the given length; both are limits per sentence, so that a
sentence's output is the same alone and inside any batch.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.search.decoders import forced_scores
from softbeam.search.soft.beam import PAD
from softbeam.search.soft.loop import _check, _scored
from softbeam.tensors import gather, length_mask
from softbeam.types import Decoder, Hypotheses

Choose = Callable[[Tensor], Tensor]  # scores of a step -> a token for each row


def greedy(
    decoder: Decoder, *, lengths: Int[Tensor, " batch"], eos: int | None = None
) -> Hypotheses:
    """The best token of each step in turn; ties go to the smaller number."""
    return one_by_one(decoder, lambda scores: scores.argmax(-1), lengths=lengths, eos=eos)


def sample(
    decoder: Decoder,
    *,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    rng: Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Hypotheses:
    """Ancestral sampling from softmax(scores / temperature), optionally truncated."""
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be positive; for the limit use greedy")

    def draw(scores: Tensor) -> Tensor:
        p = truncate((scores / temperature).softmax(-1), top_k=top_k, top_p=top_p)
        return torch.multinomial(p, 1, generator=rng).squeeze(-1)

    return one_by_one(decoder, draw, lengths=lengths, eos=eos)


def truncate(
    p: Float[Tensor, "rows vocab"], *, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "rows vocab"]:
    """The `top_k` largest probabilities, then the fewest that reach `top_p`; renormalized."""
    if top_k is not None:
        if top_k < 1:
            raise ValueError(f"top_k={top_k} must be at least 1")
        kept = p.topk(min(top_k, p.shape[-1])).indices
        p = torch.zeros_like(p).scatter(-1, kept, p.gather(-1, kept))
        p = p / p.sum(-1, keepdim=True)
    if top_p is not None:
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p={top_p} must be in (0, 1]")
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        p = torch.zeros_like(p).scatter(-1, index, ordered * (before < top_p))
        p = p / p.sum(-1, keepdim=True)
    return p


def one_by_one(
    decoder: Decoder, choose: Choose, *, lengths: Int[Tensor, " batch"], eos: int | None
) -> Hypotheses:
    """One token for each sentence and step, fed back; shared by greedy and sampling."""
    state, emb = decoder.start()
    live = lengths > 0
    total = emb.new_zeros(emb.shape[0])
    tokens = []
    for t in range(int(lengths.max())):
        scores, state = decoder.step(state, emb)
        token = choose(scores)
        total = total + torch.where(live, scores.gather(1, token[:, None]).squeeze(1), 0.0)
        tokens.append(torch.where(live, token, 0))
        live = live & (lengths > t + 1)
        if eos is not None:
            live = live & (token != eos)
        if not live.any():
            break
        emb = decoder.embedding[token]
    path = torch.stack(tokens, 1)[:, None]
    return Hypotheses(path, output_lengths(path, lengths, eos), total[:, None])


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
    if k < 1 or not 1 <= nbest <= k:
        raise ValueError(f"k={k} and nbest={nbest}: need 1 <= nbest <= k")
    state, emb = decoder.start()
    batch, vocab = emb.shape[0], decoder.embedding.shape[0]
    total = emb.new_zeros(batch, 1)
    finished = (lengths < 1)[:, None]
    parents, tokens = [], []
    for t in range(int(lengths.max())):
        local, state = decoder.step(state, emb)
        scores = extend(total, local.unflatten(0, total.shape), finished)  # line 5
        first_row = torch.arange(batch, device=emb.device)[:, None] * total.shape[1]
        total, cell = best_cells(scores.flatten(1), k)  # line 6
        parent = cell // vocab  # line 7: b and y
        stayed = finished.gather(1, parent)
        token = torch.where(stayed, 0, cell % vocab)
        parents.append(parent)
        tokens.append(token)
        finished = stayed | (lengths <= t + 1)[:, None] | total.isneginf()
        if eos is not None:
            finished = finished | (token == eos)
        if finished.all():
            break
        emb = decoder.embedding[token.flatten()]  # line 9
        state = gather(state, (first_row + parent).flatten())  # line 10, of the parent (errata)
    path = follow_backpointers(parents, tokens)  # line 11
    return ranked(path, output_lengths(path, lengths, eos), total, nbest, length_penalty)


def live_beam_search(
    decoder: Decoder,
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int,
    nbest: int = 1,
    length_penalty: float = 0.0,
) -> Hypotheses:
    """Beam search as other toolkits have it (`generate`): `k` go on, the finished are kept apart.

    Of the 2k best continuations of a step, those among the first k that end join the finished, of
    whom the k best stay; the k best that do not end go on. Where nothing ends early it is
    `beam_search`. A score of -inf marks places that a small space leaves empty.
    """
    if k < 1 or not 1 <= nbest <= k:
        raise ValueError(f"k={k} and nbest={nbest}: need 1 <= nbest <= k")
    state, emb = decoder.start()
    batch, vocab, time = emb.shape[0], decoder.embedding.shape[0], int(lengths.max())
    first = torch.arange(batch, device=emb.device)[:, None]
    path, total = lengths.new_zeros(batch, 1, time), emb.new_zeros(batch, 1)
    done, done_total = lengths.new_zeros(batch, k, time), emb.new_full((batch, k), float("-inf"))
    done_lengths = torch.zeros_like(done[:, :, 0])
    for t in range(time):
        local, state = decoder.step(state, emb)
        scores = (total[:, :, None] + local.unflatten(0, total.shape)).flatten(1)
        score, cell = best_cells(scores, 2 * k)
        grown = path.gather(1, (cell // vocab)[:, :, None].expand(-1, -1, time)).clone()
        grown[:, :, t] = cell % vocab
        ends = (grown[:, :, t] == eos) | (lengths <= t + 1)[:, None]
        joins = (ends & (lengths > t)[:, None])[:, :k]
        found = ranked(
            torch.cat([done, grown[:, :k]], 1),
            torch.cat([done_lengths, torch.full_like(cell[:, :k], t + 1)], 1),
            torch.cat([done_total, score[:, :k].masked_fill(~joins, float("-inf"))], 1),
            k,
            length_penalty,
        )
        done, done_lengths, done_total = found
        total, place = score.masked_fill(ends, float("-inf")).topk(min(k, score.shape[1]))
        if total.isneginf().all():
            break
        path = grown.gather(1, place[:, :, None].expand(-1, -1, time))
        row = first * (len(emb) // batch) + cell.gather(1, place) // vocab
        emb = decoder.embedding[path[:, :, t].flatten()]
        state = gather(state, row.flatten())
    return Hypotheses(*(part[:, :nbest] for part in found))


def extend(
    total: Float[Tensor, "batch prev"],
    local: Float[Tensor, "batch prev vocab"],
    finished: Bool[Tensor, "batch prev"],
) -> Float[Tensor, "batch prev vocab"]:
    """Candidate scores: a live row goes on with any token, a finished one with padding at 0."""
    stay = torch.full_like(local, float("-inf"))
    stay[:, :, 0] = 0.0
    return total[:, :, None] + torch.where(finished[:, :, None], stay, local)


def best_cells(
    scores: Float[Tensor, "batch cells"], k: int
) -> tuple[Float[Tensor, "batch beam"], Int[Tensor, "batch beam"]]:
    """The k best cells, or all where there are fewer; equal scores in the order of the cells."""
    n = min(k, scores.shape[1])
    values, cells = scores.topk(min(n + 1, scores.shape[1]))
    if ((values[:, 1:] == values[:, :-1]) & values[:, 1:].isfinite()).any():
        values, cells = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :n], cells[:, :n]


def output_lengths(
    path: Int[Tensor, "batch beam time"], lengths: Int[Tensor, " batch"], eos: int | None
) -> Int[Tensor, "batch beam"]:
    """Up to and with the first `eos`, else the sentence's limit."""
    limit = lengths[:, None].expand(path.shape[:2]).clamp(max=path.shape[2])
    if eos is None:
        return limit
    ends = path == eos
    return torch.where(ends.any(-1), ends.int().argmax(-1) + 1, limit)


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
