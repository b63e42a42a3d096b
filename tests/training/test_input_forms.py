"""Files to decode, in three forms, and the same three forms of outputs."""

import json

import pytest

from softbeam.data.tasks import LetterSounds, Tagging, Translation
from softbeam.errors import UserError
from softbeam.training.decoding import Output
from softbeam.training.input_forms import read_inputs, render

COLUMNS = "# id = 1\nthe\tD\nold\tA\n\n-DOCSTART-\tX\n\n# x\n#\tS\ndogs\tN\n"
UNIVERSAL = "".join(
    "\t".join([number, word, *"_" * 8]) + "\n"
    for number, word in (("1-2", "dunno"), ("1", "do"), ("2", "n't"), ("2.1", "ghost"))
)


def upper(sources) -> list[list[Output]]:
    """A tagger whose labels are the words in capitals, and a worse one that always says X."""
    words = [[word.upper() for word in source] for source in sources]
    return [[Output(w, 2.0), Output(["X"] * len(w), 1.0)] for w in words]


def written(path, text, *, task=None, form=None, given=None, nbest=1, name="x.txt"):
    file = path / name
    file.write_text(text, encoding="utf-8")
    inputs = read_inputs(str(file), task or Tagging(), given)
    outputs = [ranked[:nbest] for ranked in upper(inputs.sources)]
    return render(inputs, outputs, form=form, nbest=nbest)


def test_columns_comments_and_blank_lines_are_kept(tmp_path):
    expected = (
        "# id = 1\nthe\tD\tTHE\nold\tA\tOLD\n\n-DOCSTART-\tX\n\n# x\n#\tS\t#\ndogs\tN\tDOGS\n\n"
    )
    assert written(tmp_path, COLUMNS) == expected


def test_the_word_column_is_the_task_s(tmp_path):
    text = "1 the D\n2 dog N\n\n1 a D\n"
    assert written(tmp_path, text, task=Tagging(word=1)) == (
        "1 the D THE\n2 dog N DOG\n\n1 a D A\n\n"
    )
    words_alone = written(tmp_path, "the\ndog\n\na\ncat\n", task=Tagging(word=1))
    assert words_alone == "the THE\ndog DOG\n\na A\ncat CAT\n\n"
    with pytest.raises(UserError, match="line 1: expected column 5 has the words"):
        written(tmp_path, text, task=Tagging(word=5))


def test_universal_dependencies_have_words_in_the_second_column(tmp_path):
    lines = written(tmp_path, UNIVERSAL, name="x.conllu").splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["_", "DO", "N'T", "_", ""]


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("x.txt", "the dog\nthe cat\n", "text"),
        ("x.txt", "the dog\n\nthe cat\n", "text"),
        ("x.txt", "the\ndog\n\nthe\ncat\n", "conll"),
        ("x.txt", "the D\ndog N\n\nthe D\ncat N\n", "conll"),
        ("x.txt", "the\tD\ndog\tN\n", "conll"),
        ("x.conll", "the D\ndog N\n", "conll"),
        ("x.iob2", "the\ndog\n", "conll"),
        ("x.txt", '{"text": "the dog"}\n', "jsonl"),
        ("x.txt", '["the", "dog"]\n', "jsonl"),
        ("x.txt", "[the dog]\n", "text"),
        ("x.txt", "the dog\na big cat\n\na\nb\n", "text"),
    ],
)
def test_the_form_is_recognized(name, text, form, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_inputs(str(tmp_path / name), Tagging()).form == form


def test_only_taggers_read_columns(tmp_path):
    (tmp_path / "x.tsv").write_text("a\tb\n")
    assert read_inputs(str(tmp_path / "x.tsv"), Translation()).form == "text"
    with pytest.raises(UserError, match="CoNLL columns are for tagging"):
        read_inputs(str(tmp_path / "x.tsv"), Translation(), "conll")


def test_lines_stay_lines(tmp_path):
    assert written(tmp_path, "the dog\n\na cat\n") == "THE DOG\n\nA CAT\n"
    assert written(tmp_path, COLUMNS, form="text") == "THE OLD\n# DOGS\n"
    assert written(tmp_path, "the dog\na cat\n", form="conll") == (
        "the THE\ndog DOG\n\na A\ncat CAT\n\n"
    )
    assert written(tmp_path, "ab\n", task=LetterSounds(), form="conll") == "a A\nb B\n\n"


def test_fields_of_json_are_kept(tmp_path):
    text = '{"id": 7, "text": "the dog"}\n["a", "cat"]\n"so what"\n'
    rows = [json.loads(line) for line in written(tmp_path, text).splitlines()]
    assert rows[0]["id"] == 7 and rows[0]["labels"] == ["THE", "DOG"]
    assert [row["tokens"] for row in rows[1:]] == [["a", "cat"], ["so", "what"]]
    assert [row["line"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize("line", ["{}", '{"text": 3}', '["a", 1]', "[]", "{", '{"tokens": []}'])
def test_other_json_is_refused_with_its_line(line, tmp_path):
    with pytest.raises(UserError, match=r"x.txt, line 2: expected a JSON text"):
        written(tmp_path, f'"good"\n{line}\n', given="jsonl")


def test_several_outputs_have_numbers_or_columns(tmp_path):
    assert written(tmp_path, "the dog\n", nbest=2) == "0\t2.0000\tTHE DOG\n0\t1.0000\tX X\n"
    assert written(tmp_path, "the dog\n", nbest=2, form="conll") == "the THE X\ndog DOG X\n\n"
    rows = written(tmp_path, "the dog\n", nbest=2, form="jsonl").splitlines()
    assert [json.loads(row)["rank"] for row in rows] == [0, 1]


def test_lines_with_other_columns_are_refused_with_their_number(tmp_path):
    with pytest.raises(UserError, match=r"line 4: expected 2 columns, found 1 in 'the'"):
        written(tmp_path, "a D\n\n# c\nthe\ndog N\n", given="conll")
    with pytest.raises(UserError, match="has no sentence"):
        written(tmp_path, "\n\n")


def test_tokenized_translations_are_detokenized(tmp_path):
    text = "ja , gut .\nnein !\n"
    assert written(tmp_path, text, task=Translation()) == "JA, GUT.\nNEIN!\n"
    assert written(tmp_path, "oui !\n", task=Translation()) == "OUI !\n", "perhaps French"
    assert written(tmp_path, text) == "JA , GUT .\nNEIN !\n", "labels are not text"
