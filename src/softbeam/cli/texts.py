"""Options that give texts, and settings of sampling that are read from files."""

import math
import os
from dataclasses import fields
from typing import Any

from softbeam.cli.parser import Parser, add_fields
from softbeam.data.fasta import Named, normalized, read_named
from softbeam.data.readers import read_texts
from softbeam.errors import UserError, check_range
from softbeam.sampling.texts.settings import MOST_ROWS, SamplingConfig

FROM_FILES = ("lexicon", "allowed", "allowed_at")  # settings that are read from files
OF_TERMS = ("term", "term_weight", "term_limit")  # and those that are lists with commas


def text_arguments(arguments: Parser, text: str) -> None:
    """Add the options that give the texts."""
    add = arguments.add_argument
    add("--text", type=str, default=None, help=text)
    add(
        "--input",
        type=str,
        default=None,
        help="file of texts, one on a line, or FASTA (.fasta, .fa, .faa); also .gz; - for stdin",
    )
    normalize_argument(arguments)


def normalize_argument(arguments: Parser) -> None:
    """Add the flag that lets sequences have lower case and gaps."""
    arguments.add_argument(
        "--normalize-sequence",
        action="store_true",
        help="write sequences in upper case, without gaps and a stop at the end",
    )


def given_texts(parsed: Any) -> list[Named]:
    """Return the text of `--text`, or those of `--input` with their names; - is standard input."""
    if (parsed.text is None) == (parsed.input is None):
        raise UserError("give either --text TEXT or --input FILE")
    normalize = parsed.normalize_sequence
    if parsed.text is not None:
        return [Named(None, normalized(parsed.text) if normalize else parsed.text)]
    return read_named(parsed.input, normalize=normalize)


def texts_to_sample(parsed: Any, config: SamplingConfig) -> list[Named]:
    """Return the texts of `--text` or `--input`, or a text of `--length` or `--lengths` gaps."""
    if parsed.length is None and parsed.lengths is None:
        return given_texts(parsed)
    option = "--length" if parsed.lengths is None else "--lengths"
    others = [parsed.text, parsed.input, *([parsed.length] if parsed.lengths else [])]
    if any(other is not None for other in others):
        raise UserError(f"{option} makes a text of gaps; give no --text or --input with it")
    if parsed.lengths is not None:
        return [Named(None, "[MASK]" * config.length_range[1])]
    check_range("--length", parsed.length, least=1, most=MOST_ROWS)
    return [Named(None, "[MASK]" * parsed.length)]


def names_of(texts: list[Named]) -> list[str | None] | None:
    """Return the names of texts; None if none of them has a name."""
    names = [name for name, _ in texts]
    return names if any(name is not None for name in names) else None


def config_arguments(arguments: Parser, *, skip: tuple[str, ...] = ()) -> None:
    """Add the flags of a `SamplingConfig`; its lists are given as files or words."""
    add_fields(arguments, SamplingConfig, skip=(*skip, *FROM_FILES, *OF_TERMS))
    add = arguments.add_argument
    add("--lexicon", type=str, default=None, help="file of whole words to favour, one on a line")
    tokens = (
        "the only tokens that may be sampled: a file, one on a line, or A,B,C; by default all, of "
        "protein models the 20 amino acids"
    )
    add("--allowed", type=str, default=None, help=tokens)
    add(
        "--allowed-at",
        type=str,
        default=None,
        help="file of positions and the only tokens that may be sampled there, as 26-33 ASTG",
    )
    add(
        "--term",
        type=str,
        default=None,
        help="a function of yours to add to the energy, as package.module:score, which gives each "
        "text of a list a number; several with commas. Allow its module with --allow-module",
    )
    add(
        "--term-weight",
        type=str,
        default=None,
        help="weight of each --term in the energy; 1 if not given, or 0 with --term-limit",
    )
    add(
        "--term-limit",
        type=str,
        default=None,
        help="the largest number that each --term may give a text; none is no limit",
    )


def given_settings(parsed: Any) -> dict[str, Any]:
    """Collect the fields of a `SamplingConfig` from the options; read files of words."""
    settings = {f.name: parsed[f.name] for f in fields(SamplingConfig) if f.name in parsed}
    words = () if parsed.lexicon is None else some_lines("--lexicon", parsed.lexicon)
    allowed: tuple[str, ...] = ()
    if parsed.allowed is not None and os.path.isfile(parsed.allowed):
        allowed = some_lines("--allowed", parsed.allowed)
    elif parsed.allowed is not None:
        allowed = tuple(parsed.allowed.replace(",", " ").split())
        if not allowed:
            raise UserError(f"--allowed {parsed.allowed!r}: has no token")
    at = () if parsed.allowed_at is None else some_lines("--allowed-at", parsed.allowed_at)
    return settings | {
        "lexicon": words,
        "allowed": allowed,
        "allowed_at": tuple(line for line in at if not line.startswith("#")),
        "term": tuple((parsed.term or "").split(",")) if parsed.term is not None else (),
        "term_weight": numbers("--term-weight", parsed.term_weight, none=False),
        "term_limit": numbers("--term-limit", parsed.term_limit, none=True),
    }


def numbers(option: str, text: str | None, *, none: bool) -> tuple[Any, ...]:
    """Read `2,0.5` as numbers; with `none`, also the word none."""
    if text is None:
        return ()
    try:
        values = tuple(
            None if none and part.strip().lower() == "none" else float(part)
            for part in text.split(",")
        )
    except ValueError:
        values = (math.nan,)
    if any(value is not None and not math.isfinite(value) for value in values):
        raise UserError(f"{option} {text}: must be numbers with commas, as 2,0.5")
    return values


def some_lines(option: str, path: str) -> tuple[str, ...]:
    """Read the non-empty lines of a file. Raises UserError if there is none."""
    lines = tuple(line.strip() for line in read_texts(path) if line.strip())
    if not lines:
        raise UserError(f"{option} {path}: has no line")
    return lines
