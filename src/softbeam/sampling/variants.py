r"""Scores of variants of a sequence under a masked language model, by their published definitions.

x is the wild type, y a variant of it, M the positions where they differ. Higher is likelier; the
wild type has 0 (Meier et al. 2021, "Language models enable zero-shot prediction of the effects
of mutations on protein function"):

- masked marginal: sum_{t in M} log p(y_t | x\M) - log p(x_t | x\M), all of M masked together;
- wild-type marginal: sum_{t in M} log p(y_t | x) - log p(x_t | x), the wild type read unmasked;
- mutant marginal: sum_{t in M} log p(y_t | y) - log p(x_t | y), the variant read unmasked;
- pseudo-log-likelihood: sum_t log p(y_t | y\t) - sum_t log p(x_t | x\t), each position of the whole
  sequences masked alone (Salazar et al. 2020), also where their lengths differ.

Probabilities are of the whole vocabulary. Public programs differ from these definitions: many mask
the positions of M one at a time and add up, a masked marginal only if M has one position.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.masking import ROWS, packed_logits
from softbeam.tensors import distinct_rows, moved
from softbeam.types import MaskedLM, ReadingModel


@torch.inference_mode()
def masked_marginals(
    mlm: MaskedLM,
    wild: Int[Tensor, " time"],
    variants: Int[Tensor, "variant time"],
    *,
    rows: int = ROWS,
) -> Float[Tensor, " variant"]:
    """Compute masked marginals; variants with the same positions share a row of the model."""
    masks, which = distinct_rows((variants != wild).long())
    masked = masks.bool()
    packs = packed_logits(mlm, wild.expand(len(masks), -1), masked, limit=rows)
    return summed_gains(packs, masked, which, wild, variants)


@torch.inference_mode()
def wild_type_marginals(
    mlm: ReadingModel,
    wild: Int[Tensor, " time"],
    variants: Int[Tensor, "variant time"],
    *,
    rows: int = ROWS,
) -> Float[Tensor, " variant"]:
    """Compute wild-type marginals, all from one row of the model."""
    cells = (variants != wild).any(0)[None]
    which = torch.zeros(len(variants), dtype=torch.long)
    return summed_gains([mlm.read(wild[None], cells)], cells, which, wild, variants)


@torch.inference_mode()
def mutant_marginals(
    mlm: ReadingModel,
    wild: Int[Tensor, " time"],
    variants: Int[Tensor, "variant time"],
    *,
    rows: int = ROWS,
) -> Float[Tensor, " variant"]:
    """Compute mutant marginals, each from a row of its own."""
    cells = variants != wild
    parts = zip(variants.split(rows), cells.split(rows), strict=True)
    packs = (mlm.read(*part) for part in parts)
    return summed_gains(packs, cells, torch.arange(len(variants)), wild, variants)


@torch.inference_mode()
def pseudo_log_likelihoods(
    mlm: MaskedLM, texts: Int[Tensor, "text time"], *, rows: int = ROWS
) -> Float[Tensor, " text"]:
    """Compute sum_t log p(y_t | y\\t); rows that texts have in common are computed once."""
    return LocalEnergy(mlm, rows=rows).scores(texts).double().sum(-1)


def summed_gains(
    packs: Iterable[Float[Tensor, "cells vocab"]],
    cells: Bool[Tensor, "rows time"],
    which: Int[Tensor, " variant"],
    wild: Int[Tensor, " time"],
    variants: Int[Tensor, "variant time"],
) -> Float[Tensor, " variant"]:
    """Sum log p(y_t) - log p(x_t) over the positions where each variant differs.

    Args:
        packs: logits of the cells, row by row.
        cells: the cells that have logits.
        which: the row of each variant.
        wild: x.
        variants: y.
    """
    number = cells.flatten().cumsum(0).view_as(cells) - 1  # of each cell among the logits
    variant, site = (variants != wild).nonzero(as_tuple=True)
    gains = torch.zeros(len(variants), dtype=torch.float64)
    if not len(variant):
        return gains
    log_p = torch.cat([pack.log_softmax(-1) for pack in packs])
    cell = moved(number[which[variant], site], log_p.device)
    new, old = (moved(t, log_p.device) for t in (variants[variant, site], wild[site]))
    each = (log_p[cell, new] - log_p[cell, old]).cpu().double()
    return gains.index_add(0, variant, each)
