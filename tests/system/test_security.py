"""No code of others is run: by what the source calls, and by files that would run some."""

import ast
import io
import json
import zipfile
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

import softbeam
from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.models import catalogue
from support.forked_commands import End, Nursery
from support.tiny_bert import write_letter_mlm

ROOT = Path(softbeam.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# What the source calls

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {"torch.save", "os.system", "os.popen"}
UNPACKING = {"extract", "extractall", "unpack_archive"}
UNSAFE_YAML = {"load", "load_all", "unsafe_load", "full_load"}


def dangers(code: str) -> list[str]:
    """What in a source could run code out of a file, or write outside of an archive's folder."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            found += [name for name in modules if name.split(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            found += wrong_call(ast.unparse(node.func), {k.arg: k.value for k in node.keywords})
    return found


def wrong_call(name: str, options: dict[str | None, ast.expr]) -> list[str]:
    module, _, method = name.rpartition(".")

    def given(option: str, value: object) -> bool:
        found = options.get(option)
        return isinstance(found, ast.Constant) and found.value is value

    wrong = (
        name in CALLS | METHODS
        or method in UNPACKING
        or (module == "yaml" and method in UNSAFE_YAML)
        or (name == "torch.load" and not given("weights_only", True))
        or (name in ("np.load", "numpy.load") and not given("allow_pickle", False))
        or given("shell", True)
        or given("trust_remote_code", True)
        or given("allow_pickle", True)
    )
    return [name] if wrong else []


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_source_runs_no_code_out_of_files(path):
    assert dangers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "torch.load(path)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path, weights_only=False)",
        "torch.save(x, path)",
        "yaml.load(text, Loader=yaml.Loader)",
        "eval(text)",
        "archive.extractall(folder)",
        "subprocess.run(command, shell=True)",
        "from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_check_sees_a_danger(code):
    assert dangers(code)


# Archives


def test_a_wheel_that_would_write_elsewhere_writes_nothing(tmp_path, monkeypatch):
    """Its members are read by name and never unpacked; without what is wanted it is refused."""
    with zipfile.ZipFile(held := io.BytesIO(), "w") as archive:
        archive.writestr("../../evil.txt", "x")
        archive.writestr("/evil.txt", "x")
    content = held.getvalue()
    monkeypatch.setenv("SOFTBEAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "wheel", lambda requirement: content)
    with pytest.raises(UserError, match="has SHA-256 .* is pinned: refused"):
        catalogue.fetch("rxnmapper")
    pinned = replace(catalogue.MODELS["rxnmapper"], sha256=sha256(content).hexdigest())
    monkeypatch.setitem(catalogue.MODELS, "rxnmapper", pinned)
    with pytest.raises(UserError, match="the wheel of rxnmapper==0.4.3 cannot be used"):
        catalogue.fetch("rxnmapper")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_every_model_is_pinned():
    for entry in catalogue.MODELS.values():
        assert "==" in entry.requirement and len(bytes.fromhex(entry.sha256)) == 32


# Pages

EVIL = "<script>alert(1)<"
IMAGE = '"><img src=x onerror=alert(2)>'


class Page(HTMLParser):
    """The tags of a page, and the attributes that would run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


@pytest.mark.slow
def test_a_script_in_a_sentence_a_label_or_a_file_name_stays_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = f"{EVIL}.conll"
    rows = f"{EVIL}\t{EVIL}\n{IMAGE.replace(' ', '_')}\tN\n\n"
    Path(data).write_text(rows * 8, encoding="utf-8")
    run = f"{EVIL}run"
    words = ["train", "tagging", "--data.train", data, "--data.dev", data, "--out", run]
    words += ["--pretrain.epochs", "2", "--model.hidden", "4", "--log_every", "1", "--quiet"]
    assert main(words) == 0
    metrics = Path(run, "metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    spoilt = [row | {"metric": IMAGE} if "metric" in row else row for row in lines]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in spoilt))
    assert main(["report", run, "--out", "page.html"]) == 0
    text = Path("page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert {"svg", "pre", "details"} <= page.tags
    assert not page.tags & {"img", "iframe", "object"} and not page.handlers
    assert text.count("<script") == 2, "the page's own: its data and its code"
    assert "&lt;script&gt;alert(1)" in text and EVIL not in text and IMAGE not in text


# Code in a model's folder

CODE = """
from pathlib import Path
from transformers import BertConfig, BertForMaskedLM
Path({marker!r}).write_text("run")
class MineConfig(BertConfig):
    model_type = "mine"
class MineModel(BertForMaskedLM):
    config_class = MineConfig
"""
AUTO = {"AutoConfig": "mine.MineConfig", "AutoModelForMaskedLM": "mine.MineModel"}


def with_code(folder: Path, marker: Path, **changed: str) -> Path:
    """A masked LM's folder that brings code of its own."""
    write_letter_mlm(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed | {"auto_map": AUTO}))
    (folder / "mine.py").write_text(CODE.format(marker=str(marker)))
    return folder


def score(nursery: Nursery, folder: Path, *more: str) -> End:
    """In a process, as it would be asked whether to trust the code and wait for an answer."""
    words = ["score", "--mlm", str(folder), "--text", "ACD", "--quiet", *more]
    return nursery.life(words, stdin="y\n" * 9)


@pytest.mark.slow
def test_code_in_a_folder_runs_only_if_asked(nursery, tmp_path):
    marker = tmp_path / "marker"
    mine = with_code(tmp_path / "mine", marker, model_type="mine")
    refused = score(nursery, mine)
    assert refused.code == 2 and not marker.exists()
    (line,) = refused.said.splitlines()  # nobody was asked
    assert "only with --trust-remote-code" in line
    known = with_code(tmp_path / "bert", marker)
    plain = score(nursery, known)
    assert plain.code == 0 and not marker.exists(), "a known model needs no code of theirs"
    asked = score(nursery, mine, "--trust-remote-code")
    assert asked.code == 0 and marker.read_text() == "run", asked.said
    assert asked.said == plain.said
