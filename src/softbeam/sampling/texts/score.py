"""Pseudo-log-likelihoods of texts under a masked language model, in bounded memory."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from softbeam.errors import UserError, check_range
from softbeam.sampling.fitting_rows import FittingRows
from softbeam.sampling.strided import ENERGIES, named_energy
from softbeam.sampling.texts.settings import Rows, check_choice, check_rows, row_limit
from softbeam.types import MaskedLM, TextModel

TOGETHER = 16  # texts in a batch, wherever it is scored, so that all get the same numbers
TOKENS = 16_384  # the largest number of tokens that the model gets at once


class Scored(NamedTuple):
    """A text and its score, -energy: higher is likelier."""

    text: str
    score: float
    tokens: list[str]
    scores: list[float]  # of each token, given all others


def score_texts(
    mlm: TextModel,
    texts: Sequence[str],
    *,
    energy: str = "local",
    rows: Rows = 256,
    stride: int = 8,
    first: int = 0,
) -> Iterator[Scored]:
    """Yield the score of each text, in order.

    Memory is bounded: the model gets at most `rows` masked rows, and at most 16,384 tokens, at
    once, however many or long the texts are. With rows="auto" it gets as many tokens as fit.

    Args:
        mlm: the masked language model.
        texts: texts without gaps.
        energy: local sums log-probabilities; raw sums logits; strided is cheaper.
        rows: the largest number of masked rows that the model gets at once.
        stride: the distance of positions that a strided energy masks together.
        first: the number of the first text, for error messages.
    """
    check_choice("--energy", energy, ENERGIES)
    check_rows(rows)
    check_range("--stride", stride, least=1)
    lm = FittingRows(mlm) if rows == "auto" else mlm
    for start in range(0, len(texts), TOGETHER):
        together = texts[start : start + TOGETHER]
        place = first + start
        yield from score_batch(mlm, together, place, energy=energy, rows=rows, stride=stride, lm=lm)


@torch.inference_mode()
def score_batch(
    mlm: TextModel,
    texts: Sequence[str],
    first: int,
    *,
    energy: str,
    rows: Rows,
    stride: int,
    lm: MaskedLM,
) -> list[Scored]:
    """Score a few texts with `lm`; `first` is the number of the first one, for error messages."""
    prompts = mlm.encode(texts)
    check_whole(texts, prompts.hidden.sum(-1).tolist(), prompts.frozen, first)
    bounded = row_limit(rows)
    if rows != "auto":
        bounded = max(1, min(bounded, TOKENS // prompts.tokens.shape[1]))
    scores = named_energy(energy, lm, rows=bounded, stride=stride).scores(prompts.tokens)
    batch = []
    for text, ids, row, frozen in zip(texts, prompts.tokens, scores, prompts.frozen, strict=True):
        tokens = mlm.token_names(ids[~frozen].tolist())
        batch.append(Scored(text, float(row.double().sum()), tokens, row[~frozen].tolist()))
    return batch


def check_whole(
    texts: Sequence[str], gaps: Sequence[int], frozen: torch.Tensor, start: int
) -> None:
    """Raise UserError if a text has gaps or no token."""
    for i, (text, n, row) in enumerate(zip(texts, gaps, frozen, strict=True), start):
        if n:
            raise UserError(
                f"text {i} has {n} gaps; only a text without gaps has a score: {text[:40]!r}"
            )
        if bool(row.all()):
            raise UserError(f"text {i} has no token: {text[:40]!r}")


def rendered(
    rows: Iterable[Scored],
    *,
    style: str,
    per_token: bool,
    names: Sequence[str | None] | None = None,
) -> Iterator[str]:
    """Yield lines of text, JSON or tab-separated values; the latter begin with a header line.

    With `names`, each text has its own: in a text's place, in JSON, or in a last column.
    """
    render = {"text": as_text, "jsonl": as_json, "tsv": as_tsv}[style]
    if style == "tsv":
        columns = ["line", "score", "tokens", "per_token", "text", *["scores"] * per_token]
        yield "\t".join([*columns, *["name"] * (names is not None)])
    for line, row in enumerate(rows):
        yield render(line, row, per_token, None if names is None else names[line] or "")


def as_text(line: int, row: Scored, per_token: bool, name: str | None) -> str:
    mean = row.score / len(row.tokens)
    first = f"{row.score:10.3f}  {mean:8.3f} a token  {name or row.text}"
    scores = zip(row.tokens, row.scores, strict=True)
    more = [f"{score:10.3f}  {token}" for token, score in scores] if per_token else []
    return "\n".join([first, *more])


def as_json(line: int, row: Scored, per_token: bool, name: str | None) -> str:
    value: dict[str, object] = {
        "line": line,
        "score": row.score,
        "tokens": len(row.tokens),
        "text": row.text,
    }
    value |= {"token_scores": list(zip(row.tokens, row.scores, strict=True))} if per_token else {}
    value |= {} if name is None else {"name": name}
    return json.dumps(value, ensure_ascii=False)


def as_tsv(line: int, row: Scored, per_token: bool, name: str | None) -> str:
    mean = row.score / len(row.tokens)
    scores = " ".join(f"{t}:{s:.4f}" for t, s in zip(row.tokens, row.scores, strict=True))
    cells = [str(line), f"{row.score:.6f}", str(len(row.tokens)), f"{mean:.6f}"]
    named = [] if name is None else [name.replace("\t", " ")]
    return "\t".join([*cells, row.text.replace("\t", " "), *[scores] * per_token, *named])
