"""Train the models that Tables 6.2 to 6.6 sample from, each a cell of a grid.

The thesis samples from one published model. Several models, each trained with its own seed, show
whether a result holds for the sampler or only for one model.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from softbeam.data.tasks import Translation
from softbeam.experiments.identities import identity
from softbeam.experiments.order import Order
from softbeam.experiments.samplers.arms import SMOOTHED, TEACHERS, recipe
from softbeam.runtime.cells import LATER, Result
from softbeam.runtime.files import write_text
from softbeam.training.config import RunConfig
from softbeam.training.decoding import decode
from softbeam.training.loop import train
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A conditional masked language model of an arm, or a left-to-right model beside it.

    Args:
        preset: the preset of the tables.
        seed: seed of everything random.
        settings: a hash of the settings; other settings make another cell.
        arm: what it is trained on, and how; a name of `arms.ARMS`.
    """

    preset: str
    seed: int
    settings: str
    arm: str = field(default=SMOOTHED, metadata=LATER)

    def __str__(self) -> str:
        return f"{'masked-g2p' if self.arm == SMOOTHED else self.arm}, seed {self.seed}"

    def config(self, out: Path) -> RunConfig:
        """The settings of the run; distilled targets are files below the folder of results."""
        config = replace(recipe(self.preset, self.arm), seed=self.seed)
        if self.arm not in TEACHERS:
            return config
        return replace(config, data=distilled(config, teacher_of(self), out))

    def folder(self, out: Path) -> Path:
        name = "masked-g2p" if self.arm == SMOOTHED else self.arm
        return out / "runs" / name / f"{self.settings}-{self.seed}"


def masked(preset: str, seed: int, arm: str = SMOOTHED) -> Masked:
    """The cell of a model."""
    before = masked(preset, 1, TEACHERS[arm]).settings if arm in TEACHERS else ""
    text = before + identity(recipe(preset, arm))
    settings = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Masked(preset=preset, seed=seed, settings=settings, arm=arm)


def compute(cell: Masked, out: Path) -> Result:
    """Train a model, or find it trained; a teacher also translates its training sources."""
    summary = train(cell.config(out), cell.folder(out), quiet=True, resume=True)
    if cell.arm in TEACHERS.values():
        translate(cell, out)
    return {name: summary[name] for name in ("metrics", "epoch", "seconds")}


def models(order: Order, arm: str | None = None) -> list[Path]:
    """The folders of an arm's models, one for each seed, trained if they are not there.

    The arm is that of the order, if none is given.
    """
    return trained(order, order.arm if arm is None else arm, order.seeds)


def trained(order: Order, arm: str, seeds: Sequence[int]) -> list[Path]:
    """The folders of an arm's models with these seeds."""
    if arm in TEACHERS:
        trained(order, TEACHERS[arm], [1])
    cells = [masked(order.preset, seed, arm) for seed in seeds]
    order.check_runs({cell.folder(order.folder): cell.config(order.folder) for cell in cells})
    order.results(cells, compute, f"{arm} models")
    return [cell.folder(order.folder) for cell in cells]


# Distillation (Mask-Predict, Sec. 4.1: "knowledge distillation")


def teacher_of(cell: Masked) -> Masked:
    return masked(cell.preset, 1, TEACHERS[cell.arm])


def written_by(teacher: Masked, out: Path) -> tuple[Path, Path]:
    """The files of training sources, and of their translations by a teacher."""
    folder = out / "distilled" / f"{teacher.settings}-{teacher.seed}"
    return folder / "train.source", folder / "train.target"


def translate(teacher: Masked, out: Path) -> None:
    """Write the teacher's translations of its training sources, unless they are there."""
    sources, targets = written_by(teacher, out)
    if targets.is_file():
        return
    run = load_run(teacher.folder(out), device="cpu")
    examples = run.config.data.load().split("train")
    lines = [example.source for example in examples]
    outputs = decode(run.model, lines, run.codecs, run.config.select.to(Beam, k=3))
    pairs = zip(outputs, examples, strict=True)
    written = [each[0].tokens or example.target for each, example in pairs]  # no empty line
    sources.parent.mkdir(parents=True, exist_ok=True)
    for path, texts in ((sources, lines), (targets, written)):
        write_text(path, "".join(f"{' '.join(text)}\n" for text in texts))


def distilled(config: RunConfig, teacher: Masked, out: Path) -> Translation:
    """The arm's task with the teacher's translations as targets; dev and test stay as they are."""
    data = config.data
    assert isinstance(data, Translation)
    files = data.load().files
    source, target = written_by(teacher, out)
    return replace(
        data,
        source=str(source),
        target=str(target),
        dev_source=files["dev"][0],
        dev_target=files["dev"][1],
        test_source=files["test"][0],
        test_target=files["test"][1],
    )
