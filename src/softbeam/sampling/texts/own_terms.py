"""Terms of an energy that the user's own code computes, named on the command line."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from softbeam.errors import UserError
from softbeam.runtime.allowed import is_allowed
from softbeam.sampling.certified_kernels import imported
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.types import Energy, TextModel

KEPT = 100_000  # texts whose values are kept
TRIES = 20  # starts that are drawn for a chain whose text is beyond a limit


@dataclass(frozen=True, eq=False)
class OwnTerm:
    """A function of texts as an energy: a text's value, or 0 and infinity with a limit.

    Args:
        name: module:function, for messages.
        function: takes a list of texts, and returns a finite number for each.
        decode: makes texts of tokens.
        limit: the largest value that is allowed; texts above it have the energy infinity.
    """

    name: str
    function: Callable[[list[str]], Any]
    decode: Callable[[Tensor], list[str]]
    _: KW_ONLY
    limit: float | None = None
    values: dict[str, float] = field(default_factory=dict)  # of texts seen before

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        values = torch.tensor(self.of(self.decode(tokens)), dtype=torch.float64)
        if self.limit is not None:
            values = torch.where(values > self.limit, math.inf, 0.0)
        return values.to(tokens.device)

    def of(self, texts: list[str]) -> list[float]:
        """Return the value of each text; the function gets each new text once."""
        new = list(dict.fromkeys(text for text in texts if text not in self.values))
        if new:
            if len(self.values) + len(new) > KEPT:
                self.values.clear()
                new = list(dict.fromkeys(texts))
            self.values.update(zip(new, self.computed(new), strict=True))
        return [self.values[text] for text in texts]

    def computed(self, texts: list[str]) -> list[float]:
        """Call the function. Raises UserError if it fails or returns other than finite numbers."""
        try:
            values = [float(value) for value in self.function(list(texts))]
        except Exception as error:  # the user's own code, which may fail in any way
            raise UserError(f"--term {self.name}: {error!r}") from error
        if len(values) != len(texts):
            raise UserError(f"--term {self.name}: {len(values)} numbers for {len(texts)} texts")
        for text, value in zip(texts, values, strict=True):
            if not math.isfinite(value):
                raise UserError(
                    f"--term {self.name}: {value} for {text[:40]!r}; to refuse texts, return a "
                    "large number and give --term-limit"
                )
        return values


def own_terms(mlm: TextModel, config: SamplingConfig) -> list[tuple[float, Energy]]:
    """Load the terms that the settings name, with their weights; a limit is a term of its own.

    Raises UserError if the user has not allowed a term's module.
    """
    terms: list[tuple[float, Energy]] = []
    for name, weight, limit in config.named_terms():
        module, colon, _ = name.partition(":")
        if not colon:
            raise UserError(f"--term {name}: must be module:function")
        if not is_allowed(module):
            raise UserError(
                f"--term {name}: runs code of {module}; if you trust it, add "
                f"--allow-module {module}"
            )
        term = OwnTerm(name, imported(name, "term"), mlm.decode)
        if weight:
            terms.append((weight, term))
        if limit is not None:
            own = OwnTerm(name, term.function, mlm.decode, limit=limit, values=term.values)
            terms.append((1.0, own))
    return terms


def within_limits(
    start: Callable[[Generator], Tensor], terms: Sequence[tuple[float, Energy]]
) -> Callable[[Generator], Tensor]:
    """Draw starts again where they are beyond a limit.

    The new function raises UserError if a chain has no start within all limits after some tries.
    """
    limits = [term for _, term in terms if isinstance(term, OwnTerm) and term.limit is not None]
    if not limits:
        return start

    def drawn(rng: Generator) -> Tensor:
        tokens = start(rng)
        for _ in range(TRIES):
            beyond = torch.stack([limit(tokens) for limit in limits]).isinf().any(0)
            if not bool(beyond.any()):
                return tokens
            tokens = torch.where(beyond[:, None], start(rng), tokens)
        row = int(beyond.nonzero()[0])
        text = limits[0].decode(tokens[row : row + 1])
        values = [f"{term.name} is {term.of(text)[0]:.4g}, above {term.limit}" for term in limits]
        raise UserError(
            f"--term-limit: no start within it in {TRIES} tries ({'; '.join(values)}); "
            "--start text starts from the text, or give a higher limit"
        )

    return drawn


def term_files(config: SamplingConfig) -> dict[str, Path]:
    """Return the source files of the terms whose modules are allowed, by what they are for."""
    files = {}
    for name in config.term:
        module = name.partition(":")[0]
        spec = None
        if is_allowed(module):
            with suppress(ImportError, ValueError, AttributeError):  # `own_terms` says why
                spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            files[f"term {module}"] = Path(spec.origin)
    return files
