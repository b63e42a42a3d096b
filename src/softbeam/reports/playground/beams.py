"""Beams of a sentence for a viewer: soft at an alpha, the hard one, and the paths of both."""

from collections.abc import Mapping
from itertools import islice
from threading import Lock
from typing import Any

from softbeam.data.readers import Example
from softbeam.errors import UserError, check_range
from softbeam.reports.soft_beams import STEPS, Beams, both_beams, searched_by
from softbeam.schedules import LARGEST_ALPHA
from softbeam.training.runs import Run

MOST_SENTENCES = 100
LONGEST_SOURCE = 2000  # characters
WIDEST = 8  # beam that a page draws


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
