"""The tutorials are true: their files are made, their commands run, what they show is printed."""

import contextlib
import csv
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from softbeam.cli import main
from support.pages import run_python, shape, unlike

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
FENCE = re.compile(r"^```(\S+)(?: \w+)?\n(?::caption: (\S+)\n\n)?(.*?)^```$", re.M | re.S)
EXIT_CODE = re.compile(r"# exit code (\d)$")


class Block(NamedTuple):
    """A fenced block: a file if it has a caption, commands (sh), Python, or what they print."""

    kind: str
    caption: str
    text: str


class Ran(NamedTuple):
    line: str
    code: int
    output: str


def blocks(page: str, instead: dict[str, str] | None = None) -> list[Block]:
    text = (TUTORIALS / page).read_text("utf-8")
    for words, others in (instead or {}).items():
        assert words in text
        text = text.replace(words, others)
    return [Block(*found) for found in FENCE.findall(text)]


def lines_of(commands: str) -> list[str]:
    return [line for line in commands.replace("\\\n", " ").splitlines() if line.strip()]


def run(line: str) -> Ran:
    """A command of ours in this process, to save the time of starting; any other in a shell."""
    out = io.StringIO()
    if line.startswith("softbeam "):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(shlex.split(line, comments=True)[1:])
        return Ran(line, code, out.getvalue())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    return Ran(line, done.returncode, done.stdout + done.stderr)


def play(page: str, instead: dict[str, str] | None = None) -> list[Ran]:
    """Do all that a page says, in the current folder, and check each output that it shows.

    `instead` has words of the page, and others that are read in their place.
    """
    ran: list[Ran] = []
    since, names = 0, {}
    for block in blocks(page, instead):
        if block.caption:
            Path(block.caption).write_text(block.text, encoding="utf-8")
        elif block.kind == "sh":
            since = len(ran)
            for line in lines_of(block.text):
                ran.append(run(line))
                wanted = EXIT_CODE.search(line)
                assert ran[-1].code == int(wanted[1] if wanted else 0), ran[-1]
        elif block.kind == "python":
            exec(compile(block.text, page, "exec"), names)
        else:
            assert block.kind == "text"
            missing = unlike(block.text, "".join(one.output for one in ran[since:]))
            assert not missing, (missing, ran[since:])
    return ran


def figure(ran: list[Ran], words: str, name: str = "accuracy") -> float:
    (output,) = (one.output for one in ran if words in one.line)
    (value,) = re.findall(rf"^{name} +([\d.]+)$", output, flags=re.M)
    return float(value)


@pytest.mark.slow
def test_tagging(tmp_path, monkeypatch):
    """The story that the page tells is the one that happens."""
    monkeypatch.chdir(tmp_path)
    ran = play("tagging.md")
    greedy, *_ = (one.output for one in ran if "evaluate runs/start" in one.line)
    greedy = float(re.search(r"^accuracy +([\d.]+)$", greedy, flags=re.M)[1])
    local = figure(ran, "evaluate runs/local")
    best = figure(ran, "evaluate runs/global")
    assert 70 < greedy < 90 and greedy < local <= best and best > 99
    decoded = [one.output for one in ran if "decode runs/global" in one.line]
    assert decoded[0].splitlines()[1] == "DET NOUN VERB DET NOUN PUNCT"
    assert Path("report.html").read_text("utf-8").count("train train.conll; dev dev.conll") == 3
    assert len(ran) >= 14


@pytest.mark.slow
def test_own_files(data_dir, tmp_path, monkeypatch):
    """With few sentences and epochs: the commands, and the lines by which one decides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREES", str(data_dir / "ccg_ud_english_ewt"))
    short = {"train.conll 4000": "train.conll 80", "conll 600": "conll 30"}
    short |= {"epochs 8": "epochs 1", "epochs 4": "epochs 1", "--seeds 1,2,3": "--seeds 1"}
    ran = play("own_files.md", short)
    assert "\nadvice: " in next(one.output for one in ran if "train tagging" in one.line)
    (table,) = (one.output for one in ran if "compare tagging" in one.line)
    assert re.search(r"^  bso +accuracy", table, re.M) and "\nbest: " in table
    assert len(ran) == 6


@pytest.mark.slow
def test_sampling(real, tmp_path, monkeypatch):
    real("sapiens-vh")  # or a skip that says why
    monkeypatch.setenv("SOFTBEAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    ran = play("sampling.md", {"--chains 4 --sweeps 12": "--chains 2 --sweeps 12"})
    (scores,) = (one.output.splitlines() for one in ran if "score --mlm" in one.line)
    human, mouse = (float(line.split()[0]) for line in scores)
    assert human > mouse + 15
    (table,) = (one.output for one in ran if "humanized" in one.line)
    lowest = next(line for line in table.splitlines() if shape(line).startswith("# # #")).split()[
        -1
    ]
    given = "EVQLQQSGPELVKPGASVKISCKAS"
    changed = sum(a != b for a, b in zip(lowest, given, strict=True))
    assert 1 <= changed <= 10
    again = run(f"softbeam score --mlm sapiens-vh --text {lowest}").output
    assert float(again.split()[0]) > mouse + 2 * changed  # each change cost 2
    assert len(ran) >= 10


@pytest.mark.slow
def test_antibodies(real, tmp_path, monkeypatch):
    """With shorter chains, fewer positions, and a smaller model in AntiBERTy's place (97 MB)."""
    real("sapiens-vh")  # or a skip that says why
    monkeypatch.setenv("SOFTBEAM_CACHE", real.cache)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # what the page does by PYTHONPATH
    short = {"--chains 2 --sweeps 6 --burn-in 2": "--chains 2 --sweeps 2 --burn-in 1"}
    short |= {"--fix 26-35": "--fix 1-3,7-35", "--positions 1-25": "--positions 5-6"}
    short |= {" designs.jsonl both.jsonl": ""}
    ran = play("antibodies.md", {"antiberty": "sapiens-vh"} | short)
    sys.modules.pop("expert")
    mouse = "EVQLQQSGPELVKPGASLKLSCTASGFNIKDTYIH"
    for name in ("designs.csv", "both.csv"):
        with open(name, newline="") as file:
            best, *rest = csv.DictReader(file)
        assert best["sequence"][:3] == mouse[:3] and best["sequence"][6:] == mouse[6:]
        assert all(float(row["energy"]) >= float(best["energy"]) for row in rest)
    assert Path("antibody.html").read_text("utf-8").count("data:image/png") == 1
    assert len(ran) >= 6


@pytest.mark.slow
def test_train_from_python(tmp_path, monkeypatch):
    """Three programs of less than 25 lines each, which print what the page shows."""
    monkeypatch.chdir(tmp_path)
    programs = [block.text for block in blocks("python.md") if block.kind == "python"]
    assert len(programs) == 3
    assert all(sum(map(bool, text.splitlines())) < 25 for text in programs)
    assert run_python(TUTORIALS / "python.md")[1] == 3


def test_a_wrong_page_is_seen(tmp_path, monkeypatch):
    """Must fail: a command that ends otherwise, an output that is not printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "TUTORIALS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```sh\nsoftbeam --version\necho 1 A\n```\n\n```text\n2 B\nsoftbeam 9.9\n```\n")
    assert [one.output for one in play("page.md")][1] == "1 A\n"
    page.write_text("```sh\nsoftbeam nonsense  # exit code 2\n```\n")
    assert "no command 'nonsense'" in play("page.md")[0].output
    page.write_text("```sh\nsoftbeam nonsense\n```\n")
    with pytest.raises(AssertionError):
        play("page.md")
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError):
        play("page.md")


@pytest.mark.slow
def test_which_law(tmp_path, monkeypatch):
    """With fewer draws for the figure."""
    monkeypatch.chdir(tmp_path)
    ran = play("law.md", {"--draws 2000 --figure": "--draws 200 --figure"})
    assert len(ran) >= 8 and Path("law.svg").stat().st_size > 5000
