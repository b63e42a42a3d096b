"""Exact training of the LSTM random field: true conditionals and log Z, in time and memory.

The pseudolikelihood is timed in turns with the evaluation of all |V| T substituted sequences in one
batched forward and backward pass; medians are reported. Each log Z is computed in a process of its
own, whose peak of memory is reported without what the imports take.
"""

import statistics
import time as clock
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from softbeam import exact
from softbeam.experiments.bench.measuring import in_child, timed
from softbeam.models.random_field import BiLstmMrf
from softbeam.objectives.energy import Pseudolikelihood
from softbeam.objectives.losses.energy import gold_nll, one_by_one
from softbeam.schedules import Moment
from softbeam.types import Batch

FORMS = ("shared", "gradient", "enumerated")  # of log Z; "gradient" is "shared" with backward


def conditionals(*, vocab: int, time: int, batch: int, hidden: int, repeats: int) -> dict[str, Any]:
    """One update of the pseudolikelihood against one batch of all substituted sequences."""
    torch.manual_seed(0)
    model = BiLstmMrf(vocab, embedding=hidden, hidden=hidden)
    tokens = torch.randint(vocab, (batch, time))
    data = Batch.of(tokens, tokens)
    objective, rng = Pseudolikelihood(), torch.Generator()

    def ours() -> Tensor:
        return objective(model, data, now=Moment(), rng=rng).total

    def one_batch() -> Tensor:
        log_probs = one_by_one(model)(data.target, data.mask).log_softmax(-1)
        return gold_nll(log_probs, data.target, data.mask).sum()

    losses = {"ours": ours, "one_batch": one_batch}
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for turn in range(repeats + 1):
        for name, loss in losses.items():
            model.zero_grad(set_to_none=True)
            spent = timed(lambda loss=loss: loss().backward())  # type: ignore[misc]
            if turn:  # the first warms up
                seconds[name].append(spent)
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["one_batch"], strict=True)]
    row: dict[str, Any] = {"vocab": vocab, "time": time, "batch": batch, "hidden": hidden}
    row |= {f"{name}_s": statistics.median(values) for name, values in seconds.items()}
    return row | {"ratio": statistics.median(ratios)}


def log_z(vocab: int, time: int, hidden: int, form: str) -> dict[str, Any]:
    """The value of one log Z, and the seconds that it takes."""
    torch.manual_seed(0)
    model = BiLstmMrf(vocab, embedding=hidden, hidden=hidden)
    started = clock.perf_counter()
    with torch.set_grad_enabled(form == "gradient"):
        if form == "enumerated":
            space = exact.Space(vocab=vocab, time=time)
            value = exact.log_partition(lambda tokens: -model.energy(tokens), space)
        else:
            value = model.log_partition(time)
    if form == "gradient":
        value.backward()
    return {"log_z": value.item(), "seconds": clock.perf_counter() - started}


def run(
    *,
    repeats: int,
    vocab: int = 39,
    time: int = 6,
    batch: int = 16,
    hidden: int = 64,
    spaces: Sequence[tuple[int, int]] = ((5, 5), (39, 4)),
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The ratio of the pseudolikelihood, and seconds and MB of log Z for each space and form."""
    pll = conditionals(vocab=vocab, time=time, batch=batch, hidden=hidden, repeats=repeats)
    progress(
        f"pseudolikelihood V={vocab} T={time}: {pll['ours_s']:.3f} s, {pll['ratio']:.2f}x "
        f"one batch of all substitutions ({pll['one_batch_s']:.3f} s)"
    )
    rows = []
    for size, length in spaces:
        row: dict[str, Any] = {"vocab": size, "time": length, "sequences": size**length}
        row |= {form: in_child(log_z, size, length, hidden, form) for form in FORMS}
        rows.append(row)
        shown = (
            f"{form} {row[form]['seconds']:.2f} s {row[form]['peak_mb']:.0f} MB" for form in FORMS
        )
        progress(f"log Z of {size}^{length}: {', '.join(shown)}")
    return {"bench": "exact", "hidden": hidden, "pseudolikelihood": pll, "log_z": rows}
