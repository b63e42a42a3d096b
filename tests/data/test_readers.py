"""The readers against the counts in the data's own READMEs, round trips, and arbitrary bytes."""

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from softbeam.data.readers import (
    BadLines,
    Example,
    Pronunciation,
    read_ccg_auto,
    read_cmudict,
    read_columns,
    read_lines,
    read_parallel,
    read_supertags,
    read_tsv,
)
from softbeam.data.tasks import Tagging
from softbeam.errors import UserError

LAWS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Tokens: any characters that neither divide columns nor lines; some that look like syntax.
odd = st.sampled_from(["#", "|", "<L", "(", ")", ";;;", "10\u00a0000", "\ufeffx", "\x85", "O"])
token = odd | st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=6
).filter(lambda text: not text.startswith(("-DOCSTART-", "\ufeff")))
word = token.filter(lambda text: text.split() == [text])  # for text that is split on white space
sentence = st.lists(word, min_size=1, max_size=5).map(tuple)
line_end = st.sampled_from(["\n", "\r\n"])


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def one_sentence(error: pytest.ExceptionInfo, *parts: object) -> None:
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    for part in parts:
        assert str(part) in message, f"{part!r} is not in {message!r}"


# Small and exact


@pytest.mark.parametrize("name", ["a.conll", "a.conll.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_columns(tmp_path, name, end):
    lines = ["# O", "the O", "", "", "EU B-ORG", "# I-ORG", ""]
    path = write(tmp_path / name, end.join(lines))
    assert read_columns(path) == [
        Example(("#", "the"), ("O", "O")),
        Example(("EU", "#"), ("B-ORG", "I-ORG")),
    ]


def test_germeval_columns_with_headers_and_a_trailing_tab(tmp_path):
    text = '#\thttp://x y\t[2010]\t\n1\tA\tB-PER\tO\n2\t#\tO\tO\n\n#\tx\t[2]\n1\t"\tO\tB-LOC\t\n'
    path = write(tmp_path / "a.tsv", text)
    for separator in (None, "\t"):
        assert read_columns(path, word=1, tag=2, comment="#\t", separator=separator) == [
            Example(("A", "#"), ("B-PER", "O")),
            Example(('"',), ("O",)),
        ]
    assert [x.target for x in read_columns(path, word=1, comment="#\t")] == [("O", "O"), ("B-LOC",)]


CONLLU = """# sent_id = 1
# text = Vámonos al # mar
1-2	Vámonos	_	_	_	_	_	_	_	_
1	Vamos	ir	VERB	V	_	0	root	_	_
2	nos	nosotros	PRON	P	_	1	obj	_	_
2.1	ya	ya	ADV	_	_	_	_	_	_
3	#	#	SYM	F	_	1	obl	_	SpaceAfter=No

# sent_id = 2
1	New York	New York	PROPN	N	_	0	root	_	_
"""


def test_universal_dependencies_are_read_by_the_name_of_their_file(tmp_path):
    path = str(write(tmp_path / "es.conllu", CONLLU))
    parts = [(("Vamos", "nos", "#"), ("VERB", "PRON", "SYM")), (("New York",), ("PROPN",))]
    assert Tagging().read_labelled(path) == [Example(*part) for part in parts]
    xpos = Tagging(tag=4).read_labelled(path)
    assert [example.target for example in xpos] == [("V", "P", "F"), ("N",)]
    write(tmp_path / "es.conllu", CONLLU.replace("\t_\tSpaceAfter=No", ""))
    with pytest.raises(UserError, match="line 7: expected 10 columns, found 8"):
        Tagging().read_labelled(path)


def test_document_marks_end_a_sentence_and_are_left_out(tmp_path):
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n-DOCSTART- O\nwe PRP B-NP O\n"
    assert read_columns(write(tmp_path / "a", text)) == [
        Example(("EU",), ("B-ORG",)),
        Example(("we",), ("O",)),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    assert read_lines(write(tmp_path / "a", "\ufeffeins zwei\n")) == [("eins", "zwei")]


def test_supertags(tmp_path):
    text = "# sent_id = a\n#\tSYM\tNP/NP\n1\tNUM\tS|NP\n\n# sent_id = b\nGo\tVERB\tS\n\n"
    path = write(tmp_path / "a", text)
    assert read_supertags(path) == [
        Example(("#", "1"), ("NP/NP", "S|NP")),
        Example(("Go",), ("S",)),
    ]
    assert read_supertags(path, composite=True)[0].target == ("NP/NP|SYM", "S|NP|NUM")


AUTO = "(<T S 1 2> (<L NP PRP NN I NP_1>) (<T S\\NP 0 1> (<L S\\NP V VB >) S>) ) )"


def test_ccg_auto(tmp_path):
    path = write(
        tmp_path / "a.auto", f"ID=x.1 PARSER=GOLD NUMPARSE=1\n{AUTO}\nID=2\n(<L N A B w N>)\n"
    )
    assert read_ccg_auto(path, composite=True) == [
        Example(("I", ">)"), ("NP|PRP", "S\\NP|V")),
        Example(("w",), ("N|A",)),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        AUTO[:-2],  # not closed
        AUTO + " )",  # closed twice
        AUTO.replace("1 2>", "1 3>"),  # a child is missing
        AUTO.replace("0 1>", "0 2>"),
        AUTO + " (<L N A B w N>)",  # two roots
        AUTO.replace("PRP NN I", "PRP I"),  # a field is missing
        "(<T S 0 0> )",
    ],
)
def test_ccg_auto_checks_the_derivation(tmp_path, broken):
    path = write(tmp_path / "a.auto", f"ID=1\n{AUTO}\nID=2\n{broken}\nID=3\n{AUTO}\n")
    with pytest.raises(UserError) as error:
        read_ccg_auto(path)
    one_sentence(error, path, "line 4")
    bad = BadLines()
    assert len(read_ccg_auto(path, bad=bad)) == 2 and bad.count == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [(f"ID=1\nID=2\n{AUTO}\n", 1), (f"{AUTO}\nID=1\n{AUTO}\n", 1), (f"ID=1\n{AUTO}\n{AUTO}\n", 1)],
)
def test_ccg_auto_needs_one_derivation_after_each_id(tmp_path, text, line):
    with pytest.raises(UserError) as error:
        read_ccg_auto(write(tmp_path / "a.auto", text))
    one_sentence(error, f"line {line}", "ID=")


def test_parallel_and_tsv(tmp_path):
    de, en = write(tmp_path / "a.de", "ein  Hund\nja\n"), write(tmp_path / "a.en", "a dog\r\nyes")
    pairs = [Example(("ein", "Hund"), ("a", "dog")), Example(("ja",), ("yes",))]
    assert read_parallel(de, en) == pairs
    tsv = write(tmp_path / "a.tsv", "a dog\tein Hund\tCC\nyes\tja\t\n")
    assert read_tsv(tsv, columns=(1, 0)) == pairs


def test_parallel_files_of_different_length_are_an_error_naming_both(tmp_path):
    de, en = write(tmp_path / "a.de", "a\nb\nc\n"), write(tmp_path / "a.en", "a\nb\n")
    for bad in (None, BadLines()):
        with pytest.raises(UserError) as error:
            read_parallel(de, en, bad=bad)
        one_sentence(error, de, "3 lines", en, "2")


def test_cmudict_in_both_formats(tmp_path):
    old = b";;; # comment\r\n#HASH-MARK  HH AE1\r\nA(1)  EY1\r\n"
    old += b"D\xc9J\xc0  D EY2 JH AA1\r\n(PAREN  P\r\n"
    assert read_cmudict(write(tmp_path / "0.7b.gz", old)) == [
        Pronunciation("#hash-mark", ("HH", "AE1")),
        Pronunciation("a", ("EY1",)),
        Pronunciation("déjà", ("D", "EY2", "JH", "AA1")),
        Pronunciation("(paren", ("P",)),
    ]
    new = "'bout B AW1 T\naalborg AO1 L B AO0 R G # place, danish\naalborg(2) AA1 L B AO0 R G\n"
    assert read_cmudict(write(tmp_path / "cmudict.dict", new)) == [
        Pronunciation("'bout", ("B", "AW1", "T")),
        Pronunciation("aalborg", ("AO1", "L", "B", "AO0", "R", "G")),
        Pronunciation("aalborg", ("AA1", "L", "B", "AO0", "R", "G")),
    ]


def test_blank_lines_of_text_are_bad_skipped_or_kept(tmp_path):
    path = write(tmp_path / "a", "\n = Title = \n\t\nsome text\n")
    with pytest.raises(UserError, match="line 1: expected a sentence, found a blank line"):
        read_lines(path)
    text = [("=", "Title", "="), ("some", "text")]
    assert read_lines(path, blank="skip") == text
    assert read_lines(path, blank="keep") == [(), text[0], (), text[1]]
    with pytest.raises(ValueError, match="'drop' is none of bad, skip, keep"):
        read_lines(path, blank="drop")


# What is malformed stops, in one sentence; or is counted, and the rest is read


@pytest.mark.parametrize(
    ("read", "text", "line", "parts"),
    [
        (read_columns, "a O\nb\n\nc O\n", 2, ["2 columns as in line 1", "1 in 'b'"]),
        (read_columns, "a O\nNew York B\n\nc O\n", 2, ["2 columns", "3 in 'New York B'"]),
        (read_columns, "x\n\na O\n\n", 1, ["at least 2 columns", "1 in 'x'"]),
        (read_columns, "a\rO\n\nc O\n", 1, ["a carriage return"]),
        (read_supertags, "a\tX\tN\nb\tX\n\nc\tX\tN", 2, ["3 columns", "2 in"]),
        (read_supertags, "a\t\tN\n\nc\tX\tN", 1, ["a category", "an empty column"]),
        (read_tsv, "a\tb\nc\n", 2, ["2 columns as in line 1", "1 in 'c'"]),
        (read_tsv, "a\tb\n \tc\n", 2, ["words in columns 0 and 1", "an empty column"]),
        (read_cmudict, "A  AH0\nB\n", 2, ["ARPAbet", "'B'"]),
        (read_cmudict, "A  AH0\nHELLO WORLD\n", 2, ["ARPAbet", "'HELLO WORLD'"]),
        (read_cmudict, "A  AH0\nx # B\n", 2, ["ARPAbet"]),
        (read_lines, "a\n\u00a0\n", 2, ["a sentence", "a blank line"]),
    ],
)
def test_malformed_lines(tmp_path, read, text, line, parts):
    path = write(tmp_path / "file", text)
    with pytest.raises(UserError) as error:
        read(path)
    one_sentence(error, f"{path}, line {line}: expected ", *parts)
    bad = BadLines()
    assert len(read(path, bad=bad)) == 1
    assert (bad.count, bad.messages) == (1, [str(error.value)])


@pytest.mark.parametrize("read", [read_columns, read_supertags, read_tsv, read_lines])
def test_bytes_that_are_not_utf8_are_named_by_file_line_and_offset(tmp_path, read):
    good = b"w\tX\tN" if read is read_supertags else b"w\tN"
    path = write(
        tmp_path / "a.gz", good + b"\n\xc3\xa9\xe9" + good + b"\n\n" * (read is read_columns)
    )
    with pytest.raises(UserError) as error:
        read(path)
    one_sentence(error, f"{path}, line 2", "UTF-8", "byte 0xe9 at offset 2")


def test_an_empty_side_of_a_parallel_file_is_counted(tmp_path):
    de, en = write(tmp_path / "a.de", "a\nb\n"), write(tmp_path / "a.en", "a\n\n")
    with pytest.raises(UserError, match=re.escape(f"{en}, line 2")):
        read_parallel(de, en)
    bad = BadLines()
    assert read_parallel(de, en, bad=bad) == [Example(("a",), ("a",))]
    assert bad.count == 1


def test_a_lenient_reading_reports_the_first_few_of_all(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\n" + "c\n" * 20)
    bad = BadLines(keep=3)
    assert len(read_tsv(path, bad=bad)) == 1
    assert bad.count == 20 and len(bad.messages) == 3
    assert "20" in str(bad) and "line 4" in str(bad) and "and 17 more" in str(bad)
    assert str(BadLines()) == "nothing was skipped"


def test_long_lines_are_shortened_in_messages(tmp_path):
    with pytest.raises(UserError) as error:
        read_columns(write(tmp_path / "a", "x" * 100_000))
    one_sentence(error, "xxx...")


READERS = [read_columns, read_supertags, read_ccg_auto, read_tsv, read_cmudict, read_lines]
PAIR = [lambda path: read_parallel(path, path)]


@pytest.mark.parametrize("read", READERS + PAIR)
def test_files_that_cannot_be_read(tmp_path, read):
    whole = gzip.compress(
        b";;; a line with no end, so that every reader meets the damage first" * 99
    )
    (tmp_path / "directory").mkdir()
    (tmp_path / "cut.gz").write_bytes(whole[:-12])
    (tmp_path / "damaged.gz").write_bytes(whole[:12] + bytes(20) + whole[32:])
    (tmp_path / "plain.gz").write_bytes(b"some text\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "empty.gz").write_bytes(b"")
    unreadable = ["missing", "missing.gz", "directory", "cut.gz", "damaged.gz", "plain.gz"]
    for name in [*unreadable, "empty", "empty.gz"]:
        with pytest.raises(UserError) as error:
            read(tmp_path / name)
        part = "has no" if "empty" in name else "cannot be read"
        one_sentence(error, tmp_path / name, part if read in READERS else "")


def test_a_file_of_nothing_but_bad_lines_is_an_error_that_says_so(tmp_path):
    bad = BadLines()
    with pytest.raises(UserError, match="has no pair of sentences .2 skipped as malformed"):
        read_tsv(write(tmp_path / "a", "x\ny\n"), bad=bad)


def test_column_numbers_are_checked(tmp_path):
    with pytest.raises(ValueError, match="same column"):
        read_columns(tmp_path / "a", word=1, tag=1)
    with pytest.raises(ValueError, match="different column numbers"):
        read_tsv(tmp_path / "a", columns=(0, 0))


# Laws


pairs = st.lists(st.tuples(token, token), min_size=1, max_size=5)


@pytest.mark.slow
@LAWS
@given(st.lists(pairs, min_size=1, max_size=4), st.permutations([0, 1, 2]), line_end)
def test_columns_round_trip_in_any_column_order(tmp_path, sentences, order, end):
    def line(pair: tuple[str, str]) -> str:
        cells = [*pair, "filler"]
        return "\t".join(cells[order.index(column)] for column in range(3))

    blocks = [end.join(map(line, pairs)) for pairs in sentences]
    path = write(tmp_path / "a.gz", "filler\tfiller\tfiller" + end * 2 + (end * 2).join(blocks))
    expected = [Example(*map(tuple, zip(*pairs, strict=True))) for pairs in sentences]
    for separator in (None, "\t"):
        assert read_columns(path, word=order[0], tag=order[1], separator=separator)[1:] == expected
        negative = read_columns(path, word=order[0] - 3, tag=order[1] - 3, separator=separator)
        assert negative[1:] == expected


@pytest.mark.slow
@LAWS
@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=4), line_end)
def test_pairs_round_trip(tmp_path, examples, end):
    lines = [(" ".join(source), " ".join(target)) for source, target in examples]
    de = write(tmp_path / "a.de.gz", "x" + end + end.join(source for source, _ in lines))
    en = write(tmp_path / "a.en", "x" + end + end.join(target for _, target in lines) + end)
    tsv = write(tmp_path / "a.tsv", "x\tx" + end + end.join(map("\t".join, lines)))
    assert read_parallel(de, en)[1:] == examples
    assert read_tsv(tsv)[1:] == examples
    assert read_lines(de)[1:] == [source for source, _ in examples]


@pytest.mark.slow
@LAWS
@given(st.lists(st.lists(st.tuples(token, token, token), min_size=1), min_size=1, max_size=4))
def test_supertags_round_trip(tmp_path, sentences):
    text = "".join(
        "# sent_id = x\n" + "".join("\t".join(row) + "\n" for row in rows) + "\n"
        for rows in sentences
    )
    expected = [(tuple(w for w, _, _ in rows), tuple(c for _, _, c in rows)) for rows in sentences]
    assert read_supertags(write(tmp_path / "a", text)) == expected


leaf = st.tuples(word, word, word).map(lambda x: [x])
tree = st.recursive(leaf, lambda below: st.lists(below, min_size=1, max_size=2), max_leaves=6)


def derivation(node: list) -> tuple[str, list[tuple[str, str, str]]]:
    if isinstance(node[0], tuple):
        category, pos, token = node[0]
        return f"(<L {category} {pos} {pos} {token} {category}>)", node
    parts = [derivation(child) for child in node]
    text = " ".join(part for part, _ in parts)
    return f"(<T X 0 {len(parts)}> {text} )", [leaf for _, leaves in parts for leaf in leaves]


@pytest.mark.slow
@LAWS
@given(st.lists(tree, min_size=1, max_size=3))
def test_derivations_round_trip(tmp_path, trees):
    written = [derivation(tree) for tree in trees]
    path = write(tmp_path / "a.auto.gz", "".join(f"ID=x\n{text}\n" for text, _ in written))
    expected = [tuple((w, f"{c}|{p}") for c, p, w in leaves) for _, leaves in written]
    assert [tuple(zip(*x, strict=True)) for x in read_ccg_auto(path, composite=True)] == expected


line_like = st.sampled_from(
    [b"a\tb\tc", b"a b", b"ID=1", AUTO.encode(), b"A  AH0", b"\xff", b"", b"#"]
)
noise = st.lists(line_like | st.binary(max_size=30), max_size=8).map(b"\n".join)


@LAWS
@given(noise, st.sampled_from(["plain", "in.gz", "raw.gz", "header.gz"]), st.booleans())
def test_arbitrary_bytes_raise_nothing_but_user_errors(tmp_path, data, name, lenient):
    path = tmp_path / name
    header = b"\x1f\x8b\x08" if name == "header.gz" else b""
    write(path, data) if name == "in.gz" else path.write_bytes(header + data)
    for read in READERS + [lambda path, bad: read_parallel(path, path, bad=bad)]:
        bad = BadLines() if lenient else None
        try:
            results = read(path, bad=bad)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert results and all(all(result) for result in results)


# Real data: the counts of its READMEs


@pytest.mark.parametrize("split", [pytest.param("train", marks=pytest.mark.slow), "dev", "test"])
def test_derivations_and_supertags_of_the_ccg_treebank_agree(data_dir, split):
    directory = data_dir / "ccg_ud_english_ewt"
    supertags = read_supertags(directory / f"{split}.supertags.gz", composite=True)
    assert read_ccg_auto(directory / f"en_ewt-ud-{split}.auto.gz", composite=True) == supertags
    labels = {label for example in supertags for label in example.target}
    categories = {label.rpartition("|")[0] for label in labels}
    counts = len(supertags), sum(len(x.source) for x in supertags), len(categories)
    expected = {
        "train": (11_303, 170_226, 508),
        "dev": (1_864, 21_873, 204),
        "test": (1_956, 22_196, 206),
    }
    assert counts == expected[split]
    assert split != "train" or len(labels) == 1_248


@pytest.mark.slow
def test_cmudict_has_the_77653_short_entries_of_the_thesis(data_dir):
    entries = read_cmudict(data_dir / "cmudict_0.7b" / "cmudict-0.7b.gz")
    assert len(entries) == 134_373
    lengths = Counter(len(entry.phones) for entry in entries if len(entry.phones) <= 6)
    assert lengths == {1: 48, 2: 1_005, 3: 6_864, 4: 16_420, 5: 26_017, 6: 27_299}
    assert lengths.total() == 77_653
    assert len({phone.rstrip("012") for entry in entries for phone in entry.phones}) == 39
    assert Pronunciation("déjà", ("D", "EY2", "JH", "AA1")) in entries
    assert {entry.word for entry in entries if entry.word.endswith(")")} == set()


@pytest.mark.slow
def test_germeval_official_columns_give_the_cpu_split(data_dir):
    directory = data_dir / "germeval2014"
    path = directory / "official" / "NER-de-dev.tsv.gz"
    dev, test = (
        read_columns(directory / "cpu_split" / f"{split}.conll.gz") for split in ("dev", "test")
    )
    assert (len(dev), sum(len(x.source) for x in dev)) == (1_100, 20_632)
    assert read_columns(path, word=1, tag=2, comment="#\t") == dev + test


@pytest.mark.slow
def test_wikineural_counts(data_dir):
    dev = read_columns(data_dir / "wikineural_de" / "dev.conll.gz", separator="\t")
    assert (len(dev), sum(len(x.source) for x in dev)) == (6_186, 106_907)
    assert sum(tag.startswith("B-") for x in dev for tag in x.target) == 8_602


def test_multi30k_and_tatoeba_counts(data_dir):
    stem = data_dir / "multi30k" / "tok" / "val.lc.norm.tok"
    val = read_parallel(f"{stem}.de.gz", f"{stem}.en.gz")
    words = sum(len(x.source) for x in val), sum(len(x.target) for x in val)
    assert (len(val), *words) == (1_014, 12_828, 13_308)
    assert len(read_tsv(data_dir / "tatoeba_de_en" / "test.tsv.gz")) == 2_461


def test_wikitext_counts(data_dir):
    path = data_dir / "wikitext2" / "wiki.valid.tokens.gz"
    kept = read_lines(path, blank="keep")
    assert (len(kept), sum(map(len, kept))) == (3_760, 213_886)
    assert read_lines(path, blank="skip") == [line for line in kept if line]
