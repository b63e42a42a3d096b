"""README and guide are true: their Python prints what they show, their commands parse."""

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from softbeam.cli import COMMANDS
from softbeam.cli.train import parse_run
from softbeam.experiments.search_aware.runs import runs
from softbeam.training.config import RunConfig
from support.pages import blocks, run_python

ROOT = Path(__file__).resolve().parents[2]
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guide.md"
TEXTS = {page: page.read_text(encoding="utf-8") for page in (README, GUIDE)}


def command_lines(page: Path) -> list[str]:
    """Return the commands of softbeam in a page's shell blocks, without torchrun before them."""
    shell = "".join(block.text for block in blocks(page) if block.kind == "sh")
    lines = re.sub(r"torchrun .* -m softbeam", "softbeam", shell.replace("\\\n", " ")).splitlines()
    return [line.partition(" > ")[0] for line in lines if line.startswith("softbeam ")]


COMMAND_LINES = sorted({line for page in TEXTS for line in command_lines(page)})
WORK = {  # the function that does a command's work, once its words are understood
    "train": "softbeam.training.many.train",
    "compare": "softbeam.experiments.compare.compare",
    "sweep": "softbeam.experiments.grid_search.sweep",
    "evaluate": "softbeam.training.runs.load_run",
    "decode": "softbeam.training.runs.load_run",
    "export": "softbeam.training.runs.load_run",
    "analyze": "softbeam.reports.analysis.analyze",
    "certify": "softbeam.sampling.certified_kernels.certificates",
    "models": "softbeam.models.catalogue.fetch",
    "sample": "softbeam.models.catalogue.load_mlm",
    "infill": "softbeam.models.catalogue.load_mlm",
    "score": "softbeam.models.catalogue.load_mlm",
    "mutants": "softbeam.models.catalogue.load_mlm",
    "reproduce": "softbeam.experiments.reproduce.reproduce",
    "reproduce all": "softbeam.experiments.reproduce.prepare",
    "report": "softbeam.reports.page.write_report",
    "report claims": "softbeam.experiments.reproduce.claims_in",
    "models convert": "softbeam.training.fairseq.convert",
    "train masked-lm": "softbeam.training.own_mlm.train_own",
    "power": "softbeam.models.catalogue.fetch",
    "play": "softbeam.training.runs.load_run",
    "play --mlm": "softbeam.models.catalogue.load_mlm",
}


class Understood(Exception):
    """A command got as far as its work."""


@pytest.mark.slow
def test_the_readmes_python_prints_what_it_says(real, monkeypatch, tmp_path):
    real("sapiens-vh")  # or a skip that says why
    monkeypatch.setenv("SOFTBEAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    _, compared = run_python(README)
    assert compared == 2


@pytest.mark.slow
def test_the_guides_python_runs(real, monkeypatch, tmp_path):
    real("g2p-en")  # or a skip that says why
    monkeypatch.setenv("SOFTBEAM_CACHE", real.cache)
    monkeypatch.chdir(tmp_path)
    names, _ = run_python(GUIDE)
    assert "paths" in names and "chain" in names
    assert (tmp_path / "runs/bart/model/config.json").is_file()


def test_an_output_that_is_not_printed_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n1\n```\n")
    assert run_python(page)[1] == 1
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError):
        run_python(page)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_are_understood(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    files = {"prompts.txt": "A[MASK]\n", "chains.fasta": ">a\nAC\n", "sets.txt": "1 AC\n"}
    files["lines.txt"] = "AC\n" * 20
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    _, command, *words = shlex.split(line, comments=True)

    def work(*args, **options):
        raise Understood

    monkeypatch.setattr("softbeam.cli.runs.from_yaml", lambda path: RunConfig())
    monkeypatch.setattr(WORK.get(f"{command} {words[0]}") or WORK[command], work)
    for name in ("rows", "write_samples"):  # of texts in a cluster
        monkeypatch.setattr(f"softbeam.experiments.many_texts.{name}", work)
    with pytest.raises(Understood):
        COMMANDS[command](words)


def test_the_global_recipe_is_the_measured_one():
    (line,) = (line for line in command_lines(README) if "--out GLOBAL" in line)
    shown = parse_run("train", shlex.split(line, comments=True)[2:])[0]
    measured = runs("cpu")["ccg-uni/global"].config
    given_epochs = {"patience": None, "score_every": 1}  # what auto means with them
    later = replace(measured.finetune.objective, search_dropout="none")  # defaults since the record
    expected = replace(measured.finetune, objective=later, warmup="auto")
    assert replace(shown.finetune, **given_epochs) == expected
    assert (shown.data, shown.select) == (measured.data, measured.select)


def test_commands_were_found():
    assert len(command_lines(README)) >= 4 and len(command_lines(GUIDE)) >= 25


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_make_targets_exist(page):
    targets = re.findall(r"^make (\w+)", TEXTS[page], flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, flags=re.MULTILINE)] == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXTS[page])
    links += re.findall(r'<img src="([^"]+)"', TEXTS[page])
    assert links and [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_short():
    assert len(TEXTS[README].split()) <= 900


def record(table: str) -> dict:
    return json.loads((ROOT / "results" / f"{table}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("table", "row", "column", "shown"),
    [
        ("table-4.1", "cross-entropy", "hard beam test", "| cross-entropy | {} |"),
        (
            "table-4.1",
            "more cross-entropy",
            "hard beam test",
            "| as much more cross-entropy | {} |",
        ),
        (
            "table-4.1",
            "direct loss, annealed",
            "hard beam test",
            "| **direct loss on the soft beam** | **{}** |",
        ),
        ("table-6.2", "T=2, local", "token error rate", "| **Metropolis–Hastings** | **{}** |"),
        (
            "table-6.2",
            "T=2, Gibbs",
            "token error rate",
            "| degenerate Gibbs (accept every proposal) | {} |",
        ),
    ],
)
def test_the_readmes_results_are_those_of_the_records(table, row, column, shown):
    value = f"{mean(record(table)['rows'][row][column]):.1f}"
    assert shown.format(value) in TEXTS[README]
    picture = (ROOT / "docs" / "_static" / "first-picture.svg").read_text(encoding="utf-8")
    assert f"<!-- {value} -->" in picture  # a label, as matplotlib writes it beside its outlines


@pytest.mark.parametrize("page", [README, GUIDE, ROOT / "docs" / "results" / "index.md"])
def test_verdicts_are_counted_right(page):
    tables = [path.stem for path in (ROOT / "results").glob("*.json")]
    verdicts = Counter(claim["verdict"] for table in tables for claim in record(table)["claims"])
    text = " ".join(page.read_text(encoding="utf-8").split())
    said = re.search(
        r"(\d+) claims\D*?(\d+)\D*reproduced, (\d+)\D*, (?:and )?(\d+)\D* undecided", text
    )
    assert said is not None
    counts = (verdicts["reproduced"], verdicts["not reproduced"], verdicts["undecided"])
    assert tuple(map(int, said.groups())) == (verdicts.total(), *counts)
