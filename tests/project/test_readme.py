"""The README is true: its Python runs, its commands parse, its two make targets exist."""

import re
import shlex
from pathlib import Path

import pytest

from softbeam.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMAND_LINES = [
    line
    for kind, block in BLOCKS
    if kind == "sh"
    for line in re.sub(
        r"torchrun .* -m softbeam", "softbeam", block.replace("\\\n", " ")
    ).splitlines()
    if line.startswith("softbeam ")
]
WORK = {  # the function that does a command's work, once its words are understood
    "train": "softbeam.training.many.train",
    "compare": "softbeam.experiments.compare.compare",
    "sweep": "softbeam.experiments.grid_search.sweep",
    "worker": "softbeam.runtime.job_queue.opened",
    "worker --submit": "softbeam.runtime.workers.submit",
    "evaluate": "softbeam.training.runs.load",
    "decode": "softbeam.training.runs.load",
    "analyze": "softbeam.reports.analysis.analyze",
    "certify": "softbeam.sampling.certified_kernels.certificates",
    "models": "softbeam.models.catalogue.fetch",
    "sample": "softbeam.models.catalogue.load_mlm",
    "infill": "softbeam.models.catalogue.load_mlm",
    "score": "softbeam.models.catalogue.load_mlm",
    "reproduce": "softbeam.experiments.reproduce.reproduce",
    "reproduce all": "softbeam.experiments.reproduce.prepare",
    "report": "softbeam.reports.page.write_report",
    "report claims": "softbeam.experiments.reproduce.claims_in",
    "models convert": "softbeam.training.fairseq.convert",
}


class Understood(Exception):
    """A command got as far as its work."""


def test_python_runs(monkeypatch, tmp_path):
    """The blocks are one session: later ones use names of earlier ones."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in [block for kind, block in BLOCKS if kind == "python"]:
        exec(compile(code, "README.md", "exec"), names)
    assert "paths" in names
    assert (tmp_path / "runs/bart/model/config.json").is_file()


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_are_understood(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("A[MASK]\n")
    _, command, *words = shlex.split(line, comments=True)

    def work(*args, **options):
        raise Understood

    monkeypatch.setattr(WORK.get(f"{command} {words[0]}") or WORK[command], work)
    with pytest.raises(Understood):
        COMMANDS[command](words)


def test_commands_were_found():
    assert len(COMMAND_LINES) >= 9


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
