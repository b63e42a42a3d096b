"""The models behind Tables 6.2 to 6.6, by name: what each is trained on, and how.

The plan (docs/experiments_plan_chapter_6.md) says what each arm is for. Three of them are
left-to-right models: they judge texts, and the one of translation also writes the targets of the
arms `distilled`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from softbeam.data.pronouncing import Pronouncing
from softbeam.data.tasks import Phrases
from softbeam.experiments.search_aware.runs import PLAIN
from softbeam.models.specs import Cmlm, Lstm, Transformer
from softbeam.objectives.masked import UniformMasking
from softbeam.training.config import RunConfig
from softbeam.training.recipes import (
    g2p,
    masked_g2p,
    masked_phrases,
    masked_translation,
    transformer_translation,
)

SMOOTHED = "words-smoothed"  # the models of the presets `cpu` and `tiny`
JUDGES = {"words": "judge-words", "phrases": "judge-phrases", "translation": "judge-translation"}


def unsmoothed(config: RunConfig) -> RunConfig:
    """The same without label smoothing."""
    return replace(
        config, pretrain=replace(config.pretrain, objective=UniformMasking(smoothing=0.0))
    )


def judge_of_phrases() -> RunConfig:
    """A left-to-right model of phrases."""
    return replace(g2p(), data=Phrases())


def judge_of_translation() -> RunConfig:
    """The Transformer that judges translations and writes the distilled targets."""
    usual = transformer_translation()
    return replace(
        usual,
        model=Transformer(width=192, hidden=512, layers=3, dropout=0.2),
        pretrain=replace(usual.pretrain, epochs=12, lr=1.5e-3, tokens=2000),
    )


ARMS: Mapping[str, Callable[[], RunConfig]] = {
    "words": lambda: unsmoothed(masked_g2p()),
    SMOOTHED: masked_g2p,
    "phrases": lambda: unsmoothed(masked_phrases()),
    "translation": lambda: unsmoothed(masked_translation()),
    "distilled": lambda: unsmoothed(masked_translation()),
    "distilled-smoothed": masked_translation,
    JUDGES["words"]: g2p,
    JUDGES["phrases"]: judge_of_phrases,
    JUDGES["translation"]: judge_of_translation,
}
SAMPLED = tuple(name for name in ARMS if name not in JUDGES.values())
TRANSLATING = ("translation", "distilled", "distilled-smoothed")
TEACHERS = {"distilled": JUDGES["translation"], "distilled-smoothed": JUDGES["translation"]}


def judge_of(arm: str) -> str:
    """The name of the left-to-right model of an arm's task."""
    return JUDGES["translation" if arm in TRANSLATING else arm.split("-")[0]]


def recipe(preset: str, arm: str = SMOOTHED) -> RunConfig:
    """The settings of an arm's models; none is chosen from the data or on the machine."""
    usual = ARMS[arm]()
    stage = replace(usual.pretrain, patience=None, score_every=1)
    warmup = stage.warmup if isinstance(stage.warmup, int) else 0
    usual = replace(usual, pretrain=replace(stage, warmup=warmup), finetune=PLAIN, threads=1)
    if preset != "tiny":
        return usual
    small = {
        Cmlm: Cmlm(width=16, layers=1, longest=48 if arm == SMOOTHED else 256),
        Lstm: Lstm(attention="bahdanau", embedding=8, hidden=8),
        Transformer: Transformer(width=16, hidden=16, layers=1),
    }
    data = replace(usual.data, limit=200)
    if isinstance(data, Pronouncing) and arm != SMOOTHED:
        data = replace(data, held_out_words=100)
    return replace(
        usual,
        data=data,
        pretrain=replace(usual.pretrain, epochs=1),
        model=small[type(usual.model)],
    )
