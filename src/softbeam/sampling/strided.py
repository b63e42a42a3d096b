r"""Strided energies: a target of its own for long texts, in s rows instead of one for each token.

E_s(y) = -sum_o sum_{t = o, o + s, ...} log p(y_t | y without y_o, y_{o+s}, ...), for offsets o from
0 to s - 1: every s-th position is masked together, so that a text takes s rows of the model. It is
no estimate of the local energy but another energy, whose tokens do not see those at distances of
s, 2 s, ... With s of at least the length, it is E_local. Chains that use it sample exp(-E_s).
"""

from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.sampling.chain_rule import LeftToRight
from softbeam.sampling.energies import (
    LocalEnergy,
    RawEnergy,
    counted_sites,
    local_score,
    pick,
)
from softbeam.sampling.masking import ROWS, packed_logits
from softbeam.types import MaskedLM


@dataclass(frozen=True, eq=False)
class StridedEnergy:
    """The energy E_s of texts.

    Args:
        mlm: the masked language model.
        stride: s, the distance of positions that are masked together.
        owner: the source of each chain; by default the first source for all.
        counted: positions in the sum; by default those that hold a token of `mlm.allowed`.
        rows: the largest number of rows that the model gets at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    stride: int
    owner: Int[Tensor, " chain"] | None = None
    counted: Bool[Tensor, "chain time"] | None = None
    rows: int = ROWS

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride={self.stride} must be at least 1")

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return -self.scores(tokens).sum(-1)

    @torch.no_grad()
    def scores(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, "chain time"]:
        """Score each token, given those that are not masked with it; 0 where nothing counts."""
        counted = counted_sites(self.mlm, tokens, self.counted)
        steps = min(self.stride, tokens.shape[1])
        turn = (counted.cumsum(-1) - 1) % self.stride  # of a position among those that count
        masked = (counted & (turn == torch.arange(steps)[:, None, None])).flatten(0, 1)
        texts, active = tokens.repeat(steps, 1), masked.any(-1)
        owner = None if self.owner is None else self.owner.repeat(steps)[active]
        packs = list(packed_logits(self.mlm, texts[active], masked[active], owner, limit=self.rows))
        if not packs:
            return torch.zeros(tokens.shape, device=tokens.device)
        values = local_score(torch.cat(packs), texts[masked]).to(tokens.device)
        table = values.new_zeros(masked.shape).masked_scatter(masked, values)
        return table.unflatten(0, (steps, -1)).sum(0)

    def chosen(self, chains: Int[Tensor, " rows"]) -> "StridedEnergy":
        """The energy of rows that belong to these chains."""
        return replace(self, owner=pick(self.owner, chains), counted=pick(self.counted, chains))


ENERGIES = ("local", "raw", "strided", "chain-rule")


def named_energy(
    name: str,
    mlm: MaskedLM,
    *,
    rows: int,
    stride: int,
    free: Bool[Tensor, "chain time"] | None = None,
) -> LocalEnergy | RawEnergy | StridedEnergy | LeftToRight:
    """Make the energy of a name.

    Only strided energies read the stride. Only those of the chain rule read the free positions:
    they score these alone, given all others; by default all tokens of a text are free.
    """
    if name == "strided":
        return StridedEnergy(mlm, stride=stride, rows=rows)
    if name == "chain-rule":
        return LeftToRight(mlm, counted=free, rows=rows)
    return {"local": LocalEnergy, "raw": RawEnergy}[name](mlm, rows=rows)
