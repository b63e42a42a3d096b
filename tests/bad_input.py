"""The corpus of bad input: commands that cannot be, broken files, broken folders."""

from pathlib import Path

from bad_case import Cases
from bad_files import FILES
from bad_folders import FOLDERS

CASES = Cases()
CASES.commands(Path(__file__).with_name("bad_commands.txt").read_text(encoding="utf-8"))
for part in (FILES, FOLDERS):
    for name, case in part.items():
        CASES.add(name, case)
