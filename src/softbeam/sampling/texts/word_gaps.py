"""Gaps of texts: `[MASK]` is a gap of one token, `[WORD]` one of a whole word.

A word has one to `pieces` tokens: the first one begins a word, each other one continues it, and
each begins and ends with a letter or digit. Fillings of all lengths are compared by one law,

    p(filling) = exp(-E(filling) / temperature) / Z,   Z a sum over the fillings of all lengths.

So a length has the sum of exp(-E) over its own fillings as its weight, and no other prior. With the
energy chain-rule that sum is, at temperature 1 and with a single gap, the probability with which
the model, shown that many masks, fills them with one word. With the energies local and raw it is a
sum over texts of different lengths: each token of a text adds its own term, and pieces of a word
are easy to guess from each other, so that local energies favour words of several pieces.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from softbeam.errors import UserError
from softbeam.sampling.texts.positions import places
from softbeam.sampling.texts.settings import SamplingConfig, flag
from softbeam.tensors import Allowed
from softbeam.types import TextModel

WORD = "[WORD]"
GAPS = re.compile(r"\[MASK\]|<mask>|\[WORD\]")
FIXED = {"kernel": "mh", "block": 1, "proposal": "masked", "nucleus": 1.0, "free": "mask"}
FIXED |= {"fix": None, "allowed_at": (), "lengths": None, "forced": 0}


def has_words(texts: Sequence[str]) -> bool:
    """Tell whether a text has a gap of a whole word."""
    return any(WORD in text for text in texts)


def spread(texts: Sequence[str], pieces: int) -> list[str]:
    """Write each gap of a word as a gap of one token for each of its cells."""
    return [text.replace(WORD, "[MASK]" * pieces) for text in texts]


def check_words(mlm: TextModel, config: SamplingConfig) -> None:
    """Raise UserError if gaps of words cannot be filled by this model, or with these settings."""
    if not bool(mlm.word_parts.joined.any()):
        raise UserError(f"{WORD}: the model's tokens are no pieces of words; use [MASK]")
    for name, value in FIXED.items():
        given = getattr(config, name)
        if given != value:
            needed = "needs none" if value in (None, ()) else f"needs {value}"
            raise UserError(f"{flag(name)} {given}: {WORD} {needed}")
    if config.energy == "strided":
        raise UserError(f"--energy strided: {WORD} needs local, raw or chain-rule")
    if config.near == "self" or (config.near is not None and config.near_distance == "hamming"):
        raise UserError(f"--near with {WORD}: give a text and --near-distance edit")


class Gaps(NamedTuple):
    """The gaps of texts."""

    number: Int[Tensor, "chain time"]  # of the gap that a position belongs to; -1 where it is fixed
    word: Bool[Tensor, "chain time"]  # the cells of words

    def repeated(self, chains: int) -> "Gaps":
        """The gaps of each chain, of which every text has as many."""
        return Gaps(*(table.repeat_interleave(chains, 0) for table in self))


def gaps_of(texts: Sequence[str], free: Bool[Tensor, "text time"], pieces: int) -> Gaps:
    """Find the gaps among the free positions: the cells of a word are one gap."""
    number, word = torch.where(free, free.cumsum(-1) - 1, -1), torch.zeros_like(free)
    for row, text in enumerate(texts):
        if WORD in text:
            found = GAPS.findall(text)
            sizes = torch.tensor([pieces if gap == WORD else 1 for gap in found])
            if int(sizes.sum()) != int(free[row].sum()):
                raise UserError(f"text {row}: the model reads other gaps than {text[:40]!r} has")
            number[row, free[row]] = torch.arange(len(sizes)).repeat_interleave(sizes)
            is_word = torch.tensor([gap == WORD for gap in found])
            word[row, free[row]] = is_word.repeat_interleave(sizes)
    return Gaps(number, word)


def word_sets(
    mlm: TextModel,
    tokens: Int[Tensor, "chain time"],
    gaps: Gaps,
    allowed: Allowed,
) -> Bool[Tensor, "chain time vocab"]:
    """Restrict what may stand in the cells of words.

    Args:
        mlm: the model.
        tokens: the texts, with a mask in each cell.
        gaps: the gaps of the texts.
        allowed: what may stand anywhere.

    Raises UserError if nothing may stand in a cell.
    """
    parts = mlm.word_parts
    begins = gaps.word & (gaps.number != gaps.number.roll(1, -1))
    opens = begins & (places(mlm, tokens) == 1)
    table = allowed.expand(*tokens.shape, -1).clone()
    table[gaps.word & ~begins] &= parts.joined & parts.inner
    table[begins & ~opens] &= parts.first
    table[opens] &= parts.opening
    if bool((gaps.word & ~table.any(-1)).any()):
        raise UserError(f"{WORD}: no allowed token begins or continues a word")
    return table
