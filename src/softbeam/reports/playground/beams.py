"""Beams of a sentence for a viewer: soft at an alpha, the hard one, and the paths of both."""

from collections.abc import Mapping
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

import torch

from softbeam.data.readers import Example
from softbeam.errors import UserError, check_range
from softbeam.reports.soft_beams import (
    STEPS,
    Element,
    Picture,
    Searched,
    drawn,
    element,
    hard_choices,
    hard_elements,
    relaxed_beams,
    searched_by,
)
from softbeam.schedules import LARGEST_ALPHA
from softbeam.search.hard import beam_search
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.training.runs import Run
from softbeam.types import Hypotheses

MOST_SENTENCES = 100
LONGEST_SOURCE = 2000  # characters
WIDEST = 8  # beam that a page draws


class Path(NamedTuple):
    """An output of a search."""

    text: str
    score: float  # of the search
    hard_score: float  # of the output, when its tokens are fed


class Beams(NamedTuple):
    """A soft beam and the hard beam of the same sentence."""

    soft: Picture
    hard: Picture
    share: float  # mean weight of the soft beam's elements on the cells of the hard beam
    soft_paths: list[Path]
    hard_paths: list[Path]


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
        paths(searched, Hypotheses(*soft[:3]), soft.hard_scores[0].tolist()),
        paths(searched, found, found.scores[0].tolist()),
    )


def paths(searched: Searched, found: Hypotheses, hard_scores: list[float]) -> list[Path]:
    """The outputs of a sentence, best first; slots that a small space left empty are dropped."""
    rows = zip(
        found.tokens[0], found.lengths[0], found.scores[0].tolist(), hard_scores, strict=True
    )
    return [
        Path(" ".join(searched.codec.decode(tokens[:length].tolist())), score, hard)
        for tokens, length, score, hard in rows
        if score > -torch.inf
    ]


class BeamViews:
    """Sentences of a run's dev split, or of the viewer's own, and their beams.

    Raises UserError if the run's model has no beams.
    """

    def __init__(self, run: Run, name: str, *, k: int = 3, source: str = "", sentence: int = 0):
        self.run, self.name, self.k, self.source, self.sentence = run, name, k, source, sentence
        self.lock = Lock()
        try:
            self.examples = run.config.data.load().split("dev")
        except UserError:  # the corpus is gone; sentences of the viewer's own are left
            self.examples = []
        check_range("--sentence", sentence, least=0, most=len(self.examples))
        short = (n for n, e in enumerate(self.examples, 1) if 3 <= len(e.target) <= STEPS)
        self.numbers = (
            list(islice(short, MOST_SENTENCES)) or [*range(1, len(self.examples) + 1)][:1]
        )
        if sentence and sentence not in self.numbers:
            self.numbers.insert(0, sentence)
        if source or self.numbers:
            number = 0 if source else sentence or self.numbers[0]
            searched_by(run, self.example(number, source), k=k, alpha=1.0)

    def sentences(self) -> list[tuple[int, str]]:
        """Numbers and texts of the sentences that are offered."""
        return [(number, " ".join(self.examples[number - 1].source)) for number in self.numbers]

    def example(self, number: int, source: str) -> Example:
        """A dev sentence by its number, or with number 0 a sentence of the viewer's own."""
        if number:
            check_range("sentence", number, least=1, most=len(self.examples))
            return self.examples[number - 1]
        check_range("source: its characters", len(source), most=LONGEST_SOURCE)
        tokens = self.run.config.data.tokens(source)
        if not tokens:
            raise UserError("source: give at least one word")
        return Example(tokens, ())

    def beams(self, asked: Mapping[str, Any]) -> Beams:
        """The beams that a viewer asks for. Raises UserError if a value is wrong."""
        number, source = asked.get("sentence", 0), asked.get("source", "")
        k, alpha = asked.get("k", self.k), asked.get("alpha", 1.0)
        for name, value, kind in (
            ("sentence", number, int),
            ("source", source, str),
            ("k", k, int),
        ):
            if isinstance(value, bool) or not isinstance(value, kind):
                raise UserError(f"{name} {value}: must be {kind.__name__}")
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise UserError(f"alpha {alpha}: must be a number")
        check_range("k", k, least=1, most=WIDEST)
        check_range("alpha", alpha, above=0, most=LARGEST_ALPHA)
        example = self.example(number, source)
        with self.lock:  # one search at a time
            return both_beams(self.run, number, example, k=k, alpha=float(alpha))
