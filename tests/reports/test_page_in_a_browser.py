"""The page in a real browser: no errors, and what can be operated works."""

import json
import re
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from softbeam.data.tasks import Stress
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.page import as_script, write_report
from softbeam.reports.soft_beams import FAINT, FEW, layout, pictures, shortened
from softbeam.training.loop import train
from softbeam.training.recipes import stress
from support.report_folders import TITLE, write_table_record

WATCH = """<script>window.failed = [];
window.addEventListener("error", (event) => failed.push(event.message));
console.error = (...words) => failed.push(words.join(" "));</script>"""
OPERATE = """<script>window.addEventListener("load", () => {
  const nodes = document.querySelectorAll(".beam g"), told = document.querySelector(".told");
  nodes[0].focus();
  const first = told.textContent;
  nodes[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  const second = told.textContent, sentence = document.querySelector("[name=sentence]");
  sentence.value = 1;
  sentence.dispatchEvent(new Event("input"));
  const lattices = [...document.querySelectorAll(".lattice")].map((l) => l.offsetHeight > 0);
  const sweep = document.querySelector("[name=sweep]"), sample = document.querySelector(".sample");
  sweep.value = 2;
  sweep.dispatchEvent(new Event("input"));
  const marked = [...sample.querySelectorAll("mark")].map((m) => m.textContent);
  const chain = document.querySelector("[name=chain]");
  chain.value = 1;
  chain.dispatchEvent(new Event("input"));
  const verdict = document.querySelector("[name=verdict]");
  const claims = () => [...document.querySelectorAll("tr[data-verdict]")].map((r) => !r.hidden);
  const filtered = [claims()];
  for (const value of ["undecided", "reproduced"]) {
    verdict.value = value;
    verdict.dispatchEvent(new Event("input"));
    filtered.push(claims());
  }
  const found = {
    failed, filtered, first, second, lattices, marked, other: sample.textContent,
    links: [...document.querySelectorAll("nav a")].map((a) => !!document.querySelector(a.hash)),
    title: document.title, wide: document.documentElement.scrollWidth <= innerWidth,
    output: document.querySelector("output").textContent,
  };
  document.body.setAttribute("data-found", JSON.stringify(found));
});</script>"""


@pytest.fixture(scope="module")
def run(few_words, tmp_path_factory):
    """A small tagger whose second stage is a soft beam."""
    base = stress()
    config = replace(
        base,
        data=Stress(words=120),
        model=Lstm(embedding=8, hidden=8),
        pretrain=replace(base.pretrain, epochs=1),
        finetune=replace(base.finetune, objective=DirectLoss(k=2), epochs=1),
        log_every=1,
    )
    folder = tmp_path_factory.mktemp("runs") / "tagger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(few_words))
        train(config, folder, quiet=True)
        yield folder


def samples(path: Path) -> Path:
    """Two chains of one text; the first changes its second and third letter."""
    counts = {"proposals": 4, "accepted": 2, "repeated": 1, "novel": 1, "stuck": 0}
    lines = [{"settings": {}, "texts": ["A"], "mlm": TITLE}]
    for sweep, texts in enumerate((["ABCD", TITLE], ["AXYD", TITLE], ["AXYD", TITLE])):
        for chain, text in enumerate(texts):
            row = {"index": 0, "chain": chain, "sweep": sweep, "phase": "sample", "text": text}
            lines.append(row | counts | {"energy": 3.0 + sweep + chain, "temperature": 1.0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def dumped(browser: str, page: Path) -> dict:
    """What the page says of itself after it was operated."""
    text = page.read_text()
    text = text.replace("<head>", f"<head>{WATCH}").replace("</body>", f"{OPERATE}</body>")
    page.with_name("operated.html").write_text(text)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,900", "--dump-dom"]
    done = subprocess.run(
        [browser, *words, page.with_name("operated.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.slow
def test_the_page_works_in_a_browser(run, tmp_path, require_program):
    browser = require_program("chromium", "chromium-browser", "google-chrome")
    (tmp_path / "tables").mkdir()
    write_table_record(tmp_path / "tables" / "table-5.3.json")
    paths = [run, tmp_path / "tables", samples(tmp_path / "samples.jsonl")]
    page = write_report(paths, tmp_path / "report.html")
    found = dumped(browser, page)
    assert found["failed"] == [] and found["title"] == "softbeam"
    assert found["links"] == [True] * 6 and found["wide"]
    assert found["filtered"] == [[True], [False], [True]], "one claim, which is reproduced"
    assert found["first"].startswith("step 1, element 1: words")
    assert found["second"].startswith("step 1, element 2: words")
    assert found["lattices"] == [False, True, False, False], "the chosen sentence alone"
    assert found["marked"] == ["X", "Y"] and found["other"] == TITLE
    assert found["output"] == "2 of 3, energy 5"


def test_tables_have_published_figures_and_claims_their_verdicts(tmp_path):
    write_table_record(tmp_path / "table-5.3.json")
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert '1.5 ±0.7<span class="printed">9.5</span>' in page and "3.0</td>" in page
    assert '<td class="reproduced">reproduced</td>' in page
    assert TITLE not in page and "&lt;/script&gt;" in page
    assert json.loads(as_script(TITLE)) == TITLE and "<" not in as_script(TITLE)


@pytest.mark.slow
def test_a_picture_is_what_the_soft_beam_mixes(run):
    made, *others = pictures(run, k=2, alpha=3.0)
    assert len(others) == FEW - 1 and made.number < others[0].number
    assert len(made.steps) == len(made.gold.split()) and len(made.steps[0]) == 2
    for t, elements in enumerate(made.steps):
        for one in elements:
            assert sum(one.parents) == pytest.approx(1, abs=1e-4)
            assert len(one.parents) == (1 if t == 0 else 2)
            assert all(FAINT <= weight <= 1 + 1e-6 for _, weight in one.words)
    scores = [one.score for one in made.steps[-1]]
    assert scores == sorted(scores, reverse=True)
    (chosen,) = pictures(run, k=2, alpha=3.0, sentences=[others[-1].number])
    assert chosen == others[-1]
    with pytest.raises(UserError, match="--sentences 99999: dev of .* has"):
        pictures(run, sentences=[99999])
    assert made.read == made.source.split()
    drawn = layout(made)
    assert [head["word"] for head in drawn["heads"]] == made.read
    assert shortened("NP" * 7) == "NP" * 7 and len(shortened("NP" * 9)) == 15
    assert len(drawn["nodes"]) == 2 * len(made.steps)
    assert all(0 < n["x"] < drawn["width"] and 0 < n["y"] < drawn["height"] for n in drawn["nodes"])
