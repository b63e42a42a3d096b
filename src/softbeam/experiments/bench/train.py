"""Speed of cross-entropy training against a bare loop over `torch.nn.LSTM` of the same sizes."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbeam.data.encoding import Codecs
from softbeam.data.readers import Example
from softbeam.data.task import Corpus
from softbeam.data.vocabulary import SOURCE, Vocabulary
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.schedules import Moment
from softbeam.training.config import RunConfig, Stage
from softbeam.training.loop import Trainer
from softbeam.training.optimization import make_optimizer
from softbeam.training.updates import Learner, Step, run_update
from softbeam.types import Batch


class Bare(nn.Module):
    """The tagger as one would write it in a notebook, without padding or interfaces."""

    def __init__(self, source_vocab: int, target_vocab: int, size: int, *, both: bool):
        super().__init__()
        width = size * (2 if both else 1)
        self.embed = nn.Embedding(source_vocab, size)
        self.encoder = nn.LSTM(size, size, batch_first=True, bidirectional=both)
        self.labels = nn.Embedding(target_vocab + 1, size)
        self.decoder = nn.LSTM(size + width, size, batch_first=True)
        self.output = nn.Linear(size, target_vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.embed(source))[0]
        before = nn.functional.pad(target[:, :-1], (1, 0), value=self.labels.num_embeddings - 1)
        inputs = torch.cat([self.labels(before), memory], -1)
        scores = self.output(self.decoder(inputs)[0])
        return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def bare_update(model: Bare) -> Callable[[Batch], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def update(batch: Batch) -> None:
        optimizer.zero_grad()
        model(batch.source, batch.target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return update


def our_update(config: RunConfig, source_vocab: int, target_vocab: int, out: Path) -> Any:
    """The update that `softbeam train` runs, as a function of a batch."""
    source = Vocabulary([f"w{i}" for i in range(source_vocab - len(SOURCE))], SOURCE)
    codecs = Codecs(source, Vocabulary([f"t{i}" for i in range(target_vocab)]))
    examples = [Example(("w0",), ("t0",))]
    corpus = Corpus({"train": examples, "dev": examples})
    model = config.model.build_for(codecs)
    trainer = Trainer(config, corpus, codecs, model, out, quiet=True)
    learner = Learner(model, CrossEntropy())
    optimizer = trainer.accelerator.prepare(make_optimizer(learner, config.pretrain))

    step = Step(trainer.accelerator, learner, optimizer, trainer.rng)

    def on_batch(batch: Batch) -> None:
        run_update(step, [batch], Moment(), clip=config.pretrain.clip)

    return on_batch


def run(
    *,
    repeats: int,
    threads: int = 1,
    batch: int = 32,
    length: int = 20,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Median tokens/s of both loops, timed in turns, for the taggers of the thesis's chapter 5."""
    torch.set_num_threads(threads)
    rows = []
    for both, size, vocab in ((False, 256, 1284), (True, 256, 1284), (True, 64, 10)):
        torch.manual_seed(0)
        data = Batch.of(
            torch.randint(1, 5000, (batch, length)), torch.randint(0, vocab, (batch, length))
        )
        knobs = Lstm(encoder="bi" if both else "uni", embedding=size, hidden=size)
        config = RunConfig(model=knobs, pretrain=Stage(objective=CrossEntropy()))
        with tempfile.TemporaryDirectory() as folder:
            loops = {
                "ours": our_update(config, 5000, vocab, Path(folder)),
                "bare": bare_update(Bare(5000, vocab, size, both=both)),
            }
            seconds = time_in_turns(loops, data, repeats)
        name = f"{'bi' if both else 'uni'} H={size} V={vocab}"
        ours, bare = (batch * length / statistics.median(seconds[k]) for k in ("ours", "bare"))
        ratios = [b / o for o, b in zip(seconds["ours"], seconds["bare"], strict=True)]
        rows.append(
            {
                "model": name,
                "tokens_per_s": round(ours, 1),
                "bare_tokens_per_s": round(bare, 1),
                "ratio": round(statistics.median(ratios), 3),
            }
        )
        progress(
            f"{name:24} softbeam {ours:9,.0f} tokens/s  bare {bare:9,.0f} tokens/s  "
            f"ratio {rows[-1]['ratio']:.2f}"
        )
    return {"bench": "train", "threads": threads, "batch": batch, "length": length, "rows": rows}


def time_in_turns(
    loops: dict[str, Callable[[Batch], None]], data: Batch, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each loop's updates; in every round the loops take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(repeats + 2):
        for name, update in loops.items():
            started = time.perf_counter()
            update(data)
            if number >= 2:  # two rounds to warm up
                seconds[name].append(time.perf_counter() - started)
    return seconds
