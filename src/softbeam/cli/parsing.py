"""What the commands share: a parser whose complaints are sentences, lists, JSON."""

import json
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from softbeam.errors import UserError


class Parser(ArgumentParser):
    """A parser whose complaints are one sentence and exit code 2."""

    more_help = ""  # printed after the options, as it is

    def format_help(self, *args: Any, **options: Any) -> str:
        return str(super().format_help(*args, **options)) + self.more_help

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(" ".join(message.split()))


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
