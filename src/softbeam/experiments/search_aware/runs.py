"""The runs that Tables 3.1 to 5.6 are made of, by name, for each preset.

`runs(preset)` has an entry like `ccg-uni/direct-annealed`: a configuration and the run it starts
from. A number of the preset `paper` quotes the papers or is ours; those of `cpu` are ours, small
enough for two cores: what they keep is which runs are compared, and from which starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from softbeam.data.tasks import NamedEntities, Supertags, Translation
from softbeam.models.specs import Lstm
from softbeam.objectives.base import Objective
from softbeam.objectives.costs import Cost, DoubledO, Hamming, Windowed
from softbeam.objectives.likelihood import CrossEntropy, SelfNormalized
from softbeam.objectives.scheduled_sampling import FeedbackName, ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, SoftHinge
from softbeam.schedules import Constant, Exponential, InverseSigmoid, Schedule
from softbeam.training.config import RunConfig, Stage
from softbeam.training.recipes import ccg, ner, translation
from softbeam.training.searches import Beam, Greedy

ANNEALED = Exponential(start=1.0, growth=1.4)  # 2018, Sec. 2.3: alpha grows; growth is ours
SHARPER = Exponential(start=5.0, growth=1.4)  # ours: docs/results.md has what was tried
HINGE = 5.0  # their learning rate is so many times smaller, ours as well
FIXED = Constant(value=1.0)  # 2018, Table 1: "alpha = 1.0"
SAMPLING: dict[str, tuple[FeedbackName, Schedule]] = {  # Table 3.1
    "hard-argmax": ("hard_argmax", FIXED),
    "hard-sample": ("hard_sample", FIXED),
    "soft-argmax-fixed": ("soft_argmax_embedding", FIXED),
    "soft-sample-fixed": ("gumbel_soft_sample", FIXED),
    "soft-argmax-annealed": ("soft_argmax_embedding", ANNEALED),
    "soft-sample-annealed": ("gumbel_soft_sample", ANNEALED),
}
DECAYS: dict[str, Schedule] = {  # Table 3.2: k
    "k-100": InverseSigmoid(k=100.0),
    "k-10": InverseSigmoid(k=10.0),
    "k-1": InverseSigmoid(k=1.0),
    "always": Constant(value=0.0),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, and the name of the one whose weights it starts from."""

    config: RunConfig
    start: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a group of runs shares.

    Args:
        base: the first stage, and the search that selects.
        second: of the second stages, without their objective.
        longest: sentences of second stages have at most so many tokens.
        k: beam size in training.
        cost: of a wrong label.
        alpha: of direct loss, where it is annealed.
        longer: the second stage of scheduled sampling, whose first epoch is gold alone, and of the
            cross-entropy beside it; None: as the others.
        settle: epochs of self-normalized training after cross-entropy; None: it begins so.
    """

    base: RunConfig
    second: Stage
    longest: int | None = None
    k: int = 3
    cost: Cost = Hamming()
    alpha: Schedule = ANNEALED
    longer: Stage | None = None
    settle: int | None = None

    def first(self, objective: Objective | None = None) -> Plan:
        """A start: the base's own objective, or another."""
        stage = self.base.pretrain
        stage = stage if objective is None else replace(stage, objective=objective)
        return Plan(config=replace(self.base, pretrain=stage, finetune=Stage()))

    def self_normalized(self, objective: SelfNormalized) -> Plan:
        """The other start, in as many epochs as the base has or in a few more."""
        if self.settle is None:
            return self.first(objective)
        stage = replace(self.base.pretrain, objective=objective, epochs=self.settle)
        return Plan(config=replace(self.base, finetune=stage), start="ce")

    def then(
        self, start: str, objective: Objective, *, normalize: bool = True, slower: float = 1.0
    ) -> Plan:
        """A second stage from a start of the group, its learning rate so many times smaller."""
        base = self.base
        if self.longest is not None:
            base = replace(base, data=replace(base.data, max_length=self.longest))
        select = replace(base.select, normalize=normalize)
        second = replace(self.second, objective=objective, lr=self.second.lr / slower)
        return Plan(config=replace(base, finetune=second, select=select), start=start)


def runs(preset: str) -> dict[str, Plan]:
    """All of them, by name."""
    tasks = {"cpu": cpu, "paper": paper, "tiny": tiny}[preset]()
    found: dict[str, Plan] = {}
    for group in ("ccg-uni", "ccg-bi", "ner"):
        found |= named(group, tagging_runs(group, tasks[group]))
    found |= named("mt", translation_runs(tasks["mt"]))
    return found


def named(group: str, plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """Plans with their group's name before theirs and their starts'."""
    return {
        f"{group}/{name}": replace(plan, start=f"{group}/{plan.start}" if plan.start else None)
        for name, plan in plans.items()
    }


def tagging_runs(group: str, task: Task) -> dict[str, Plan]:
    local = DirectLoss(k=task.k, cost=task.cost, alpha=task.alpha)
    hinge = SoftHinge(k=task.k, cost=task.cost, alpha=SHARPER)
    found = {
        "ce": task.first(),
        "more-ce": task.then("ce", CrossEntropy()),
        "direct-annealed": task.then("ce", local),
    }
    if group != "ccg-bi":
        found |= {
            "direct-fixed": task.then("ce", replace(local, alpha=FIXED)),
            "hinge-annealed": task.then("ce", hinge, slower=HINGE),
            "hinge-fixed": task.then("ce", replace(hinge, alpha=FIXED), slower=HINGE),
        }
    if group == "ner":
        return found | sampling_runs(task, 0.0) | decay_runs(task)
    everywhere = replace(local, normalize=False)
    return found | {
        "global": task.then("ce", everywhere, normalize=False),
        "sn": task.self_normalized(SelfNormalized()),
        "sn-local": task.then("sn", local),
        "sn-global": task.then("sn", everywhere, normalize=False),
    }


def translation_runs(task: Task) -> dict[str, Plan]:
    """Beside cross-entropy, with an end: docs/design/0005-variable-length.md."""
    sampled = replace(task, second=task.longer or task.second)
    local = DirectLoss(
        k=task.k,
        alpha=Constant(value=4.0),
        cost=task.cost,
        finish=True,
        extra=3,
        cross_entropy=1.0,
        smoothing=0.1,
        candidates=64,
    )
    everywhere = replace(local, normalize=False, log_z_penalty=0.1)
    return {
        "ce": task.first(),
        "more-ce": sampled.then("ce", CrossEntropy(smoothing=0.1)),
        "local": task.then("ce", local),
        "global": task.then("ce", everywhere, normalize=False),
        "sn": task.self_normalized(SelfNormalized(smoothing=0.1)),
        "sn-local": task.then("sn", local),
        "sn-global": task.then("sn", everywhere, normalize=False),
    } | sampling_runs(sampled, 0.1)


def sampling_runs(task: Task, smoothing: float) -> dict[str, Plan]:
    """Table 3.1: gold is fed in the first epoch, then ever less."""
    gold = InverseSigmoid(k=10.0)
    return {
        name: task.then(
            "ce",
            ScheduledSampling(feedback=feedback, alpha=alpha, gold=gold, smoothing=smoothing),
        )
        for name, (feedback, alpha) in SAMPLING.items()
    }


def decay_runs(task: Task) -> dict[str, Plan]:
    """Table 3.2: soft argmax, annealed."""
    return {
        name: task.then("ce", ScheduledSampling(alpha=ANNEALED, gold=gold))
        for name, gold in DECAYS.items()
    }


# Sizes


def cpu() -> dict[str, Task]:
    """Public data; minutes for each run."""
    second = Stage(epochs=4, lr=1e-3, schedule="linear", tokens=400)
    tagger = ccg()
    entities = replace(ner(), data=NamedEntities(limit=6000, max_length=40))
    few = Stage(epochs=1, lr=3e-4, schedule="linear", tokens=1000)
    mt = translation()
    mt = replace(
        mt,
        data=Translation(limit=10_000, subwords=2000),
        model=Lstm(attention="bahdanau", hidden=128, embedding=128, dropout=0.3, tied=True),
        pretrain=replace(mt.pretrain, epochs=16),  # with 8 BLEU is 16, with 16 25
        select=Beam(k=3),
        threads=1,
    )
    return {
        "ccg-uni": Task(base=with_encoder(tagger, "uni"), second=second, longest=25),
        "ccg-bi": Task(base=with_encoder(tagger, "bi"), second=second, longest=25),
        "ner": Task(
            base=entities,
            second=replace(second, epochs=3, lr=5e-4),
            cost=DoubledO(),
            alpha=SHARPER,
        ),
        "mt": Task(
            base=mt,
            second=few,
            longer=replace(few, epochs=3),
            longest=20,
            cost=Windowed(),
            settle=4,  # from scratch it is half as good as cross-entropy: docs/results.md
        ),
    }


def paper() -> dict[str, Task]:
    """The published sizes; data that cannot be shipped is looked for below data/."""
    second = Stage(
        epochs=50,  # 2018, Sec. 3.3: "for 50 epochs"
        lr=1e-3,  # ours
        patience=5,  # ours: "picked the models with the best performance on the development set"
    )
    first = replace(second, objective=CrossEntropy())
    bank = "data/ccgbank"
    tagger = replace(
        ccg(),
        data=Supertags(
            train=f"{bank}/train.auto", dev=f"{bank}/dev.auto", test=f"{bank}/test.auto"
        ),
        model=Lstm(hidden=512, embedding=512, label_embedding=512),  # 2018, Sec. 3.2: "size 512"
        pretrain=first,
        restarts=3,  # 2019, Sec. 4: "at least three random restarts"
    )
    entities = replace(
        ner(),
        data=NamedEntities(corpus="conll2003-de"),  # 2018, Sec. 3.1; sizes are the recipe's
        pretrain=first,
        restarts=3,  # 2017, Sec. 5: "multiple random restarts"
    )
    talks = "data/iwslt14"
    mt = replace(
        translation(),
        data=Translation(  # 2017, Sec. 5: IWSLT 2014
            source=f"{talks}/train.de",
            target=f"{talks}/train.en",
            dev_source=f"{talks}/valid.de",
            dev_target=f"{talks}/valid.en",
            test_source=f"{talks}/test.de",
            test_target=f"{talks}/test.en",
            subwords=0,
        ),
        model=Lstm(
            attention="bahdanau",  # 2017, Sec. 5
            hidden=256,  # 2017, Sec. 5: "1 layer, 256 units"
            embedding=256,  # ours
            dropout=0.3,  # ours
        ),
        pretrain=first,
        select=Beam(k=3),  # 2019, Sec. 4.2: "beam size 3"
        restarts=3,  # 2017, Sec. 5: "multiple random restarts"
    )
    return {
        # 2019, Sec. 4.1: "beam size of 5"; 2018 has 3 for Table 1, whose models are shared here
        "ccg-uni": Task(base=with_encoder(tagger, "uni"), second=second, k=5),
        "ccg-bi": Task(base=with_encoder(tagger, "bi"), second=second, k=5),
        # 2018, Sec. 3: beam size "set to 3"; Sec. 3.1: 'O' "is doubly penalized"
        "ner": Task(base=entities, second=second, cost=DoubledO()),
        "mt": Task(base=mt, second=second, cost=Windowed()),  # the cost is ours
    }


def tiny() -> dict[str, Task]:
    """Whether everything works."""

    def smaller(task: Task) -> Task:
        base = task.base
        return replace(
            task,
            base=replace(
                base,
                data=replace(base.data, limit=40, max_length=12),
                model=replace(lstm(base), hidden=8, embedding=8, label_embedding=None),
                pretrain=replace(base.pretrain, epochs=1),
                select=base.select.to(Greedy),
            ),
            second=replace(task.second, epochs=1),
            longer=replace(task.second, epochs=2),
            k=2,
        )

    return {name: smaller(task) for name, task in cpu().items()}


def with_encoder(config: RunConfig, encoder: Literal["uni", "bi"]) -> RunConfig:
    return replace(config, model=replace(lstm(config), encoder=encoder))


def lstm(config: RunConfig) -> Lstm:
    assert isinstance(config.model, Lstm)
    return config.model
