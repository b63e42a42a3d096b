"""Broken files of text, the user's own code, and what the environment says."""

from support.bad_input.case import FOLDER, Case, Cases

FILES = Cases()

# Files to read

TAGGING = "train tagging --quiet --data.train x.conll"
MANY = "x.conll, line 1: expected at most 1,000,000 bytes"
COLUMNS = {
    "nothing": (b"", "x.conll has no sentence"),
    "blank lines alone": (b"\n\n \n", "x.conll has no sentence"),
    "one column": (b"dog\n", "x.conll, line 1: expected at least 2 columns, found 1"),
    "a column too few": (b"the\tD\ndog\n", "x.conll, line 2: expected 2 columns as in line 1"),
    "a column too many": (b"the\tD\ndog\tN\tx\n", "x.conll, line 2: expected 2 columns"),
    "latin-1": ("Käse\tN\n".encode("latin-1"), "x.conll, line 1: expected UTF-8 text, found byte"),
    "UTF-16 with a mark": ("dog\tN\n".encode("utf-16"), "expected UTF-8 text"),
    "UTF-16 without a mark": ("dog\tN\n".encode("utf-16-le"), "found a NUL byte at offset 1"),
    "UTF-32": ("dog\tN\n".encode("utf-32-le"), "found a NUL byte at offset 1"),
    "a NUL byte": (b"do\0g\tN\n", "x.conll, line 1: expected UTF-8 text, found a NUL byte"),
    "a surrogate": (b"\xed\xa0\x80\tN\n", "x.conll, line 1: expected UTF-8 text"),
    "an overlong form": (b"\xc0\xaf\tN\n", "x.conll, line 1: expected UTF-8 text"),
    "a cut letter": (b"K\xc3\tN\n", "x.conll, line 1: expected UTF-8 text"),
    "old line ends": (b"the\tD\rdog\tN\r", "found a carriage return inside the line"),
    "a huge line": (b"x" * 3_000_000 + b"\tN\n", MANY),
    "a huge line without an end": (b"x" * 3_000_000, MANY),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "x.conll, line 1: expected"),
    "one sentence and no dev": (b"dog\tN\n", "there is no split 'dev'"),
    "no file": (None, "x.conll cannot be read: No such file"),
    "a folder": (FOLDER, "x.conll cannot be read: Is a directory"),
}
FILES.broken("columns", TAGGING, "x.conll", COLUMNS)
FILES.broken(
    "skipped columns", TAGGING + " --skip-bad", "x.conll", {"all": (b"dog\n", "(1 skipped")}
)
ZIPPED = {
    "no gzip": b"dog\tN\n",
    "half": b"\x1f\x8b\x08\0\0\0\0\0",
    "damaged": b"\x1f\x8b\x08\0" * 9,
}
FILES.broken("zipped columns", TAGGING + ".gz", "x.conll.gz", ZIPPED)
SPLITS = "train tagging --quiet --data.train train.conll"
FILES.broken(
    "dev columns", f"{SPLITS} --data.dev x.conll", "x.conll", {"one": (b"x\n", "x.conll, line 1")}
)
DEV = f"{SPLITS} --data.dev dev.conll --data.test x.conll"
FILES.broken("test columns", DEV, "x.conll", {"one": (b"x\n", "x.conll, line 1")})

PARALLEL = {
    "nothing": (b"", "x.txt has 0 lines but en.txt has 12"),
    "too few lines": (b"der Hund\n", "x.txt has 1 lines but en.txt has 12"),
    "too many lines": (b"der Hund\n" * 13, "x.txt has 13 lines but en.txt has 12"),
    "a blank line": (b"der Hund\n" * 11 + b"\n", "x.txt, line 12: expected a sentence"),
    "latin-1": ("schläft\n".encode("latin-1") * 12, "x.txt, line 1: expected UTF-8 text"),
    "a NUL byte": (b"der\0Hund\n" * 12, "x.txt, line 1: expected UTF-8 text, found a NUL"),
    "a huge line": (b"x " * 1_500_000 + b"\nx" * 11 + b"\n", "at most 1,000,000 bytes"),
    "no file": None,
    "a folder": FOLDER,
}
MT = "train translation --quiet --data.source x.txt --data.target en.txt"
FILES.broken("parallel text", MT, "x.txt", PARALLEL)
PAIRS = {
    "one column": (b"der Hund\n", "x.tsv, line 1: expected at least 2 columns"),
    "an empty side": (b"a\tb\na\t \n", "x.tsv, line 2: expected words in columns 0 and 1"),
    "uneven columns": (b"a\tb\na\tb\tc\n", "x.tsv, line 2: expected 2 columns as in line 1"),
}
FILES.broken("pairs", "train translation --quiet --data.source x.tsv", "x.tsv", PAIRS)
CCG = "train ccg --quiet --data.train x.{0} --data.dev x.{0}".format
FILES.broken(
    "supertags", CCG("tags"), "x.tags", {"two columns": (b"dog\tN\n", "expected 3 columns")}
)
AUTO = {
    "no brackets": (b"ID=1\ndog\n", "x.auto, line 2: expected a (<T ...>"),
    "no id": (b"(<L N NN NN dog N>)\n", "x.auto, line 1: expected an ID= line"),
    "no end": (b"ID=1\n(<T N 0 1> (<L N NN NN dog N>)\n", "expected one closed derivation"),
}
FILES.broken("derivations", CCG("auto"), "x.auto", AUTO)
DICT = {
    "no phones": (b"cat\n", "x.dict, line 1: expected a word and its ARPAbet phones"),
    "other phones": (b"cat k ae t\n", "x.dict, line 1: expected a word and its ARPAbet phones"),
}
FILES.broken("dictionary", "train stress --quiet --data.path x.dict", "x.dict", DICT)

# Texts to work on

TEXTS = {
    "latin-1": ("Käse\n".encode("latin-1"), "line 1: expected UTF-8 text"),
    "UTF-16": ("Käse\n".encode("utf-16"), "line 1: expected UTF-8 text"),
    "a NUL byte": (b"the\0dog\n", "line 1: expected UTF-8 text, found a NUL byte"),
    "a huge line": (b"the " * 1_000_000, "line 1: expected at most 1,000,000 bytes"),
}
DECODED = TEXTS | {
    "nothing": (b"", "has no line"),
    "a blank line": (b"the dog\n\nthe cat\n", "line 2: expected a sentence"),
}
SCORED = TEXTS | {
    "nothing": (b"", "has no line"),
    "a blank line": (b"A\n\n", "text 1 has no token"),
}
FILES.broken("decode", "decode run --quiet --input x.txt", "x.txt", DECODED)
FILES.broken("score", "score --quiet --mlm mlm --input x.txt", "x.txt", SCORED)
for named, (content, said) in DECODED.items():
    FILES.add(
        f"decode standard input: {named}", Case("decode run --input -", (said,), stdin=content)
    )
for named, (content, said) in TEXTS.items():
    words = "score --quiet --mlm mlm --input -"
    FILES.add(f"score standard input: {named}", Case(words, (said,), stdin=content))
LONG = {"longer than the model": (b"Hund " * 25, "source 1 has 25 tokens; the model's limit is 24")}
FILES.broken("translate", "decode mt --quiet --input x.txt", "x.txt", LONG)
FILES.broken("mask-predict", "decode cm --quiet --search mask-predict --input x.txt", "x.txt", LONG)
for command in ("score", "infill", "sample"):
    words = f"{command} --quiet --mlm mlm --text [MASK]A\udc80"
    FILES.add(f"{command}: a lone surrogate", Case(words, ("'[MASK]A\\udc80' is not UTF-8",)))
LEXICON = "sample --quiet --mlm mlm --text [MASK] --lexicon x.txt"
FILES.broken("lexicon", LEXICON, "x.txt", TEXTS | {"nothing": (b"", "x.txt has no line")})

# The user's own code, and what the environment says

KERNEL = {"certify: broken code": b"def f(:\n", "certify: code that fails": b"1 / 0\n"}
for named, code in KERNEL.items():
    FILES.add(
        named, Case("certify mine:f", ("the kernel 'mine:f' cannot be loaded",), {"mine.py": code})
    )
FILES.add(
    "no data folder", Case("train stress", ("SOFTBEAM_DATA is 'x'",), env={"SOFTBEAM_DATA": "x"})
)
FTP = {"SOFTBEAM_ORIGIN": "ftp://x", "SOFTBEAM_CACHE": "cache"}
FILES.add("no address", Case("data fetch multi30k", ("SOFTBEAM_ORIGIN is 'ftp://x'",), env=FTP))
UNDER = {"SOFTBEAM_CACHE": "in.txt/x"}
SAID = "in.txt/x/models cannot be written"
FILES.add("a cache below a file", Case("models fetch sapiens-vh", (SAID,), env=UNDER))
