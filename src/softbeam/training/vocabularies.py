"""Build and load the vocabularies of a run."""

from pathlib import Path

from softbeam.data.encoding import Codecs
from softbeam.data.parallel import Translation
from softbeam.data.task import Corpus
from softbeam.data.vocabulary import PAD, SOURCE, Spelled, Subwords, Vocabulary, load_codec
from softbeam.errors import UserError
from softbeam.training.config import RunConfig
from softbeam.training.kinds import kind_of


def make_codecs(config: RunConfig, corpus: Corpus) -> Codecs:
    """Make the vocabularies of the training split: closed label sets, words, or subwords."""
    task, model = config.data, config.model
    texts = sources(corpus)
    train, targets = texts["train"], [e.target for e in corpus.split("train")]
    if isinstance(task, Translation) and task.subwords > 0:
        own = model.source_codec(None, texts)
        return Codecs(
            own or Subwords.train(train, size=task.subwords, specials=SOURCE),
            Subwords.train(targets, size=task.subwords, specials=model.specials),
        )
    tags = not kind_of(task).has_end
    count = task.min_count if isinstance(task, Translation) else 1
    words = Vocabulary.build(train, specials=SOURCE, min_count=min_count(train) if tags else count)
    labels = (
        Vocabulary.build(targets)
        if tags
        else Vocabulary.build(targets, specials=model.specials, min_count=count)
    )
    return Codecs(model.source_codec(words, texts) or words, labels)


def sources(corpus: Corpus) -> dict[str, list[tuple[str, ...]]]:
    """The sources of train and dev."""
    return {name: [e.source for e in corpus.split(name)] for name in ("train", "dev")}


def min_count(sources: list[tuple[str, ...]]) -> int:
    """Return how often a token must be seen: twice for words, which trains <unk>; else once."""
    kinds = {token for source in sources for token in source}
    return 2 if len(kinds) > 1000 else 1


def load_codecs(folder: Path, config: RunConfig) -> Codecs:
    """Load the vocabularies of a run; raises UserError if their specials do not fit its model."""
    source, target = (load_codec(folder / f"{side}.json") for side in ("source", "target"))
    needed = config.model.specials if kind_of(config.data).has_end else ()
    if tuple(target.specials) != needed or isinstance(target, Spelled):
        raise UserError(
            f"{folder / 'target.json'} has the special tokens {list(target.specials)}, but "
            f"{list(needed)} without characters are needed"
        )
    if source.id(PAD) != 0:
        raise UserError(f"{folder / 'source.json'}: {PAD} must be its first special token")
    return Codecs(source, target)
