"""Other ways to train for search, over any `Decoder`: the baselines of the soft beam.

Beam-search optimization (Wiseman and Rush 2016) and the beam CRF with early update (Andor et al.
2016) share one hard beam that keeps the gold prefix in view, `tracked_beam`. Minimum risk (Shen et
al. 2016) and REINFORCE (Ranzato et al. 2016, Rennie et al. 2017) need only outputs, their scores
and a cost. Whether scores are raw or normalized is the decoder's affair. Losses are one number for
each sentence, and the same alone and inside any padded batch. Padding of targets is 0.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn.functional import kl_div, pad

from softbeam.search.decoders import forced_scores, gather, map_state
from softbeam.search.hard import beam_search, best_cells, extend, one_by_one, sample
from softbeam.search.relaxations import length_mask
from softbeam.types import Decoder, Hypotheses, State

Metric = Callable[[Sequence[int], Sequence[int]], float]  # (predicted, gold) -> cost, 0 is perfect

# A hard beam with the gold prefix in view


class Tracked(NamedTuple):
    """A hard beam after step t, best first; scores keep their gradient."""

    t: int
    path: Int[Tensor, "batch beam t"]  # padding after the end
    score: Float[Tensor, "batch beam"]  # -inf where there are fewer candidates than slots
    is_gold: Bool[Tensor, "batch beam"]
    gold: Float[Tensor, " batch"]  # the gold prefix's score, on the beam or just fallen off

    @property
    def fell(self) -> Bool[Tensor, " batch"]:
        """True where the gold prefix has fallen off the beam in this step."""
        return ~self.is_gold.any(1)


def tracked_beam(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
) -> Iterator[Tracked]:
    """Beam search that starts again from the gold prefix after each step in which gold falls off.

    So gold's parent is always on the beam, and gold's score is one of the candidates. Until the
    first fall it is `search.hard.beam_search`, with the same order of equal scores; a prefix that
    ended
    is carried forward at score 0. The choice of hypotheses has no gradient, their scores have.
    """
    state, emb = decoder.start()
    vocab = decoder.embedding.shape[0]
    first = torch.arange(emb.shape[0], device=emb.device)[:, None]
    path, score = target.new_zeros(emb.shape[0], 1, 0), emb.new_zeros(emb.shape[0], 1)
    finished, slot = (lengths < 1)[:, None], torch.zeros_like(lengths)
    for t in range(int(lengths.max())):
        local, state = decoder.step(state, emb)
        cells = extend(score, local.unflatten(0, score.shape), finished).flatten(1)
        gold_cell = slot * vocab + target[:, t]
        gold = cells.gather(1, gold_cell[:, None]).squeeze(1)
        row = first * score.shape[1]
        score, cell = best_cells(cells, k)
        found = Tracked(
            t, _grow(path, finished, cell, vocab), score, cell == gold_cell[:, None], gold
        )
        yield found
        slot = found.is_gold.int().argmax(1)  # 0 after a fall: where the search starts again
        score, cell = _restart(found, cell, gold_cell)
        path = _grow(path, finished, cell, vocab)
        parent, token = cell // vocab, path[:, :, -1]
        finished = finished.gather(1, parent) | (lengths <= t + 1)[:, None]
        if eos is not None:
            finished = finished | (token == eos)
        emb = decoder.embedding[token.flatten()]
        state = gather(state, (row + parent).flatten())


def _grow(path: Tensor, finished: Tensor, cell: Tensor, vocab: int) -> Tensor:
    """The prefixes of the chosen cells: batch, beam, t."""
    parent = cell // vocab
    token = torch.where(finished.gather(1, parent), 0, cell % vocab)
    before = path.gather(1, parent[:, :, None].expand(-1, -1, path.shape[2]))
    return torch.cat([before, token[:, :, None]], -1)


def _restart(beam: Tracked, cell: Tensor, gold_cell: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and cells of the beam; where gold fell off, gold alone in the first slot."""
    fell = beam.fell[:, None]
    head = torch.arange(cell.shape[1], device=cell.device) == 0
    alone = torch.where(head, beam.gold[:, None], float("-inf"))
    return torch.where(fell, alone, beam.score), torch.where(fell & head, gold_cell[:, None], cell)


# Beam-search optimization


class Margins(NamedTuple):
    """The loss of beam-search optimization, and where it comes from."""

    loss: Float[Tensor, " batch"]
    violated: Bool[Tensor, "batch time"]
    fell: Bool[Tensor, "batch time"]  # gold fell off the beam: the search starts again


def bso_loss(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    margin: float = 1.0,
    delta: Metric | None = None,
) -> Margins:
    """sum_t Delta_t (margin - s(y_1:t) + s(y_1:t^(k)))+ (Wiseman and Rush 2016, Sec. 4.1).

    The rival y^(k) is the last hypothesis of a full beam, and the best at the sentence's last
    step. Delta is 1, or the cost of the rival against gold since the search last started. Zero,
    with no gradient, where gold keeps its margin throughout. Departures from the paper: s adds up
    step scores; gold is never its own rival (the next better, or at the end the next worse, is);
    the search starts again where gold falls off the beam, not at every violation.
    """
    if k < 2:
        raise ValueError(f"k={k} must be at least 2: one more than the beam that decodes")
    loss = decoder.embedding.new_zeros(len(target))
    since = torch.zeros_like(lengths)
    violated, fallen = [], []
    for beam in tracked_beam(decoder, target, k=k, lengths=lengths, eos=eos):
        slot, score = _rival(beam, k, last=lengths == beam.t + 1)
        gap = torch.where(score.isneginf(), -1.0, margin - beam.gold + score)
        wrong = (gap > 0) & (beam.t < lengths)
        weight = wrong.to(loss.dtype)
        if delta is not None:
            rival = beam.path.gather(1, slot[:, None, None].expand(-1, 1, beam.t + 1)).squeeze(1)
            weight = loss.new_tensor(_deltas(delta, rival, target, wrong, since, eos))
        loss = loss + weight * gap.relu()
        since = since.masked_fill(beam.fell, beam.t + 1)
        violated.append(wrong)
        fallen.append(beam.fell)
    return Margins(loss, torch.stack(violated, 1), torch.stack(fallen, 1))


def _rival(beam: Tracked, k: int, *, last: Tensor) -> tuple[Tensor, Tensor]:
    """Slot and score of whom gold must beat; -inf where there is nobody."""
    others = beam.score.masked_fill(beam.is_gold, float("-inf"))
    best, width = others.argmax(1), beam.score.shape[1]
    kth = width - 1 - beam.is_gold[:, -1].long()
    slot = torch.where(last, best, kth.clamp(min=0))
    full = (width == k) & ~beam.score[:, -1].isneginf()
    score = others.gather(1, slot[:, None]).squeeze(1)
    return slot, torch.where(last | full, score, float("-inf"))


def _deltas(
    metric: Metric, rival: Tensor, target: Tensor, wrong: Tensor, since: Tensor, eos: int | None
) -> list[float]:
    """The metric of the rival's and gold's tokens since the last start, where one is wrong."""
    found = []
    for path, gold, violates, start in zip(
        rival.tolist(), target.tolist(), wrong.tolist(), since.tolist(), strict=True
    ):
        pair = (ended(path, eos)[start:], ended(gold[: len(path)], eos)[start:])
        found.append(metric(*pair) if violates else 0.0)
    return found


def ended(tokens: Sequence[int], eos: int | None) -> Sequence[int]:
    """The tokens up to and with the first end mark."""
    return tokens[: tokens.index(eos) + 1] if eos is not None and eos in tokens else tokens


# Beam CRF


class EarlyUpdate(NamedTuple):
    """The loss of the beam CRF, and after how many steps it was taken."""

    loss: Float[Tensor, " batch"]
    steps: Int[Tensor, " batch"]
    fell: Bool[Tensor, " batch"]  # gold fell off the beam there


def crf_loss(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
) -> EarlyUpdate:
    """-s(y_1:j) + log sum over the beam and gold of exp s (Andor et al. 2016).

    j is the step in which gold falls off the beam (early update), or the last. Where the beam
    holds the whole space this is the exact negative log-likelihood of the globally normalized
    model: over sequences of the given length or, with `eos`, that end there or before.
    """
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    loss = decoder.embedding.new_zeros(len(target))
    steps, fell = torch.zeros_like(lengths), torch.zeros_like(lengths, dtype=torch.bool)
    going = lengths > 0
    for beam in tracked_beam(decoder, target, k=k, lengths=lengths, eos=eos):
        stops = going & (beam.fell | (lengths == beam.t + 1))
        gold = beam.gold.masked_fill(~beam.fell, float("-inf"))  # counted once
        log_z = torch.cat([beam.score, gold[:, None]], 1).logsumexp(1)
        loss = torch.where(stops, log_z - beam.gold, loss)
        steps, fell = steps.masked_fill(stops, beam.t + 1), fell | (stops & beam.fell)
        going = going & ~stops
        if not going.any():
            break
    return EarlyUpdate(loss, steps, fell)


# Outputs, their scores and their costs


class Repeated:
    """The decoder with each of its rows n times, for n outputs of each source."""

    def __init__(self, decoder: Decoder, n: int):
        self.decoder, self.n = decoder, n

    @property
    def embedding(self) -> Tensor:
        return self.decoder.embedding

    def start(self) -> tuple[State, Tensor]:
        state, emb = self.decoder.start()
        repeated = map_state(lambda tensor: tensor.repeat_interleave(self.n, 0), state)
        return repeated, emb.repeat_interleave(self.n, 0)

    def step(self, state: State, emb: Tensor) -> tuple[Tensor, State]:
        return self.decoder.step(state, emb)


def token_scores(
    decoder: Decoder, tokens: Int[Tensor, "batch n time"], lengths: Int[Tensor, "batch n"]
) -> Float[Tensor, "batch n time"]:
    """The step scores of given outputs, teacher forced; 0 past their lengths."""
    n = tokens.shape[1]
    scores = forced_scores(decoder if n == 1 else Repeated(decoder, n), tokens.flatten(0, 1))
    chosen = scores.gather(-1, tokens.flatten(0, 1)[:, :, None]).squeeze(-1)
    real = length_mask(lengths.flatten(), tokens.shape[2])
    return torch.where(real, chosen, 0.0).unflatten(0, tokens.shape[:2])


def sentence_costs(
    metric: Metric,
    tokens: Int[Tensor, "batch n time"],
    lengths: Int[Tensor, "batch n"],
    target: Int[Tensor, "batch target_time"],
    target_lengths: Int[Tensor, " batch"],
    *,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch n"]:
    """The metric of each output against its sentence's gold tokens; end marks are tokens."""
    golds = [g[:n] for g, n in zip(target.tolist(), target_lengths.tolist(), strict=True)]
    found = [
        [metric(path[:n], gold) for path, n in zip(paths, ns, strict=True)]
        for paths, ns, gold in zip(tokens.tolist(), lengths.tolist(), golds, strict=True)
    ]
    return torch.tensor(found, device=tokens.device, dtype=dtype)


# Minimum risk


@torch.no_grad()
def beam_candidates(
    decoder: Decoder, *, n: int, lengths: Int[Tensor, " batch"], eos: int | None = None
) -> Hypotheses:
    """The n best of a beam of n; a score of -inf marks places that a small space leaves empty."""
    return beam_search(decoder, k=n, lengths=lengths, eos=eos, nbest=n)


@torch.no_grad()
def sampled_candidates(
    decoder: Decoder,
    *,
    n: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    rng: Generator,
) -> Hypotheses:
    """n outputs of each source by ancestral sampling, repetitions and all."""
    drawn = sample(Repeated(decoder, n), lengths=lengths.repeat_interleave(n), eos=eos, rng=rng)
    shape = (len(lengths), n)
    tokens = drawn.tokens.squeeze(1).unflatten(0, shape)
    return Hypotheses(tokens, *(v.squeeze(1).unflatten(0, shape) for v in drawn[1:]))


def with_gold(
    found: Hypotheses, target: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"]
) -> Hypotheses:
    """The candidates with gold before them (at score 0)."""
    time = max(found.tokens.shape[2], target.shape[1])
    gold, others = (pad(t, (0, time - t.shape[-1])) for t in (target[:, None], found.tokens))
    return Hypotheses(
        torch.cat([gold, others], 1),
        torch.cat([lengths[:, None], found.lengths], 1),
        pad(found.scores, (1, 0)),
    )


def distinct(found: Hypotheses) -> Bool[Tensor, "batch n"]:
    """True at the first of equal candidates, False at empty places."""
    same = (found.tokens[:, :, None] == found.tokens[:, None]).all(-1)
    same &= found.lengths[:, :, None] == found.lengths[:, None]
    return ~same.tril(-1).any(-1) & ~found.scores.isneginf()


def expected_risk(
    scores: Float[Tensor, "batch n"],
    costs: Float[Tensor, "batch n"],
    kept: Bool[Tensor, "batch n"],
    *,
    sharpness: float = 1.0,
) -> Float[Tensor, " batch"]:
    """Expected cost under softmax(sharpness * scores) over the kept (Shen et al. 2016).

    Over the whole space, with log-probabilities and sharpness 1, it is the model's expected cost.
    """
    weights = (sharpness * scores).masked_fill(~kept, float("-inf")).softmax(-1)
    return (weights * costs.to(weights.dtype)).sum(-1)


# REINFORCE


@torch.no_grad()
def rollout(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    gold_steps: int = 0,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
    rng: Generator | None = None,
) -> Hypotheses:
    """Outputs that begin with `gold_steps` gold tokens and go on by sampling, or greedily."""
    gold = iter(target[:, :gold_steps].unbind(1))

    def choose(scores: Tensor) -> Tensor:
        given = next(gold, None)
        if given is not None:
            return given
        if rng is None:
            return scores.argmax(-1)
        return torch.multinomial(scores.softmax(-1), 1, generator=rng).squeeze(-1)

    return one_by_one(decoder, choose, lengths=lengths, eos=eos)


def reinforce_loss(
    log_probs: Float[Tensor, "batch time"],
    costs: Float[Tensor, " batch"],
    baseline: Float[Tensor, " batch"] | float = 0.0,
    *,
    gold_steps: int = 0,
) -> Float[Tensor, " batch"]:
    """(cost - baseline) * log p(y_s+1: | y_1:s), of an output's log-probabilities (Williams 1992).

    The expected gradient is that of the expected cost of what follows `gold_steps` gold tokens,
    for any baseline that does not depend on the sample. Its value means nothing.
    """
    return (costs - baseline).to(log_probs.dtype) * log_probs[:, gold_steps:].sum(1)


# Distillation


def distillation_loss(
    scores: Float[Tensor, "batch time vocab"],
    teacher: Float[Tensor, "batch time vocab"],
    mask: Bool[Tensor, "batch time"],
    *,
    temperature: float = 1.0,
) -> Float[Tensor, " batch"]:
    """temperature^2 * KL(teacher || student) of real steps (Hinton et al. 2015).

    Zero exactly where both have the same distributions; constants added to the scores of a step
    change nothing, so a globally normalized student keeps its scale.
    """
    p, q = ((s / temperature).log_softmax(-1) for s in (teacher, scores))
    divergence = kl_div(q, p, reduction="none", log_target=True).sum(-1)
    return temperature**2 * torch.where(mask, divergence, 0.0).sum(1)


# Sentence-level costs of token numbers


def hamming_rate(predicted: Sequence[int], gold: Sequence[int]) -> float:
    """The share of wrong tokens; those that only one of the two has are wrong."""
    right = sum(a == b for a, b in zip(predicted, gold, strict=False))
    return 1.0 - right / max(len(predicted), len(gold), 1)


def edit_rate(predicted: Sequence[int], gold: Sequence[int]) -> float:
    """Edit distance per gold token; insertions can take it beyond 1."""
    from rapidfuzz.distance import Levenshtein

    return float(Levenshtein.distance(predicted, gold)) / max(len(gold), 1)


def bleu_cost(predicted: Sequence[int], gold: Sequence[int]) -> float:
    """1 - BLEU of one sentence, smoothed and with sacrebleu's effective order."""
    texts = [" ".join(map(str, tokens)) for tokens in (predicted, gold)]
    score = float(_sentence_bleu().sentence_score(texts[0], [texts[1]]).score)
    return max(0.0, 1.0 - score / 100)  # sacrebleu's 100 may be 100.00000000000004


@cache
def _sentence_bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", smooth_method="exp", effective_order=True, force=True)


METRICS: dict[str, Metric] = {"hamming": hamming_rate, "edit": edit_rate, "bleu": bleu_cost}
