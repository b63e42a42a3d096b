"""The loop: stages of training on one corpus, the best weights on dev kept.

Under torchrun every process has the whole model and a share of each batch; the first one alone
scores dev, logs and writes, in a folder that all of them can read.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from softbeam import ranks
from softbeam.checkpoint import NAME as CHECKPOINT
from softbeam.checkpoint import (
    load_checkpoint,
    restore_training,
    save_checkpoint,
    training_tensors,
)
from softbeam.config import RunConfig, Stage, to_yaml
from softbeam.data.batches import Batches, Encoded, Position
from softbeam.data.tasks import Corpus
from softbeam.data.vocabulary import EOS
from softbeam.errors import Interrupted, UserError, need
from softbeam.evaluate import (
    Codecs,
    check_lengths,
    encode,
    evaluate,
    log_z,
    main_metric,
)
from softbeam.files import write_text
from softbeam.objectives import Objective
from softbeam.progress import Progress
from softbeam.runs import (
    CONFIG,
    METRICS,
    SUMMARY,
    WEIGHTS,
    load_codecs,
    load_weights,
    make_codecs,
    read_summary,
    save_weights,
    write_start,
)
from softbeam.schedules import Moment
from softbeam.signals import stopping
from softbeam.types import Batch, Loss


class Learner(nn.Module):
    """A model and its objective as one module."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, now: Moment, rng: torch.Generator) -> Loss:
        return self.objective(self.model, batch, now=now, rng=rng)


class Best(NamedTuple):
    """A result on dev: the score that selects, when it was reached, and all figures."""

    score: float = -math.inf  # signed so that more is better
    epoch: int = -1
    metric: str = ""
    metrics: dict[str, Any] = {}

    def text(self, loss: float) -> str:
        value = self.metrics[self.metric]
        return f"epoch {self.epoch + 1}: loss {loss:.4f}  dev {self.metric} {value:.2f}"


class Point(NamedTuple):
    """Where a run stands: everything but tensors that the rest of it depends on."""

    stage: int = 0
    epoch: int = 0
    groups: int = 0  # updates of this epoch that are done
    update: int = 0
    slower: float = 1.0
    best: Best = Best()
    loss: tuple[float, int] = (0.0, 0)  # of this epoch: total and size
    logged: int = 0  # bytes of metrics.jsonl
    seconds: float = 0.0


def train(
    config: RunConfig, out: Path, *, quiet: bool = False, resume: bool = False
) -> dict[str, Any]:
    """Train a run into a folder; returns its summary. The same config gives the same weights.

    With `resume`, a run that was stopped goes on from its last checkpoint to the same weights, and
    a finished one is left as it is.
    """
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # soft beams are full of them; they take ten times as long
    quiet = quiet or not ranks.first()
    corpus = config.data.load()
    if corpus.bad.count and not quiet:
        print(f"skipped {corpus.bad.count} bad lines, the first: {corpus.bad.messages[0]}")
    with ranks.joined():
        if config.restarts == 1:
            return train_once(config, corpus, out, quiet=quiet, resume=resume)
        return train_restarts(config, corpus, out, quiet=quiet, resume=resume)


def train_restarts(
    config: RunConfig, corpus: Corpus, out: Path, *, quiet: bool, resume: bool
) -> dict[str, Any]:
    """Several seeds, each in a folder of its own; the best on dev becomes the run."""
    summaries = []
    for number in range(config.restarts):
        one = replace(config, seed=config.seed + 1000 * number, restarts=1)
        folder = out / f"restart-{number}"
        summaries.append(train_once(one, corpus, folder, quiet=quiet, resume=resume))
    winner = max(range(config.restarts), key=lambda n: summaries[n]["score"])
    for file in (out / f"restart-{winner}").iterdir() if ranks.first() else ():
        if file.is_file():
            shutil.copy2(file, out / file.name)
    scores = [s["score"] for s in summaries]
    return finish(out, summaries[winner] | {"restart": winner, "restart_scores": scores})


def train_once(
    config: RunConfig, corpus: Corpus, out: Path, *, quiet: bool, resume: bool
) -> dict[str, Any]:
    """One seed: build, warm-start or resume, run the stages, write the summary."""
    resume = ranks.from_first(resume and (out / CONFIG).is_file())
    if resume:
        same_run(config, out)
        if summary := ranks.from_first(read_summary(out)):
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
    best = trainer.run()
    summary = {
        "metric": best.metric,
        "score": best.score,
        "epoch": best.epoch,
        "metrics": best.metrics,
        "seconds": round(trainer.seconds(), 1),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    finish(out, summary)
    if ranks.first():
        (out / CHECKPOINT).unlink(missing_ok=True)
    return summary


def check_fit(
    config: RunConfig, codecs: Codecs, model: nn.Module, examples: dict[str, list[Encoded]]
) -> None:
    """A UserError, before anything is written, if examples are not for the model or objective."""
    for name, part in examples.items():
        check_lengths(f"{name} example", part, model)
    longest = max(len(example.target) for example in examples["training"])
    ends = codecs.target.id(EOS) is not None
    for _, stage in config.stages:
        assert stage.objective is not None
        stage.objective.check(vocab=len(codecs.target), time=longest, ends=ends)


def same_run(config: RunConfig, out: Path) -> None:
    """Refuse to go on with other settings than those the run began with."""
    if (out / CONFIG).read_bytes() != to_yaml(config).encode():
        raise UserError(f"{out} holds a run with other settings; give another --out to train anew")


def finish(out: Path, summary: dict[str, Any]) -> dict[str, Any]:
    if ranks.first():
        write_text(out / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary


def point_of(facts: dict[str, Any], path: Path, *, stages: int) -> Point:
    """The point that a checkpoint's facts are, or a sentence."""
    try:
        point = Point(**facts | {"best": Best(**facts["best"]), "loss": tuple(facts["loss"])})
        counts = (point.stage, point.epoch, point.groups, point.update, point.logged)
        right = all(isinstance(count, int) and count >= 0 for count in counts)
        numbers = [point.slower, point.seconds, point.best.score, *point.loss]
        if not right or not all(isinstance(x, int | float) for x in numbers):
            raise ValueError(f"counts {counts}, numbers {numbers}")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no moment of a training: {error!r}") from None
    if point.stage >= stages:
        raise UserError(f"{path} is of stage {point.stage + 1}, but there are {stages}")
    return point


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
        probes = {"train": self.examples[: max(len(dev), 1)], "dev": dev}
        self.probes = probes if config.model.left_to_right else {}  # log Z is of a step's scores
        self.accelerator = accelerator(config, out)
        self.model = model.to(self.accelerator.device)
        seed = ranks.own_seed(config.seed)
        self.rng = torch.Generator(self.accelerator.device).manual_seed(seed)
        self.started = time.monotonic()

    def run(self) -> Best:
        """All stages, from the last checkpoint if there is one; the best weights stay loaded."""
        path, tensors, point = self.out / CHECKPOINT, None, Point()
        if ranks.from_first(path.exists()):
            tensors, facts = load_checkpoint(path)
            point = point_of(facts, path, stages=len(self.config.stages))
            self.started -= point.seconds
        self.log_file = self.open_log(point.logged)
        with stopping() as stop:
            for number, (name, stage) in enumerate(self.config.stages):
                if number < point.stage:
                    continue
                point = self.stage(name, stage, point, tensors, stop)
                load_weights(self.model, self.out / WEIGHTS)
                best, tensors = point.best, None
                point = Point(stage=number + 1)
        self.log_file.close()
        for tracker in self.accelerator.trackers:  # its end_training would part the processes
            tracker.finish()
        return best

    def open_log(self, logged: int) -> TextIO:
        """The log, cut to so many bytes, which it has; other processes' lines go nowhere."""
        if not ranks.first():
            return open(os.devnull, "w", encoding="utf-8")
        path = self.out / METRICS
        size = path.stat().st_size if path.is_file() else -1
        if size < logged:
            found = f"it has {size}" if size >= 0 else "it is not there"
            raise UserError(f"{path}: the checkpoint says {logged} bytes, but {found}")
        file = path.open("r+", encoding="utf-8")
        file.truncate(logged)
        file.seek(logged)
        return file

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def log(self, kind: str, **row: Any) -> None:
        """One line of metrics.jsonl, and the same numbers to TensorBoard where asked."""
        self.log_file.write(json.dumps({"kind": kind} | row) + "\n")
        self.log_file.flush()
        numbers = {f"{kind}/{k}": v for k, v in row.items() if isinstance(v, float)}
        self.accelerator.log(numbers, step=row["update"])

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
        batches = Batches(self.examples, tokens=stage.tokens, seed=self.config.seed)
        per_epoch = math.ceil(len(batches.plan(0)) / stage.accumulation)
        updates = stage.epochs * per_epoch
        learner = Learner(self.model, stage.objective)
        optimizer = self.accelerator.prepare(make_optimizer(learner, stage))
        if tensors is not None:
            restore_training(tensors, self.model, optimizer, self.rng)
        with Progress(name, updates, quiet=self.quiet) as progress:
            progress.skip(point.update)
            for epoch in range(point.epoch, stage.epochs):
                meter = Meter(*point.loss)
                for group in grouped(batches, epoch, stage.accumulation, start=point.groups):
                    lr = stage.lr * point.slower * lr_shape(stage, point.update, updates)
                    set_lr(optimizer, lr)
                    now = Moment(epoch, point.update)
                    meter.add(*self.update(learner, optimizer, group, stage, now))
                    point = point._replace(
                        epoch=epoch,
                        groups=point.groups + 1,
                        update=point.update + 1,
                        loss=(meter.total, meter.count),
                    )
                    progress.advance(1, meter.shown())
                    if point.update % self.config.log_every == 0:
                        at = {"stage": name, "epoch": epoch, "update": point.update, "lr": lr}
                        self.log("train", **at, **meter.row())
                    signum = ranks.largest(max(stop, default=0))
                    if signum or point.update % self.config.checkpoint_every == 0:
                        self.save(point, optimizer)
                        stop_here(signum, self.out)
                point = self.end_of_epoch(name, stage, point, meter.mean(), progress)
                self.save(point, optimizer)
                stop_here(ranks.largest(max(stop, default=0)), self.out)
                if stage.patience is not None and epoch - point.best.epoch >= stage.patience:
                    progress.say(f"{name}: no better dev score for {stage.patience} epochs")
                    break
        return point

    def end_of_epoch(
        self, name: str, stage: Stage, point: Point, loss: float, progress: Progress
    ) -> Point:
        """Score dev, keep the weights if they are the best, and step to the next epoch."""
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
            best=found if improved else point.best,
            slower=point.slower if improved else point.slower * stage.plateau,
        )

    def save(self, point: Point, optimizer: Any) -> None:
        """Everything that the rest of the run depends on, in one file."""
        point = point._replace(logged=self.log_file.tell(), seconds=self.seconds())
        facts = point._asdict() | {"best": point.best._asdict()}
        tensors = training_tensors(self.model, optimizer, self.rng)
        if ranks.first():
            save_checkpoint(self.out / CHECKPOINT, tensors, facts)

    def on_dev(self, stage: str, epoch: int, update: int) -> "Best":
        """The dev split decoded with the run's own search, scored and logged."""
        kind = self.config.data.kind
        metrics = evaluate(
            self.model, self.corpus.split("dev"), kind, self.codecs, self.config.select
        )
        metric, score = main_metric(kind, metrics)
        row = {"stage": stage, "epoch": epoch, "update": update}
        normalizers = {name: log_z(self.model, part) for name, part in self.probes.items()}
        self.log(
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
        batch, of the first process's share.
        """
        learner.train()
        total, size, log = 0.0, 0.0, {}
        for batch in group:
            if not len(batch.target):
                continue  # a small batch, and all its sentences are other processes'
            batch = Batch(*(tensor.to(self.accelerator.device) for tensor in batch))
            with self.accelerator.autocast():
                loss = learner(batch, now, self.rng)
            self.accelerator.backward(loss.total)
            total, size, log = total + loss.total.item(), size + loss.size, dict(loss.log)
        total, size = ranks.summed([total, size])
        if not math.isfinite(total):
            raise UserError(
                f"the loss became {total} at update {now.update}; lower the learning rate"
            )
        ranks.sum_gradients(learner.parameters())
        gradients = [p.grad for p in learner.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, 1.0 / max(size, 1))
        self.accelerator.clip_grad_norm_(learner.parameters(), stage.clip)
        optimizer.step()
        optimizer.zero_grad()
        return total, int(size), log


class Meter:
    """Running loss and speed since the start of the epoch."""

    def __init__(self, total: float = 0.0, count: int = 0) -> None:
        self.total, self.count, self.before = total, count, count
        self.started = time.monotonic()
        self.log: dict[str, float] = {}

    def add(self, total: float, count: int, log: dict[str, float]) -> None:
        self.total, self.count = self.total + total, self.count + count
        self.log |= log

    def mean(self) -> float:
        return self.total / max(self.count, 1)

    def speed(self) -> float:
        return (self.count - self.before) / max(time.monotonic() - self.started, 1e-9)

    def shown(self) -> dict[str, str]:
        return {"loss": f"{self.mean():.4f}", "tokens/s": f"{self.speed():,.0f}"}

    def row(self) -> dict[str, float]:
        return {"loss": self.mean(), "tokens_per_s": round(self.speed(), 1)} | self.log


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


def stop_here(signum: int, out: Path) -> None:
    if signum:
        raise Interrupted(signum, f"stopped after a whole update; --resume goes on with {out}")


def make_optimizer(learner: nn.Module, stage: Stage) -> torch.optim.Optimizer:
    if stage.optimizer == "adam":
        return torch.optim.Adam(learner.parameters(), lr=stage.lr)
    return torch.optim.AdamW(learner.parameters(), lr=stage.lr, weight_decay=stage.weight_decay)


def set_lr(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def lr_shape(stage: Stage, update: int, updates: int) -> float:
    """The learning rate at an update as a share of `stage.lr`."""
    if update < stage.warmup:
        return (update + 1) / (stage.warmup + 1)
    through = (update - stage.warmup) / max(updates - stage.warmup, 1)
    if stage.schedule == "linear":
        return 1.0 - through
    if stage.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * through))
    return 1.0


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
