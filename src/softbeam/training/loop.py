"""Train a run: stages of training on one corpus, with the best weights on dev kept.

Under torchrun every process has the whole model and a share of each batch; the first one alone
scores dev, logs and writes, in a folder that all of them can read.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import set_seed
from torch import Tensor, nn

from softbeam.data.batches import Batches, Encoded, Position, collate
from softbeam.data.encoding import Codecs, encode
from softbeam.data.task import Corpus
from softbeam.data.tasks import EXAMPLES, InMemory
from softbeam.errors import Interrupted, NotFinite, UserError
from softbeam.models.building import TRAINED, build
from softbeam.runtime import inputs, outputs, ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.devices import device_of
from softbeam.runtime.files import (
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
from softbeam.training.baselines import baselines
from softbeam.training.checkpoint import (
    NAME as CHECKPOINT,
    Best,
    Point,
    facts_of,
    point_of,
    restore_training,
    training_tensors,
)
from softbeam.training.config import (
    AUTO,
    RunConfig,
    Stage,
    differences,
    from_yaml,
    modules_of,
    to_yaml,
)
from softbeam.training.decoding import best, check_lengths, check_width, decode_encoded, longest
from softbeam.training.defaults import (
    Settled,
    as_text,
    choices,
    settled,
    with_chosen,
    with_recorded,
)
from softbeam.training.evaluation import log_z
from softbeam.training.kinds import kind_of
from softbeam.training.optimization import (
    check_weights,
    lr_shape,
    make_optimizer,
    quoted,
    set_lr,
)
from softbeam.training.own_search import alpha_after
from softbeam.training.recording import Recorder, accelerator
from softbeam.training.rewards import own_function, texts_of
from softbeam.training.runs import (
    CONFIG,
    METRICS,
    SUMMARY,
    WEIGHTS,
    choices_of,
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
from softbeam.training.threads import cores, faster, from_environment
from softbeam.training.time_limits import TimeLimit
from softbeam.training.updates import Learner, Step, run_update, try_update
from softbeam.training.vocabularies import load_codecs, make_codecs, sources
from softbeam.types import Batch


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
    device_of(config.device)  # before anything is read
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
    resume, asked = ranks.from_first(resume and (out / CONFIG).is_file()), config
    if resume:
        config = with_recorded(config, from_yaml(out / CONFIG))
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
        note = config.model.initialize(model, codecs, sources(corpus))
        if note and not quiet:
            print(note)
    if not ranks.first():
        torch.manual_seed(ranks.own_seed(config.seed))  # the same weights, another dropout
    trainer = Trainer(with_models(config, codecs), corpus, codecs, model, out, quiet=quiet)
    config = trainer.choose(config)
    if ranks.first() and not resume:
        chosen = choices(asked, config)
        write_start(out, config, codecs, corpus, chosen)
        if chosen and not quiet:
            print(as_text(chosen, len(trainer.examples)), file=sys.stderr, flush=True)
    ranks.wait()
    best, end = trainer.run(accept=accept)
    summary = {
        "metric": best.metric,
        "score": best.score,
        "epoch": best.epoch,
        "alpha": alpha_after(out, config, best.epoch) if ranks.first() else None,
        "metrics": best.metrics,
        "seconds": round(trainer.seconds(), 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "skipped": end.skipped,
        "baselines": baselines(trainer.kind, corpus.split("train"), trainer.problems),
        "stages": end.ends,
        "chosen": ranks.from_first(choices_of(out)),
    }
    if ranks.first():
        trainer.check_folder()
        inputs.record(out, {WEIGHTS: out / WEIGHTS})
        finish(out, summary)
        remove(out / CHECKPOINT)
        trainer.check_folder()
    trainer.recorder.close()
    return summary


def with_models(config: RunConfig, codecs: Codecs) -> RunConfig:
    """Return the run with what its objectives name, such as teachers, and with its texts.

    Raises UserError if a model has other vocabularies: it would read other words.
    """

    def load(folder: Path) -> nn.Module:
        run = load_run(folder, device=config.device)
        for side, its, ours in zip(Codecs._fields, run.codecs, codecs, strict=True):
            if its.to_json() != ours.to_json():
                raise UserError(
                    f"{folder / side}.json is another vocabulary than that of this run "
                    f"({len(its)} entries, {len(ours)} here): train {folder} on the same data"
                )
        return run.model

    def ready(stage: Stage) -> Stage:
        if stage.objective is None:
            return stage
        loaded = stage.objective.loaded(load)
        return replace(stage, objective=loaded.reading(texts_of(codecs), own_function))

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

    The number of updates that may be skipped can change, as it has had no effect so far, and so
    can the time and the device.
    """
    before = from_yaml(out / CONFIG)
    free = {name: getattr(config, name) for name in ("skip_nonfinite", "minutes", "device")}
    same = replace(before, **free)
    if same != config:
        other = f"{out} holds a run with other settings: {differences(same, config)}"
        raise UserError(f"{other}; give the same, or another --out to train anew")
    if not ranks.first():
        return
    if before != config:
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
    stage: Settled
    batches: Batches
    updates: int
    learner: nn.Module
    optimizer: Any
    limit: TimeLimit


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
        self.rng = torch.Generator().manual_seed(seed)  # of the CPU on every device
        self.started, self.scoring = time.monotonic(), 0.0  # and seconds that a score on dev takes

    def choose(self, config: RunConfig) -> RunConfig:
        """Choose what a run leaves to the data and the machine; returns it as it is written.

        Args:
            config: the run without the models of its objectives.
        """
        config = with_chosen(config, self.examples, self.dev)
        self.config = with_recorded(self.config, config)
        if config.threads == AUTO:
            config = replace(config, threads=from_environment() or self.tried_threads())
            self.config = with_recorded(self.config, config)
        assert config.threads != AUTO
        torch.set_num_threads(config.threads)
        return config

    def tried_threads(self) -> int:
        """Find the better number of threads for the first stage, on rows of its first batch."""
        name, stage = self.config.stages[0]
        first = [self.examples[i] for i in self.batches(settled(stage)).plan(0)[0]]
        assert stage.objective is not None
        learner = Learner(self.model, stage.objective)
        device, eos = self.accelerator.device, self.codecs.eos

        def step(rows: int) -> None:
            rng = torch.Generator().manual_seed(self.config.seed)
            try_update(self.accelerator, learner, collate(first[:rows], eos=eos).to(device), rng)

        return faster(step, rows=len(first), most=1 if ranks.world() > 1 else cores())

    def batches(self, stage: Settled) -> Batches:
        """Return the batches of a stage."""
        eos, seed = self.codecs.eos, self.config.seed
        return Batches(self.examples, tokens=stage.tokens, seed=seed, eos=eos)

    def run(self, *, accept: bool = False) -> tuple[Best, Point]:
        """Run all stages, from the last checkpoint if there is one; the best weights stay loaded.

        Returns the best result on dev, and the point after the last stage. With `accept`, the
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
                point = self.stage(name, settled(stage), point, tensors, stop)
                self.load_best(point)
                best, tensors = point.best, None
                point = Point(
                    stage=number + 1,
                    skipped=point.skipped,
                    began=self.seconds(),
                    ends=point.ends,
                )
        return best, point

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
            splits = self.corpus.splits.items()
            pairs = {name: [(e.source, e.target) for e in split] for name, split in splits}
            data, text = InMemory.of(beside, config.data.kind, pairs)
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
        stage: Settled,
        point: Point,
        tensors: dict[str, Tensor] | None,
        stop: list[int],
    ) -> Point:
        """Run the rest of a stage; its best weights are in the run's folder afterwards."""
        assert stage.objective is not None
        batches = self.batches(stage)
        updates = stage.epochs * math.ceil(len(batches.plan(0)) / stage.accumulation)
        learner = Learner(self.model, stage.objective)
        optimizer = self.accelerator.prepare(make_optimizer(learner, stage))
        self.unscored = point
        if tensors is not None:
            self.latest = tensors, point
            restore_training(tensors, self.model, optimizer, self.rng)
        else:
            self.save(point, optimizer)  # the stage's own weights will replace what it begins with
        left = len(self.config.stages) - point.stage
        limit = TimeLimit.of(self.config.minutes, point.began, left)
        running = Running(name, stage, batches, updates, learner, optimizer, limit)
        with Progress(name, updates, quiet=self.quiet) as progress:
            progress.skip(point.update)
            if warning := stage.objective.warning(stage.epochs):
                progress.say(f"{name}: {warning}")
            while not (why := self.over(stage, point, limit)):
                point = self.epoch(running, point, progress, stop)
            progress.note(f"{name}: {why}")
            if name == "finetune" and (advice := remark(stage, point)):
                progress.say(f"{name}: {advice}")
        end = {"updates": point.update, "epochs": point.epoch, "score": point.best.score}
        return point._replace(ends=point.ends | {name: end | {"ended": why}})

    def over(self, stage: Settled, point: Point, limit: TimeLimit) -> str:
        """Say why a stage is over, in the same words after a stop; empty if it is not over."""
        if stage.patience is not None and point.best.score >= self.kind.perfect:
            return "no better dev score is possible"
        if no_better(stage, point):
            return f"no better dev score for {stage.patience} epochs"
        if point.epoch >= stage.epochs:
            return f"all {stage.epochs} epochs"
        scored = point.best.metric != ""  # at least once
        return f"the time of {self.config.minutes:g} minutes" if scored and self.late(limit) else ""

    def late(self, limit: TimeLimit) -> bool:
        """Say whether the time of a stage is over, also if dev has still to be scored."""
        if self.config.minutes is None:
            return False
        return bool(ranks.largest(int(limit.share(self.seconds() + self.scoring) >= 1)))

    def epoch(self, running: "Running", point: Point, progress: Progress, stop: list[int]) -> Point:
        """Run the rest of an epoch, and score dev if it is time to."""
        name, stage, batches, _, _, optimizer, limit = running
        meter, late = Meter(*point.loss, point.log), False
        for group in grouped(batches, point.epoch, stage.accumulation, start=point.groups):
            point = self.one_update(running, group, point, meter, progress)
            signum = ranks.largest(max(stop, default=0))
            if signum or point.update % self.config.checkpoint_every == 0:
                self.save(point, optimizer)
                stop_here(signum, self.out)
            if late := self.late(limit):
                break
        self.unscored, done = point, point.epoch + 1
        after: dict[str, Any] = {"epoch": done, "groups": 0, "loss": (0.0, 0), "log": {}}
        if late or done % stage.score_every == 0 or done == stage.epochs:
            point = self.scored(name, stage, point, meter.mean(), progress)._replace(**after)
        else:
            self.unscored = point = point._replace(**after)
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
        name, stage, batches, updates, learner, optimizer, limit = running
        timed = limit.share(self.seconds())
        lr = stage.lr * point.slower * lr_shape(stage, point.update, updates, timed=timed)
        set_lr(optimizer, lr)
        if timed > 0:
            progress.expect(max(point.update, int(point.update / timed)))
        now = Moment(point.epoch, point.update)
        try:
            step = Step(self.accelerator, learner, optimizer, self.rng)
            meter.add(*run_update(step, group, now, clip=stage.clip))
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

    def scored(
        self, name: str, stage: Stage, point: Point, loss: float, progress: Progress
    ) -> Point:
        """Score dev after an epoch, and keep the weights if they are the best."""
        began = time.monotonic()
        check_weights(self.model, f"after update {point.update} of {name}")
        scores = self.on_dev(name, point.epoch, point.update) if ranks.first() else Best()
        scores = Best(*ranks.from_first(scores))
        improved = scores.score > point.best.score
        progress.note(f"{name} {scores.text(loss)}{' (best)' if improved else ''}")
        weights = point.weights
        if improved and ranks.first() and outputs.identity(self.out) == self.folder:
            save_weights(self.model, self.out / WEIGHTS)
            weights = inputs.digest(self.out / WEIGHTS)
        self.scoring = time.monotonic() - began
        return point._replace(
            weights=weights,
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

    def skip(
        self,
        name: str,
        stage: Settled,
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


def no_better(stage: Settled, point: Point) -> bool:
    """Say whether patience has run out; the answer is the same after a stop and a resume."""
    waited = point.epoch - 1 - point.best.epoch
    return stage.patience is not None and point.best.epoch >= 0 and waited >= stage.patience


def remark(stage: Settled, point: Point) -> str:
    """Say what to try if a second stage was best after its first epoch; empty if it was not."""
    if point.best.epoch != 0 or point.epoch < 2:
        return ""
    cures = ["a lower --finetune.lr"]
    if getattr(stage.objective, "search_dropout", "") == "none":
        cures.append("--finetune.objective.search_dropout shared")
    return f"best after the first of {point.epoch} epochs; try {' or '.join(cures)}"


def stop_here(signum: int, out: Path) -> None:
    if signum:
        raise Interrupted(signum, f"stopped after a whole update; --resume goes on with {out}")
