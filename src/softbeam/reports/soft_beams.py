"""Pictures of beams: which parents and words each element mixes, step by step.

The report and the playground draw a beam from the same `layout`, with the same macro (`lattice` in
views.html.jinja). A hard beam is a picture whose elements have one parent and one word each.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.data.batches import Encoded, collate
from softbeam.data.encoding import encode
from softbeam.data.readers import Example
from softbeam.data.vocabulary import EOS, Codec
from softbeam.errors import UserError
from softbeam.search.hard import (
    beam_search,
    best_continuations,
    choose,
    continuations,
    feed,
    first_beam,
)
from softbeam.search.soft.beam import Relaxation
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.form import REFERENCE
from softbeam.search.soft.loop import soft_beams
from softbeam.tensors import real_tokens
from softbeam.training.decoding import check_lengths, longest
from softbeam.training.runs import Run, load_run
from softbeam.training.searches import SoftBeamSearch
from softbeam.types import Decoder, Hypotheses

WORDS = 4  # how many words of an element are named, the heaviest first
STEPS = 10
FAINT = 0.02  # an edge or word below this weight is not drawn
FEW = 4  # sentences that are drawn if none is asked for
WIDE = 15  # most characters of a word in the drawing
ENDED, STAYED = "(end)", "–"  # the end mark, and the continuation of what has ended


class Element(NamedTuple):
    """An element of the beam after a step: its score, and weights of its parents and words."""

    score: float
    parents: list[float]
    words: list[tuple[str, float]]


class Picture(NamedTuple):
    """A sentence and the elements after each step, best first."""

    number: int  # in dev, from 1; 0 for a sentence of the user's own
    source: str
    gold: str
    read: list[str]  # the source's word at each step, for tagging
    steps: list[list[Element]]


def pictures(
    folder: Path, *, sentences: Sequence[int] = (), k: int = 3, alpha: float = 1.0
) -> list["Beams"]:
    """Soft and hard beams of dev sentences under a run's model, at most `STEPS` steps of each.

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
        both_beams(run, number, examples[number - 1], k=k, alpha=alpha)
        for number in sentences or list(islice(short, FEW)) or [1]
    ]


def drawn(run: Run, number: int, example: Example, steps: list[list[Element]]) -> Picture:
    """The picture of a sentence with these elements after each step."""
    read = list(example.source)[: len(steps)] if not run.kind.has_end else []
    return Picture(number, " ".join(example.source), " ".join(example.target), read, steps)


# Searches of one sentence


class Searched(NamedTuple):
    """A sentence's decoder and the limits of its search."""

    decoder: Decoder
    codec: Codec
    k: int
    alpha: float
    time: int

    @property
    def eos(self) -> int | None:
        """The end mark, if outputs have one."""
        return self.codec.id(EOS)

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """The longest output, for searches that take one for each sentence."""
        return torch.tensor([self.time], device=self.decoder.embedding.device)


def searched_by(run: Run, example: Example, *, k: int, alpha: float) -> Searched:
    """Bind a sentence to the run's model, as its soft beam search sees it.

    A sentence without a gold output is searched as far as `softbeam decode` would; at most `STEPS`
    steps. Raises UserError if the model has no beams, or the beam is wider than the outputs.
    """
    if not run.config.model.left_to_right:
        raise UserError(f"{run.folder}: its model does not decode from left to right; no beams")
    search = run.config.select.to(SoftBeamSearch, k=k, alpha=alpha)
    (encoded,), codec = encode([example], run.codecs), run.codecs.target
    check_lengths("sentence", [encoded], run.model)
    source = collate([Encoded(encoded.source, [])]).source
    source = source.to(next(run.model.parameters()).device)
    limit = search.limits(real_tokens(source).sum(1), codec, longest(run.model))
    time = min(STEPS, len(encoded.target) if example.target else int(limit))
    search.check_space(vocab=len(codec), time=time)
    return Searched(search.bind(run.model.eval()(source), codec), codec, k, alpha, time)


def relaxed_beams(searched: Searched) -> Iterator[Any]:
    """The soft beam after each step, with its relaxed indices."""
    _, _, k, alpha, time = searched
    relaxation = Relaxation(k, alpha, form=REFERENCE)
    return soft_beams(searched.decoder, relaxation, time=time, eos=searched.eos)


def element(p: Float[Tensor, "prev cells"], score: float, codec: Codec) -> Element:
    """The element whose relaxed indices are `p`."""
    weights, numbers = p.sum(0).topk(min(WORDS, p.shape[1]))
    heaviest = zip(numbers.tolist(), weights.tolist(), strict=True)
    words = [(word(codec, i), weight) for i, weight in heaviest if weight >= FAINT]
    return Element(score, p.sum(1).tolist(), words)


class HardChoice(NamedTuple):
    """An element of a hard beam: its score, and the cell that it is."""

    score: float
    parent: int
    token: int  # the size of the vocabulary: the parent has ended, and stays


def hard_choices(searched: Searched) -> list[list[HardChoice]]:
    """The elements of the hard beam of the same decoder after each step (Algorithm 1)."""
    decoder, codec, k, _, time = searched
    beam, steps = first_beam(decoder, searched.lengths), []
    for t in range(time):
        cells, state = continuations(decoder, beam, k)
        total, parent, token = best_continuations(cells, k)
        over = searched.lengths <= t + 1
        step = choose(beam, total, parent, token, over=over, eos=searched.eos)
        stays = beam.finished.gather(1, parent)[0]
        tokens = torch.where(stays, len(codec), step.token[0])
        rows = zip(total[0].tolist(), parent[0].tolist(), tokens.tolist(), strict=True)
        steps.append([HardChoice(*row) for row in rows if row[0] > -torch.inf])
        beam = feed(decoder, beam, state, total, step)
    return steps


def hard_elements(choices: list[list[HardChoice]], codec: Codec) -> list[list[Element]]:
    """A hard beam as elements of one parent and one word."""
    widths = [1, *(len(step) for step in choices)]
    return [
        [
            Element(
                c.score, [float(j == c.parent) for j in range(width)], [(word(codec, c.token), 1)]
            )
            for c in step
        ]
        for step, width in zip(choices, widths, strict=False)
    ]


def word(codec: Codec, number: int) -> str:
    """A token as text; a special token as its number."""
    if number == len(codec):
        return STAYED
    return ENDED if number == codec.id(EOS) else " ".join(codec.decode([number])) or f"<{number}>"


# Both beams


class Output(NamedTuple):
    """An output of a search."""

    text: str
    score: float  # of the search
    hard_score: float  # of the output, when its tokens are fed


class Beams(NamedTuple):
    """A soft beam and the hard beam of the same sentence."""

    soft: Picture
    hard: Picture
    share: float  # mean weight of the soft beam's elements on the cells of the hard beam
    soft_paths: list[Output]
    hard_paths: list[Output]


@torch.inference_mode()
def both_beams(run: Run, number: int, example: Example, *, k: int, alpha: float) -> Beams:
    """Search a sentence with a soft and a hard beam, step by step and as a whole."""
    searched = searched_by(run, example, k=k, alpha=alpha)
    choices, steps, shares = hard_choices(searched), list[list[Element]](), list[float]()
    for beam, hard in zip(relaxed_beams(searched), choices, strict=True):
        p = beam.p[0]
        slots = zip(p, beam.score[0].tolist(), strict=True)
        steps.append([element(q, score, searched.codec) for q, score in slots])
        shares += [float(q[c.parent, c.token]) for q, c in zip(p, hard, strict=False)]
    decoder, k, eos = searched.decoder, searched.k, searched.eos
    soft = soft_beam_decode(decoder, k=k, alpha=alpha, time=searched.time, eos=eos)
    found = beam_search(decoder, k=k, lengths=searched.lengths, eos=eos, nbest=k)
    return Beams(
        drawn(run, number, example, steps),
        drawn(run, number, example, hard_elements(choices, searched.codec)),
        sum(shares) / max(len(shares), 1),
        outputs(searched, Hypotheses(*soft[:3]), soft.hard_scores[0].tolist()),
        outputs(searched, found, found.scores[0].tolist()),
    )


def outputs(searched: Searched, found: Hypotheses, hard_scores: list[float]) -> list[Output]:
    """The outputs of a sentence, best first; slots that a small space left empty are dropped."""
    rows = zip(
        found.tokens[0], found.lengths[0], found.scores[0].tolist(), hard_scores, strict=True
    )
    return [
        Output(" ".join(searched.codec.decode(tokens[:length].tolist())), score, hard)
        for tokens, length, score, hard in rows
        if score > -torch.inf
    ]


# Drawing


def layout(picture: Picture) -> dict[str, Any]:
    """The positions of nodes and edges in the drawing, and its size."""
    wide, high, left, top = 108, 58, 40, 44
    nodes, edges = [], []
    heads = [{"x": left + wide * t, "word": shortened(w)} for t, w in enumerate(picture.read, 1)]
    for t, elements in enumerate(picture.steps):
        for i, element in enumerate(elements):
            x, y = left + wide * (t + 1), top + high * i
            (first, weight), (second, less) = [*element.words, ("", 0.0), ("", 0.0)][:2]
            mixed = ", ".join(f"{word} {weight:.2f}" for word, weight in element.words)
            from_ = ", ".join(
                f"{j + 1}: {w:.2f}" for j, w in enumerate(element.parents) if w >= FAINT
            )
            nodes.append(
                {
                    "x": x,
                    "y": y,
                    "word": shortened(first),
                    "weight": weight,
                    "second": shortened(second),
                    "less": less,
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
