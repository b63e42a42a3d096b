"""Words, labels and subwords: numbers and back."""

import json

import pytest
from hypothesis import given, strategies as st

from softbeam.data.vocabulary import (
    EOS,
    MASK,
    MASKED,
    PAD,
    SOURCE,
    TARGET,
    UNK,
    Spelled,
    Subwords,
    Vocabulary,
    load_codec,
    save_codec,
)
from softbeam.errors import UserError

TEXT = [tuple(s.split()) for s in ("a man , walking", "a woman walking .", "two men walk .")] * 5


def test_padding_is_zero_and_frequent_tokens_come_first():
    found = Vocabulary.build([("b", "a", "b"), ("c", "b", "a")], specials=MASKED)
    assert found.tokens == [*MASKED, "b", "a", "c"]
    assert found.id(PAD) == 0 and found.id(MASK) == 4


def test_rare_words_become_unk_and_unknown_labels_become_minus_one():
    words = Vocabulary.build([("a", "a", "b")], specials=SOURCE, min_count=2)
    assert words.encode(["a", "b", "z"]) == [2, 1, 1]
    labels = Vocabulary.build([("X", "Y")])
    assert labels.encode(["Y", "X", "Z"]) == [1, 0, -1]
    assert labels.id(UNK) is None and len(labels) == 2


def test_decoding_stops_at_the_end_mark():
    found = Vocabulary.build([("a", "b")], specials=TARGET)
    assert found.decode([*found.encode(["b", "a"]), found.id(EOS), 3, 0]) == ["b", "a"]


def test_a_label_may_look_like_a_special():
    labels = Vocabulary.build([("</s>", "<pad>", "N")])
    assert labels.decode(labels.encode(["</s>", "<pad>", "N"])) == ["</s>", "<pad>", "N"]


@pytest.mark.slow
@given(st.lists(st.lists(st.text(min_size=1, max_size=5), max_size=6), max_size=6))
def test_known_words_round_trip(sequences):
    found = Vocabulary.build(sequences, specials=TARGET)
    for sequence in sequences:
        kept = [t for t in sequence if t not in TARGET]
        assert found.decode(found.encode(kept)) == kept


def test_subwords_round_trip_text_with_known_characters():
    found = Subwords.train(TEXT, size=60, specials=TARGET)
    for words in [*TEXT, ("a", "talking", "women.")]:
        assert found.decode([*found.encode(words), found.id(EOS), 5]) == list(words)
    assert found.id(PAD) == 0 and found.id(EOS) == 1 and len(found) <= 60


@pytest.mark.parametrize("kind", ["words", "subwords"])
def test_saved_codecs_are_the_same(tmp_path, kind):
    made = (
        Vocabulary.build(TEXT, specials=TARGET)
        if kind == "words"
        else Subwords.train(TEXT, size=60, specials=TARGET)
    )
    save_codec(made, tmp_path / "v.json")
    again = load_codec(tmp_path / "v.json")
    assert again.to_json() == made.to_json()
    assert again.encode(TEXT[0]) == made.encode(TEXT[0])


@pytest.mark.parametrize("text", ["", "{}", "[1]", json.dumps({"kind": "words", "tokens": 3})])
def test_a_broken_file_is_one_sentence(tmp_path, text):
    path = tmp_path / "v.json"
    path.write_text(text)
    with pytest.raises(UserError, match="v.json is not a vocabulary"):
        load_codec(path)


def test_double_tokens_are_refused():
    with pytest.raises(UserError, match="'a' is in it twice"):
        Vocabulary(["a", "b", "a"])


def test_a_vocabulary_with_characters_survives_its_file(tmp_path):
    words = Vocabulary.build(TEXT, specials=SOURCE)
    spelled = Spelled.build(TEXT, words)
    save_codec(spelled, tmp_path / "source.json")
    loaded = load_codec(tmp_path / "source.json")
    text = ["a", "wombat", "würde", "."]
    assert isinstance(loaded, Spelled) and len(loaded) == len(words)
    assert loaded.encode(text) == spelled.encode(text)
    assert [numbers[0] for numbers in loaded.encode(text)] == words.encode(text)


def test_a_character_of_one_word_alone_trains_the_unknown_character():
    text = [tuple(f"w{i}" for i in range(1001)) + ("x", "xx")]
    characters = Spelled.build(text, Vocabulary.build(text, specials=SOURCE)).characters
    assert {"w", "0", "x"} <= set(characters.tokens)
    assert "y" not in Spelled.build([(*text[0], "yyy")], Vocabulary([], SOURCE)).characters.tokens


@pytest.mark.parametrize("characters", ["abc", [1], ["a", "a"], {"a": 1}])
def test_characters_that_are_no_list_of_distinct_strings_are_refused(characters, tmp_path):
    value = Vocabulary(["a"], SOURCE).to_json() | {"characters": characters}
    (tmp_path / "source.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match="is not a vocabulary that softbeam wrote"):
        load_codec(tmp_path / "source.json")
