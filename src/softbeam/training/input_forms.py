"""Files of inputs to decode: plain lines, CoNLL columns or JSON lines; and outputs in each form."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from softbeam.data.detokenize import detokenize, is_tokenized
from softbeam.data.readers import read_texts
from softbeam.data.task import KindName, Task
from softbeam.errors import UserError
from softbeam.training.decoding import Output

FORMS = ("text", "conll", "jsonl")
COLUMN_FILE = re.compile(r".*\.(conll\w*|iob2?|bio|bioes|col|tsv)(\.gz)?", re.IGNORECASE)
TEXT_FIELDS = ("tokens", "words", "input", "text", "source", "sentence")
NUMBERED = re.compile(r"\d+")  # the first column of a token in CoNLL-U; 3-4 and 8.1 are no tokens


class Piece(NamedTuple):
    """A line of a file: its text, the number of its sentence, and of its token in columns."""

    text: str
    sentence: int | None = None
    token: int = 0


@dataclass
class Inputs:
    """The sentences of a file, and the lines around them that an output in the same form keeps."""

    form: str
    kind: KindName
    sources: list[tuple[str, ...]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)  # of JSON: all fields
    separator: str = " "  # of columns
    guessed: bool = False

    def add(self, text: str, source: tuple[str, ...]) -> None:
        """Add a line that is a sentence; without a token it is kept as an empty line."""
        self.pieces.append(Piece(text, len(self.sources) if source else None))
        self.sources += [source] if source else []


def read_inputs(path: str, task: Task, form: str | None = None) -> Inputs:
    """Read the inputs of a file (plain or .gz) or of standard input, which is `-`.

    Raises UserError if the file is not of the form, or has no sentence.

    Args:
        path: of the file.
        task: says what is a token, and which column has the words.
        form: text, conll or jsonl; recognized if not given.
    """
    lines = read_texts(path)
    place = "standard input" if path == "-" else path
    read = {"text": read_plain, "conll": read_columns, "jsonl": read_json}
    inputs = read[form or recognized(path, lines, task)](place, lines, task)
    if not inputs.sources:
        raise UserError(f"{place} has no sentence")
    inputs.guessed = form is None
    return inputs


def recognized(path: str, lines: Sequence[str], task: Task) -> str:
    """Return the form of a file, from its name and its lines.

    Columns are only for tagging: the file's name says so, a line has a tab, or blank lines divide
    lines that all have the same number of columns.
    """
    filled = [line for line in lines if line.strip()]
    if filled and filled[0].lstrip()[0] in "[{" and parsed(filled[0]) is not None:
        return "jsonl"
    if task.kind != "tagging" or not filled:
        return "text"
    divided = [block for _, block in blocks(lines)]
    widths = {len(cells(line, None)) for line in filled if not line.startswith("#")}
    regular = len(filled) > len(divided) > 1 == len(widths)
    columns = COLUMN_FILE.fullmatch(path) or any("\t" in line for line in filled[:50]) or regular
    return "conll" if columns else "text"


def parsed(line: str) -> Any:
    """Parse JSON; None if the line is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def read_plain(place: str, lines: Sequence[str], task: Task) -> Inputs:
    """Read a sentence a line; blank lines stay blank."""
    inputs = Inputs("text", task.kind)
    for line in lines:
        inputs.add(line, task.tokens(line))
    return inputs


def read_json(place: str, lines: Sequence[str], task: Task) -> Inputs:
    """Read a JSON value a line: a text, a list of tokens, or an object that holds one of them."""
    inputs = Inputs("jsonl", task.kind)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value = parsed(line)
        record = value if isinstance(value, dict) else {}
        text = next((value[name] for name in TEXT_FIELDS if name in record), value)
        source = task.tokens(text) if isinstance(text, str) else text
        listed = isinstance(source, list | tuple) and all(isinstance(t, str) for t in source)
        if not (listed and source):
            names = ", ".join(TEXT_FIELDS)
            expected = f"a JSON text, list of tokens, or object with one of {names}"
            raise UserError(f"{place}, line {number}: expected {expected}, found {line[:60]!r}")
        inputs.add(line, tuple(source))
        inputs.records.append(record)
    return inputs


def read_columns(place: str, lines: Sequence[str], task: Task) -> Inputs:
    """Read a token a line and blank lines between sentences; comments are kept.

    Comments are the lines that begin as the task's setting says, and those that begin with # and
    have another number of columns than the sentence.
    """
    if task.kind != "tagging":
        raise UserError(f"{place}: CoNLL columns are for tagging; give --input-format text")
    separator, word = getattr(task, "separator", None), getattr(task, "word", 0)
    inputs = Inputs("conll", task.kind, separator=separator or ("\t" if tabs(lines) else " "))
    for start, block in blocks(lines):
        width = len(cells(block[-1], separator))
        tokens: list[str] = []
        for number, line in enumerate(block, start):
            row = cells(line, separator)
            if is_comment(line, row, width, inputs.separator, getattr(task, "comment", None)):
                inputs.pieces.append(Piece(line))
                continue
            if len(row) != width:
                found = f"found {len(row)} in {line[:60]!r}"
                raise UserError(f"{place}, line {number}: expected {width} columns, {found}")
            universal = width == 10 and re.fullmatch(r"\d+([-.]\d+)?", row[0])
            column = 1 if universal and word == 0 else 0 if width == 1 else word
            if not -width <= column < width:
                option = f"column {column} has the words; --data.word says which"
                raise UserError(f"{place}, line {number}: expected {option}, found {width} columns")
            if universal and not NUMBERED.fullmatch(row[0]):
                inputs.pieces.append(Piece(f"{line}{inputs.separator}_"))
                continue
            inputs.pieces.append(Piece(line, len(inputs.sources), len(tokens)))
            tokens.append(row[column])
        inputs.sources += [tuple(tokens)] if tokens else []
        inputs.pieces.append(Piece(""))
    return inputs


def tabs(lines: Sequence[str]) -> bool:
    return any("\t" in line for line in lines if not line.startswith("#"))


def cells(line: str, separator: str | None) -> list[str]:
    """Split a line into columns, by a separator or by blanks and tabs."""
    return line.split(separator) if separator else re.split(r"[ \t]+", line.strip(" \t"))


def is_comment(line: str, row: list[str], width: int, separator: str, prefix: str | None) -> bool:
    """Tell whether a line of a column file is no token: a comment, or a mark between documents."""
    if row[0] == "-DOCSTART-" or (prefix and line.startswith(prefix)):
        return True
    return line.startswith("#") and (len(row) != width or (width > 1 and separator not in line))


def blocks(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines between blank lines, with the number of the first."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


# Outputs


def render(
    inputs: Inputs, outputs: Sequence[Sequence[Output]], *, form: str | None, nbest: int
) -> str:
    """Write outputs as text, conll or jsonl; in the form of the inputs if none is given."""
    write = {"text": as_lines, "conll": as_columns, "jsonl": as_json}[form or inputs.form]
    return "".join(row + "\n" for row in write(inputs, outputs, nbest))


def check_form(form: str | None, task: Task) -> None:
    """Raises UserError if outputs of the task cannot have this form."""
    if form == "conll" and task.kind != "tagging":
        raise UserError("--format conll: is for tagging; give text or jsonl")


def texts_of(inputs: Inputs, outputs: Sequence[Sequence[Output]]) -> list[list[str]]:
    """Join the tokens of outputs; translations into tokenized text are detokenized."""
    tokens = [output.tokens for ranked in outputs for output in ranked]
    join = detokenize if inputs.kind == "translation" and is_tokenized(tokens) else " ".join
    return [[join(output.tokens) for output in ranked] for ranked in outputs]


def as_lines(inputs: Inputs, outputs: Sequence[Sequence[Output]], nbest: int) -> Iterator[str]:
    """Yield an output a line; of several, also the number of the sentence and the score."""
    texts = texts_of(inputs, outputs)
    if nbest > 1:
        for number, (ranked, lines) in enumerate(zip(outputs, texts, strict=True)):
            for output, text in zip(ranked, lines, strict=True):
                yield f"{number}\t{output.score:.4f}\t{text}"
    elif inputs.form == "text":
        for piece in inputs.pieces:
            yield "" if piece.sentence is None else texts[piece.sentence][0]
    else:
        yield from (lines[0] for lines in texts)


def as_columns(inputs: Inputs, outputs: Sequence[Sequence[Output]], nbest: int) -> Iterator[str]:
    """Yield each token with its labels in new last columns, the best output's first."""
    if inputs.form != "conll":
        inputs = columns_of(inputs)
    for line, sentence, token in inputs.pieces:
        if sentence is None:
            yield line
            continue
        ranked = outputs[sentence][:nbest]
        labels = [output.tokens[token] for output in ranked] + ["_"] * (nbest - len(ranked))
        yield inputs.separator.join([line, *labels])


def columns_of(inputs: Inputs) -> Inputs:
    """Return inputs as one column of words."""
    columns = Inputs("conll", inputs.kind, inputs.sources)
    for number, source in enumerate(inputs.sources):
        columns.pieces += [Piece(word, number, place) for place, word in enumerate(source)]
        columns.pieces.append(Piece(""))
    return columns


def as_json(inputs: Inputs, outputs: Sequence[Sequence[Output]], nbest: int) -> Iterator[str]:
    """Yield an object for each output; the fields of JSON inputs are kept."""
    texts, records = texts_of(inputs, outputs), inputs.records or [{}] * len(inputs.sources)
    for number, (source, record) in enumerate(zip(inputs.sources, records, strict=True)):
        for rank, (output, text) in enumerate(zip(outputs[number], texts[number], strict=True)):
            row = {"line": number, "rank": rank, "score": output.score, "input": " ".join(source)}
            row |= {"output": text}
            if inputs.kind == "tagging":
                row |= {"tokens": list(source), "labels": output.tokens}
            yield json.dumps(record | row, ensure_ascii=False)
