"""Pseudo-log-likelihoods of texts under a masked language model, in bounded memory."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from softbeam.errors import UserError
from softbeam.runtime import ranks
from softbeam.sampling.energies import LocalEnergy, RawEnergy
from softbeam.types import TextModel

ENERGIES = {"local": LocalEnergy, "raw": RawEnergy}
TOGETHER = 16  # texts; what comes together is the same for any number of processes
TOKENS = 16_384  # given to the model at once


class Scored(NamedTuple):
    """A text's score, -E: higher is likelier."""

    text: str
    score: float
    tokens: list[str]
    scores: list[float]  # of each token, given all others


def scored(
    mlm: TextModel, texts: Sequence[str], *, energy: str = "local", rows: int = 256
) -> Iterator[Scored]:
    """The score of each text, in order, while they are found; processes share the texts.

    Memory is bounded: at most `rows` masked rows, and at most 16,384 tokens of them, are given to
    the model at once, however many or long the texts are.

    Args:
        mlm: the masked language model.
        texts: whole ones, without gaps.
        energy: local, the sum of log-probabilities; or raw, of logits.
        rows: largest number of masked rows given to the model at once.
    """

    def part(start: int) -> list[Scored]:
        together = texts[start : start + TOGETHER]
        return scored_together(mlm, together, start, energy=energy, rows=rows)

    for found in ranks.in_turn(range(0, len(texts), TOGETHER), part):
        yield from (Scored(*one) for one in found)


@torch.inference_mode()
def scored_together(
    mlm: TextModel, texts: Sequence[str], first: int, *, energy: str, rows: int
) -> list[Scored]:
    """The scores of a few texts, of which the first has this number."""
    prompts = mlm.encode(texts)
    check_whole(texts, prompts.hidden.sum(-1).tolist(), prompts.frozen, first)
    bounded = max(1, min(rows, TOKENS // prompts.tokens.shape[1]))
    scores = ENERGIES[energy](mlm, rows=bounded).scores(prompts.tokens)
    found = []
    for text, ids, row, frozen in zip(texts, prompts.tokens, scores, prompts.frozen, strict=True):
        tokens = mlm.token_names(ids[~frozen].tolist())
        found.append(Scored(text, float(row.double().sum()), tokens, row[~frozen].tolist()))
    return found


def check_whole(
    texts: Sequence[str], gaps: Sequence[int], frozen: torch.Tensor, start: int
) -> None:
    """A sentence about a text that has no score."""
    for i, (text, n, row) in enumerate(zip(texts, gaps, frozen, strict=True), start):
        if n:
            raise UserError(f"text {i} has {n} gaps; a whole text has a score: {text[:40]!r}")
        if bool(row.all()):
            raise UserError(f"text {i} has no token: {text[:40]!r}")


def rendered(rows: Iterable[Scored], *, style: str, per_token: bool) -> Iterator[str]:
    """Lines of text, JSON or tab-separated values (with a first line of names)."""
    render = {"text": as_text, "jsonl": as_json, "tsv": as_tsv}[style]
    if style == "tsv":
        yield "\t".join(["line", "score", "tokens", "per_token", "text", *["scores"] * per_token])
    for line, one in enumerate(rows):
        yield render(line, one, per_token)


def as_text(line: int, one: Scored, per_token: bool) -> str:
    each = one.score / len(one.tokens)
    first = f"{one.score:10.3f}  {each:8.3f} a token  {one.text}"
    scores = zip(one.tokens, one.scores, strict=True)
    more = [f"{score:10.3f}  {token}" for token, score in scores] if per_token else []
    return "\n".join([first, *more])


def as_json(line: int, one: Scored, per_token: bool) -> str:
    row = {"line": line, "score": one.score, "tokens": len(one.tokens), "text": one.text}
    more = {"token_scores": list(zip(one.tokens, one.scores, strict=True))} if per_token else {}
    return json.dumps(row | more, ensure_ascii=False)


def as_tsv(line: int, one: Scored, per_token: bool) -> str:
    each = one.score / len(one.tokens)
    scores = " ".join(f"{t}:{s:.4f}" for t, s in zip(one.tokens, one.scores, strict=True))
    cells = [str(line), f"{one.score:.6f}", str(len(one.tokens)), f"{each:.6f}"]
    return "\t".join([*cells, one.text.replace("\t", " "), *[scores] * per_token])
