"""A cheap energy: positions far from one another are masked together."""

from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.sampling.energies import pick
from softbeam.sampling.masking import ROWS, may_stand, packed_logits
from softbeam.types import MaskedLM


@dataclass(frozen=True, eq=False)
class StridedEnergy:
    """Like `LocalEnergy`, but every `stride`-th token is masked together: `stride` rows a text.

    Another energy, near enough to refuse by: the first stage of delayed acceptance. With a stride
    as long as the text it is `LocalEnergy`.

    Args:
        mlm: the masked language model.
        stride: rows of each text, and distance between positions masked together.
        owner: the source of each chain; the first for all unless given.
        rows: largest number of rows given to the model at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    stride: int = 4
    owner: Int[Tensor, " chain"] | None = None
    rows: int = ROWS

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride={self.stride} must be at least 1")

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        counted = may_stand(tokens, self.mlm.allowed) & (tokens != self.mlm.pad_id)
        turn = torch.arange(tokens.shape[1], device=tokens.device) % self.stride
        masked = (counted[:, None] & (turn == torch.arange(self.stride)[:, None])).flatten(0, 1)
        texts = tokens.repeat_interleave(self.stride, 0)
        owner = None if self.owner is None else self.owner.repeat_interleave(self.stride)
        some = masked.any(-1)  # a short text has fewer rows
        if not bool(some.any()):
            return torch.zeros(len(tokens), device=tokens.device)
        source = None if owner is None else owner[some]
        packs = packed_logits(self.mlm, texts[some], masked[some], source, limit=self.rows)
        targets, scores = texts[masked], []
        for logits in packs:
            now, targets = targets[: len(logits)], targets[len(logits) :]
            scores.append(logits.log_softmax(-1).gather(-1, now[:, None])[:, 0])
        values = torch.cat(scores)
        cells = values.new_zeros(masked.shape).masked_scatter(masked, values)
        return -cells.unflatten(0, (len(tokens), self.stride)).sum((1, 2))

    def chosen(self, chains: Int[Tensor, " rows"]) -> "StridedEnergy":
        return replace(self, owner=pick(self.owner, chains))
