"""Weights after plain gradient descent, in one process or in several."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from softbeam.objectives.likelihood import CrossEntropy
from softbeam.runtime import ranks
from softbeam.schedules import Moment
from softbeam.training.config import RunConfig
from softbeam.training.loop import Trainer
from softbeam.training.updates import Learner, Step, run_update
from softbeam.training.vocabularies import make_codecs
from softbeam.types import Batch
from support.objective_toys import rows_of


def gradients(config: RunConfig, tmp_path: Path, groups: list[list[Batch]]) -> list[torch.Tensor]:
    """The weights after plain gradient descent on the groups."""
    corpus = config.data.load()
    codecs = make_codecs(config, corpus)
    torch.manual_seed(0)
    model = config.model.build(len(codecs.source), len(codecs.target)).double()
    tmp_path.mkdir(exist_ok=True)
    trainer = Trainer(config, corpus, codecs, model, tmp_path, quiet=True)
    learner = Learner(model, CrossEntropy())
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.5)
    step = Step(trainer.accelerator, learner, optimizer, trainer.rng)
    for group in groups:
        run_update(step, group, Moment(), clip=1e9)
    return [p.detach() for p in model.parameters()]


def descended(config: RunConfig, out: Path) -> None:
    """Weights after plain gradient descent, whose steps have the gradients' size (not Adam's)."""
    source = torch.tensor([[2, 3, 4, 5], [3, 4, 0, 0], [5, 0, 0, 0]])
    whole = Batch.of(source, source % 3, (source != 0).sum(1))
    groups = [[whole, whole], [rows_of(whole, [1])]]  # at last one sentence
    with ranks.joined():
        own = slice(ranks.rank(), None, ranks.world())
        shares = [[rows_of(batch, own) for batch in group] for group in groups]
        weights = gradients(config, out, shares)
    if ranks.first():
        save_file({str(i): w for i, w in enumerate(weights)}, out / "weights.safetensors")
