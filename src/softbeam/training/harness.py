"""A masked language model as a model of lm-evaluation-harness (`pip install lm-eval`)."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal, get_args

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry

from softbeam.errors import UserError
from softbeam.models.catalogue import load_mlm
from softbeam.sampling.chains import fill_greedily
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.texts.api import score
from softbeam.sampling.texts.score import Scored
from softbeam.types import TextModel

Law = Literal["pseudo", "joint", "chain-rule"]


class MaskedEval(LM):
    """Scores continuations of contexts by a masked language model.

    Every score is one of `softbeam.score`. The text is the context and the continuation, and the
    tokens of the continuation are those from the first one on that the context alone does not have.
    A continuation is greedy if it is what the model puts into masks in its place, all at once.
    Texts that are longer than the model allows, and tasks that generate, raise UserError.

    Args:
        mlm: the model, or the name of one for `load_mlm`.
        law: pseudo sums log-probabilities of the continuation's tokens, each given all others.
            joint is the score of the whole text: up to a constant of the context and the number of
            tokens, the logarithm of the share of a filling of `softbeam.infill`. chain-rule is the
            log-probability of the continuation from left to right, with all that follows masked; it
            alone is normalized for every length.
        batch_size, max_batch_size, device: what lm-eval gives to all models; only the device is
            read.
    """

    def __init__(
        self,
        mlm: TextModel | str,
        *,
        law: Law = "pseudo",
        device: str | None = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
    ):
        super().__init__()
        if law not in get_args(Law):
            raise UserError(f"law {law!r}: must be one of {', '.join(get_args(Law))}")
        self.law = law
        self.mlm = load_mlm(mlm, device=device or "cpu") if isinstance(mlm, str) else mlm

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Score each continuation, and tell whether it is greedy."""
        pairs = [request.args for request in requests]
        results = []
        for (context, continuation), scored in zip(
            pairs, self.scored([before + after for before, after in pairs]), strict=True
        ):
            first = self.common(context, context + continuation)
            own = scored.score if self.law == "joint" else sum(scored.scores[first:])
            results.append((float(own), self.is_greedy(scored.text, first)))
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Score whole texts."""
        return [row.score for row in self.scored([request.args[0] for request in requests])]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Raise UserError: a masked language model does not know where a text ends."""
        raise UserError("generate_until: a masked language model generates no text of any length")

    def scored(self, texts: list[str]) -> list[Scored]:
        """Score the tokens of texts."""
        return score(self.mlm, texts, energy="chain-rule" if self.law == "chain-rule" else "local")

    def common(self, context: str, whole: str) -> int:
        """Count the first tokens that a context has in common with the whole text."""
        pairs = zip(self.mlm.word_ids(context), self.mlm.word_ids(whole), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

    def is_greedy(self, text: str, first: int) -> bool:
        """Tell whether the tokens from the first on are those that the model puts there at once."""
        prompts = self.mlm.encode([text])
        place = (~prompts.frozen).cumsum(-1) * ~prompts.frozen
        hidden = place > first
        filled = fill_greedily(MaskedConditionals(self.mlm), prompts.tokens, hidden)
        return bool(hidden.any()) and torch.equal(filled, prompts.tokens)


if "softbeam" not in model_registry:
    model_registry.register("softbeam", target=MaskedEval)
