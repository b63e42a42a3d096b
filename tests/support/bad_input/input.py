"""The corpus of bad input: commands that cannot be, broken files, broken folders."""

from pathlib import Path

from support.bad_input.case import Cases
from support.bad_input.files import FILES
from support.bad_input.folders import FOLDERS

CASES = Cases()
CASES.commands(Path(__file__).with_name("commands.txt").read_text(encoding="utf-8"))
for part in (FILES, FOLDERS):
    for name, case in part.items():
        CASES.add(name, case)
