"""The documentation site builds without a warning, offline, and all its links lead somewhere."""

import importlib
import importlib.util
import inspect
import json
import re
from html import unescape
from inspect import isabstract
from pathlib import Path

import pytest
import yaml

import softbeam
from softbeam.cli import COMMANDS
from softbeam.experiments.bench import exact, score, soft_beam, train
from softbeam.objectives import OBJECTIVES, energy
from softbeam.objectives.base import Objective
from softbeam.reports.verdicts import claim_text, judged
from support.pages import run_python
from support.requirements import absent
from support.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute, unless much else runs
def test_the_site_builds_and_its_links_resolve(nursery, tmp_path):
    """Without the pages of source code, half of the site: `make docs` builds and checks them."""
    if importlib.util.find_spec("sphinx") is None:
        absent("sphinx (softbeam[docs]) is not installed")
    site = DOCS / "_build" / "html"
    if not up_to_date(site):  # else `make docs` has just built it, with the same flags
        site = tmp_path / "html"
        words = ["-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
        words += ["-D", "extensions=myst_parser,sphinx.ext.autodoc,sphinx.ext.napoleon"]
        done = nursery.life([*words, str(DOCS), str(site)], program="sphinx.cmd.build:main")
        assert done.code == 0, done.said
    assert loaded("check_links").broken(site.resolve()) == []
    pages = (
        "index",
        "tutorials/tagging",
        "tutorials/sampling",
        "objectives",
        "paper_map",
        "report",
    )
    for page in pages:
        assert (site / f"{page}.html").is_file()
    api = loaded("api_pages")
    for door in api.doors():
        page = (site / "api" / f"{door.removeprefix('softbeam.')}.html").read_text("utf-8")
        assert "&lt;class" not in page and "jaxtyping." not in page
        for name in api.described(door):
            assert f'id="{door}.{name}"' in page
    reference = (site / "api" / "search.html").read_text(encoding="utf-8")
    signature = reference.split('id="softbeam.search.soft_beam_loss"')[1].split("</dt>")[0]
    assert "costs: Float[Tensor, 'batch time vocab']" in unescape(re.sub("<[^>]+>", "", signature))


def up_to_date(site: Path) -> bool:
    """Say whether the site is newer than every file that it is built from."""
    inventory = site / "objects.inv"  # what Sphinx writes last
    if not inventory.is_file():
        return False
    root = DOCS.parent
    sources = [*root.glob("*.md"), *root.glob("results/*"), *root.glob("src/**/*.py")]
    sources += root.glob("notebooks/*")
    sources += [path for path in DOCS.rglob("*") if DOCS / "_build" not in path.parents]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    return newest < inventory.stat().st_mtime


def test_the_api_pages_are_those_of_the_doors():
    """Each public name of a package is in its table, and each package has a page."""
    api = loaded("api_pages")
    generated = api.pages()
    packages = "softbeam search sampling objectives models data training".split()
    assert {door.removeprefix("softbeam.") for door in api.doors()} == {*packages}
    toctree = (DOCS / "api" / "index.md").read_text("utf-8").split("```{toctree}")[1]
    for door in api.doors():
        short = door.removeprefix("softbeam.")
        assert f"\n{short}\n" in toctree
        assert f"generated/{api.file(door)}" in (DOCS / "api" / f"{short}.md").read_text("utf-8")
        module = importlib.import_module(door)
        names = [n for n in module.__all__ if not inspect.ismodule(getattr(module, n))]
        shown = re.findall(r"\* - :py:obj:`(\w+) <", generated[api.file(door)])
        assert shown == sorted(shown, key=names.index) and {*shown} == {*names}
        entries = re.findall(
            r"^\.\. auto(?:class|function|data):: (\w+)", generated[api.file(door)], re.M
        )
        assert entries == api.described(door) and (entries or door == "softbeam")


@pytest.mark.parametrize("page", ["decoder", "energy", "objective", "kernel"])
def test_the_extension_pages_print_what_they_say(page):
    _, compared = run_python(DOCS / "extend" / f"{page}.md")
    assert compared == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shown"), [("first_picture", "71.4"), ("supertags_picture", "77.6")]
)
def test_pictures_of_the_docs_are_drawn_from_the_results(module, shown, tmp_path):
    drawing = loaded(module)
    drawing.draw(tmp_path / "picture.svg")
    texts = [
        re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))
        for path in (tmp_path / "picture.svg", drawing.PICTURE)
    ]
    assert texts[0] == texts[1] and shown in texts[0]


def test_broken_links_are_seen(tmp_path):
    check = loaded("check_links")
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="b.html#there">2</a><a href="b.html#gone">3</a>'
        '<a href="c.html">4</a><a href="https://example.org/x">5</a><img src="no.png">'
        '<script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there"></h1>')
    found = {(one.link, one.why) for one in check.broken(tmp_path)}
    assert found == {
        ("b.html#gone", "no such anchor"),
        ("c.html", "no such file"),
        ("no.png", "no such file"),
        ("https://example.org/x.js", "loaded from elsewhere"),
    }
    assert check.main(tmp_path) == 1


def test_every_objective_has_its_row():
    """The objectives that can be named, and those of random fields, are those of the table."""
    text = (DOCS / "objectives.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    fields = [v for v in vars(energy).values() if isinstance(v, type)]
    own = [v for v in fields if issubclass(v, Objective) and not isabstract(v)]
    concrete = {kind.__name__ for kind in (*OBJECTIVES, *own)}
    assert len(concrete) >= 19
    for name in concrete:
        assert sum(f"`{name}`" in row for row in rows) == 1, name
    shown = {word for row in rows for word in row.split("`")[1::2] if word[0].isupper()}
    assert shown == concrete


def recorded(bench: str, found: dict, load: float = 0.1) -> dict:
    machine = {"started": "2030-01-02T03:04:05Z", "commit": "abc", "platform": "Linux", "cores": 2}
    machine["packages"] = {"torch": "2.13.0"}
    return {
        "bench": bench,
        "command": f"softbeam bench {bench} --json",
        "load": load,
        "environment": machine,
        "found": json.loads(json.dumps(found)),
    }


@pytest.mark.slow
def test_figures_of_the_benchmarks_become_tables(monkeypatch):
    """Of what they really return: a renamed figure is an error, not an empty cell."""
    section = loaded("benchmark_tables").section
    text = section(recorded("train", train.run(repeats=1, batch=2, length=2)))
    assert text.startswith("## Training with cross-entropy") and "| uni H=256 V=1284 | " in text
    assert "2030-01-02" in text and "beside other work" not in text

    found = soft_beam.run(vocab=[10], k=[1, 2], repeats=1, memory=False)
    text = section(recorded("soft-beam", found, load=3.0))
    assert text.count("\n| 10 | ") == 2 and "MB" not in text and "beside other work" in text

    monkeypatch.setattr(exact, "in_child", lambda *_: {"log_z": 1.5, "seconds": 2, "peak_mb": 3})
    found = exact.run(repeats=1, vocab=3, time=2, batch=2, hidden=4, spaces=[(5, 5)])
    text = section(recorded("exact", found))
    assert "| 5 | 5 | 3,125 | 2 | 2 | 2 | 3 | 3 | 3 |" in text

    monkeypatch.setattr(score, "compare_packages", lambda name, **_: scored | {"model": name})
    monkeypatch.setattr(score, "peak_mb", lambda name, tokens: 40.0 + tokens)
    scored = {"texts": 8, "tokens": 20, "ours_s": 0.5, "minicons_s": 1.5, "ratio": 3.0}
    scored |= {"largest_difference": 2e-5}
    text = section(recorded("score", score.run(models=["bert-tiny"], long=100)))
    assert "| bert-tiny | 8 | 20 | 0.5 | 1.5 | 3 | 2e-05 |" in text and "| 140 |" in text


def test_each_form_of_a_sampler_is_a_row():
    tables = loaded("benchmark_tables")
    form = {"proposals_per_s": 56.51, "rows_per_proposal": 33.0, "ess_per_s": 0.561}
    form |= {"over_2t_1": 1.0, "over_t_1": 0.5, "identical_in_float64": True, "peak_mb": 60.2}
    row = {"model": "m", "vocab": 5899, "time": 16, "chain": {"energy": 3.0}}
    row["forms"] = {"plain": form, "fast": form | {"identical_in_float64": False}}
    text = tables.section(recorded("sampler", {"rows": [row]}))
    assert "| m | 5,899 | 16 | plain | 56.5 | 33 | 0.561 | 1 | 0.5 | yes | 60.2 |" in text
    assert "| fast | 56.5 | 33 | 0.561 | 1 | 0.5 | no |" in text
    with pytest.raises(KeyError):
        del form["ess_per_s"]
        tables.section(recorded("sampler", {"rows": [row]}))


def test_committed_records_are_shown_in_the_order_of_the_benchmarks(tmp_path):
    tables = loaded("benchmark_tables")
    assert tables.page(tables.FOLDER).count("## ") == len(list(tables.FOLDER.glob("*.json")))
    row = {"model": "m", "tokens_per_s": 1.0, "bare_tokens_per_s": 2.0, "ratio": 0.5}
    for number, load in enumerate((0.0, 9.0)):
        record = recorded("train", {"rows": [row]}, load=load)
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    assert tables.page(tmp_path).count("beside other work") == 1


def test_every_record_of_a_reproduction_is_shown():
    tables, results = loaded("reproduced_tables"), ROOT / "results"
    text, paths = tables.page(results), list(results.rglob("*.json"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    assert text.count("\n## ") == len(paths) >= 10
    assert text.count("![") == len(list(results.rglob("*.svg")))
    claims = [claim for record in records for claim in record["claims"]]
    assert text.startswith(f"Of {len(claims)} claims: ")
    for claim in claims:
        rows = [r for r in text.splitlines() if r.startswith("|") and claim["claim"] in r]
        assert any(claim["source"] in r and f"| {claim['effect']:.2f} |" in r for r in rows)
    order = [line.split()[2] for line in text.splitlines() if line.startswith("## ")]
    assert order == sorted(order)


def test_a_reproduced_table_has_the_published_figures_beside_ours(tmp_path):
    claim = judged("a beats b", [3.0, 1.0], source="Sec. 1")
    record = {
        "target": "table-4.1",
        "text": f"4.1\n{claim_text(claim)}",
        "rows": {"a": {"dev": [2.0, 4.0], "test": [1.0, 1.0]}, "b": {"dev": [None, 5.0]}},
        "published": {"a": [7.5, None]},
        "digits": {"test": 1},
        "title": "accuracy",
        "seeds": [1, 2],
        "repeated": "seeds",
        "claims": [claim],
        "environment": {"commit": "0" * 40, "command": ["x"], "started": "2026-01-01", "cores": 2},
    }
    (tmp_path / "table-4.1.json").write_text(json.dumps(record))
    lines = loaded("reproduced_tables").page(tmp_path).splitlines()
    assert lines[0] == "Of 1 claims: 1 undecided."
    assert "| Table 4.1 | 1 |" in lines
    assert "|  | dev | test |" in lines
    assert "| a | 3.00 ±1.41 (7.5) | 1.0 ±0.0 |" in lines
    assert "Accuracy; mean of 2 seeds." in lines
    assert "| b | 5.00 |  |" in lines
    shown = "| undecided | a beats b (Sec. 1) | 2.00 | -10.71 to 14.71 | 0.3 |  | repetitions |"
    assert f"{shown} 2 of 2 | the interval contains 0 |" in lines
    del record["published"]
    (tmp_path / "table-4.1.json").write_text(json.dumps(record))
    plain = loaded("reproduced_tables").page(tmp_path)
    assert "```text\n4.1\n```" in plain and "| undecided | a beats b" in plain


def test_help_of_every_command_is_on_its_page():
    text = loaded("command_help").page()
    for command in COMMANDS:
        assert f"## `softbeam {command}`" in text and f":caption: softbeam {command} --help" in text
    assert "--finetune.objective" in text and "--burn-in" in text


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == softbeam.__version__ and cited["license"] == "Apache-2.0"
    assert [entry["year"] for entry in cited["references"]] == [2017, 2018, 2019]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
