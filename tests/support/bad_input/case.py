"""What a case of bad input is, and how many are written down at once.

A case runs in a copy of the folder that `things.make_good` makes. Its files are written there
first: bytes, a change of the file that is there, None to remove it; a name that ends with a slash
is a folder.
"""

from collections.abc import Mapping
from typing import NamedTuple

from support.bad_input.things import Change

Broken = bytes | Change | None
FOLDER = "a folder in its place"
SLY = b"\x80\x02cos\nmkdir\nX\x03\0\0\0slyq\0\x85R."  # a pickle that makes the folder `sly`


class Case(NamedTuple):
    words: str  # after `softbeam`
    says: tuple[str, ...]  # parts of the sentence: the thing, and what is wrong with it
    files: Mapping[str, Broken] = {}
    stdin: bytes | None = None
    env: Mapping[str, str] = {}


class Cases(dict[str, Case]):
    """Cases by name; no two have one name."""

    def add(self, name: str, case: Case) -> None:
        assert name not in self, f"two cases are called {name}"
        self[name] = case

    def broken(self, title: str, words: str, file: str, contents: Mapping[str, object]) -> None:
        """A command with one file broken: its content, or that and parts of the sentence.

        Where no parts are given, the sentence must name the file.
        """
        for name, given in contents.items():
            content, *says = given if isinstance(given, tuple) else (given,)
            files = {file: None, f"{file}/": None} if content is FOLDER else {file: content}
            self.add(f"{title}: {name}", Case(words, (*(says or [file]),), files))

    def commands(self, text: str) -> None:
        """The lines of bad_commands.txt, which break no file."""
        before = ""
        for row in text.splitlines():
            if row.startswith("[") and row.endswith("]"):
                before = row[1:-1]
            elif row and not row.startswith("#"):
                words, said = row.split("=>", 1)
                whole = f"{before} {words}".strip()
                self.add(whole, Case(whole, tuple(part.strip() for part in said.split(" | "))))
