"""What the names of tokens tell: which of them are pieces of words."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from softbeam.types import WordParts

SPACES = ("Ġ", "▁", "Ċ", "ĉ")  # how tokenizers write a space, a line's end or a tab before a word
SENTENCE_PIECE = "▁"  # also before the first word of a text
CONTINUED = "##"  # before a piece that continues a word, as WordPiece has it


def word_parts(tokenizer: Any, allowed: Bool[Tensor, " vocab"]) -> WordParts:
    """Read off the names of tokens which of them begin or continue a word, or may be continued.

    If tokens are not pieces of words (whole words, or letters of a sequence), none continues one.
    A tokenizer that writes spaces writes none before the first word of a text, unless it is one of
    SentencePiece.
    """
    ids = allowed.nonzero()[:, 0].tolist()
    names = tokenizer.convert_ids_to_tokens(ids)
    spaced = any(name.startswith(SPACES) for name in names)
    joined = [
        (name.startswith(CONTINUED) and name != CONTINUED)
        or (spaced and not name.startswith(SPACES) and name[:1].isalnum())
        for name in names
    ]
    inner = [name[-1:].isalnum() and not name.endswith(SPACES) for name in names]
    whole = [name.lstrip("".join(SPACES))[:1].isalnum() and name[-1:].isalnum() for name in names]
    first = [begins and not continues for begins, continues in zip(whole, joined, strict=True)]
    opening = [begins and continues for begins, continues in zip(whole, joined, strict=True)]
    if not spaced or any(name.startswith(SENTENCE_PIECE) for name in names):
        opening = first
    masks = torch.zeros(4, len(allowed), dtype=torch.bool)
    masks[:, ids] = torch.tensor([inner, joined, first, opening])
    return WordParts(*masks)
