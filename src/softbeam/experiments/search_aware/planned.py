"""The runs of the preset `full`: the arms of docs/experiments_plan.md, at full strength.

The preset `cpu` is for everybody's patience; this one is for the committed results. All second
stages of a group have the same data, epochs, batches, warm-up and patience, the controls included.
Weights are chosen on dev by the search that the run's table reports.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from softbeam.data.tasks import NamedEntities, Translation
from softbeam.experiments.search_aware.runs import (
    DECAYS,
    ENTITIES,
    FIRST,
    FIXED,
    HINGE,
    PLAIN,
    SUPERTAGS,
    TRANSLATION,
    Group,
    PlannedRun,
    in_group,
    soft_beam_runs,
    with_encoder,
)
from softbeam.models.specs import Lstm
from softbeam.objectives.base import Objective, SearchDropout, SearchObjective
from softbeam.objectives.costs import DoubledO, Windowed
from softbeam.objectives.hard_beam import BeamCrf, BeamSearchOptimization
from softbeam.objectives.likelihood import CrossEntropy, SelfNormalized, TokenContrast
from softbeam.objectives.scheduled_sampling import FeedbackName, ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss, HardHinge, SoftHinge
from softbeam.schedules import Constant, Exponential, InverseSigmoid, Schedule
from softbeam.training.config import Stage
from softbeam.training.defaults import settled
from softbeam.training.recipes import g2p
from softbeam.training.searches import Beam, Greedy

FULL = "full"
EPOCHS = 6  # of second stages on tags
TUNED_LR = 8e-3  # of the starts whose rate was tuned, falling to 0
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)  # of starts that are tried
UP = Exponential(start=1.0, growth=2.2)  # 1 to 51 in six epochs: annealing that anneals
HINGE_UP = Exponential(start=5.0, growth=1.6)  # 5 to 52
SHARP = Constant(value=20.0)  # a large constant alpha (2018, footnote 2)
ALWAYS = Constant(value=0.0)  # own predictions at every step
MOSTLY_GOLD = Constant(value=0.75)  # of translation, which own predictions at every step ruin
SCRATCH = InverseSigmoid(k=2.0)  # gold with 0.67, 0.55, 0.42, 0.31, ... in successive epochs
FEEDBACK: dict[str, tuple[FeedbackName, Schedule]] = {
    "hard-argmax": ("hard_argmax", FIXED),
    "hard-sample": ("hard_sample", FIXED),
    "soft-argmax-fixed": ("soft_argmax_embedding", FIXED),
    "soft-sample-fixed": ("gumbel_soft_sample", FIXED),
    "soft-argmax-annealed": ("soft_argmax_embedding", UP),
    "soft-sample-annealed": ("gumbel_soft_sample", UP),
}
FROM_SCRATCH = ("hard-argmax", "soft-argmax-fixed", "soft-argmax-annealed")
PENALTIES = (0.003, 0.01, 0.03, 0.1)  # of self-normalized starts that are tried
MULTIPLES = (0.5, 1.0, 2.0)  # of a group's learning rate that are tried, for each family of runs
FURTHER = {  # tried where the best of these stood at an end
    "more-ce": 0.25,
    "hard-argmax": 4.0,
    "soft-argmax-annealed": 4.0,
    "direct-annealed": 0.25,
    "global": 0.25,
    "beam-crf": 4.0,
    "bso": 4.0,
}
TUNED = "ccg-uni"  # the group that they are tried on
DROPPED = {  # the runs whose dropout in the search is tried
    "ccg-uni": ("direct-annealed", "soft-argmax-annealed", "bso"),
    "ccg-bi": ("direct-annealed", "bso"),
    "ner": ("direct-annealed", "soft-argmax-annealed"),
}
KINDS: tuple[SearchDropout, ...] = ("none", "shared", "independent")
FAMILIES = {  # the run that is tried, and the beginnings of the names of those that follow it
    "more-ce": ("more-",),
    "hard-argmax": ("hard-argmax", "hard-sample"),
    "soft-argmax-annealed": ("soft-argmax", "soft-sample", *DECAYS),
    "direct-annealed": ("direct-", "local", "sn-local"),
    "global": ("global", "sn-global", "sn-free", "nce-global", "fed-global"),
    "hinge-annealed": ("hinge-", "hard-hinge"),
    "beam-crf": ("beam-crf",),
    "bso": ("bso",),
}

# Chosen on dev with seed 1, by `softbeam reproduce tuning penalties --preset full`, before the rest
PENALTY = {"ccg-uni": 0.1, "ccg-bi": 0.1, "mt": 0.03}
MULTIPLE = {  # by family, where it is not 1
    "more-ce": 0.5,
    "hard-argmax": 2.0,
    "soft-argmax-annealed": 4.0,
    "direct-annealed": 0.5,
    "global": 0.5,
    "beam-crf": 2.0,
    "bso": 4.0,
}


MULTIPLES_OF_ENTITIES = {"more-ce": 4.0, "direct-annealed": 0.5}  # on dev of `ner`, seed 3
OTHER_MULTIPLES = {  # of groups whose rates were chosen from their own start, on dev with one seed
    "ccg-bi": {"more-ce": 8.0, "direct-annealed": 0.5, "global": 0.25, "bso": 2.0},
    "mt": {"more-ce": 4e-3 / 3e-4, "direct-annealed": 0.5, "global": 0.5},
    "ner": MULTIPLES_OF_ENTITIES,
    "germ": MULTIPLES_OF_ENTITIES,
}


def groups() -> dict[str, Group]:
    """What the runs of each group share."""
    second = replace(PLAIN, epochs=EPOCHS, schedule="linear", tokens=400, warmup=100, patience=3)
    tagger = replace(SUPERTAGS, pretrain=replace(FIRST, epochs=12, patience=3))
    entities = replace(ENTITIES, pretrain=replace(tuned(12), tokens=400), select=Beam(k=3))
    more = replace(entities.pretrain, epochs=20)  # as many updates as of the larger corpus
    texts = replace(PLAIN, epochs=4, lr=3e-4, schedule="linear", warmup=100)
    mt = replace(
        TRANSLATION,
        data=Translation(corpus="multi30k-both", subwords=4000),
        model=Lstm(attention="bahdanau", hidden=128, embedding=128, dropout=0.3, tied=True),
        pretrain=replace(TRANSLATION.pretrain, lr=TUNED_LR),
        threads=1,
    )
    letters = replace(g2p(), select=Beam(k=3), threads=1)
    letters = replace(
        letters,
        pretrain=replace(letters.pretrain, epochs=12, patience=None, score_every=1, warmup=0),
    )
    none = Group(base=tagger, second=second, longest=40, dropout="none", alpha=UP)
    return {
        "ccg-uni": replace(none, base=with_encoder(tagger, "uni")),
        "ccg-bi": replace(
            none,
            base=replace(with_encoder(tagger, "bi"), pretrain=tuned(12)),
            dropout="independent",
        ),
        "ner": replace(
            none,
            base=entities,
            second=replace(second, lr=5e-4),
            longest=60,
            cost=DoubledO(),
            dropout="shared",
        ),
        "germ": replace(
            none,
            base=replace(entities, data=NamedEntities(corpus="germeval2014"), pretrain=more),
            second=replace(second, lr=5e-4),
            longest=60,
            cost=DoubledO(),
            dropout="shared",
        ),
        "mt": replace(none, base=mt, second=texts, longest=None, cost=Windowed(), settle=4),
        "g2p": replace(
            none,
            base=letters,
            second=replace(texts, epochs=3, lr=5e-4, tokens=500),
            longest=None,
            cost=Windowed(),
            settle=3,
        ),
    }


def tuned(epochs: int) -> Stage:
    """A first stage of taggers with the learning rate that was the best of those tried."""
    return replace(FIRST, epochs=epochs, lr=TUNED_LR, schedule="linear", patience=None)


@cache
def runs() -> Mapping[str, PlannedRun]:
    """All runs of the preset, and those of the table of tuning, by name."""
    every = groups()
    planned = {
        name: plan
        for group in ("ccg-uni", "ccg-bi", "ner", "germ")
        for name, plan in in_group(group, tagging_runs(group, every[group])).items()
    }
    for group in ("mt", "g2p"):
        planned |= in_group(group, text_runs(group, every[group]))
    tried = {
        f"{TUNED}/{name}@{multiple:g}": at_rate(planned[f"{TUNED}/{name}"], multiple)
        for name in FAMILIES
        for multiple in multiples(name)
    }
    chosen = {name: at_rate(plan, multiple(name)) for name, plan in planned.items()}
    starts = {
        f"{group}/ce@{lr:g}": starting(planned[f"{group}/ce"], lr)
        for group in every
        for lr in RATES
    }
    others = {
        f"{group}/{name}~{kind}": dropping(chosen[f"{group}/{name}"], kind)
        for group, names in DROPPED.items()
        for name in names
        for kind in KINDS
        if kind != search_dropout(chosen[f"{group}/{name}"])
    }
    return tried | chosen | starts | others


def multiple(name: str) -> float:
    """The multiple of the learning rate that was chosen for a run; 1 if it has no family."""
    group = PurePosixPath(name).parts[0]
    return OTHER_MULTIPLES.get(group, MULTIPLE).get(family(name) or "", 1.0)


def multiples(family: str) -> tuple[float, ...]:
    """The multiples of the learning rate that are tried for a family."""
    return tuple(sorted({*MULTIPLES, FURTHER.get(family, 1.0)}))


def family(name: str) -> str | None:
    """The family whose learning rate a run has; None for starts and for runs of one stage."""
    run = PurePosixPath(name).name  # after the group
    return next((kin for kin, names in FAMILIES.items() if run.startswith(names)), None)


def at_rate(plan: PlannedRun, multiple: float) -> PlannedRun:
    """The run with a multiple of the learning rate of its second stage."""
    stage = plan.config.finetune
    stage = replace(stage, lr=settled(stage).lr * multiple)
    return replace(plan, config=replace(plan.config, finetune=stage))


def starting(plan: PlannedRun, lr: float) -> PlannedRun:
    """The run of one stage with another learning rate, which falls to 0."""
    stage = replace(plan.config.pretrain, lr=lr, schedule="linear", patience=None)
    return replace(plan, config=replace(plan.config, pretrain=stage))


def search_dropout(plan: PlannedRun) -> SearchDropout:
    """The dropout in the search of a second stage."""
    objective = plan.config.finetune.objective
    assert isinstance(objective, SearchObjective | ScheduledSampling)
    return objective.search_dropout


def dropping(plan: PlannedRun, kind: SearchDropout) -> PlannedRun:
    """The run with another kind of dropout in the search of its second stage."""
    stage = plan.config.finetune
    assert isinstance(stage.objective, SearchObjective | ScheduledSampling)
    stage = replace(stage, objective=replace(stage.objective, search_dropout=kind))
    return replace(plan, config=replace(plan.config, finetune=stage))


def dropped(name: str, kind: SearchDropout) -> str:
    """The name of a run with this dropout in the search: its own name if it has it anyway."""
    return name if search_dropout(runs()[name]) == kind else f"{name}~{kind}"


def greedily(plan: PlannedRun) -> PlannedRun:
    """The run with weights that are chosen by greedy search."""
    return replace(plan, config=replace(plan.config, select=plan.config.select.to(Greedy)))


def tagging_runs(name: str, group: Group) -> dict[str, PlannedRun]:
    """The runs of a group of taggers; how many there are depends on the group's name."""
    dropout = group.dropout
    local = DirectLoss(k=3, cost=group.cost, alpha=UP, search_dropout=dropout)
    hinge = SoftHinge(k=3, cost=group.cost, alpha=HINGE_UP, search_dropout=dropout)
    hard = HardHinge(k=3, cost=group.cost, search_dropout=dropout)
    planned = soft_beam_runs(name, group, local, hinge)
    if name in ("ccg-uni", "ner"):
        planned |= {
            "direct-sharp": group.then("ce", replace(local, alpha=SHARP)),
            "hinge-sharp": group.then("ce", replace(hinge, alpha=SHARP), slower=HINGE),
            "hard-hinge": group.then("ce", hard, slower=HINGE),
            "more-ce-greedy": greedily(group.then("ce", CrossEntropy())),
        }
        planned |= feedback_runs(group, 0.0, ALWAYS) | scratch_runs(group)
    if name == "ner":
        planned |= {
            decay: greedily(
                group.then("ce", ScheduledSampling(alpha=UP, gold=gold, search_dropout=dropout))
            )
            for decay, gold in DECAYS.items()
        }
    return planned | (normalization_runs(name, group, local) if name.startswith("ccg") else {})


def normalization_runs(name: str, group: Group, local: DirectLoss) -> dict[str, PlannedRun]:
    """Local and global training from both starts, and the rivals with a hard beam."""
    everywhere = replace(local, normalize=False)
    normalized = SelfNormalized(penalty=PENALTY[name])

    def raw(start: str, objective: Objective) -> PlannedRun:
        return group.then(start, objective, normalize=False)

    planned = {
        "global": raw("ce", everywhere),
        "sn": group.self_normalized(normalized),
        "more-sn": group.then("sn", normalized),
        "sn-local": group.then("sn", local),
        "sn-global": raw("sn", everywhere),
        "nce": group.first(TokenContrast()),
        "nce-global": raw("nce", everywhere),
        "beam-crf": raw("ce", BeamCrf(k=4, search_dropout=group.dropout)),
        "bso": raw("ce", BeamSearchOptimization(k=4, search_dropout=group.dropout)),
    } | penalty_runs(group, 0.0)
    if name == "ccg-uni":
        planned["ce-tuned"] = group.first(stage=tuned(epochs_of(group.base.pretrain) + EPOCHS))
        planned |= {  # third stages: after own predictions were fed, and the control
            "fed-global": raw("soft-argmax-annealed", everywhere),
            "more-more-ce": group.then("more-ce", CrossEntropy()),
        }
        for k in (5, 10):
            planned |= {
                f"direct-k{k}": wider(group.then("ce", replace(local, k=k)), k),
                f"global-k{k}": wider(raw("ce", replace(everywhere, k=k)), k),
            }
    return planned


def wider(plan: PlannedRun, k: int) -> PlannedRun:
    """The run with weights that are chosen by a beam of k."""
    select = plan.config.select
    return replace(plan, config=replace(plan.config, select=select.to(Beam, k=k)))


def penalty_runs(group: Group, smoothing: float) -> dict[str, PlannedRun]:
    """Self-normalized starts of every strength that is tried."""
    return {
        f"sn-{penalty:g}": group.self_normalized(
            SelfNormalized(penalty=penalty, smoothing=smoothing)
        )
        for penalty in PENALTIES
    }


def feedback_runs(group: Group, smoothing: float, gold: Schedule) -> dict[str, PlannedRun]:
    """The second stages of Table 3.1."""
    return {
        name: greedily(
            group.then(
                "ce",
                ScheduledSampling(
                    feedback=feedback,
                    alpha=alpha,
                    gold=gold,
                    gold_epochs=0,
                    smoothing=smoothing,
                    search_dropout=group.dropout,
                ),
            )
        )
        for name, (feedback, alpha) in FEEDBACK.items()
    }


def scratch_runs(group: Group) -> dict[str, PlannedRun]:
    """Scheduled sampling from random weights, with a first epoch of gold, as it is printed.

    They have as many epochs as both stages of the others together; so has their control.
    """
    base = group.base
    stage = replace(base.pretrain, epochs=epochs_of(base.pretrain) + EPOCHS)

    def trained(objective: Objective) -> PlannedRun:
        return greedily(group.first(objective, stage))

    return {"scratch-ce": trained(CrossEntropy())} | {
        f"scratch-{name}": trained(
            ScheduledSampling(
                feedback=FEEDBACK[name][0],
                alpha=FEEDBACK[name][1] if FEEDBACK[name][1] == FIXED else SLOWER_UP,
                gold=SCRATCH,
                search_dropout="shared",  # as much as the control has
            )
        )
        for name in FROM_SCRATCH
    }


SLOWER_UP = Exponential(start=1.0, growth=1.25)  # 1 to 45 in 18 epochs


def epochs_of(stage: Stage) -> int:
    """The epochs of a stage whose settings are numbers."""
    assert isinstance(stage.epochs, int)
    return stage.epochs


def text_runs(name: str, group: Group) -> dict[str, PlannedRun]:
    """The runs whose outputs decide their own end: translation, and letters to phonemes."""
    smoothing = 0.1 if name == "mt" else 0.0
    local = DirectLoss(
        k=3,
        alpha=Constant(value=4.0),
        cost=group.cost,
        finish=True,
        extra=3,
        cross_entropy=0.3,
        smoothing=smoothing,
        candidates=64,
    )
    everywhere = replace(local, normalize=False)
    penalty = PENALTY.get(name, 0.1)
    normalized = SelfNormalized(penalty=penalty, smoothing=smoothing)
    kept = replace(everywhere, log_z_penalty=penalty)  # the level of a self-normalized start
    plain = CrossEntropy(smoothing=smoothing)
    planned = {
        "ce": group.first(),
        "more-ce": group.then("ce", plain),
        "local": group.then("ce", local),
        "global": group.then("ce", everywhere, normalize=False),
        "sn": group.self_normalized(normalized),
        "more-sn": group.then("sn", normalized),
        "sn-local": group.then("sn", local),
        "sn-global": group.then("sn", kept, normalize=False),
    }
    if name == "g2p":
        del planned["sn-local"]
        return planned | {"sn-free": group.then("sn", everywhere, normalize=False)}
    planned |= {"more-ce-greedy": greedily(group.then("ce", plain))}
    return planned | penalty_runs(group, smoothing) | feedback_runs(group, smoothing, MOSTLY_GOLD)
