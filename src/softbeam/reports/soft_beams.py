"""Pictures of soft beams: which parents and words each element mixes, step by step."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from softbeam.data.batches import collate
from softbeam.data.encoding import encode
from softbeam.data.readers import Example
from softbeam.data.vocabulary import Codec
from softbeam.errors import UserError
from softbeam.search.decoders import LocallyNormalized
from softbeam.search.soft.beam import Relaxation
from softbeam.search.soft.form import REFERENCE
from softbeam.search.soft.loop import soft_beams
from softbeam.training.runs import Run, load_run
from softbeam.types import Decoder

WORDS = 4  # how many words of an element are named, the heaviest first
STEPS = 10
FAINT = 0.02  # an edge or word below this weight is not drawn
FEW = 4  # sentences that are drawn if none is asked for
WIDE = 15  # most characters of a word in the drawing


class Element(NamedTuple):
    """An element of the beam after a step: its score, and weights of its parents and words."""

    score: float
    parents: list[float]
    words: list[tuple[str, float]]


class Picture(NamedTuple):
    """A sentence and the elements after each step, best first."""

    number: int  # in dev, from 1
    source: str
    gold: str
    read: list[str]  # the source's word at each step, for tagging
    steps: list[list[Element]]


@torch.inference_mode()
def pictures(
    folder: Path, *, sentences: Sequence[int] = (), k: int = 3, alpha: float = 1.0
) -> list[Picture]:
    """Soft beams of dev sentences under a run's model, at most `STEPS` steps of each.

    Args:
        folder: the run.
        sentences: numbers of dev sentences, from 1; if there are none, the first few whose outputs
            have 3 to `STEPS` tokens.
        k: beam size.
        alpha: alpha of the relaxation.
    """
    run = load_run(folder, device="cpu")
    examples = run.config.data.load().split("dev")
    for number in sentences:
        if not 1 <= number <= len(examples):
            raise UserError(f"--sentences {number}: dev of {folder} has {len(examples)} sentences")
    short = (n for n, e in enumerate(examples, 1) if 3 <= len(e.target) <= STEPS)
    return [
        picture(run, number, examples[number - 1], k=k, alpha=alpha)
        for number in sentences or list(islice(short, FEW)) or [1]
    ]


def picture(run: Run, number: int, example: Example, *, k: int, alpha: float) -> Picture:
    """The soft beam of one sentence after each step."""
    batch = collate(encode([example], run.codecs))
    decoder: Decoder = run.model.eval()(batch.source)
    if run.config.select.normalize:
        decoder = LocallyNormalized(decoder)
    steps = []
    relaxation = Relaxation(k, alpha, form=REFERENCE)
    for beam in soft_beams(decoder, relaxation, time=min(STEPS, batch.target.shape[1])):
        assert beam.p is not None
        slots = zip(beam.p[0], beam.score[0].tolist(), strict=True)
        steps.append([element(p, score, run.codecs.target) for p, score in slots])
    read = list(example.source)[: len(steps)] if not run.kind.has_end else []
    return Picture(number, " ".join(example.source), " ".join(example.target), read, steps)


def element(p: Float[Tensor, "prev vocab"], score: float, codec: Codec) -> Element:
    """The element whose relaxed indices are `p`."""
    weights, numbers = p.sum(0).topk(min(WORDS, p.shape[1]))
    heaviest = zip(numbers.tolist(), weights.tolist(), strict=True)
    words = [(word(codec, i), weight) for i, weight in heaviest if weight >= FAINT]
    return Element(score, p.sum(1).tolist(), words)


def word(codec: Codec, number: int) -> str:
    """A token as text; a special token as its number."""
    return " ".join(codec.decode([number])) or f"<{number}>"


def layout(picture: Picture) -> dict[str, Any]:
    """The positions of nodes and edges in the drawing, and its size."""
    wide, high, left, top = 108, 58, 40, 44
    nodes, edges = [], []
    heads = [{"x": left + wide * t, "word": shortened(w)} for t, w in enumerate(picture.read, 1)]
    for t, elements in enumerate(picture.steps):
        for i, element in enumerate(elements):
            x, y = left + wide * (t + 1), top + high * i
            mixed = ", ".join(f"{word} {weight:.2f}" for word, weight in element.words)
            from_ = ", ".join(
                f"{j + 1}: {w:.2f}" for j, w in enumerate(element.parents) if w >= FAINT
            )
            nodes.append(
                {
                    "x": x,
                    "y": y,
                    "word": shortened(element.words[0][0]) if element.words else "",
                    "weight": element.words[0][1] if element.words else 0.0,
                    "told": f"step {t + 1}, element {i + 1}: words {mixed}; parents {from_}; "
                    f"score {element.score:.2f}",
                    "step": t,
                }
            )
            edges += [
                {"x1": x - wide, "y1": top + high * j, "x2": x, "y2": y, "weight": weight}
                for j, weight in enumerate(element.parents)
                if weight >= FAINT
            ]
    tall = max(len(elements) for elements in picture.steps)
    size = {"width": left * 2 + wide * len(picture.steps), "height": top * 2 + high * (tall - 1)}
    return {"nodes": nodes, "edges": edges, "heads": heads, "top": top, **size}


def shortened(word: str) -> str:
    """A word cut to `WIDE` characters."""
    return word if len(word) <= WIDE else f"{word[: WIDE - 1]}…"
