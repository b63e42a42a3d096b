"""How the time of a computation grows with its sizes, beside what arithmetic allows.

Each row varies one size, fits time = c size^e to processor times, and compares e with the largest
power in the number of operations. Small sizes would show a smaller e, because a part of the time is
the same for all sizes; so an e above the power means that something is computed twice.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from softbeam.experiments.bench.sampler import kernel, setting, some_blocks, take_steps
from softbeam.experiments.bench.score import ours, random_bert
from softbeam.experiments.bench.soft_beam import Case
from softbeam.search.hard import beam_search

MARGIN = 0.1  # of an exponent, for noise
VOCAB = 2000  # of the masked model


class Growth(NamedTuple):
    """A computation whose size varies: how many operations it has, and how it is prepared."""

    work: str
    size: str
    power: float
    values: Sequence[int]
    prepare: Callable[[int], Callable[[], object]]


def soft_beam(form: str, **fixed: int) -> Callable[..., Callable[[], object]]:
    def prepare(**size: int) -> Callable[[], object]:
        sizes = {"vocab": 1000, "k": 3, "steps": 10, "batch": 16} | fixed | size
        case = Case(sizes.pop("vocab"), sizes.pop("k"), **sizes)  # type: ignore[arg-type]
        return lambda: case.update(form)

    return prepare


def hard_beam(**size: int) -> Callable[[], object]:
    sizes = {"vocab": 4000, "k": 5, "steps": 10, "batch": 16} | size
    steps = sizes["steps"]
    model = Case(sizes["vocab"], 1, steps=steps, batch=sizes["batch"]).model
    limits = torch.full((sizes["batch"],), steps)

    @torch.no_grad()
    def search() -> object:
        return beam_search(model.bound(), k=sizes["k"], lengths=limits)

    return search


def sampling(**size: int) -> Callable[[], object]:
    sizes = {"chains": 8, "time": 16, "vocab": VOCAB} | size
    case = setting("bert-mini", updates=0, **sizes)  # type: ignore[arg-type]
    step = kernel("reference", case).kernel
    state, blocks = step.init(case.tokens), some_blocks(case.free, 2, seed=0)
    return lambda: take_steps(step, state, blocks, seed=0)


def scoring(**size: int) -> Callable[[], object]:
    sizes = {"texts": 4, "tokens": 32} | size
    mlm = random_bert("bert-mini", VOCAB)
    words = [f"w{(7 * i) % 900}" for i in range(sizes["tokens"])]
    texts = ["".join(words[i:] + words[:i]) for i in range(sizes["texts"])]
    return lambda: ours(mlm, texts)


def of(name: str, prepare: Callable[..., Callable[[], object]]) -> Callable[[int], Any]:
    """Let `prepare` take the size called `name`."""
    return lambda value: prepare(**{name: value})


GROWTHS = (
    Growth("soft beam, dense", "V", 1, (1000, 2000, 4000), of("vocab", soft_beam("dense"))),
    Growth("soft beam, dense", "k", 2, (2, 4, 8), of("k", soft_beam("dense"))),
    Growth("soft beam, dense", "T", 1, (5, 10, 20), of("steps", soft_beam("dense"))),
    Growth("soft beam, pooled", "V", 1, (4000, 8000, 16000), of("vocab", soft_beam("pooled"))),
    Growth("beam search", "V", 1, (4000, 8000, 16000), of("vocab", hard_beam)),
    Growth("beam search", "k", 1, (4, 8, 16), of("k", hard_beam)),
    Growth("beam search", "T", 1, (10, 20, 40), of("steps", hard_beam)),
    Growth("Metropolis-Hastings", "V", 1, (2000, 4000, 8000), of("vocab", sampling)),
    Growth("Metropolis-Hastings", "T", 2, (16, 32, 64), of("time", sampling)),
    Growth("Metropolis-Hastings", "chains", 1, (4, 8, 16), of("chains", sampling)),
    Growth("pseudo-log-likelihood", "T", 2, (16, 32, 64), of("tokens", scoring)),
    Growth("pseudo-log-likelihood", "rows", 1, (2, 4, 8), of("texts", scoring)),
)


def run(
    *,
    repeats: int,
    growths: Sequence[Growth] = GROWTHS,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The exponent of every size, beside the power of arithmetic."""
    rows = []
    for growth in growths:
        seconds = times(growth, repeats)
        exponent = fitted(growth.values, seconds)
        above = exponent > growth.power + MARGIN
        row: dict[str, Any] = {"work": growth.work, "size": growth.size}
        row |= {"values": list(growth.values)}
        row |= {"seconds": seconds, "exponent": round(exponent, 2), "power": growth.power}
        rows.append(row | {"above": above})
        progress(
            f"{growth.work:22} {growth.size:7} {exponent:5.2f}  arithmetic {growth.power}"
            + ("  ABOVE" if above else "")
        )
    return {"bench": "growth", "rows": rows}


def times(growth: Growth, repeats: int) -> list[float]:
    """The least processor time of each size, in rounds in which the sizes take turns."""
    calls = [growth.prepare(value) for value in growth.values]
    least = [math.inf] * len(calls)
    for turn in range(repeats + 1):
        for place, call in enumerate(calls):
            started = time.process_time()
            call()
            if turn:  # the first warms up
                least[place] = min(least[place], time.process_time() - started)
    return least


def fitted(values: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent e of seconds = c values^e, by least squares of logarithms."""
    return statistics.linear_regression(
        [math.log(value) for value in values], [math.log(max(s, 1e-9)) for s in seconds]
    ).slope
