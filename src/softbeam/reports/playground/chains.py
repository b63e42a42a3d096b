"""Chains over a text for a viewer: a thread runs them, a little ahead of what was looked at."""

from collections.abc import Mapping
from contextlib import suppress
from threading import Condition, Lock, Thread
from typing import Any, NamedTuple

from softbeam.errors import UserError, check_range
from softbeam.sampling.texts.sampler import generator, sampler
from softbeam.sampling.texts.settings import SamplingConfig, overridden
from softbeam.sampling.texts.steps import ChainStep, Start, watched
from softbeam.types import TextModel

LEAD = 60  # steps that are computed before they are asked for
LONGEST_TEXT = 4000  # characters
MOST_CHAINS = 8
CHANGED: dict[str, tuple[type, ...]] = {  # what a viewer may change, and the types of JSON
    "chains": (int,),
    "seed": (int,),
    "kernel": (str,),
    "free": (str,),
    "start": (str,),
    "proposal_temperature": (int, float),
}


class Stopped(Exception):
    """The viewer has left these chains."""


class News(NamedTuple):
    """What a viewer has not seen yet."""

    start: Start | None  # None: not computed yet
    steps: list[ChainStep]
    over: bool  # no steps come after these
    error: str


class Playing:
    """Chains over a text, which wait if nobody looks.

    They are those of `softbeam.sample` with the same settings. Raises UserError if the text cannot
    be sampled.
    """

    def __init__(self, mlm: TextModel, text: str, config: SamplingConfig):
        self.mlm, self.config = mlm, config
        self.sampler = sampler(mlm, [text], config)
        self.changed = Condition()
        self.start: Start | None = None
        self.steps: list[ChainStep] = []
        self.first = 0  # the number of the first of `steps`: those before it were looked at
        self.stopped = self.over = False
        self.error = ""
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def news(self, after: int) -> News:
        """The steps after the first `after` ones, as far as there are any; does not wait."""
        with self.changed:
            done = min(max(after - self.first, 0), len(self.steps))
            del self.steps[:done]
            self.first += done
            self.changed.notify_all()
            return News(self.start, list(self.steps), self.over, self.error)

    def stop(self, *, wait: bool = False) -> None:
        """End the chains after the step that they are in."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        if wait:
            self.thread.join()

    def _run(self) -> None:
        rng = generator(self.config, 0)
        mlm, chosen = self.mlm, self.sampler
        try:
            with suppress(Stopped):
                for _ in watched(mlm, chosen, rng, on_start=self._begin, on_move=self._add):
                    pass
        except Exception as error:  # whatever it is, the page says so
            self.error = " ".join(str(error).splitlines()) or type(error).__name__
        self.over = True

    def _begin(self, start: Start) -> None:
        self.start = start

    def _add(self, step: ChainStep) -> None:
        with self.changed:
            self.steps.append(step)
            self.changed.wait_for(lambda: self.stopped or len(self.steps) < LEAD)
            if self.stopped:
                raise Stopped


class ChainViews:
    """The chains of one viewer at a time, over texts of a masked language model."""

    def __init__(self, mlm: TextModel, name: str, text: str, config: SamplingConfig):
        self.mlm, self.name, self.text, self.config = mlm, name, text, config
        self.playing: Playing | None = None
        self.number, self.lock = 0, Lock()

    def begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Start chains over a text, in place of those before them; returns their number.

        Raises UserError if a setting or the text cannot be used.
        """
        text = asked.get("text")
        if not isinstance(text, str) or not text.strip():
            raise UserError("text: give a text; [MASK] is a gap of one token")
        check_range("text: its characters", len(text), most=LONGEST_TEXT)
        config = settings(self.config, asked)
        with self.lock:
            begun = Playing(self.mlm, text, config)
            self.stop()
            self.playing, self.number = begun, self.number + 1
            return {"number": self.number}

    def news(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What has happened after the first `after` steps. Raises UserError if chains are gone."""
        after = asked.get("after")
        if self.playing is None or asked.get("number") != self.number:
            raise UserError("these chains were replaced by others, in another window")
        if not isinstance(after, int):
            raise UserError(f"after {after}: must be a whole number")
        start, steps, over, error = self.playing.news(after)
        return {
            "start": None if start is None else start._asdict(),
            "steps": [[step.sweep, step.moves] for step in steps],
            "over": over,
            "error": error,
        }

    def stop(self, *, wait: bool = False) -> None:
        """End the chains that run."""
        if self.playing is not None:
            self.playing.stop(wait=wait)


def settings(config: SamplingConfig, asked: Mapping[str, Any]) -> SamplingConfig:
    """The settings with what the viewer has changed. Raises UserError if a value is wrong."""
    changes = {}
    for name, types in CHANGED.items():
        value = asked.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, types):
            raise UserError(f"{name} {value}: must be {' or '.join(t.__name__ for t in types)}")
        changes[name] = types[-1](value)  # 1 is a number of JSON, and temperatures are floats
    check_range("chains", changes.get("chains"), least=1, most=MOST_CHAINS)
    return overridden(config, changes)
