"""The notebooks are true: they run as they stand, and print and draw what they show."""

import ast
import base64
import importlib
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from support.pages import shape
from support.requirements import absent
from support.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 40_000  # bytes of a picture


def named(path: Path) -> str:
    return path.stem


def cells(path: Path) -> list[nbformat.NotebookNode]:
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def printed(cell: nbformat.NotebookNode, name: str) -> list[str]:
    """The shapes of the lines that a cell prints, but for the note of a model's first use."""
    texts = [o.text for o in cell.outputs if o.output_type == "stream" and o.name == name]
    lines = "".join(texts).splitlines()
    return [shape(line) for line in lines if not line.startswith("Downloading ")]


def pictures(cell: nbformat.NotebookNode) -> list[bytes]:
    drawn = [o.data["image/png"] for o in cell.outputs if o.output_type == "display_data"]
    return [base64.b64decode(picture) for picture in drawn]


def unlike(shown: list[nbformat.NotebookNode], fresh: list[nbformat.NotebookNode]) -> list[str]:
    """Say which cells print or draw otherwise than they show, up to numbers and sequences."""
    wrong = []
    for before, after in zip(shown, fresh, strict=True):
        for name in ("stdout", "stderr"):
            if (was := printed(before, name)) != (now := printed(after, name)):
                wrong.append(f"{before.id}, {name}: {was} became {now}")
        if len(pictures(before)) != len(pictures(after)):
            wrong.append(f"{before.id}: another number of pictures")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=named)
def test_notebooks_print_and_draw_what_they_show(path, real, monkeypatch):
    monkeypatch.setenv("SOFTBEAM_CACHE", real.cache)
    try:
        fresh = loaded("run_notebooks").executed(path)
    except CellExecutionError as error:
        if error.ename != "UserError" or "pip" not in error.evalue:
            raise
        absent(f"the package index cannot be reached: {error.evalue}")
    code = [cell for cell in fresh.cells if cell.cell_type == "code"]
    assert unlike(cells(path), code) == []
    drawn = [picture for cell in code for picture in pictures(cell)]
    assert drawn and max(map(len, drawn)) < LARGEST


@pytest.mark.slow
def test_a_cell_that_fails_is_seen_and_the_file_stays(tmp_path, monkeypatch):
    """Must fail; and what ran before it is in a folder and a kernel of its own."""
    run = loaded("run_notebooks")
    monkeypatch.setattr(run, "NOTEBOOKS", tmp_path)
    texts = ["open('new', 'w').close()", "import os; assert os.listdir() == ['new']", "1 / 0"]
    path = tmp_path / "wrong.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(text) for text in texts]), path)
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run.main(["wrong"])
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_another_output_is_seen():
    def cell(text: str, name: str = "stdout") -> nbformat.NotebookNode:
        return new_code_cell("", outputs=[nbformat.v4.new_output("stream", name=name, text=text)])

    assert unlike([cell("share 0.25  QVQ\n")], [cell("share 0.75  EVK\n")]) == []
    assert unlike([cell("holds 1\n")], [cell("FAILS 1\n")])
    assert unlike([cell("a 1\n")], [cell("a 1\na 2\n")])
    assert unlike([cell("a 1\n")], [cell("a 1\n", "stderr")])


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_notebooks_are_committed_as_the_script_writes_them(path):
    """With their outputs, and without a trace of who ran them, when and where."""
    text = path.read_text(encoding="utf-8")
    again = loaded("run_notebooks").normalized(nbformat.reads(text, as_version=4))
    nbformat.validate(again)
    assert nbformat.writes(again) + "\n" == text
    code = cells(path)
    assert 8 <= len(code) <= 12
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert all(o.output_type in ("stream", "display_data") for c in code for o in c.outputs)
    sizes = [len(picture) for cell in code for picture in pictures(cell)]
    assert sizes and max(sizes) < LARGEST
    assert not re.search(r"(?<![\w.\]])/(home|root|tmp|usr|work)\b|site-packages", text)


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_notebooks_use_what_anyone_can_import(path):
    """Names of a package's `__all__`, or of a file that the tutorials import from."""
    tutorials = "".join(p.read_text("utf-8") for p in (ROOT / "docs" / "tutorials").glob("*.md"))
    nodes = [node for cell in cells(path) for node in ast.walk(ast.parse(cell.source))]
    for node in (node for node in nodes if isinstance(node, ast.ImportFrom)):
        taught = f"from {node.module} import" in tutorials
        if node.module.startswith("softbeam") and not taught:
            public = importlib.import_module(node.module).__all__
            assert {name.name for name in node.names} <= {*public}, node.module


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_links_of_notebooks_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#:]+)", path.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (path.parent / link).exists()] == []


def test_the_site_shows_every_notebook(tmp_path):
    pages = loaded("notebook_pages")
    assert sorted(pages.ORDER) == [path.stem for path in PATHS]
    text = pages.page(ROOT / "notebooks", tmp_path)
    assert re.findall(r"^## (.*)$", text, flags=re.M)[0] == "Train through a beam"
    assert "](../docs" not in text and ".ipynb)" not in text and "](#is-my-sampler-right)" in text
    assert "```text\ngreedy" in text and "holds invariant" in text
    assert len(list(tmp_path.glob("*.png"))) == text.count("![") >= 6


def test_a_cell_with_code_and_picture_becomes_markdown(tmp_path):
    picture = {"output_type": "display_data", "data": {"image/png": "aGk="}, "metadata": {}}
    shown = {"output_type": "stream", "name": "stdout", "text": ["1\n"]}
    cells = [new_markdown_cell("# T\n\n[a](../docs/x.md)"), new_code_cell("f()")]
    cells[1].outputs = [nbformat.from_dict(one) for one in (shown, picture)]
    (tmp_path / "one.ipynb").write_text(json.dumps(new_notebook(cells=cells)))
    text = "\n".join(loaded("notebook_pages").section(tmp_path / "one.ipynb", tmp_path))
    assert text.startswith("## T\n\n[a](/x.md)\n\n```python\nf()\n```\n\n```text\n1\n```\n\n![")
    assert (tmp_path / "one-1.png").read_bytes() == b"hi"
