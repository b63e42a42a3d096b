"""Bad input of every kind ends with exit code 2, one sentence, and the disk as it was."""

import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from softbeam.cli import COMMANDS, main
from support.bad_input.case import Case
from support.bad_input.input import CASES
from support.bad_input.things import DATA

LONGEST = 600  # letters of a sentence


def prepare(case: Case, good: Path, folder: Path) -> None:
    """A copy of the good things that a case is about, broken as it says."""
    said = " ".join([case.words, *case.files, *case.env.values()])
    for thing in good.iterdir():
        if thing.name in DATA or thing.name.split(".")[0] in said:
            copy = shutil.copytree if thing.is_dir() else shutil.copy
            copy(thing, folder / thing.name)
    for name, content in case.files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        elif content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content(path.read_bytes()) if callable(content) else content)


def on_disk(folder: Path) -> dict[str, bytes | None]:
    """Every file with its content, and every folder, but what Python compiles."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def check_sentence(case: Case, code: int, err: str) -> None:
    lines = err.splitlines()
    assert (code, len(lines)) == (2, 1), (code, err)
    command = shlex.split(case.words)[0]
    assert lines[0].startswith(f"softbeam {command}: ") and len(lines[0]) <= LONGEST
    assert "Traceback" not in err
    missing = [part for part in case.says if part not in lines[0]]
    assert not missing, (missing, lines[0])


def every_case() -> list:
    """Every case by name; `make quick` runs the first of each command."""
    seen: set[str] = set()
    marked = []
    for name, case in CASES.items():
        command = shlex.split(case.words)[0]
        marked.append(pytest.param(name, marks=[pytest.mark.slow] if command in seen else []))
        seen.add(command)
    return marked


@pytest.mark.parametrize("name", every_case())
def test_bad_input_is_one_sentence_and_leaves_nothing(name, good, tmp_path, monkeypatch, capsys):
    case = CASES[name]
    prepare(case, good, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for variable, value in case.env.items():
        monkeypatch.setenv(variable, value)
    if case.stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case.stdin)))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = on_disk(tmp_path)
    code = main(shlex.split(case.words))
    check_sentence(case, code, capsys.readouterr().err)
    after = on_disk(tmp_path)
    assert after.keys() == before.keys(), {*after} ^ {*before}
    assert [name for name in before if after[name] != before[name]] == []


def test_the_corpus_is_large_and_of_every_command():
    assert len(CASES) >= 200
    commands = {shlex.split(case.words)[0] for case in CASES.values()}
    assert commands >= {*COMMANDS}
    assert all(case.says and all(case.says) for case in CASES.values()), "each says something"


@pytest.mark.slow
def test_the_good_things_are_good(good, tmp_path, monkeypatch, capsys):
    """So that each case fails by what is broken in it."""
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for words in (
        "evaluate run --quiet --search beam --beam 27 --nbest 27",
        "evaluate mt --quiet",
        "evaluate bpe --quiet",
        "evaluate cm --quiet --search mask-predict --candidates 23",
        "decode run --quiet --input in.txt --output out.txt",
        "report run --out report.html",
        "score --quiet --mlm mlm --text ACD",
        "models convert fairseq/checkpoint.pt --source-dict fairseq/de.txt "
        "--target-dict fairseq/en.txt --out made",
        "report made run mt tables done.jsonl",
        "report claims --results tables",
        CASES["resume: nothing"].words,
        CASES["samples: nothing"].words,
        CASES["sample summary: half"].words,
    ):
        assert main(shlex.split(words)) == 0, (words, capsys.readouterr().err)


IN_PROCESSES = [
    "frob",
    "train tagging",
    "columns: latin-1",
    "decode standard input: latin-1",
    "decode standard input: a NUL byte",
    "weights: NaN",
    "configuration: a tag of Python",
    "masked LM: pickled weights",
    "score: a lone surrogate",
    "samples: text",
    "convert: code",
    "evaluate run --quiet --search soft-beam --alpha 0",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PROCESSES)
def test_the_same_in_a_process_of_its_own(name, good, tmp_path):
    """Without the checks of types that tests have, and with a real standard input."""
    case = CASES[name]
    prepare(case, good, tmp_path)
    before = on_disk(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "softbeam", *shlex.split(case.words)],
        cwd=tmp_path,
        input=case.stdin or b"",
        env=os.environ | case.env,
        capture_output=True,
        timeout=120,
    )
    check_sentence(case, done.returncode, done.stderr.decode())
    assert on_disk(tmp_path) == before
