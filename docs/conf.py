"""Configure the documentation site (`make docs`): warnings are errors, nothing is downloaded."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import api_pages  # noqa: E402  (beside this file)
import benchmark_tables  # noqa: E402
import command_help  # noqa: E402
import notebook_pages  # noqa: E402
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

default_role = "py:obj"  # a name in backticks becomes a link if the site describes it
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

GENERATED = HERE / "_build" / "generated"  # generated parts that pages include
EXTRA = HERE / "_build" / "extra"  # files copied unchanged: the report of all results
EXTRA.mkdir(parents=True, exist_ok=True)  # before Sphinx looks for it
html_extra_path = ["_build/extra"]


def generate(app: Any) -> None:
    """Write the parts of pages that come from JSON, from `__all__` and from the commands."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "benchmarks.md": benchmark_tables.page(HERE / "benchmarks"),
        "commands.md": command_help.page(),
        "notebooks.md": notebook_pages.page(HERE.parent / "notebooks", GENERATED),
        "reproduced.md": reproduced_tables.page(HERE.parent / "results"),
        **api_pages.pages(),
    }.items():
        (GENERATED / name).write_text(text, encoding="utf-8")
    results = HERE.parent / "results"
    folders = [results, *sorted(path for path in results.iterdir() if path.is_dir())]
    write_report(folders, EXTRA / "report.html", title="softbeam: tables and claims")


def links_from_the_root(app: Any, path: Path, parent: str, content: list[str]) -> None:
    """Make links in an included file of the repository's root (CHANGELOG) work from any page."""
    if path.parent == Path(".."):
        content[0] = re.sub(r"\]\((?![a-z]+:|[#/])", "](/../", content[0])


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what RST takes for markup in docstrings, outside backticks: they are plain text."""
    borrowed = what == "data" and lines and lines[0] in (type(obj).__doc__ or "")  # dict's own
    if borrowed or (lines and lines[0].startswith("Alias for field number")):  # namedtuple's
        lines.clear()
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def without_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returned: Any
) -> tuple[str, str] | None:
    """Hide a protocol's (*args, **kwargs): it is not called."""
    return ("", "") if what == "class" and getattr(obj, "_is_protocol", False) else None


def breakable(app: Any, tree: nodes.document, name: str) -> None:
    """Let long names in cells of tables break after their parts, and nowhere else."""
    for cell in tree.findall(nodes.entry):
        for literal in cell.findall(nodes.literal):
            parts = re.split(r"(?<=[._/:])(?=\w)", literal.astext())
            literal.clear()
            for part in parts:
                literal += [nodes.Text(part), nodes.raw("", "<wbr>", format="html")]


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", generate)
    app.connect("doctree-resolved", breakable)
    app.connect("include-read", links_from_the_root)
    app.connect("autodoc-process-docstring", plain, priority=100)  # before napoleon writes markup
    app.connect("autodoc-process-signature", without_signature)
    return {"parallel_read_safe": True}
