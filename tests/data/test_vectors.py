"""Word vectors as text: word2vec, GloVe and fastText, and what is wrong with a file."""

import gzip

import pytest

from softbeam.data.vectors import read_vectors
from softbeam.errors import UserError

ROWS = {"the": [0.5, -1.0], "dog": [1e-3, 2.0], "new york": [3.0, 4.0], "Ü": [0.0, 1.0]}
GLOVE = "".join(f"{word} {a} {b}\n" for word, (a, b) in ROWS.items())
FORMS = {
    "glove.txt": GLOVE,
    "word2vec.txt": f"4 2\n{GLOVE}",
    "fasttext.vec": "4 2\n" + GLOVE.replace("\n", " \n"),  # its lines end with a space
    "tabs.tsv": GLOVE.replace(" 0.5 -1.0", "\t0.5\t-1.0"),
    "windows.txt": GLOVE.replace("\n", "\r\n"),
    "blank.txt": GLOVE + "\n",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_numbers(tmp_path, name, packed):
    path = tmp_path / (name + ".gz" * packed)
    content = FORMS[name].encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    vectors = read_vectors(str(path), ROWS)
    assert vectors.width == 2 and vectors.repeated == 0
    assert {word: list(vectors.of(word)) for word in ROWS} == ROWS


def test_only_wanted_words_are_kept_and_lower_case_stands_in(tmp_path):
    (tmp_path / "v").write_text("the 1 2\nDog 3 4\ndog 5 6\ncat 7 8\n")
    vectors = read_vectors(str(tmp_path / "v"), ["The", "Dog", "zebra"])
    assert vectors.rows == {"the": (1, 2), "Dog": (3, 4), "dog": (5, 6)}
    assert vectors.of("The") == (1, 2) and vectors.of("Dog") == (3, 4)
    assert vectors.of("zebra") is None and vectors.of("THE") == (1, 2)


def test_the_first_line_of_a_word_counts_and_words_need_not_be_utf8(tmp_path):
    (tmp_path / "v").write_bytes(b"the 1 2\n\xff\xfe 9 9\nthe 3 4\n")
    vectors = read_vectors(str(tmp_path / "v"), ["the"])
    assert vectors.of("the") == (1, 2) and vectors.repeated == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("the 1 2\ncat 3\n", "v, line 2: expected a word and 2 numbers, found 'cat 3'"),
        ("the 1 2\ndog 1 x\n", "v, line 2: expected a word and 2 finite numbers"),
        ("the 1 nan\n", "v, line 1: expected a word and 2 finite numbers"),
        ("5 2\nthe 1 2\n", "v has 1 words, but its first line says 5"),
        ("cat 1 2\n", "v has a vector for no word of train or dev"),
        ("1 1\nthe 1 2\n", "v has a vector for no word of train or dev"),  # "the 1" is a word here
        ("the\n", "v, line 1: expected a word and 1 numbers"),
        ("", "v has a vector for no word of train or dev"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, monkeypatch, content, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v").write_text(content)
    with pytest.raises(UserError) as error:
        read_vectors("v", ["the", "dog"])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="none cannot be read"):
        read_vectors(str(tmp_path / "none"), ["the"])


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "v"
    path.write_text("the 1 2\n")
    assert read_vectors(str(path), ["the"]).of("the") == (1, 2)
    path.write_text("the 1 2 3\n")
    assert read_vectors(str(path), ["the"]).of("the") == (1, 2, 3)
