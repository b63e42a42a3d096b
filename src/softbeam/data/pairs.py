"""Examples that a program gives: pairs of texts or of sequences of tokens."""

from collections.abc import Mapping
from typing import Any

from softbeam.errors import UserError


def sides_of(what: str, pair: Any) -> list[list[str]]:
    """Split both sides of an example into tokens.

    Raises UserError, whose message begins with `what`, if the example is not a pair of texts or
    of sequences of strings.
    """
    sides = [] if isinstance(pair, str | Mapping) or not hasattr(pair, "__iter__") else list(pair)
    if len(sides) != 2:
        given = f"{len(sides)} values" if sides else f"a value of type {type(pair).__name__}"
        raise UserError(f"{what}: expected a pair (words, tags) or (source, target), found {given}")
    split = []
    for side in sides:
        tokens = side.split() if isinstance(side, str) else tokens_of(what, side)
        for token in tokens:
            if not isinstance(token, str):
                kind = type(token).__name__
                raise UserError(f"{what}: {token!r} is a token of type {kind}; tokens are strings")
        split.append(tokens)
    return split


def tokens_of(what: str, side: Any) -> list[Any]:
    """List the tokens of a sequence. Raises UserError if it is none."""
    if isinstance(side, Mapping | bytes) or not hasattr(side, "__iter__"):
        kind = type(side).__name__
        raise UserError(f"{what}: {str(side)[:40]!r} is of type {kind}, not a text or a list")
    return list(side)
