"""What the commands share: a parser with one-line errors, lists, JSON."""

import difflib
import json
import re
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, set_loader

from softbeam.errors import UserError
from softbeam.runtime import devices
from softbeam.runtime.plain_yaml import load_plain
from softbeam.training.config import why

set_loader("yaml", load_plain, exceptions=(yaml.YAMLError,))  # values of flags are YAML


class Parser(ArgumentParser):
    """A parser that raises UserError, and whose flags are written with hyphens or underscores.

    `none` is another word for `null`, and an error about a flag that does not exist names the
    nearest one.
    """

    more_help = ""  # printed after the options, as it is
    more_flags: Collection[str] | None = None  # beside the options; None: inside of another parser

    def add_argument(self, *args: Any, **options: Any) -> Any:
        """Add an argument; choices become a type, which the help can name."""
        if "choices" in options:
            options["type"] = Literal[tuple(options.pop("choices"))]
        return super().add_argument(*args, **options)

    def format_help(self, *args: Any, **options: Any) -> str:
        debug = "\n  --debug               show the traceback of an error\n"
        text = re.sub(r"<class\s+'(\w+)'>", r"\1", super().format_help(*args, **options))
        return with_hyphens(text + debug + self.more_help)

    def parse_args(self, args: Sequence[str], *more: Any, **options: Any) -> Any:  # type: ignore[override]
        words = [self.spelled(word) for word in args]
        try:
            return super().parse_args(self.with_null(words), *more, **options)
        except UserError as error:
            if self.more_flags is None or not REFUSED.search(str(error)):
                raise
            raise UserError(self.unknown_flag(words) or str(error)) from None

    def with_null(self, words: Sequence[str]) -> list[str]:
        """Write `null` for `none` after the flags that can be null."""
        return [
            "null" if word.lower() == "none" and self.can_be_null(before) else word
            for before, word in pairwise(["", *words])
        ]

    def can_be_null(self, flag: str) -> bool:
        """Tell whether a flag takes null: by its type, or if it is a field of a chosen class."""
        action = self._option_string_actions.get(flag)
        if action is None:
            return "." in flag and not flag.endswith(NONE_IS_A_CHOICE)
        return type(None) in get_args(getattr(action, "_typehint", None))

    def unknown_flag(self, words: Sequence[str]) -> str | None:
        """Say which flag does not exist, and which one is nearest; None if all of them exist."""
        flags = [*self._option_string_actions, *(self.more_flags or ())]
        for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
            same = with_hyphens(flag)
            if not any(with_hyphens(known) == same for known in flags):
                spelled = [with_hyphens(known) for known in flags if known.startswith("--")]
                return f"there is no flag {flag}{nearest(same, spelled) or '; --help lists them'}"
        return None

    def spelled(self, word: str) -> str:
        """Spell a flag as the parser has it; other words stay as they are."""
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or flag in self._option_string_actions:
            return word
        hyphens, underscores = with_hyphens(flag), "--" + flag[2:].replace("-", "_")
        if hyphens in self._option_string_actions:
            return hyphens + equals + value
        nested = "." in flag  # a field of a class that is chosen: no flag of the parser itself
        known = nested or underscores in self._option_string_actions
        return underscores + equals + value if known else word

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(" ".join(message.split()) if ex is None else why(ex))


REFUSED = re.compile(r"unrecognized|is not accepted|does not exist|[Nn]o action")
NONE_IS_A_CHOICE = (".baseline", ".search_dropout", ".search-dropout")  # fields of chosen classes


def nearest(word: str, known: Iterable[str]) -> str:
    """Ask whether the most similar word was meant; empty if none is similar."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def with_hyphens(text: str) -> str:
    """Write the flags in a text with hyphens: --checkpoint-every."""
    return re.sub(r"--\w[\w.-]*", lambda flag: flag[0].replace("_", "-"), text)


def parser(command: str, description: str, **options: Any) -> Parser:
    outer = Parser(prog=f"softbeam {command}", description=description, **options)
    outer.more_flags = ()
    return outer


def say_json(value: dict[str, Any]) -> None:
    """Print a JSON object as the last line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def whole_numbers(option: str, text: str) -> list[int]:
    """Read `1,2,3` as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text}: must be whole numbers with commas, as 1,2,3") from None


def as_lists(words: list[str], options: tuple[str, ...]) -> list[str]:
    """Write the values of `--k 3` and `--k 1,3` as the lists [3] and [1,3]."""
    return [
        f"[{word}]" if before in options and not word.startswith("[") else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def options(words: list[str]) -> list[tuple[str, str]]:
    """Pair the flags on a command line with their values."""
    parts = [part for word in words for part in split_flag(word)]
    return [(a, b) for a, b in pairwise(parts) if a.startswith("--") and not b.startswith("--")]


def split_flag(word: str) -> list[str]:
    """Split `--flag=value`; any other word stays whole."""
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag.startswith("--") else [word]


def field_docs(settings: type) -> dict[str, str]:
    """What the docstrings of a dataclass and of its bases say of each field, on one line."""
    return {
        p.arg_name: " ".join((p.description or "").split())
        for kind in reversed(settings.__mro__)
        for p in docstring_parser.parse(kind.__doc__ or "").params
    }


def add_fields(command: Parser, settings: type, *, skip: Container[str] = ()) -> None:
    """Add a flag for each field of a dataclass, `--burn-in` for `burn_in`, with its help."""
    docs = field_docs(settings)
    for f in fields(settings):
        if f.name in skip:
            continue
        assert f.default is not MISSING
        flag = f"--{f.name.replace('_', '-')}"
        command.add_argument(flag, type=f.type, default=f.default, help=docs[f.name])


def threads_argument(command: Any) -> None:
    """Add the number of threads of a command that decodes."""
    text = "processor threads; OMP_NUM_THREADS if not given, or 1"
    command.add_argument("--threads", type=int | None, default=None, help=text)


def device_argument(command: Any) -> None:
    """Add the device that a command's model runs on."""
    text = f"where the model runs: {devices.HELP}"
    command.add_argument("--device", type=str, default=devices.AUTO, help=text)


def overwrite_argument(command: Any) -> None:
    """Add the flag that lets a command replace what exists."""
    text = "replace an output that exists, once the new one is complete"
    command.add_argument("--overwrite", action="store_true", help=text)


def accept_argument(command: Any) -> None:
    """Add the flag that lets a command go on with files that have changed."""
    text = "go on although data, vocabularies, weights or checkpoints have changed; recorded"
    command.add_argument("--accept-changed-inputs", action="store_true", help=text)


def files_in(path: Path) -> list[Path]:
    """Return all files below a folder, or the path itself if it is no folder."""
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
