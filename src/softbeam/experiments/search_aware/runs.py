"""The runs behind Tables 3.1 to 5.6, by name, for each preset.

`runs(preset)` has entries like `ccg-uni/direct-annealed`: a configuration and the run it starts
from. In the preset `paper`, a number quotes the papers, or a comment says that it does not
("ours"). The preset `cpu` compares the same runs from the same starts, in sizes that we chose small
enough for two cores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from softbeam.data.tasks import NamedEntities, Supertags, Translation
from softbeam.models.specs import Lstm
from softbeam.objectives.base import Objective, SearchDropout
from softbeam.objectives.costs import Cost, DoubledO, Hamming, Windowed
from softbeam.objectives.likelihood import CrossEntropy, SelfNormalized
from softbeam.objectives.scheduled_sampling import FeedbackName, ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, SoftHinge
from softbeam.schedules import Constant, Exponential, InverseSigmoid, Schedule
from softbeam.training.config import RunConfig, Stage
from softbeam.training.defaults import settled
from softbeam.training.recipes import ENTITY_TAGGER
from softbeam.training.searches import Beam, Greedy

# Every stage has all of these stated: nothing is chosen from the data
PLAIN = Stage(epochs=5, lr=1e-3, tokens=1000, patience=None, score_every=1, warmup=0)
ANNEALED = Exponential(start=1.0, growth=1.4)  # 2018, Sec. 2.3: alpha grows; growth is ours
SHARPER = Exponential(start=5.0, growth=1.4)  # ours: docs/results/appendix.md has what was tried
HINGE = 5.0  # hinges: the learning rate is divided by this; also ours
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
class PlannedRun:
    """A run's configuration, and the name of the run whose weights it starts from."""

    config: RunConfig
    start: str | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """What a group of runs shares.

    Args:
        base: data, model, the first stage, and the search that selects weights.
        second: settings of the second stages, but for their objective.
        longest: most tokens of a sentence in second stages; None for no limit.
        k: beam size in training.
        cost: cost of a wrong label.
        alpha: alpha of direct loss where it is annealed.
        longer: the second stage of scheduled sampling, whose first epoch feeds gold alone, and of
            the cross-entropy training beside it; None for the same stage as the others.
        settle: epochs of self-normalized training after cross-entropy; None to train
            self-normalized from the beginning.
        dropout: in the search of second stages.
    """

    base: RunConfig
    second: Stage
    longest: int | None = None
    k: int = 3
    cost: Cost = Hamming()
    alpha: Schedule = ANNEALED
    longer: Stage | None = None
    settle: int | None = None
    dropout: SearchDropout = "independent"

    def first(self, objective: Objective | None = None, stage: Stage | None = None) -> PlannedRun:
        """A run of one stage, with the base's objective and settings or others."""
        stage = self.base.pretrain if stage is None else stage
        stage = stage if objective is None else replace(stage, objective=objective)
        return PlannedRun(config=replace(self.base, pretrain=stage, finetune=PLAIN))

    def self_normalized(self, objective: SelfNormalized) -> PlannedRun:
        """The self-normalized start, trained from the beginning or after cross-entropy."""
        if self.settle is None:
            return self.first(objective)
        stage = replace(self.base.pretrain, objective=objective, epochs=self.settle)
        return PlannedRun(config=replace(self.base, finetune=stage), start="ce")

    def then(
        self, start: str, objective: Objective, *, normalize: bool = True, slower: float = 1.0
    ) -> PlannedRun:
        """A second stage from a start of the group; its learning rate is divided by `slower`."""
        base = self.base
        if self.longest is not None:
            base = replace(base, data=replace(base.data, max_length=self.longest))
        select = replace(base.select, normalize=normalize)
        lr = settled(self.second).lr / slower
        second = replace(self.second, objective=objective, lr=lr)
        return PlannedRun(config=replace(base, finetune=second, select=select), start=start)


@cache
def runs(preset: str) -> Mapping[str, PlannedRun]:
    """All runs of a preset, by names like `ner/ce`."""
    groups = {"cpu": cpu, "paper": paper, "tiny": tiny}[preset]()
    planned: dict[str, PlannedRun] = {}
    for name in ("ccg-uni", "ccg-bi", "ner"):
        planned |= in_group(name, tagging_runs(name, groups[name]))
    return planned | in_group("mt", translation_runs(groups["mt"]))


def in_group(name: str, planned: Mapping[str, PlannedRun]) -> dict[str, PlannedRun]:
    """Put the group's name before the names of its runs and of their starts."""
    return {
        f"{name}/{run}": replace(plan, start=f"{name}/{plan.start}" if plan.start else None)
        for run, plan in planned.items()
    }


def tagging_runs(name: str, group: Group) -> dict[str, PlannedRun]:
    """The runs of a tagging group; how many there are depends on the group's name."""
    local = DirectLoss(k=group.k, cost=group.cost, alpha=group.alpha, search_dropout=group.dropout)
    hinge = SoftHinge(k=group.k, cost=group.cost, alpha=SHARPER, search_dropout=group.dropout)
    planned = soft_beam_runs(name, group, local, hinge)
    if name == "ner":
        return planned | sampling_runs(group, 0.0) | decay_runs(group)
    everywhere = replace(local, normalize=False)
    return planned | {
        "global": group.then("ce", everywhere, normalize=False),
        "sn": group.self_normalized(SelfNormalized()),
        "sn-local": group.then("sn", local),
        "sn-global": group.then("sn", everywhere, normalize=False),
    }


def soft_beam_runs(
    name: str, group: Group, local: DirectLoss, hinge: SoftHinge
) -> dict[str, PlannedRun]:
    """The start, its control, and the objectives of Table 4.1 with this loss and this hinge."""
    planned = {
        "ce": group.first(),
        "more-ce": group.then("ce", CrossEntropy()),
        "direct-annealed": group.then("ce", local),
    }
    if name == "ccg-bi":
        return planned
    return planned | {
        "direct-fixed": group.then("ce", replace(local, alpha=FIXED)),
        "hinge-annealed": group.then("ce", hinge, slower=HINGE),
        "hinge-fixed": group.then("ce", replace(hinge, alpha=FIXED), slower=HINGE),
    }


def translation_runs(group: Group) -> dict[str, PlannedRun]:
    """The runs of the translation group: the soft beam beside cross-entropy, and with an end mark.

    docs/design/0005-variable-length.md says why.
    """
    sampled = replace(group, second=group.longer or group.second)
    local = DirectLoss(
        k=group.k,
        alpha=Constant(value=4.0),
        cost=group.cost,
        finish=True,
        extra=3,
        cross_entropy=1.0,
        smoothing=0.1,
        candidates=64,
        search_dropout=group.dropout,
    )
    everywhere = replace(local, normalize=False, log_z_penalty=0.1)
    return {
        "ce": group.first(),
        "more-ce": sampled.then("ce", CrossEntropy(smoothing=0.1)),
        "local": group.then("ce", local),
        "global": group.then("ce", everywhere, normalize=False),
        "sn": group.self_normalized(SelfNormalized(smoothing=0.1)),
        "sn-local": group.then("sn", local),
        "sn-global": group.then("sn", everywhere, normalize=False),
    } | sampling_runs(sampled, 0.1)


def sampling_runs(group: Group, smoothing: float) -> dict[str, PlannedRun]:
    """The runs of Table 3.1: gold tokens are fed in the first epoch, then ever fewer of them."""
    gold = InverseSigmoid(k=10.0)
    return {
        name: group.then(
            "ce",
            ScheduledSampling(
                feedback=feedback,
                alpha=alpha,
                gold=gold,
                smoothing=smoothing,
                search_dropout=group.dropout,
            ),
        )
        for name, (feedback, alpha) in SAMPLING.items()
    }


def decay_runs(group: Group) -> dict[str, PlannedRun]:
    """The runs of Table 3.2: soft argmax, annealed, with gold tokens replaced at four speeds."""
    return {
        name: group.then(
            "ce", ScheduledSampling(alpha=ANNEALED, gold=gold, search_dropout=group.dropout)
        )
        for name, gold in DECAYS.items()
    }


# Sizes

FIRST = replace(PLAIN, objective=CrossEntropy(), epochs=8, lr=2e-3, patience=2)
SUPERTAGS = RunConfig(
    data=Supertags(max_length=60),
    model=Lstm(encoder="bi", dropout=0.3),
    pretrain=FIRST,
    finetune=replace(PLAIN, epochs=4),
    select=Beam(k=3),  # 2018, Sec. 3: "beam size ... was set to 3"
    threads=1,
)
ENTITIES = RunConfig(
    data=NamedEntities(),
    model=ENTITY_TAGGER,
    pretrain=FIRST,
    finetune=PLAIN,
    threads=1,
)
TRANSLATION = RunConfig(
    data=Translation(),
    model=Lstm(),
    pretrain=replace(
        FIRST,
        objective=CrossEntropy(smoothing=0.1),
        epochs=16,  # with 8 BLEU is 16, with 16 25
        tokens=1500,
        schedule="linear",
        patience=None,
    ),
    finetune=PLAIN,
    select=Beam(k=3),  # 2019, Sec. 4.2: "beam size 3"
    threads=2,
)


def cpu() -> dict[str, Group]:
    """The groups on public data; each run takes minutes."""
    second = replace(PLAIN, epochs=4, schedule="linear", tokens=400)
    entities = replace(ENTITIES, data=NamedEntities(limit=6000, max_length=40))
    few = replace(PLAIN, epochs=1, lr=3e-4, schedule="linear")
    mt = replace(
        TRANSLATION,
        data=Translation(limit=10_000, subwords=2000),
        model=Lstm(attention="bahdanau", hidden=128, embedding=128, dropout=0.3, tied=True),
        threads=1,
    )
    return {
        "ccg-uni": Group(base=with_encoder(SUPERTAGS, "uni"), second=second, longest=25),
        "ccg-bi": Group(base=with_encoder(SUPERTAGS, "bi"), second=second, longest=25),
        "ner": Group(
            base=entities,
            second=replace(second, epochs=3, lr=5e-4),
            cost=DoubledO(),
            alpha=SHARPER,
        ),
        "mt": Group(
            base=mt,
            second=few,
            longer=replace(few, epochs=3),
            longest=20,
            cost=Windowed(),
            settle=4,  # from scratch it is half as good as cross-entropy: docs/results/appendix.md
        ),
    }


def paper() -> dict[str, Group]:
    """The groups in the published sizes; licensed data is read from folders below data/."""
    second = replace(
        PLAIN,
        epochs=50,  # 2018, Sec. 3.3: "for 50 epochs"
        lr=1e-3,  # ours
        patience=5,  # ours: "picked the models with the best performance on the development set"
    )
    first = replace(second, objective=CrossEntropy())
    bank = "data/ccgbank"
    tagger = replace(
        SUPERTAGS,
        data=Supertags(
            train=f"{bank}/train.auto", dev=f"{bank}/dev.auto", test=f"{bank}/test.auto"
        ),
        model=Lstm(hidden=512, embedding=512, label_embedding=512),  # 2018, Sec. 3.2: "size 512"
        pretrain=first,
        restarts=3,  # 2019, Sec. 4: "at least three random restarts"
    )
    entities = replace(
        ENTITIES,
        data=NamedEntities(corpus="conll2003-de", path="data/conll2003-de"),  # 2018, Sec. 3.1
        pretrain=first,
        restarts=3,  # 2017, Sec. 5: "multiple random restarts"
    )
    talks = "data/iwslt14"
    mt = replace(
        TRANSLATION,
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
        restarts=3,  # 2017, Sec. 5: "multiple random restarts"
    )
    return {
        # 2019, Sec. 4.1: "beam size of 5"; 2018 has 3 for Table 1, whose models are shared here
        "ccg-uni": Group(base=with_encoder(tagger, "uni"), second=second, k=5),
        "ccg-bi": Group(base=with_encoder(tagger, "bi"), second=second, k=5),
        # 2018, Sec. 3: beam size "set to 3"; Sec. 3.1: 'O' "is doubly penalized"
        "ner": Group(base=entities, second=second, cost=DoubledO()),
        "mt": Group(base=mt, second=second, cost=Windowed()),  # the cost is ours
    }


def tiny() -> dict[str, Group]:
    """The groups of the preset `cpu` in sizes for tests."""
    return {name: shrunk(group) for name, group in cpu().items()}


def shrunk(group: Group) -> Group:
    """The group in a size for tests: few sentences, a narrow model, an epoch for each stage."""
    base = group.base
    return replace(
        group,
        base=replace(
            base,
            data=replace(base.data, limit=40, max_length=12),
            model=replace(lstm(base), hidden=8, embedding=8, label_embedding=None),
            pretrain=replace(base.pretrain, epochs=1),
            select=base.select.to(Greedy),
        ),
        second=replace(group.second, epochs=1),
        longer=replace(group.second, epochs=2),
        k=2,
    )


def with_encoder(config: RunConfig, encoder: Literal["uni", "bi"]) -> RunConfig:
    return replace(config, model=replace(lstm(config), encoder=encoder))


def lstm(config: RunConfig) -> Lstm:
    assert isinstance(config.model, Lstm)
    return config.model
