"""Functions that return a whole `RunConfig`: one for each built-in task.

Numbers without a comment that quotes a paper were chosen for this project. Recipes for files of any
size leave epochs, batches, learning rate and patience to `training.defaults`.
"""

from collections.abc import Callable
from dataclasses import replace

from softbeam.data.tasks import (
    GraphemeToPhoneme,
    LetterSounds,
    NamedEntities,
    Phrases,
    Stress,
    Supertags,
    Tagging,
    Translation,
)
from softbeam.models.specs import Cmlm, Lstm, Transformer
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.masked import UniformMasking
from softbeam.training.config import RunConfig, Stage
from softbeam.training.searches import Beam, MaskPredict

SECOND = Stage(schedule="linear")  # sizes are chosen from the data
FIRST = replace(SECOND, objective=CrossEntropy())
ENTITY_TAGGER = Lstm(
    hidden=64,  # 2017, Sec. 5: "LSTM encoder (1 layer, 64 units)"
    label_embedding=8,  # 2018, Sec. 3.1: "label embeddings of size 8"
    embedding=64,
    dropout=0.3,
)


def with_characters(tagger: Lstm) -> Lstm:
    """Return a tagger that reads characters too and is less sure of the labels before."""
    return replace(tagger, characters=64, label_noise=0.5, shortcut=True)


def tagging() -> RunConfig:
    """Tag your own column files (CoNLL): --data.train FILE --data.dev FILE."""
    return RunConfig(
        data=Tagging(),
        model=with_characters(Lstm(dropout=0.3)),
        pretrain=FIRST,
        finetune=SECOND,
    )


def ccg() -> RunConfig:
    """CCG supertagging on the open treebank ccg-ewt (thesis 5.4.1, smaller)."""
    return RunConfig(
        data=Supertags(max_length=60),
        model=with_characters(Lstm(encoder="bi", dropout=0.3)),
        pretrain=FIRST,
        finetune=SECOND,
        select=Beam(k=3),  # 2018, Sec. 3: "beam size ... was set to 3"
    )


def ner() -> RunConfig:
    """German named entities, wikineural-de or germeval2014 (thesis 3.3.3, 4.5.1)."""
    return RunConfig(
        data=NamedEntities(),
        model=with_characters(ENTITY_TAGGER),
        pretrain=FIRST,
        finetune=SECOND,
    )


def stress() -> RunConfig:
    """Lexical stress of English words from their phonemes (packaged data)."""
    return RunConfig(
        data=Stress(),
        model=Lstm(embedding=64, hidden=64, encoder="bi"),
        pretrain=Stage(objective=CrossEntropy(), epochs=6, lr=3e-3, tokens=1000, schedule="linear"),
    )


def letter_sounds() -> RunConfig:
    """English letters to the sounds they spell, as the word is typed (packaged data)."""
    stage = Stage(objective=CrossEntropy(), epochs=10, lr=5e-3, tokens=500, schedule="linear")
    return RunConfig(
        data=LetterSounds(words=8000),
        model=Lstm(embedding=64, hidden=64, encoder="uni"),  # sees no later letter
        pretrain=stage,
        finetune=replace(stage, objective=None, epochs=3, lr=3e-3),
        select=Beam(k=3),
    )


def g2p() -> RunConfig:
    """English letters to phonemes (packaged data)."""
    return RunConfig(
        data=GraphemeToPhoneme(),
        model=Lstm(attention="bahdanau", embedding=96, hidden=160, dropout=0.25),
        pretrain=Stage(objective=CrossEntropy(), epochs=9, lr=3e-3, tokens=500, schedule="linear"),
    )


def translation() -> RunConfig:
    """German to English on Multi30k, or your own parallel text (thesis 3.3.3)."""
    return RunConfig(
        data=Translation(subwords=4000),
        model=Lstm(
            attention="bahdanau",
            hidden=192,  # 2017, Sec. 5: 256 units; smaller here, for two processor cores
            embedding=192,
            dropout=0.3,
            tied=True,
        ),
        pretrain=replace(FIRST, objective=CrossEntropy(smoothing=0.1)),
        finetune=SECOND,
    )


def transformer_translation() -> RunConfig:
    """German to English on Multi30k with a small Transformer, which needs a slow start."""
    return RunConfig(
        data=Translation(subwords=4000),
        model=Transformer(width=256, layers=3, dropout=0.2),
        pretrain=Stage(
            objective=CrossEntropy(smoothing=0.1),
            warmup=600,
            schedule="linear",
            clip=1.0,
        ),
        finetune=Stage(lr=2e-4, clip=1.0),
    )


def masked_translation() -> RunConfig:
    """A conditional masked language model of German to English (thesis 6.4, smaller)."""
    return RunConfig(
        data=Translation(subwords=4000),
        model=Cmlm(width=192, hidden=512, layers=3, dropout=0.2),
        pretrain=Stage(
            objective=UniformMasking(),
            epochs=25,
            lr=1.5e-3,
            warmup=800,
            tokens=2000,
            schedule="linear",
            clip=1.0,
        ),
        select=MaskPredict(candidates=3, iterations=4),
    )


def masked_g2p() -> RunConfig:
    """A conditional masked language model of letters to phonemes: the quick form of it."""
    return RunConfig(
        data=GraphemeToPhoneme(),
        model=Cmlm(width=128, layers=2, longest=48, dropout=0.1),
        pretrain=Stage(
            objective=UniformMasking(),
            epochs=20,
            lr=2e-3,
            warmup=300,
            tokens=1500,
            schedule="linear",
            clip=1.0,
        ),
        select=MaskPredict(candidates=3, iterations=4),
    )


def masked_phrases() -> RunConfig:
    """A conditional masked language model of phrases: 20 to 25 phonemes each."""
    words = masked_g2p()
    model = Cmlm(width=128, layers=2, longest=64, dropout=0.1)
    return replace(words, data=Phrases(), model=model)


RECIPES: dict[str, Callable[[], RunConfig]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (
        tagging,
        translation,
        ccg,
        ner,
        stress,
        letter_sounds,
        g2p,
        transformer_translation,
        masked_translation,
        masked_g2p,
        masked_phrases,
    )
}
