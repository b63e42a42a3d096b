"""The letters of proteins."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

AMINO_ACIDS = set("ACDEFGHIKLMNPQRSTVWY")
OTHER_RESIDUES = set("XBUZOJ*.-")  # unknown, ambiguous or rare residues, stops, gaps


def amino_acids(
    name_of: Callable[[int], str], allowed: Bool[Tensor, " vocab"]
) -> Bool[Tensor, " vocab"]:
    """The 20 amino acids if the tokens are those of proteins, otherwise all allowed tokens."""
    names = {i: name_of(i) for i in allowed.nonzero()[:, 0].tolist()}
    if not AMINO_ACIDS <= {*names.values()} <= AMINO_ACIDS | OTHER_RESIDUES:
        return allowed
    standard = [i for i, name in names.items() if name in AMINO_ACIDS]
    return torch.zeros_like(allowed).index_fill(0, torch.tensor(standard), True)
