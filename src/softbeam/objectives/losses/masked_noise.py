"""Noise that a masked language model draws, for contrastive estimation (thesis, chapter 7)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.chain_rule import ChainEnergy
from softbeam.tensors import length_mask
from softbeam.types import MaskedLM


@dataclass(frozen=True, eq=False)
class MaskedNoise:
    """The law of a masked language model by the chain rule from left to right; a `Noise`.

    Noise has to be drawn and evaluated: Gibbs sampling of the same model has no known law, but one
    pass from left to right, each token drawn given those before it while those after it are masked,
    has. The model should have been trained with many masks at once.

    Args:
        mlm: the masked language model, which stays as it is.
    """

    mlm: MaskedLM

    def sample(self, lengths: Int[Tensor, " rows"], rng: Generator) -> Int[Tensor, "rows time"]:
        """Draw a text of each length, padded with the model's padding."""
        time = max(1, int(lengths.max()))
        word = int(self.mlm.allowed.nonzero()[0, 0])
        real = length_mask(lengths, time)
        empty = torch.full(real.shape, self.mlm.pad_id, device=lengths.device)
        return self.energy(time).sample(empty.masked_fill(real, word), rng)

    def log_prob(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, " rows"]:
        """Compute the log-probability of each text among those of its length."""
        return -self.energy(tokens.shape[1])(tokens.where(mask, self.mlm.pad_id))

    def energy(self, time: int) -> ChainEnergy:
        """The energy -log q of texts of at most `time` tokens."""
        return ChainEnergy(self.mlm, torch.arange(time))
