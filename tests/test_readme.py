"""The README is true: its Python runs, its commands parse, its two make targets exist."""

import re
import shlex
from pathlib import Path

import pytest

from softbeam.cli import COMMANDS
from softbeam.config import RunConfig, run_parser
from softbeam.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMAND_LINES = [
    line
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.splitlines()
    if line.startswith("softbeam ")
]


def test_python_runs():
    """The blocks are one session: later ones use names of earlier ones."""
    names: dict = {}
    for code in [block for kind, block in BLOCKS if kind == "python"]:
        exec(compile(code, "README.md", "exec"), names)
    assert "paths" in names


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_parse(line):
    from softbeam.cli import TRAIN_ALIASES, Parser, class_names, parse_search, search_arguments

    _, command, *words = shlex.split(line)
    assert command in COMMANDS
    made = Parser()
    if command == "train":
        made = run_parser(RECIPES[words[0]](), made)
        made.add_argument("--out")
        given = class_names([TRAIN_ALIASES.get(word, word) for word in words[1:]])
        assert isinstance(made.parse_args(given).out, str)
        return
    search_arguments(made)
    for option in ("--input", "--split", "--against"):
        made.add_argument(option)
    made.add_argument("--json", action="store_true")
    parse_search(made, words)


def test_commands_were_found():
    assert len(COMMAND_LINES) >= 5 and RunConfig()


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
