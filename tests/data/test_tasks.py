"""Built-in tasks: what is in a split, and that splits do not share words."""

from dataclasses import replace
from pathlib import Path

import pytest

from softbeam.data import pronouncing, readers, task, tasks
from softbeam.data.alignment import phonemes_of
from softbeam.data.readers import Example, Pronunciation
from softbeam.errors import UserError

DICTIONARY = "".join(
    f"{a}{b}{c} K AE{i % 3} T\n" for i, a in enumerate("abcdefg") for b in "xyz" for c in "klmn"
)


@pytest.fixture
def dictionary(tmp_path) -> str:
    path = tmp_path / "cmudict.dict"
    path.write_text(DICTIONARY + "dr.smith S M IH1 TH\nabout(2) B AW1 T\nabout AH0 B AW1 T\n")
    return str(path)


def test_letters_to_phonemes_and_stress_of_phonemes(dictionary):
    entries = {"train": [Pronunciation("about", ("AH0", "B", "AW1", "T"))] * 2}
    spelling = tasks.GraphemeToPhoneme(path=dictionary, held_out_words=5)
    assert spelling.examples(entries) == {"train": [Example((*"about",), ("AH", "B", "AW", "T"))]}
    stress = tasks.Stress(path=dictionary, held_out_words=5)
    labelled = Example(("AH", "B", "AW", "T"), ("0", "-", "1", "-"))
    assert stress.examples(entries) == {"train": [labelled]}
    assert all(len(e.source) == len(e.target) for e in stress.load().split("train"))


def test_letters_are_labelled_with_the_sounds_of_the_first_pronunciation(dictionary):
    task = tasks.LetterSounds(path=dictionary, held_out_words=5)
    first, other = ("AH0", "B", "AW1", "T"), ("B", "AW1", "T")
    entries = [Pronunciation("about", first), Pronunciation("about", other)]
    splits = {"train": entries, "dev": [Pronunciation("a", ("EY1", "B", "IY1"))]}
    about, *more = task.examples(splits)["train"]
    assert about.source == (*"about",) and phonemes_of(about.target) == ("AH", "B", "AW", "T")
    assert more == [] and task.examples(splits)["dev"] == []  # three phonemes to a letter
    for split in task.load().splits.values():
        assert split and all(len(e.source) == len(e.target) for e in split)
        assert {phonemes_of(e.target) for e in split} <= {("K", "AE", "T"), ("B", "AW", "T")}
    assert task.tokens(" About\n") == (*"about",)


def test_phrases_have_three_or_four_words_of_one_split(dictionary):
    words = tasks.GraphemeToPhoneme(path=dictionary, words=60, held_out_words=20)
    task = tasks.Phrases(path=dictionary, words=60, held_out_words=20, shortest=12, longest=18)
    split = {"".join(e.source): name for name, es in words.load().splits.items() for e in es}
    spoken = {"".join(e.source): [] for es in words.load().splits.values() for e in es}
    for es in words.load().splits.values():
        for e in es:
            spoken["".join(e.source)].append(e.target)
    for name, phrases in task.load().splits.items():
        assert phrases and len(set(phrases)) == len(phrases)
        for phrase in phrases:
            parts = "".join(phrase.source).split("_")
            assert len(parts) in (3, 4) and {split[part] for part in parts} == {name}
            assert 12 <= len(phrase.target) <= 18
            assert phrase.target == tuple(p for part in parts for p in spoken[part][0])
    once = tasks.Phrases(
        path=dictionary, words=60, held_out_words=20, shortest=12, longest=18, rounds=1
    ).load()
    assert once.split("train") == task.load().split("train")[: len(once.split("train"))]
    assert len(once.split("train")) < len(task.load().split("train"))
    assert task.tokens("Two Words") == tuple("two_words")
    with pytest.raises(UserError, match="shortest 9"):
        tasks.Phrases(path=dictionary, shortest=9, longest=8)


def test_words_are_never_in_two_splits_and_growth_keeps_them(dictionary):
    def words(n: int) -> dict[str, set]:
        corpus = tasks.GraphemeToPhoneme(path=dictionary, words=n, held_out_words=5).load()
        return {name: {e.source for e in split} for name, split in corpus.splits.items()}

    small, large = words(10), words(60)
    assert len(small["dev"]) == len(small["test"]) == 5 and len(small["train"]) == 10
    assert not small["train"] & (small["dev"] | small["test"]) and not small["dev"] & small["test"]
    assert small["dev"] == large["dev"] and small["train"] < large["train"]
    assert not any("." in word for split in large.values() for word in split)


def test_too_few_words_are_refused(dictionary):
    with pytest.raises(UserError, match="too few"):
        tasks.Stress(path=dictionary, held_out_words=1000).load()


def test_limits_apply_to_training_alone(dictionary):
    corpus = tasks.GraphemeToPhoneme(path=dictionary, held_out_words=5, limit=7).load()
    assert len(corpus.split("train")) == 7 and len(corpus.split("dev")) == 5
    with pytest.raises(UserError, match="max_length=1"):
        tasks.GraphemeToPhoneme(path=dictionary, held_out_words=5, max_length=1).load()
    with pytest.raises(UserError, match="no split 'nope'; this task has"):
        corpus.split("nope")


def test_without_a_dev_file_the_same_sentence_is_never_on_both_sides(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("".join(f"w{i % 40} A\nx B\n\n" for i in range(200)))
    splits = tasks.Tagging(train=str(path), dev_share=0.3).load().splits
    assert len(splits["train"]) + len(splits["dev"]) == 200 and splits["dev"]
    assert not set(splits["train"]) & set(splits["dev"])


def test_skipping_bad_lines_counts_them(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("a A\nb B\n\nc\n\nd D\n\n" * 20)
    with pytest.raises(UserError, match="a.conll.*4"):
        tasks.Tagging(train=str(path)).load()
    corpus = tasks.Tagging(train=str(path), skip_bad=True, dev_share=0.5).load()
    assert corpus.bad.count == 20


def test_lower_casing_translations(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Ein Mann\tA Man\n" * 2 + "Zwei\tTwo\n")
    made = tasks.Translation(source=str(path), lowercase=True, dev_source=str(path))
    assert made.load().split("train")[0] == Example(("ein", "mann"), ("a", "man"))
    assert made.tokens("Ein Hund") == ("ein", "hund")


@pytest.fixture
def catalogued(data_dir: Path, monkeypatch) -> Path:
    monkeypatch.setenv("SOFTBEAM_DATA", str(data_dir))
    return data_dir


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "sizes", "labels"),
    [
        (tasks.Supertags(), (11303, 1864, 1956), 508),
        (tasks.Supertags(composite=True), (11303, 1864, 1956), 1248),
        (tasks.NamedEntities(), (12330, 6186, 6186), 9),
        (tasks.NamedEntities(corpus="germeval2014"), (5100, 1100, 1100), 20),
        (tasks.Translation(), (29000, 1014, 1000), None),
        (tasks.Translation(corpus="multi30k-both"), (29000, 1014, 2000), None),
        (tasks.Translation(corpus="tatoeba-de-en"), (164919, 2433, 2461), None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "kind") else None,
)
def test_the_catalogue_gives_the_counts_of_its_readmes(catalogued, task, sizes, labels):
    corpus = task.load()
    assert tuple(len(corpus.split(s)) for s in ("train", "dev", "test")) == sizes
    if labels is not None:
        assert len({label for e in corpus.split("train") for label in e.target}) == labels


@pytest.mark.slow
def test_both_test_sets_of_multi30k_are_one_after_the_other(catalogued):
    one, both = (tasks.Translation(corpus=name).load() for name in ("multi30k", "multi30k-both"))
    assert both.split("test")[:1000] == one.split("test") and both.split("dev") == one.split("dev")
    names = [path.name for key, path in both.paths.items() if key.startswith("data.test")]
    assert names == [
        f"test_{year}_flickr.{side}.gz" for year in (2016, 2017) for side in ("de", "en")
    ]
    assert set(one.paths) < set(both.paths), "changed inputs are noticed in all files"


@pytest.mark.slow
def test_the_thesis_count_of_phoneme_sequences(catalogued):
    assert len(pronouncing.phoneme_sequences()) == 77_653
    assert len(pronouncing.phoneme_sequences(distinct=True)) == 61_144


def test_a_corpus_is_read_once_and_again_when_its_file_changes(tmp_path, monkeypatch):
    reads = []
    read = readers.read_columns
    monkeypatch.setattr(
        readers, "read_columns", lambda path, **options: reads.append(path) or read(path, **options)
    )
    train, dev = tmp_path / "a.conll", tmp_path / "b.conll"
    for path in (train, dev):
        path.write_text("the D\ncat N\n")
    task = tasks.Tagging(train=str(train), dev=str(dev))
    first = task.load()
    assert tasks.Tagging(train=str(train), dev=str(dev)).load() is first and len(reads) == 2
    assert len(replace(task, limit=1).load().split("dev")) == 1 and len(reads) == 4
    dev.write_text("the D\ncat N\n\nthe D\n")
    assert len(task.load().split("dev")) == 2 and len(reads) == 6
    dev.unlink()
    with pytest.raises(UserError, match=r"b\.conll cannot be read"):
        task.load()


@pytest.mark.parametrize("word", ["dog", "cat", "word7"])
def test_equal_sentences_cannot_be_parted(word, tmp_path):
    """Whichever split their hash gives them to, the message names the one that is empty."""
    path = tmp_path / "same.conll"
    path.write_text(f"{word} N\n\n" * 200)
    empty = "train" if task.fraction(word) < 0.5 else "dev"
    match = f"left for the split {empty}: 0.5 of 200 sentences, 1 of them different.* --data.dev "
    with pytest.raises(UserError, match=match):
        tasks.Tagging(train=str(path), dev_share=0.5).load()
