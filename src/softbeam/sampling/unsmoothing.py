"""The conditionals that a model trained with label smoothing would have without it."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.sampling.masking import WrappedMlm
from softbeam.types import MaskedLM

FLOOR = 1e-9  # least probability: a token of probability 0 would have an infinite energy


class Unsmoothed(WrappedMlm):
    """A masked language model with the smoothing of its training taken out of its conditionals.

    With label smoothing s over V tokens, cross-entropy is lowest at q = (1 - s) p + s / V, where p
    is the law of the data. The logits are those of p = (q - s / V) / (1 - s), at least `FLOOR`; the
    constant that a context adds to all its logits is kept, for raw energies.

    Args:
        mlm: the model.
        smoothing: the smoothing that it was trained with.
    """

    def __init__(self, mlm: MaskedLM, smoothing: float):
        super().__init__(mlm)
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing={smoothing} must be at least 0 and below 1")
        self.smoothing = smoothing

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        logits = self.mlm.logits(tokens, masked, owner)
        level = torch.logsumexp(logits, -1, keepdim=True)
        q, uniform = (logits - level).exp(), self.smoothing / logits.shape[-1]
        return ((q - uniform) / (1 - self.smoothing)).clamp_min(FLOOR).log() + level
