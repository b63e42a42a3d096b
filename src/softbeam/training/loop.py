"""Train a run: stages of training on one corpus, with the best weights on dev kept.

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
from softbeam.data.task import Corpus
from softbeam.data.tasks import EXAMPLES, InMemory
from softbeam.errors import Interrupted, NotFinite, UserError, need
from softbeam.models.building import TRAINED, build
from softbeam.objectives.base import Objective
from softbeam.runtime import inputs, outputs, ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.files import (
    Growing,
    load_checkpoint,
    remove,
    remove_parts,
    save_checkpoint,
    write_atomic,
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
    facts_of,
    point_of,
    restore_training,
    training_tensors,
)
from softbeam.training.config import RunConfig, Stage, differences, from_yaml, modules_of, to_yaml
from softbeam.training.decoding import best, check_lengths, check_width, decode_encoded, longest
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
    files_read,
    load_run,
    load_weights,
    own_files,
    read_summary,
    run_folder,
    runs_read,
    save_weights,
    write_start,
)
from softbeam.training.vocabularies import load_codecs, make_codecs, sources
from softbeam.types import Batch, Loss


class Learner(nn.Module):
    """A model and its objective as one module."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, now: Moment, rng: torch.Generator) -> Loss:
        return self.objective(self.model, batch, now=now, rng=rng)


def train(
    config: RunConfig,
    out: Path,
    *,
    quiet: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_inputs: bool = False,
) -> dict[str, Any]:
    """Train a run into a folder; returns its summary. The same config gives the same weights.

    With `resume`, a run that was stopped continues from its last checkpoint to the same weights,
    and a finished one is left as it is; with `accept_changed_inputs`, also if files that it depends
    on have changed. With `overwrite`, a run in the folder is replaced when the new one is complete.
    For several seeds see `training.many.train`.
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
    with (
        run_folder(out, paths_read(config), resume=resume, overwrite=overwrite) as folder,
        flushed_denormals(),
        allowing(modules_of(config)),
    ):
        return train_once(
            config, corpus, folder, quiet=quiet, resume=resume, accept=accept_changed_inputs
        )


def paths_read(config: RunConfig) -> list[Path]:
    """The files and folders that a run reads and that cannot be its output."""
    files = [*config.data.load().paths.values(), *config.model.files.values()]
    return [*runs_read(config).values(), *files]


def train_once(
    config: RunConfig, corpus: Corpus, out: Path, *, quiet: bool, resume: bool, accept: bool
) -> dict[str, Any]:
    """Train one seed: build, warm-start or resume, run the stages, write the summary."""
    resume = ranks.from_first(resume and (out / CONFIG).is_file())
    if resume:
        same_run(config, out)
        if ranks.first():
            inputs.check(out, files_read(config, corpus), accept=accept)
        if summary := ranks.from_first(read_summary(out)):
            inputs.check(out, own_files(out), accept=accept)
            remove(out / CHECKPOINT)
            return summary
    set_seed(config.seed)
    warm = Path(config.warm_start) if config.warm_start else None
    start = out if resume else warm
    codecs = load_codecs(start, config) if start else make_codecs(config, corpus)
    if ranks.first() and resume:
        inputs.check(out, own_files(out), accept=accept)
    model = build(config.model, codecs, copies=TRAINED)
    if warm:
        load_weights(model, warm / WEIGHTS)
    elif not ranks.from_first((out / CHECKPOINT).exists()):
        said = config.model.initialize(model, codecs, sources(corpus))
        if said and not quiet:
            print(said)
    if not ranks.first():
        torch.manual_seed(ranks.own_seed(config.seed))  # the same weights, another dropout
    trainer = Trainer(with_models(config), corpus, codecs, model, out, quiet=quiet)
    if ranks.first() and not resume:
        write_start(out, config, codecs, corpus)
    ranks.wait()
    best, skipped = trainer.run(accept=accept)
    summary = {
        "metric": best.metric,
        "score": best.score,
        "epoch": best.epoch,
        "metrics": best.metrics,
        "seconds": round(trainer.seconds(), 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "skipped": skipped,
    }
    if ranks.first():
        trainer.check_folder()
        inputs.record(out, {WEIGHTS: out / WEIGHTS})
        finish(out, summary)
        remove(out / CHECKPOINT)
        trainer.check_folder()
    trainer.recorder.close()
    return summary


def with_models(config: RunConfig) -> RunConfig:
    """Return the run with the models that its objectives name, such as teachers."""

    def ready(stage: Stage) -> Stage:
        if stage.objective is None:
            return stage
        return replace(stage, objective=stage.objective.loaded(lambda path: load_run(path).model))

    return replace(config, pretrain=ready(config.pretrain), finetune=ready(config.finetune))


def check_fit(
    config: RunConfig, codecs: Codecs, model: nn.Module, examples: dict[str, list[Encoded]]
) -> None:
    """Raises UserError if examples do not fit the model, the objective or the search on dev.

    Nothing has been written then.
    """
    for name, part in examples.items():
        check_lengths(f"{name} example", part, model)
    check_width(config.select, examples["dev"], codecs.target, longest(model))
    time = max(len(example.target) for example in examples["training"])
    ends = codecs.eos is not None
    for _, stage in config.stages:
        assert stage.objective is not None
        stage.objective.check(vocab=len(codecs.target), time=time, ends=ends)


def same_run(config: RunConfig, out: Path) -> None:
    """Raises UserError if the settings are not those that the run began with.

    The number of updates that may be skipped can change: it has had no effect so far.
    """
    before = from_yaml(out / CONFIG)
    same = replace(before, skip_nonfinite=config.skip_nonfinite)
    if same != config:
        other = f"{out} holds a run with other settings: {differences(same, config)}"
        raise UserError(f"{other}; give the same, or another --out to train anew")
    if not ranks.first():
        return
    if before.skip_nonfinite != config.skip_nonfinite:
        write_text(out / CONFIG, to_yaml(config))
    remove_parts(out)


def finish(out: Path, summary: dict[str, Any]) -> dict[str, Any]:
    if ranks.first():
        write_text(out / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary


def identity_of(out: Path) -> str:
    """The identity of the run in a folder; empty for a run of an older version."""
    before = inputs.read(out)
    return "" if before is None else str(before["identity"])


def accept_foreign(path: Path, point: Point, *, accept: bool) -> None:
    """Raise UserError if a checkpoint is of another run, unless that is accepted."""
    changed = {path.name: {"path": path.name, "from": identity_of(path.parent), "to": point.run}}
    if not accept:
        raise inputs.refusal(path.parent, changed)
    before = inputs.read(path.parent)
    if before is not None and ranks.first():
        accepted = [*before["accepted"], inputs.acceptance(changed)]
        inputs.write(path.parent, before | {"accepted": accepted})


class Running(NamedTuple):
    """What the updates of one stage share."""

    name: str
    stage: Stage
    batches: Batches
    updates: int
    learner: nn.Module
    optimizer: Any


class Recorder:
    """A writer of metrics.jsonl, and of TensorBoard events if the run asks for them.

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

    def content(self) -> bytes:
        """The rows so far, also if the file has been deleted or renamed."""
        return self.file.content() if self.file is not None else b""

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

    def run(self, *, accept: bool = False) -> tuple[Best, int]:
        """Run all stages, from the last checkpoint if there is one; the best weights stay loaded.

        Returns the best result on dev, and the number of skipped updates. With `accept`, the
        checkpoint and the best weights may be those of another run.
        """
        path, tensors, point = self.out / CHECKPOINT, None, Point()
        self.folder, self.run_identity = outputs.identity(self.out), identity_of(self.out)
        if ranks.from_first(path.exists()):
            tensors, facts = load_checkpoint(path)
            point = point_of(facts, path, stages=len(self.config.stages))
            if point.run != self.run_identity:
                accept_foreign(path, point, accept=accept)
                point = point._replace(logged=(self.out / METRICS).stat().st_size)
            point = point._replace(weights="") if accept else point
            self.started -= point.seconds
        self.recorder = Recorder(self.out / METRICS, point.logged, self.accelerator)
        with stopping() as stop:
            for number, (name, stage) in enumerate(self.config.stages):
                if number < point.stage:
                    continue
                point = self.stage(name, stage, point, tensors, stop)
                self.load_best(point)
                best, tensors = point.best, None
                point = Point(stage=number + 1, skipped=point.skipped)
        return best, point.skipped

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def load_best(self, point: Point) -> None:
        """Load the best weights of a stage; raises UserError if the file is not that of the run."""
        path = self.out / WEIGHTS
        if ranks.first():
            self.check_folder()
            if point.weights and path.is_file() and inputs.digest(path) != point.weights:
                raise inputs.refusal(self.out, {WEIGHTS: {"path": WEIGHTS}})
        load_weights(self.model, path)

    def check_folder(self) -> None:
        """Raise UserError if the folder has gone; a new one beside it keeps what is in memory.

        The weights there are the present ones. They count as not yet scored, since the best ones
        were in the folder that has gone.
        """
        if outputs.identity(self.out) == self.folder:
            return
        tensors, point = self.latest
        beside = outputs.free_name(self.out, "rescued")
        config = self.config
        if isinstance(config.data, InMemory):
            splits = [[(e.source, e.target) for e in s] for s in self.corpus.splits.values()]
            data, text = InMemory.of(beside, config.data.kind, *splits)
            config = replace(config, data=data)
            write_text(beside / EXAMPLES, text)
        write_start(beside, config, self.codecs, self.corpus)
        rows = self.recorder.content()
        write_atomic(beside / METRICS, rows)
        save_weights(self.model, beside / WEIGHTS)
        point = point._replace(
            logged=len(rows),
            seconds=self.seconds(),
            best=Best(epoch=point.epoch - 1),
            run=identity_of(beside),
            weights="",
        )
        save_checkpoint(beside / CHECKPOINT, tensors, facts_of(point))
        raise UserError(
            f"{self.out} was deleted or renamed during training; the present state is in {beside}, "
            f"and --out {beside} --resume goes on from it"
        )

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
        self.unscored = point
        if tensors is not None:
            self.latest = tensors, point
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
                self.unscored = point
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
        scores = Best(*ranks.from_first(scored))
        improved = scores.score > point.best.score
        progress.note(f"{name} {scores.text(loss)}{' (best)' if improved else ''}")
        weights = point.weights
        if improved and ranks.first() and outputs.identity(self.out) == self.folder:
            save_weights(self.model, self.out / WEIGHTS)
            weights = inputs.digest(self.out / WEIGHTS)
        return point._replace(
            weights=weights,
            epoch=point.epoch + 1,
            groups=0,
            loss=(0.0, 0),
            log={},
            best=scores if improved else point.best,
            slower=point.slower if improved else point.slower * stage.plateau,
        )

    def save(self, point: Point, optimizer: Any) -> None:
        """Write a checkpoint: everything that the rest of the run depends on, in one file."""
        name = self.config.stages[point.stage][0]
        check_weights(self.model, f"after update {point.update} of {name}")
        tensors = training_tensors(self.model, optimizer, self.rng)  # of all processes
        if ranks.first():
            self.latest = tensors, point if point.groups else self.unscored
            self.check_folder()
            point = point._replace(
                logged=self.recorder.synced(), seconds=self.seconds(), run=self.run_identity
            )
            save_checkpoint(self.out / CHECKPOINT, tensors, facts_of(point))

    def on_dev(self, stage: str, epoch: int, update: int) -> "Best":
        """Decode the dev split with the run's own search, score it and log the figures."""
        sources, references = self.problems
        outputs = best(decode_encoded(self.model, self.dev, self.codecs.target, self.config.select))
        metrics = self.kind.score(outputs, references, [len(source) for source in sources])
        metric, score = self.kind.main_metric(metrics)
        row: dict[str, Any] = {"stage": stage, "epoch": epoch, "update": update}
        normalizers = {name: log_z(self.model, part) for name, part in self.probes.items()}
        row |= {"metric": metric, "value": metrics[metric]}
        row |= {"interval": self.kind.interval(references, outputs)}
        self.recorder.log("dev", **row, metrics=metrics, log_z=normalizers)
        return Best(score, epoch, metric, metrics)

    def update(
        self,
        learner: nn.Module,
        optimizer: Any,
        group: list[Batch],
        stage: Stage,
        now: Moment,
    ) -> tuple[float, int, dict[str, float]]:
        """Take an optimizer step on a group of batches; returns total loss, size and a log.

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
            except NotFinite as refusal:
                total, error = math.nan, refusal
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
        """Count and log an update that was not finite; raises UserError if there are too many."""
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
    """Yield the epoch's batches, n at a time, from group `start` on; the last may be smaller."""
    group: list[Batch] = []
    for _, batch in batches.epoch(Position(epoch, start * n)):
        group.append(batch)
        if len(group) == n:
            yield group
            group = []
    if group:
        yield group


def no_better(stage: Stage, point: Point) -> bool:
    """Say whether patience has run out; the answer is the same after a stop and a resume."""
    waited = point.epoch - 1 - point.best.epoch
    return stage.patience is not None and point.epoch > 0 and waited >= stage.patience


def stop_here(signum: int, out: Path) -> None:
    if signum:
        raise Interrupted(signum, f"stopped after a whole update; --resume goes on with {out}")


def accelerator(config: RunConfig, out: Path) -> Accelerator:
    """Make the accelerator with the device, precision and trackers of the run."""
    on_cpu = config.device == "cpu" or not torch.accelerator.is_available()
    auto = "no" if on_cpu else "bf16"
    precision = {"auto": auto, "float32": "no", "bfloat16": "bf16"}[config.precision]
    device = Accelerator(
        cpu=on_cpu,  # else it would take several processes on processors for one
        mixed_precision=precision,
        log_with=tracker(config),
        project_dir=str(out),
    )
    if config.tensorboard:
        device.init_trackers("tensorboard")
    return device


def tracker(config: RunConfig) -> str | None:
    if not config.tensorboard:
        return None
    need("tensorboard", "track")
    return "tensorboard"
