"""Bad input of every kind ends with exit code 2, one line, and the disk as it was."""

import io
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from softbeam.cli import COMMANDS, main
from support.bad_input.case import STDIN, Case, read_cases
from support.bad_input.changes import apply

LONGEST = 600  # letters of a line
LITTLE = 1 << 30  # bytes of memory beyond what a process has when a case begins
CASES = read_cases()


class Place:
    """A folder of good things, in which one thing after the other is broken and mended."""

    def __init__(self, good: Path, folder: Path):
        self.folder = folder
        shutil.copytree(good, folder)
        (folder / "temporary").mkdir()
        self.clean = self.state()
        self.after: dict[str, bytes | str] | None = None  # the command, if a test has looked

    def state(self) -> dict[str, bytes | str]:
        """The content of every file, and what else there is, but what Python compiles."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            if path.is_file()
            else oct(path.lstat().st_mode)
            for path in self.folder.rglob("*")
            if "__pycache__" not in path.parts
        }

    def break_for(self, case: Case) -> tuple[bytes, dict[str, str]]:
        """Break what a case says; returns standard input and variables."""
        stdin, variables = self.folder / "standard input", {}
        for target, change in case.changes:
            if target.startswith("$"):
                variables[target[1:]] = change
            else:
                apply(change, stdin if target == STDIN else self.folder / target)
        given = stdin.read_bytes() if stdin.exists() else b""
        stdin.unlink(missing_ok=True)
        return given, variables

    def mend(self) -> None:
        """Make everything as it was."""
        state, self.after = self.after or self.state(), None
        changed = [
            name for name in {*state, *self.clean} if state.get(name) != self.clean.get(name)
        ]
        for name in sorted(changed, reverse=True):
            path = self.folder / name
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        for name in sorted(name for name in changed if name in self.clean):
            content, path = self.clean[name], self.folder / name
            path.write_bytes(content) if isinstance(content, bytes) else path.mkdir()


@pytest.fixture(scope="module")
def whole_place(good, tmp_path_factory):
    return Place(good, tmp_path_factory.mktemp("bad-input") / "place")


@pytest.fixture
def place(whole_place, monkeypatch):
    monkeypatch.chdir(whole_place.folder)
    yield whole_place
    whole_place.mend()


def check_line(case: Case, code: int, err: str) -> None:
    lines = err.splitlines()
    assert (code, len(lines)) == (2, 1), (code, err)
    assert lines[0].startswith(f"softbeam {case.words[0]}: ") and len(lines[0]) <= LONGEST, err
    missing = [part for part in case.says if part not in lines[0]]
    assert not missing, (missing, lines[0])


def every_case() -> list:
    """Every case by name; `make quick` runs the first of each command."""
    seen: set[str] = set()
    marked = []
    for name, case in CASES.items():
        if not case.memory:
            slow = [pytest.mark.slow] if case.words[0] in seen else []
            marked.append(pytest.param(name, marks=slow))
            seen.add(case.words[0])
    return marked


@pytest.mark.parametrize("name", every_case())
def test_bad_input_is_one_line_and_leaves_nothing(name, place, monkeypatch, capsys):
    case = CASES[name]
    stdin, variables = place.break_for(case)
    monkeypatch.syspath_prepend(str(place.folder))
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    monkeypatch.setattr(tempfile, "tempdir", str(place.folder / "temporary"))
    before = place.state()
    code = main(case.words)
    check_line(case, code, capsys.readouterr().err)
    place.after = place.state()
    assert place.after == before


IN_PROCESSES = [
    "frob",
    "train tagging",
    "columns: latin-1",
    "decode standard input: latin-1",
    "decode standard input: a NUL byte",
    "weights: NaN",
    "configuration: a tag of Python",
    "masked LM's folder: pickled weights",
    r"score --quiet --mlm mlm --text [MASK]A\udc80",
    "samples: text",
    "convert: code",
    "evaluate run --quiet --search soft-beam --alpha 0",
    *(name for name, case in CASES.items() if case.memory),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PROCESSES)
def test_the_same_in_a_process_of_its_own(name, place, nursery):
    """Without the checks of types that tests have, and with a real standard input."""
    case = CASES[name]
    stdin, variables = place.break_for(case)
    before = place.state()
    end = nursery.life(
        case.words,
        folder=str(place.folder),
        stdin=stdin.decode("latin-1"),
        variables=variables,
        memory=LITTLE if case.memory else None,
    )
    check_line(case, end.code, end.said)
    place.after = place.state()
    assert place.after == before


def test_the_corpus_is_large_and_of_every_command():
    assert len(CASES) >= 600
    assert {case.words[0] for case in CASES.values()} >= {*COMMANDS}
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
        "report made run mt tables done.jsonl --out all.html",
        "report claims --results tables",
        *(shlex.join(CASES[f"{name}: nothing"].words) for name in ("resume", "samples")),
        shlex.join(CASES["sample summary: half"].words),
    ):
        assert main(shlex.split(words)) == 0, (words, capsys.readouterr().err)


def test_debug_shows_the_traceback(capsys, monkeypatch):
    assert main(["evaluate", "nowhere", "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and "UserError" in err
    assert err.splitlines()[-1].startswith("softbeam evaluate: nowhere is not a run folder")


def test_a_fault_of_the_program_is_not_hidden(monkeypatch):
    def fail(words: list[str]) -> int:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setitem(COMMANDS, "data", fail)
    with pytest.raises(RuntimeError, match="mat1"):
        main(["data", "list"])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        RuntimeError("Storage size calculation overflowed with sizes=[10000000000, 10000000000]"),
        ValueError("Overflow when unpacking long long"),
        OverflowError("int too large to convert to float"),
        RecursionError("maximum recursion depth exceeded"),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:20]}",
)
def test_what_the_machine_cannot_do_is_one_line(error, monkeypatch, capsys):
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "data", fail)
    assert (
        main(
            [
                "data",
                "--chains",
                "8",
                f"--rows=5000{'[' * 500 if isinstance(error, RecursionError) else ''}",
            ]
        )
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("softbeam data: ") and "the likely cause is --rows" in line
