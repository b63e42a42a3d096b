"""Time and memory of soft-beam training against cross-entropy, in every form.

What is measured is one update, forward and backward, of an LSTM decoder, or of a Transformer with
its encoder. The forms are timed in turns within one run, by processor time, so that a busy machine
slows all of them alike; medians are reported. Each form's peak of memory is measured in a process
of its own, without what the imports take.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softbeam.errors import UserError
from softbeam.experiments.bench.measuring import count_operators, in_child
from softbeam.models.cell import Layers
from softbeam.models.layers import TransformerShape
from softbeam.models.lstm import Encoded, FixedAttention, Seq2Seq
from softbeam.models.transformer import TransformerSeq2Seq
from softbeam.runtime.synchronizations import count_synchronizations
from softbeam.search.decoders import LocallyNormalized, forced_scores
from softbeam.search.soft.form import REFERENCE, Form
from softbeam.search.soft.loop import expected_cost, soft_beam
from softbeam.tensors import flushed_denormals
from softbeam.types import Decoder

FORMS = ("ce", "reference", "dense", "pooled", "checkpointed")
BUDGET = 20.0  # seconds of processor time after which no further round begins


class NoSource(nn.Module):
    """An encoder of nothing, for a decoder alone."""

    width = 0

    def forward(self, source: Tensor, dropout: nn.Dropout) -> Encoded:
        memory = source.new_empty(*source.shape, 0, dtype=torch.float)
        return Encoded(memory, source.bool(), memory[:, 0])


class LearnedStart(FixedAttention):
    """A first state for each row instead of a source."""

    def __init__(self, batch: int, hidden: int):
        super().__init__(0, hidden, 1)
        self.first = nn.Parameter(torch.randn(batch, hidden))

    def initial(self, encoded: Encoded) -> Layers:
        return (torch.cat([self.first.tanh(), self.first], 1),)


class LstmModel(Seq2Seq):
    """The LSTM decoder of `softbeam train`, without an encoder."""

    def __init__(self, vocab: int, *, hidden: int = 256, batch: int = 32, steps: int = 20):
        super().__init__(1, vocab, encoder=NoSource(), embedding=hidden, hidden=hidden)
        self.attention = LearnedStart(batch, hidden)
        nn.init.normal_(self.embed.weight)  # the states differ from step to step, as trained ones
        nn.init.normal_(self.bos)
        self.source = torch.ones(batch, steps, dtype=torch.long)

    def bound(self) -> Decoder:
        return self(self.source)

    def sharpen(self, factor: float) -> None:
        self.output.weight.mul_(factor)


class TransformerModel(TransformerSeq2Seq):
    """Three layers on each side, 256 wide, with sources as long as the targets."""

    def __init__(self, vocab: int, *, batch: int = 32, steps: int = 20):
        super().__init__(vocab, vocab, TransformerShape(dropout=0.0))
        self.source = torch.randint(1, vocab, (batch, steps))

    def bound(self) -> Decoder:
        return self(self.source)

    def sharpen(self, factor: float) -> None:
        self.embed.weight.mul_(factor)


MODELS: dict[str, type[LstmModel] | type[TransformerModel]]
MODELS = {"lstm": LstmModel, "transformer": TransformerModel}
VOCABULARIES = {"lstm": [10, 1284, 32000], "transformer": [8000]}


class Case:
    """One update of each form for one vocabulary and beam size."""

    def __init__(
        self,
        vocab: int,
        k: int,
        *,
        model: str = "lstm",
        alpha: float = 4.0,
        candidates: int = 64,
        steps: int = 20,
        batch: int = 32,
        normalize: bool = False,
        tolerance: float = 1e-6,
        spread: float = 8.0,
    ):
        """Build a model whose scores have the standard deviation `spread`.

        A spread of 8 gives an entropy of 1.1 to 1.4 nats and a best token of probability 0.6, as
        trained models have.
        """
        torch.manual_seed(0)
        self.model = MODELS[model](vocab, batch=batch)
        self.k, self.alpha, self.vocab, self.normalize = k, alpha, vocab, normalize
        self.target = torch.randint(vocab, (batch, steps))
        self.costs = torch.ones(batch, steps, vocab).scatter_(2, self.target[..., None], 0.0)
        self.pool = Form(candidates=min(candidates, vocab), tolerance=tolerance)
        self.dropped = float("nan")
        with torch.no_grad():
            self.model.sharpen(spread / float(self.forced().std()))

    def update(self, form: str) -> Tensor:
        """The loss of one update, after its backward pass."""
        self.model.zero_grad(set_to_none=True)
        with flushed_denormals():  # as in training
            loss = self.cross_entropy() if form == "ce" else self.soft_beam(form)
            loss.backward()
        return loss.detach()

    def forced(self) -> Tensor:
        return forced_scores(self.model.bound(), self.target)

    def cross_entropy(self) -> Tensor:
        return cross_entropy(self.forced().flatten(0, 1), self.target.flatten())

    def soft_beam(self, form: str) -> Tensor:
        every = Form(candidates=self.vocab)
        forms = {"reference": REFERENCE, "dense": every, "pooled": self.pool}
        how = (forms | {"checkpointed": replace(every, checkpoint=True)})[form]
        decoder = self.model.bound()
        decoder = LocallyNormalized(decoder) if self.normalize else decoder
        beam = soft_beam(decoder, self.costs, k=self.k, alpha=self.alpha, form=how)
        if form == "pooled":
            self.dropped = float(beam.dropped.max())
        return expected_cost(beam, self.alpha).sum()


def two_updates(vocab: int, k: int, form: str, **options: Any) -> dict[str, Any]:
    """Build a case and make two updates, for the memory that they take."""
    case = Case(vocab, k, **options)
    for _ in range(2):
        case.update(form)
    return {}


def measure(vocab: int, k: int, *, repeats: int, memory: bool, **options: Any) -> dict[str, Any]:
    """One row of the benchmark: seconds of every form, their ratios, and peaks of memory."""
    case = Case(vocab, k, **options)
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    updates = {form: partial(case.update, form) for form in FORMS}
    operators = {form: count_operators(update) for form, update in updates.items()}  # warms up
    began = time.process_time()
    for turn in range(repeats):
        if turn >= 3 and time.process_time() - began > BUDGET:
            break
        for form in FORMS:
            started = time.process_time()
            case.update(form)
            times[form].append(time.process_time() - started)
    medians = {form: statistics.median(values) for form, values in times.items()}
    row: dict[str, Any] = {"vocab": vocab, "k": k}
    row |= {f"{form}_s": medians[form] for form in FORMS}
    row |= {f"{form}_ratio": medians[form] / medians["ce"] for form in FORMS[1:]}
    fastest = min("dense", "pooled", key=lambda form: medians[form])
    row |= {"best": fastest, "best_ratio": medians[fastest] / medians["ce"]}
    row |= {"speedup": medians["reference"] / medians[fastest], "dropped_bound": case.dropped}
    row["operators"] = operators
    row["synchronizations"] = {form: count_synchronizations(updates[form]) for form in FORMS}
    if memory:
        peaks = {form: in_child(two_updates, vocab, k, form, **options) for form in FORMS}
        row["peak_mb"] = {form: measured["peak_mb"] for form, measured in peaks.items()}
    return row


def run(
    *,
    model: str = "lstm",
    vocab: Sequence[int] | None = None,
    k: Sequence[int] = (1, 3, 5),
    repeats: int = 5,
    alpha: float = 4.0,
    candidates: int = 64,
    normalize: bool = False,
    memory: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Rows of times (s), their ratios to cross-entropy, and peaks (MB), for each vocabulary and k.

    A `dropped_bound` of 0 says that the pool fell back to the dense form, or held every cell.

    Args:
        model: lstm or transformer.
        vocab: sizes of the vocabulary; None for the model's usual ones.
        k: beam sizes.
        repeats: rounds, in which the forms take turns.
        alpha: alpha of the relaxation.
        candidates: candidates of the pooled form.
        normalize: whether local scores are normalized.
        memory: whether peaks are measured.
        progress: called with lines of text as rows are finished.
    """
    if model not in VOCABULARIES:
        raise UserError(f"--model {model}: must be one of {', '.join(VOCABULARIES)}")
    rows = []
    for size in vocab or VOCABULARIES[model]:
        for beam in k:
            options = {"model": model, "alpha": alpha, "candidates": candidates}
            options["normalize"] = normalize
            rows.append(measure(size, beam, repeats=repeats, memory=memory, **options))
            progress(row_text(rows[-1]))
    settings = {"model": model, "width": 256, "batch": 32, "time": 20, "alpha": alpha}
    settings |= {"candidates": candidates, "normalize": normalize, "repeats": repeats}
    return {"settings": settings, "rows": rows}


def row_text(row: dict[str, Any]) -> str:
    """A row's ratios and operator calls, and its peaks on a third line if they were measured."""
    ratios = "  ".join(f"{form} {row[form + '_ratio']:5.1f}x" for form in FORMS[1:])
    lines = [f"V={row['vocab']:<6} k={row['k']}  CE {row['ce_s']:.3f} s  {ratios}"]
    waits = row["synchronizations"]
    calls = (f"{form} {n:,} ({waits[form]})" for form, n in row["operators"].items())
    lines.append(f"{'':16}operator calls (synchronizations): {'  '.join(calls)}")
    if "peak_mb" in row:
        peaks = "  ".join(f"{form} {mb:,.0f}" for form, mb in row["peak_mb"].items())
        lines.append(f"{'':16}peak MB: {peaks}")
    return "\n".join(lines)
