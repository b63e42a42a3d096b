"""The loop: stages of training on one corpus, the best weights on dev kept.

Under torchrun every process has the whole model and a share of each batch; the first one alone
scores dev, logs and writes, in a folder that all of them can read.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from softbeam.data.batches import Batches, Encoded, Position
from softbeam.data.encoding import Codecs, encode
from softbeam.data.tasks import Corpus
from softbeam.errors import Interrupted, NotFinite, UserError, need
from softbeam.objectives.base import Objective
from softbeam.runtime import ranks
from softbeam.runtime.files import (
    Growing,
    load_checkpoint,
    remove,
    remove_parts,
    save_checkpoint,
    write_text,
)
from softbeam.runtime.progress import Meter, Progress
from softbeam.runtime.signals import stopping
from softbeam.schedules import Moment
from softbeam.tensors import flushed_denormals
from softbeam.training.checkpoint import (
    NAME as CHECKPOINT,
    Best,
    Point,
    point_of,
    restore_training,
    training_tensors,
)
from softbeam.training.config import RunConfig, Stage, from_yaml, to_yaml
from softbeam.training.decoding import best, check_lengths, decode_encoded
from softbeam.training.evaluation import log_z
from softbeam.training.kinds import kind_of
from softbeam.training.optimization import (
    check_step,
    check_weights,
    lr_shape,
    make_optimizer,
    quoted,
    set_lr,
)
from softbeam.training.runs import (
    CONFIG,
    METRICS,
    SUMMARY,
    WEIGHTS,
    load_weights,
    read_summary,
    save_weights,
    write_start,
)
from softbeam.training.vocabularies import load_codecs, make_codecs
from softbeam.types import Batch, Loss


class Learner(nn.Module):
    """A model and its objective as one module."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, now: Moment, rng: torch.Generator) -> Loss:
        return self.objective(self.model, batch, now=now, rng=rng)


def train(
    config: RunConfig, out: Path, *, quiet: bool = False, resume: bool = False
) -> dict[str, Any]:
    """Train a run into a folder; returns its summary. The same config gives the same weights.

    With `resume`, a run that was stopped goes on from its last checkpoint to the same weights, and
    a finished one is left as it is. Of one seed: `training.many.train` has restarts.
    """
    if config.restarts != 1:
        raise ValueError(
            f"restarts={config.restarts}: softbeam.training.train trains several seeds"
        )
    torch.set_num_threads(config.threads)
    quiet = quiet or not ranks.first()
    corpus = config.data.load()
    if corpus.bad.count and not quiet:
        print(f"skipped {corpus.bad.count} bad lines, the first: {corpus.bad.messages[0]}")
    with ranks.joined(), flushed_denormals():
        return train_once(config, corpus, out, quiet=quiet, resume=resume)


def train_once(
    config: RunConfig, corpus: Corpus, out: Path, *, quiet: bool, resume: bool
) -> dict[str, Any]:
    """One seed: build, warm-start or resume, run the stages, write the summary."""
    resume = ranks.from_first(resume and (out / CONFIG).is_file())
    if resume:
        same_run(config, out)
        if summary := ranks.from_first(read_summary(out)):
            remove(out / CHECKPOINT)
            return summary
    set_seed(config.seed)
    warm = Path(config.warm_start) if config.warm_start else None
    start = out if resume else warm
    codecs = load_codecs(start, config) if start else make_codecs(config, corpus)
    model = config.model.build(len(codecs.source), len(codecs.target))
    if warm:
        load_weights(model, warm / WEIGHTS)
    if not ranks.first():
        torch.manual_seed(ranks.own_seed(config.seed))  # the same weights, another dropout
    trainer = Trainer(config, corpus, codecs, model, out, quiet=quiet)
    if ranks.first() and not resume:
        write_start(out, config, codecs, corpus)
    ranks.wait()
    best, skipped = trainer.run()
    summary = {
        "metric": best.metric,
        "score": best.score,
        "epoch": best.epoch,
        "metrics": best.metrics,
        "seconds": round(trainer.seconds(), 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "skipped": skipped,
    }
    finish(out, summary)
    if ranks.first():
        remove(out / CHECKPOINT)
    return summary


def check_fit(
    config: RunConfig, codecs: Codecs, model: nn.Module, examples: dict[str, list[Encoded]]
) -> None:
    """A UserError, before anything is written, if examples are not for the model or objective."""
    for name, part in examples.items():
        check_lengths(f"{name} example", part, model)
    longest = max(len(example.target) for example in examples["training"])
    ends = codecs.eos is not None
    for _, stage in config.stages:
        assert stage.objective is not None
        stage.objective.check(vocab=len(codecs.target), time=longest, ends=ends)


def same_run(config: RunConfig, out: Path) -> None:
    """Refuse to go on with other settings than those the run began with.

    How many updates may be skipped can change: it has not yet made a difference.
    """
    before = from_yaml(out / CONFIG)
    if replace(before, skip_nonfinite=config.skip_nonfinite) != config:
        raise UserError(f"{out} holds a run with other settings; give another --out to train anew")
    if not ranks.first():
        return
    if before.skip_nonfinite != config.skip_nonfinite:
        write_text(out / CONFIG, to_yaml(config))
    remove_parts(out)


def finish(out: Path, summary: dict[str, Any]) -> dict[str, Any]:
    if ranks.first():
        write_text(out / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary


class Running(NamedTuple):
    """What the updates of one stage share."""

    name: str
    stage: Stage
    batches: Batches
    updates: int
    learner: nn.Module
    optimizer: Any


class Recorder:
    """Writes the rows of metrics.jsonl, and their numbers to TensorBoard if the run asks for it.

    Only the first process writes the file.
    """

    def __init__(self, path: Path, size: int, accelerator: Accelerator):
        self.file = Growing(path, size) if ranks.first() else None
        self.accelerator = accelerator

    def log(self, kind: str, **row: Any) -> None:
        """Append a row."""
        if self.file is not None:
            self.file.append((json.dumps({"kind": kind} | row) + "\n").encode())
        numbers = {f"{kind}/{k}": v for k, v in row.items() if isinstance(v, float)}
        self.accelerator.log(numbers, step=row["update"])

    def synced(self) -> int:
        """Write everything to the disk; returns the size of the file."""
        return self.file.synced() if self.file is not None else 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        for tracker in self.accelerator.trackers:  # its end_training would part the processes
            tracker.finish()


class Trainer:
    """What the stages of one run share: model, data, device, logs."""

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        codecs: Codecs,
        model: nn.Module,
        out: Path,
        *,
        quiet: bool,
    ):
        self.config, self.corpus, self.codecs, self.out, self.quiet = (
            config,
            corpus,
            codecs,
            out,
            quiet,
        )
        self.examples = encode(corpus.split("train"), codecs)
        dev = encode(corpus.split("dev"), codecs)
        check_fit(config, codecs, model, {"training": self.examples, "dev": dev})
        self.kind = kind_of(config.data)
        self.problems = self.kind.problems(corpus.split("dev"))
        numbers = dict(zip((e.source for e in corpus.split("dev")), dev, strict=True))
        self.dev = [numbers[source] for source in self.problems.sources]
        probes = {"train": self.examples[: max(len(dev), 1)], "dev": dev}
        self.probes = probes if config.model.left_to_right else {}  # log Z is of a step's scores
        self.accelerator = accelerator(config, out)
        self.model = model.to(self.accelerator.device)
        seed = ranks.own_seed(config.seed)
        self.rng = torch.Generator(self.accelerator.device).manual_seed(seed)
        self.started = time.monotonic()

    def run(self) -> tuple[Best, int]:
        """All stages, from the last checkpoint if there is one; the best weights stay loaded.

        Returns the best on dev, and how many updates were skipped.
        """
        path, tensors, point = self.out / CHECKPOINT, None, Point()
        if ranks.from_first(path.exists()):
            tensors, facts = load_checkpoint(path)
            point = point_of(facts, path, stages=len(self.config.stages))
            self.started -= point.seconds
        self.recorder = Recorder(self.out / METRICS, point.logged, self.accelerator)
        with stopping() as stop:
            for number, (name, stage) in enumerate(self.config.stages):
                if number < point.stage:
                    continue
                point = self.stage(name, stage, point, tensors, stop)
                load_weights(self.model, self.out / WEIGHTS)
                best, tensors = point.best, None
                point = Point(stage=number + 1, skipped=point.skipped)
        self.recorder.close()
        return best, point.skipped

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def stage(
        self,
        name: str,
        stage: Stage,
        point: Point,
        tensors: dict[str, Tensor] | None,
        stop: list[int],
    ) -> Point:
        """Run the rest of a stage; its best weights are in the run's folder afterwards."""
        assert stage.objective is not None
        batches = Batches(
            self.examples, tokens=stage.tokens, seed=self.config.seed, eos=self.codecs.eos
        )
        updates = stage.epochs * math.ceil(len(batches.plan(0)) / stage.accumulation)
        learner = Learner(self.model, stage.objective)
        optimizer = self.accelerator.prepare(make_optimizer(learner, stage))
        if tensors is not None:
            restore_training(tensors, self.model, optimizer, self.rng)
        else:
            self.save(point, optimizer)  # the stage's own weights will replace what it begins with
        running = Running(name, stage, batches, updates, learner, optimizer)
        with Progress(name, updates, quiet=self.quiet) as progress:
            progress.skip(point.update)
            if warning := stage.objective.warning(stage.epochs):
                progress.say(f"{name}: {warning}")
            for epoch in range(point.epoch, stage.epochs):
                if no_better(stage, point):
                    progress.say(f"{name}: no better dev score for {stage.patience} epochs")
                    break
                meter = Meter(*point.loss, point.log)
                for group in grouped(batches, epoch, stage.accumulation, start=point.groups):
                    point = self.one_update(running, group, point, meter, progress)
                    signum = ranks.largest(max(stop, default=0))
                    if signum or point.update % self.config.checkpoint_every == 0:
                        self.save(point, optimizer)
                        stop_here(signum, self.out)
                point = self.end_of_epoch(name, stage, point, meter.mean(), progress)
                self.save(point, optimizer)
                stop_here(ranks.largest(max(stop, default=0)), self.out)
        return point

    def one_update(
        self,
        running: "Running",
        group: list[Batch],
        point: Point,
        meter: Meter,
        progress: Progress,
    ) -> Point:
        """Update the weights on a group of batches and record it; returns the next point."""
        name, stage, batches, updates, learner, optimizer = running
        lr = stage.lr * point.slower * lr_shape(stage, point.update, updates)
        set_lr(optimizer, lr)
        now = Moment(point.epoch, point.update)
        try:
            meter.add(*self.update(learner, optimizer, group, stage, now))
        except NotFinite as error:
            point = self.skip(name, stage, batches, point, error, progress)
        point = point._replace(
            groups=point.groups + 1,
            update=point.update + 1,
            loss=(meter.total, meter.count),
            log=meter.log,
        )
        progress.advance(1, meter.shown())
        if point.update % self.config.log_every == 0:
            at = {"stage": name, "epoch": point.epoch, "update": point.update, "lr": lr}
            self.recorder.log("train", **at, **meter.row())
        return point

    def end_of_epoch(
        self, name: str, stage: Stage, point: Point, loss: float, progress: Progress
    ) -> Point:
        """Score dev, keep the weights if they are the best, and step to the next epoch."""
        check_weights(self.model, f"after update {point.update} of {name}")
        scored = self.on_dev(name, point.epoch, point.update) if ranks.first() else Best()
        found = Best(*ranks.from_first(scored))
        improved = found.score > point.best.score
        progress.say(f"{name} {found.text(loss)}{' (best)' if improved else ''}")
        if improved and ranks.first():
            save_weights(self.model, self.out / WEIGHTS)
        return point._replace(
            epoch=point.epoch + 1,
            groups=0,
            loss=(0.0, 0),
            log={},
            best=found if improved else point.best,
            slower=point.slower if improved else point.slower * stage.plateau,
        )

    def save(self, point: Point, optimizer: Any) -> None:
        """Everything that the rest of the run depends on, in one file."""
        name = self.config.stages[point.stage][0]
        check_weights(self.model, f"after update {point.update} of {name}")
        tensors = training_tensors(self.model, optimizer, self.rng)  # of all processes
        if ranks.first():
            point = point._replace(logged=self.recorder.synced(), seconds=self.seconds())
            facts = point._asdict() | {"best": point.best._asdict()}
            save_checkpoint(self.out / CHECKPOINT, tensors, facts)

    def on_dev(self, stage: str, epoch: int, update: int) -> "Best":
        """The dev split decoded with the run's own search, scored and logged."""
        sources, references = self.problems
        found = decode_encoded(self.model, self.dev, self.codecs.target, self.config.select)
        metrics = self.kind.score(best(found), references, [len(source) for source in sources])
        metric, score = self.kind.main_metric(metrics)
        row = {"stage": stage, "epoch": epoch, "update": update}
        normalizers = {name: log_z(self.model, part) for name, part in self.probes.items()}
        self.recorder.log(
            "dev", **row, metric=metric, value=metrics[metric], metrics=metrics, log_z=normalizers
        )
        return Best(score, epoch, metric, metrics)

    def update(
        self,
        learner: nn.Module,
        optimizer: Any,
        group: list[Batch],
        stage: Stage,
        now: Moment,
    ) -> tuple[float, int, dict[str, float]]:
        """One optimizer step on a group of batches: total loss, size and the objective's log.

        Gradients of the totals add up over batches and processes and are divided once by the
        global size, so that both give the gradient of one large batch. The log is of the last
        batch, of the first process's share. Raises NotFinite after all processes have had their
        share, since they wait for each other.
        """
        learner.train()
        total, size, error = 0.0, 0.0, None
        log: dict[str, float] = {}
        for batch in group:
            batch = batch.to(self.accelerator.device)
            try:
                with self.accelerator.autocast():
                    loss = learner(batch, now, self.rng)
            except NotFinite as found:
                total, error = math.nan, found
                continue
            self.accelerator.backward(loss.total)
            total, size = total + loss.total.item(), size + loss.size
            log = dict(loss.log) or log
        total, size = ranks.summed([total, size])
        ranks.sum_gradients(learner.parameters())
        gradients = [p.grad for p in learner.parameters() if p.grad is not None]
        if gradients:  # none if no target token is known
            torch._foreach_mul_(gradients, 1.0 / max(size, 1))
        norm = self.accelerator.clip_grad_norm_(learner.parameters(), stage.clip)
        try:
            if error is not None:
                raise error
            check_step(total, norm)
            optimizer.step()
        finally:
            optimizer.zero_grad()
        return total, int(size), log

    def skip(
        self,
        name: str,
        stage: Stage,
        batches: Batches,
        point: Point,
        error: NotFinite,
        progress: Progress,
    ) -> Point:
        """Count and log an update that was not finite; a sentence if that is one too many."""
        plan, first = batches.plan(point.epoch), point.groups * stage.accumulation
        numbers = [i for batch in plan[first : first + stage.accumulation] for i in batch]
        sentences = [" ".join(self.corpus.split("train")[i].source) for i in numbers]
        where = f"{name}, epoch {point.epoch + 1}, update {point.update + 1}"
        what = f"{error} in {where}, with the sentences {quoted(sentences)}"
        if point.skipped == self.config.skip_nonfinite:
            before = f" after {point.skipped} skipped updates" if point.skipped else ""
            raise UserError(
                f"{what}{before}; lower the learning rate, or --skip-nonfinite N leaves such "
                "updates out (the last checkpoint is kept)"
            )
        progress.say(f"skipped an update: {what}")
        row = {"stage": name, "epoch": point.epoch, "update": point.update + 1}
        self.recorder.log("skipped", **row, what=str(error), sentences=sentences)
        return point._replace(skipped=point.skipped + 1)


def grouped(batches: Batches, epoch: int, n: int, *, start: int = 0) -> Iterator[list[Batch]]:
    """The epoch's batches, n at a time, from group `start` on; the last group may be smaller."""
    group: list[Batch] = []
    for _, batch in batches.epoch(Position(epoch, start * n)):
        group.append(batch)
        if len(group) == n:
            yield group
            group = []
    if group:
        yield group


def no_better(stage: Stage, point: Point) -> bool:
    """Whether patience has come to an end, which is known again after a stop."""
    waited = point.epoch - 1 - point.best.epoch
    return stage.patience is not None and point.epoch > 0 and waited >= stage.patience


def stop_here(signum: int, out: Path) -> None:
    if signum:
        raise Interrupted(signum, f"stopped after a whole update; --resume goes on with {out}")


def accelerator(config: RunConfig, out: Path) -> Accelerator:
    """Device, precision and trackers as the run asks."""
    on_cpu = config.device == "cpu" or not torch.accelerator.is_available()
    auto = "no" if on_cpu else "bf16"
    precision = {"auto": auto, "float32": "no", "bfloat16": "bf16"}[config.precision]
    made = Accelerator(
        cpu=on_cpu,  # else it would take several processes on processors for one
        mixed_precision=precision,
        log_with=tracker(config),
        project_dir=str(out),
    )
    if config.tensorboard:
        made.init_trackers("tensorboard")
    return made


def tracker(config: RunConfig) -> str | None:
    if not config.tensorboard:
        return None
    need("tensorboard", "track")
    return "tensorboard"
