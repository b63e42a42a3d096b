"""A residual energy on top of a fixed one (thesis, chapter 7; Deng et al. 2020)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softbeam.models.random_field import BiLstmMrf
from softbeam.types import Energy


class Residual(nn.Module):
    """E(y) = E_base(y) + E_field(y): a fixed energy, corrected by one that is trained.

    With a base of -log q, where q is the law of a masked language model, the model is
    q(y) exp(-E_field(y)) / Z: a field that says nothing leaves q, and log Z is then 0. Train it by
    `NoiseContrastive(noise=MaskedNoise(mlm))`, whose log-odds are then -E_field(y) - log Z, or by
    `PersistentContrastiveDivergence`; sample it by any kernel with `model.energy`. A `memory` for
    these belongs to it, as to a `BiLstmMrf`.

    Args:
        base: the fixed energy; nothing of it is trained.
        field: the trained energy, over the same numbers of tokens. Its output layer is set to 0, so
            that training starts at the base.
        pad_id: number of the padding in texts.
        allowed: tokens that a text may hold; those of the field if not given.
    """

    def __init__(
        self,
        base: Energy,
        field: BiLstmMrf,
        *,
        pad_id: int,
        allowed: Bool[Tensor, " vocab"] | None = None,
    ):
        super().__init__()
        self.field, self.pad_id = field, pad_id
        self.allowed = field.allowed if allowed is None else allowed
        self._base = base
        nn.init.zeros_(field.output.weight)
        nn.init.zeros_(field.output.bias)

    @property
    def vocab(self) -> int:
        return self.field.vocab

    def energy(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        """Compute the energy of each text; the method is an `Energy`."""
        with torch.no_grad():
            base = self._base(tokens)
        own = self.field.energy(tokens.masked_fill(tokens == self.pad_id, self.field.pad_id))
        return base.to(own) + own
