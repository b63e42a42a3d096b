"""Beam-search optimization (Wiseman and Rush 2016) and the beam CRF (Andor et al. 2016).

Both use a hard beam that keeps the gold prefix in view, `tracked_beam`. Scores are those of the
decoder, raw or normalized. Losses are one number for each sentence, and do not depend on
the batch that the sentence is in. Padding of targets is 0.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.objectives.losses.risk import Metric
from softbeam.search.tracked import Tracked, tracked_beam
from softbeam.tensors import output_lengths
from softbeam.types import Decoder, Ends


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
    ends: Ends,
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
    lengths, eos = ends
    since = torch.zeros_like(lengths)
    violated, fallen = [], []
    for beam in tracked_beam(decoder, target, k=k, lengths=ends.lengths, eos=ends.eos):
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
    """Slot and score of the hypothesis that gold must beat; -inf where there is none."""
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
    """The metric of the rival's and gold's tokens since the last start, where `wrong`; else 0."""
    pairs = [
        [
            row[start:end]
            for row, start, end in zip(tokens.tolist(), since.tolist(), ends, strict=True)
        ]
        for tokens in (rival, target[:, : rival.shape[1]])
        for ends in [output_lengths(tokens, eos).tolist()]
    ]
    marked = zip(*pairs, wrong.tolist(), strict=True)
    return [metric(path, gold) if violates else 0.0 for path, gold, violates in marked]


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
    ends: Ends,
) -> EarlyUpdate:
    """-s(y_1:j) + log sum over the beam and gold of exp s (Andor et al. 2016).

    j is the step in which gold falls off the beam (early update), or the last. Where the beam
    holds the whole space this is the exact negative log-likelihood of the globally normalized
    model: over sequences of the given length or, with an end mark, that end there or before.
    """
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    loss = decoder.embedding.new_zeros(len(target))
    lengths = ends.lengths
    steps, fell = torch.zeros_like(lengths), torch.zeros_like(lengths, dtype=torch.bool)
    going = lengths > 0
    for beam in tracked_beam(decoder, target, k=k, lengths=ends.lengths, eos=ends.eos):
        stops = going & (beam.fell | (lengths == beam.t + 1))
        gold = beam.gold.masked_fill(~beam.fell, float("-inf"))  # counted once
        log_z = torch.cat([beam.score, gold[:, None]], 1).logsumexp(1)
        loss = torch.where(stops, log_z - beam.gold, loss)
        steps, fell = steps.masked_fill(stops, beam.t + 1), fell | (stops & beam.fell)
        going = going & ~stops
        if not going.any():
            break
    return EarlyUpdate(loss, steps, fell)
