"""What the commands share: a parser whose complaints are sentences, lists, JSON."""

import json
from collections.abc import Container
from dataclasses import MISSING, fields
from typing import Any, NoReturn

import docstring_parser
from jsonargparse import ArgumentParser

from softbeam.data.readers import read_texts
from softbeam.errors import UserError, reason
from softbeam.runtime import ranks


class Parser(ArgumentParser):
    """A parser whose complaints are one sentence and exit code 2."""

    more_help = ""  # printed after the options, as it is

    def format_help(self, *args: Any, **options: Any) -> str:
        return str(super().format_help(*args, **options)) + self.more_help

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(" ".join(message.split()) if ex is None else reason(ex))


def parser(command: str, description: str, **options: Any) -> Parser:
    return Parser(prog=f"softbeam {command}", description=description, **options)


def say_json(value: dict[str, Any]) -> None:
    """One JSON object as the last line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def whole_numbers(option: str, text: str) -> list[int]:
    """`1,2,3` as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text}: must be whole numbers with commas, as 1,2,3") from None


def as_lists(words: list[str], options: tuple[str, ...]) -> list[str]:
    """`--k 3` and `--k 1,3` as the lists [3] and [1,3]."""
    return [
        f"[{word}]" if before in options and not word.startswith("[") else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def field_docs(settings: type) -> dict[str, str]:
    """What the docstrings of a dataclass and of its bases say of each field, on one line."""
    return {
        p.arg_name: " ".join((p.description or "").split())
        for kind in reversed(settings.__mro__)
        for p in docstring_parser.parse(kind.__doc__ or "").params
    }


def add_fields(made: Parser, settings: type, *, skip: Container[str] = ()) -> None:
    """Add a flag for each field of a dataclass, `--burn-in` for `burn_in`, with its help."""
    for f in fields(settings):
        if f.name in skip:
            continue
        assert f.default is not MISSING
        flag, text = f"--{f.name.replace('_', '-')}", field_docs(settings)[f.name]
        made.add_argument(flag, type=f.type, default=f.default, help=text)


def given_texts(parsed: Any) -> list[str]:
    """The text of `--text`, or the lines of `--input`; - is standard input."""
    if (parsed.text is None) == (parsed.input is None):
        raise UserError("give either --text TEXT or --input FILE")
    if parsed.text is not None:
        return [parsed.text]
    if parsed.input == "-" and ranks.world() > 1:
        raise UserError("--input - is one process's standard input; under torchrun give a file")
    return read_texts(parsed.input)
