"""Positions of texts, counted from 1: which of them are sampled, and what may stand there."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from softbeam.errors import UserError
from softbeam.sampling.texts.settings import positions_in
from softbeam.tensors import Allowed, may_stand
from softbeam.types import Prompts, TextModel


def places(mlm: TextModel, tokens: Int[Tensor, "chain time"]) -> Int[Tensor, "chain time"]:
    """Number the tokens of each text from 1; those that the tokenizer adds, and padding, are 0."""
    own = may_stand(tokens, mlm.allowed) | (tokens == mlm.mask_id)
    return own.cumsum(-1) * own


def at_positions(
    option: str, text: str, place: Int[Tensor, "chain time"], number: Sequence[int] | None = None
) -> Bool[Tensor, "chain time"]:
    """Mark the positions of a list. Raises UserError if a text is shorter.

    `number` has the number of each row's text, for the message.
    """
    positions = positions_in(option, text)
    lengths = place.amax(-1)
    short = (lengths < positions[-1]).nonzero()[:, 0].tolist()
    if short:
        which = short[0] if number is None else number[short[0]]
        raise UserError(
            f"{option} {text}: text {which} has {int(lengths[short[0]])} positions, counted from 1"
        )
    return torch.isin(place, torch.tensor(positions))


def free_positions(
    mlm: TextModel, prompts: Prompts, *, free: str, fix: str | None
) -> Bool[Tensor, "row time"]:
    """Mark the positions that are sampled.

    Args:
        mlm: the model.
        prompts: the texts.
        free: mask, all, or a list of positions.
        fix: a list of positions that stay; given alone, all others are sampled.

    Raises UserError if a gap would not be filled.
    """
    place = places(mlm, prompts.tokens)
    if free == "mask" and not fix:
        return prompts.hidden
    table = place > 0
    if free not in ("mask", "all"):
        table = at_positions("--free", free, place)
    if fix:
        table = table & ~at_positions("--fix", fix, place)
    left = (prompts.hidden & ~table).nonzero()
    if len(left):
        row, time = left[0].tolist()
        option = f"--free {free}" if free not in ("mask", "all") else f"--fix {fix}"
        raise UserError(f"{option}: text {row} has a gap at {int(place[row, time])}")
    return table


def allowed_sets(
    mlm: TextModel,
    tokens: Int[Tensor, "chain time"],
    allowed: Bool[Tensor, " vocab"],
    lines: Sequence[str],
    *,
    chains: int,
) -> Allowed:
    """Restrict the tokens of some positions; each line is positions and the tokens allowed there.

    Args:
        mlm: the model.
        tokens: the texts, `chains` rows of each.
        allowed: what may stand at all other positions.
        lines: as `26-33 ASTG` for letters, or `3 cat dog`.
        chains: rows of each text.

    Raises UserError if a line is malformed, or names no token of the model.
    """
    if not lines:
        return allowed
    place = places(mlm, tokens)
    table = allowed.expand(*tokens.shape, -1).clone()
    for line in lines:
        positions, *names = line.split()
        if not names:
            raise UserError(f"--allowed-at: {line!r} must be positions and tokens, as 26-33 ASTG")
        if len(names) == 1 and mlm.token_id(names[0]) is None:
            names = list(names[0])
        number = [row // chains for row in range(len(tokens))]
        cells = at_positions("--allowed-at", positions, place, number)
        table[cells] = named_tokens("--allowed-at", mlm, names)
    return table


def named_tokens(option: str, mlm: TextModel, names: Sequence[str]) -> Bool[Tensor, " vocab"]:
    """Mark these tokens in the vocabulary.

    Raises UserError if the model has no such token, or never samples it.
    """
    ids = []
    for name in names:
        i = mlm.token_id(name)
        if i is None or i >= len(mlm.allowed) or not mlm.allowed[i]:
            what = "no token of the model" if i is None else "a special token, never sampled"
            raise UserError(f"{option} {name}: is {what}")
        ids.append(i)
    return torch.zeros_like(mlm.allowed).index_fill(0, torch.tensor(ids), True)
