"""Chains over texts that change their length: how they start, and what moves them."""

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from softbeam.errors import UserError
from softbeam.sampling.terms import LengthEnergy
from softbeam.sampling.texts.settings import SamplingConfig

Rows = tuple[Int[Tensor, "chain time"], Bool[Tensor, "chain time"]]


def frame_of(free: Bool[Tensor, "chain time"]) -> tuple[int, int]:
    """Count the tokens before and after the gaps of a row that has no other ones."""
    place = free[0].nonzero()[:, 0]
    return int(place[0]), free.shape[1] - 1 - int(place[-1])


def check_gaps(free: Bool[Tensor, "chain time"], config: SamplingConfig) -> None:
    """Raise UserError if texts do not consist of as many gaps as the longest has tokens."""
    before, after = frame_of(free)
    high = config.length_range[1]
    if not bool((free.sum(-1) == high).all()) or free.shape[1] != before + high + after:
        raise UserError(f"--lengths {config.lengths}: give no --text or --input with it")


def shortened(
    tokens: Int[Tensor, "chain time"],
    free: Bool[Tensor, "chain time"],
    config: SamplingConfig,
    rng: Generator,
    pad_id: int,
) -> Rows:
    """Draw a length for each chain, and leave out gaps: the rows to fill, and their gaps."""
    (low, high), before = config.length_range, frame_of(free)[0]
    length = torch.randint(low, high + 1, (len(tokens), 1), generator=rng)
    place = torch.arange(tokens.shape[1]).expand(tokens.shape)
    end = before + length
    moved = torch.where(place < end, place, place + high - length)
    longer = torch.cat([tokens, tokens.new_full(tokens.shape, pad_id)], 1)
    return longer.gather(1, moved), (place >= before) & (place < end)


def length_term(
    free: Bool[Tensor, "chain time"], config: SamplingConfig, pad_id: int
) -> LengthEnergy:
    """Make the term of the energy that each token adds."""
    offsets = config.length_offset * torch.arange(config.length_range[1] + 1).float()
    return LengthEnergy(offsets, pad_id, sum(frame_of(free)))
