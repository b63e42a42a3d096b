"""What the names of tokens tell: which of them are pieces of words."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from softbeam.types import WordParts

SPACES = ("Ġ", "▁", "Ċ", "ĉ")  # how tokenizers write a space, a line's end or a tab before a word
CONTINUED = "##"  # before a piece that continues a word, as WordPiece has it


def word_parts(tokenizer: Any, allowed: Bool[Tensor, " vocab"]) -> WordParts:
    """Read off the names of tokens which of them continue a word, and which a word may go on after.

    If tokens are not pieces of words (whole words, or letters of a sequence), none continues one.
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
    masks = torch.zeros(2, len(allowed), dtype=torch.bool)
    masks[:, ids] = torch.tensor([inner, joined])
    return WordParts(*masks)
