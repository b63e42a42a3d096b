"""Train the masked models that Tables 6.2 to 6.6 sample from, each a cell of a grid.

The thesis samples from one published model. Several models, each trained with its own seed, show
whether a result holds for the sampler or only for one model.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from softbeam.experiments.identities import identity
from softbeam.experiments.order import Order
from softbeam.experiments.search_aware.runs import PLAIN
from softbeam.models.specs import Cmlm
from softbeam.runtime.cells import Result
from softbeam.training.config import RunConfig
from softbeam.training.loop import train
from softbeam.training.recipes import masked_g2p


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A conditional masked language model of letters to phonemes.

    Args:
        preset: the preset of the tables.
        seed: seed of everything random.
        settings: a hash of the settings; other settings make another cell.
    """

    preset: str
    seed: int
    settings: str

    def __str__(self) -> str:
        return f"masked-g2p, seed {self.seed}"

    @property
    def config(self) -> RunConfig:
        return replace(recipe(self.preset), seed=self.seed)

    def folder(self, out: Path) -> Path:
        return out / "runs" / "masked-g2p" / f"{self.settings}-{self.seed}"


def masked(preset: str, seed: int) -> Masked:
    """The cell of a model."""
    settings = hashlib.sha256(identity(recipe(preset)).encode()).hexdigest()[:12]
    return Masked(preset=preset, seed=seed, settings=settings)


def recipe(preset: str) -> RunConfig:
    """The settings of a preset's models; none is chosen from the data or on the machine."""
    usual = masked_g2p()
    stage = replace(usual.pretrain, patience=None, score_every=1)
    usual = replace(usual, pretrain=stage, finetune=PLAIN, threads=1)
    if preset != "tiny":
        return usual
    return replace(
        usual,
        data=replace(usual.data, limit=200),
        pretrain=replace(usual.pretrain, epochs=1),
        model=Cmlm(width=16, layers=1, longest=48),
    )


def compute(cell: Masked, out: Path) -> Result:
    """Train a model, or find it trained."""
    summary = train(cell.config, cell.folder(out), quiet=True, resume=True)
    return {name: summary[name] for name in ("metrics", "epoch", "seconds")}


def models(order: Order) -> list[Path]:
    """The folders of a model for each seed, trained if they are not there."""
    cells = [masked(order.preset, seed) for seed in order.seeds]
    order.check_runs({cell.folder(order.folder): cell.config for cell in cells})
    order.results(cells, compute, "masked models")
    return [cell.folder(order.folder) for cell in cells]
