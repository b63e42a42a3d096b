"""The documentation site: `make docs`. Warnings are errors, and nothing is fetched."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.ext import autosummary

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import benchmark_tables  # noqa: E402  (beside this file)
import command_help  # noqa: E402
import reproduced_tables  # noqa: E402

from softbeam import __version__ as release  # noqa: E402
from softbeam.reports.page import write_report  # noqa: E402

project = "softbeam"
author = "the softbeam contributors"
copyright = "the softbeam contributors, Apache-2.0"
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
smartquotes = False  # --help is no dash

html_theme = "furo"
html_title = f"softbeam {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

default_role = "py:obj"  # a name in backticks is a link where there is something to link to
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

GENERATED = HERE / "_build" / "generated"  # what pages include that no one writes by hand
EXTRA = HERE / "_build" / "extra"  # what stands beside them as it is: the report of all results
EXTRA.mkdir(parents=True, exist_ok=True)  # before Sphinx looks for it
html_extra_path = ["_build/extra"]


def generate(app: Any) -> None:
    """The parts of pages that come from JSON and from the command line itself."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "benchmarks.md": benchmark_tables.page(HERE / "benchmarks"),
        "commands.md": command_help.page(),
        "reproduced.md": reproduced_tables.page(HERE.parent / "results"),
    }.items():
        (GENERATED / name).write_text(text, encoding="utf-8")
    results = HERE.parent / "results"
    folders = [results, *sorted(path for path in results.iterdir() if path.is_dir())]
    write_report(folders, EXTRA / "report.html", title="softbeam: tables and claims")


def links_from_the_root(app: Any, path: Path, parent: str, content: list[str]) -> None:
    """Links of a file of the repository's root that a page includes, as seen from anywhere."""
    if path.parent == Path(".."):
        content[0] = re.sub(r"\]\((?![a-z]+:|[#/])", "](/../", content[0])


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: outside backticks, what RST takes for markup means itself."""
    if lines and lines[0].startswith("Alias for field number"):  # Python's own words
        lines.clear()
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def without_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returned: Any
) -> tuple[str, str] | None:
    """A protocol is not called: (*args, **kwargs) says nothing."""
    return ("", "") if what == "class" and getattr(obj, "_is_protocol", False) else None


def first_line(lines: list[str], settings: Any) -> str:
    """A docstring's first line, whole: autosummary's own sentences end at "Sec."."""
    return next((line.strip() for line in lines if line.strip()), "")


def breakable(app: Any, tree: nodes.document, name: str) -> None:
    """Long names in cells of tables may be broken after their parts, and nowhere else."""
    for cell in tree.findall(nodes.entry):
        for literal in cell.findall(nodes.literal):
            parts = re.split(r"(?<=[._/:])(?=\w)", literal.astext())
            literal.clear()
            for part in parts:
                literal += [nodes.Text(part), nodes.raw("", "<wbr>", format="html")]


def setup(app: Any) -> dict[str, bool]:
    autosummary.extract_summary = first_line
    app.connect("builder-inited", generate)
    app.connect("doctree-resolved", breakable)
    app.connect("include-read", links_from_the_root)
    app.connect("autodoc-process-docstring", plain, priority=100)  # before napoleon writes markup
    app.connect("autodoc-process-signature", without_signature)
    return {"parallel_read_safe": True}
