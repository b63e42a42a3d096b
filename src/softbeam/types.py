"""The nouns of the toolkit. No algorithm lives here, and nothing of ours is imported."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

State = Any  # a (nested) tuple; every tensor in it has rows as its first axis


@runtime_checkable
class Decoder(Protocol):
    """A left-to-right scorer bound to its encoded source; rows are batch-major.

    `step` may be called with batch * n rows for any n: rows i*n to (i+1)*n - 1 belong to
    source i, so that a beam of n needs no copy of the encoder's memory.
    """

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]: ...  # E in the papers
    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]: ...  # h0 and e0 = E[<s>]
    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]: ...  # f(h, .) and h


@runtime_checkable
class FusedDecoder(Decoder, Protocol):
    """A decoder that can also score a whole given target in one call (teacher forcing)."""

    def forced(
        self, target: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time vocab"]: ...  # scores of step t given target[:, :t]


class Batch(NamedTuple):
    source: Int[Tensor, "batch source_time"]  # 0 is padding
    target: Int[Tensor, "batch time"]
    mask: Bool[Tensor, "batch time"]  # True where target is real


class Loss(NamedTuple):
    """A sum and what it is a sum over; training minimizes total / size over the global batch.

    Keeping the two apart makes gradient accumulation and data parallelism exact: gradients of
    totals add up, and are divided once by the sum of the sizes.
    """

    total: Float[Tensor, ""]
    size: int
    log: Mapping[str, float]


class Hypotheses(NamedTuple):
    """The outputs of a search, best first; tokens past a length are padding (0)."""

    tokens: Int[Tensor, "batch nbest time"]
    lengths: Int[Tensor, "batch nbest"]
    scores: Float[Tensor, "batch nbest"]  # sum of the step scores, without length penalty
