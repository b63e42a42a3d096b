"""Read the cases of bad input: a line each in `cases/*.txt` (see `cases/README.md`)."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("cases")
STDIN = "-"  # the target of a change that is standard input; $NAME is a variable


class Case(NamedTuple):
    """A command that must end with a line that has these parts."""

    words: list[str]  # after `softbeam`
    says: list[str]  # parts of the line: the thing, and what is wrong with it
    changes: list[tuple[str, str]] = []  # targets and how they are broken, in order
    memory: bool = False  # to be run with little memory, in a process of its own


def read_cases(folder: Path = FOLDER) -> dict[str, Case]:
    """All cases by name; no two have one name."""
    cases: dict[str, Case] = {}
    for path in sorted(folder.glob("*.txt")):
        title, words, target, names = "", "", "", dict[str, str]()
        for number, row in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not row or row.startswith("#"):
                continue
            if short := re.fullmatch(r"([A-Z]+) = (.*)", row):
                names[short[1]] = short[2]
            elif row.startswith("[") and row.endswith("]"):
                row = row[1:-1]
                for name, meaning in names.items():
                    row = row.replace(f"{{{name}}}", meaning)
                title, words, target = ["", row, ""] if " | " not in row else row.split(" | ")
            else:
                name, case = parse(row, title, words, target)
                assert name not in cases, f"{path.name}, line {number}: a second case {name!r}"
                cases[name] = case._replace(memory=path.stem == "memory")
    return cases


def parse(row: str, title: str, words: str, target: str) -> tuple[str, Case]:
    """A line below a heading: more words of the command, or a name and how the target is broken."""
    what, _, said = (part.strip() for part in row.partition("=>"))
    if not title:
        whole = f"{words} {what}".strip()
        return whole, Case(split(whole), said.split(" | "))
    name, changes = what.split(": ", 1)
    broken = []
    for change in changes.split(" & "):
        other = re.match(r"(\S+): ", change)
        place, change = (other[1], change[other.end() :]) if other else (target, change)
        broken.append((with_bytes(place), change))
    says = said.split(" | ") if said else [target]
    return f"{title}: {name}", Case(split(words), says, broken)


def split(words: str) -> list[str]:
    """The words of a shell's line; 10^12 is that power."""
    return [
        re.sub(r"(?<![\w.])(\d+)\^(\d+)", lambda found: str(int(found[1]) ** int(found[2])), word)
        for word in shlex.split(with_bytes(words))
    ]


def with_bytes(text: str) -> str:
    """A text in which \\udcff is a byte that is not UTF-8."""
    return re.sub(r"\\u(dc[89a-f][0-9a-f])", lambda found: chr(int(found[1], 16)), text)
