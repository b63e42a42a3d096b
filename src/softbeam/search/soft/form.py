"""How a soft-beam step is computed: a setting of objectives. Nothing here loads torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a soft-beam step is computed; by default in the form that is fastest for the vocabulary.

    Up to 128 tokens all cells enter the relaxation, and p is recomputed backward. Of larger
    vocabularies a pool of the best cells does, at each step and for each sentence where it
    suffices. A sentence alone and in a batch agrees to `tolerance` (else, to rounding).

    Args:
        reference: plain autograd of Algorithm 3, which is slow.
        candidates: at most k times this number of best cells of a sentence enter the relaxation
            (by default 64 of a large vocabulary, or all; the size of the vocabulary means all) ...
        tolerance: ... where they provably hold all but this much mass; else all cells do.
        score: of an element; soft is line 13 of Algorithm 3, hard the threshold m_i itself.
        detach_threshold: no gradient through the thresholds m_i.
        checkpoint: keep only the beam between steps in memory, and compute each step twice.
        diagnostics: measure how soft the beam was.
    """

    reference: bool = False
    candidates: int | None = None
    tolerance: float = 1e-6
    score: Literal["soft", "hard"] = "soft"
    detach_threshold: bool = False
    checkpoint: bool = False
    diagnostics: bool = False

    def __post_init__(self) -> None:
        if self.candidates is not None and self.candidates < 1:
            raise ValueError(f"candidates={self.candidates} is below 1")
        if self.score not in ("soft", "hard"):
            raise ValueError(f"score={self.score!r} is neither 'soft' nor 'hard'")


FAST = Form()
REFERENCE = Form(reference=True)
