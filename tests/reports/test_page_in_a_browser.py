"""The page in a real browser: no errors, what can be operated works, and no foreign code runs."""

import json
import re
import subprocess
import threading
from dataclasses import replace
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from softbeam.data.tasks import Stress
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports import page as pages
from softbeam.reports.charts import COLORS
from softbeam.reports.page import as_script, policy, write_report
from softbeam.reports.runs import describe
from softbeam.reports.soft_beams import FAINT, FEW, layout, pictures, shortened
from softbeam.training.loop import train
from softbeam.training.recipes import stress
from support.report_folders import TITLE, write_table_record

WATCH = """window.failed = [];
window.addEventListener("error", (event) => failed.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => failed.push(event.blockedURI));
console.error = (...words) => failed.push(words.join(" "));"""
OPERATE = """window.addEventListener("load", () => {
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
  const settings = document.querySelector("details"), copy = settings.querySelector("button");
  settings.open = true;
  copy.click();
  const command = getSelection().toString(), paper = getComputedStyle(document.body);
  const tables = [...document.querySelectorAll(".wide")];
  const found = {
    command, dark: matchMedia("(prefers-color-scheme: dark)").matches, ink: paper.color,
    page: paper.backgroundColor, tables: tables.some((box) => box.scrollWidth > box.clientWidth),
    boxes: tables.every((box) => box.getBoundingClientRect().right <= innerWidth),
    charts: [...document.querySelectorAll(".figures svg")].map((svg) => svg.clientWidth),
    failed, filtered, first, second, lattices, marked, other: sample.textContent,
    links: [...document.querySelectorAll("nav a")].map((a) => !!document.querySelector(a.hash)),
    title: document.title, wide: document.documentElement.scrollWidth <= innerWidth,
    output: document.querySelector("output").textContent,
  };
  setTimeout(() => parent.postMessage({ ...found, copied: copy.textContent }, "*"), 50);
});"""
FRAMES = """<!doctype html><body>
<iframe src="operated.html" style="width: 1000px; height: 900px; color-scheme: light"></iframe>
<iframe src="operated.html" style="width: 400px; height: 900px; color-scheme: dark"></iframe>
<script>
const every = [];
addEventListener("message", (event) => {
  every.push(event.data);
  document.body.setAttribute("data-found", JSON.stringify(every));
});
</script></body>"""


@pytest.fixture(scope="module")
def run(short_corpora, tmp_path_factory):
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
        patch.setenv("SOFTBEAM_DATA", str(short_corpora))
        train(config, folder, quiet=True)
        yield folder


def samples(path: Path) -> Path:
    """Two chains of one text; the first changes its second and third letter."""
    counts = {"proposals": 4, "accepted": 2, "repeated": 1, "novel": 1, "stuck": 0}
    lines = [{"settings": {}, "texts": ["A"], "mlm": TITLE}]
    for sweep, texts in enumerate((["ABCD", TITLE], ["AXYD", TITLE], ["AXYD", TITLE])):
        for chain, text in enumerate(texts):
            row = {"index": 0, "chain": chain, "sweep": sweep, "phase": "sample", "text": text}
            row |= counts | {"energy": 3.0 + sweep + chain, "temperature": 1.0, "tokens": [3, 4]}
            lines.append(row)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def shown(browser: str, page: Path) -> tuple[str, str]:
    """The page as the browser has it in the end, and what the browser's console says."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1500,900", "--dump-dom"]
    words += ["--virtual-time-budget=500"]
    done = subprocess.run(
        [browser, *words, "--enable-logging=stderr", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(said)


def dumped(browser: str, page: Path) -> list[dict]:
    """What the page says of itself after it was operated; its policy admits the two scripts.

    First on a wide light screen, then on a dark screen of a phone's width.
    """
    text = page.read_text()
    policies = policy("", WATCH), policy("", OPERATE)
    hashes = [re.search("script-src (.*?);", part)[1] for part in policies]
    text = text.replace("script-src ", f"script-src {' '.join(hashes)} ")
    head, body = (f"<script>{script}</script>" for script in (WATCH, OPERATE))
    text = text.replace('<meta name="viewport"', f'{head}<meta name="viewport"')
    page.with_name("operated.html").write_text(text.replace("</body>", f"{body}</body>"))
    page.with_name("frames.html").write_text(FRAMES)
    dom, said = shown(browser, page.with_name("frames.html"))
    found = re.search(r'data-found="([^"]*)"', dom)
    assert found and said == "", said
    return sorted(json.loads(unescape(found[1])), key=lambda each: each["dark"])


def contrast(*colors: str) -> float:
    """The contrast of two colours, `rgb(1, 2, 3)` or `#010203` (Web Content Accessibility)."""
    light = []
    for color in colors:
        parts = [int(part, 16) for part in re.findall("[0-9a-f]{2}", color)]
        if color.startswith("rgb"):
            parts = [int(part) for part in re.findall(r"\d+", color)[:3]]
        linear = [((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in parts]
        light.append(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_curves_can_be_seen_on_light_and_dark_pages():
    light, dark = re.findall("--page: (#[0-9a-f]+)", pages.STYLE)
    assert (light, dark) == ("#ffffff", "#16181c")
    for color in COLORS:
        assert min(contrast(color, light), contrast(color, dark)) >= 3, color


@pytest.mark.slow
def test_the_page_works_in_a_browser(run, tmp_path, require_program):
    browser = require_program("chromium", "chromium-browser", "google-chrome")
    (tmp_path / "tables").mkdir()
    write_table_record(tmp_path / "tables" / "table-5.3.json")
    paths = [run, tmp_path / "tables", samples(tmp_path / "samples.jsonl")]
    page = write_report(paths, tmp_path / "report.html")
    found, phone = dumped(browser, page)
    for each in (found, phone):
        assert each["failed"] == [] and each["title"] == "softbeam" and each["copied"] == "Copied"
        assert each["links"] == [True] * 7 and each["wide"] and each["boxes"]
        assert each["command"] == next(iter(describe(run).commands.values()))
        assert contrast(each["ink"], each["page"]) > 7
    assert phone["dark"] and not found["dark"] and phone["page"] != found["page"]
    assert phone["tables"], "wide tables scroll in their own box"
    assert all(300 < width <= 400 for width in phone["charts"])
    assert found["filtered"] == [[True], [False], [True]], "one claim, which is reproduced"
    assert found["first"].startswith("step 1, element 1: words")
    assert found["second"].startswith("step 1, element 2: words")
    assert found["lattices"] == [False, True, False, False], "the chosen sentence alone"
    assert found["marked"] == ["X", "Y"] and found["other"] == TITLE
    assert found["output"] == "2 of 3, energy 5"


def attack(number: int) -> str:
    return f"<script>document.title += ' {number}'</script>"


SVG = '<svg xmlns="http://www.w3.org/2000/svg"'
ATTACKS = [  # scripts for HTML, and none for XML
    f"{SVG}><?x >{attack(1)}?></svg>",
    f"{SVG}><!-->{attack(2)}--></svg>",
    f"<!-- <svg>{attack(3)}</svg> --><svg/>",
]


class Asked(BaseHTTPRequestHandler):
    """A server that notes what it is asked for."""

    paths: ClassVar[list[str]] = []

    def do_GET(self):
        self.paths.append(self.path)
        self.send_response(404)
        self.end_headers()

    def log_message(self, *words):
        return


@pytest.fixture
def address():
    """The address of a server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Asked.paths.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_drawings_run_no_script_and_fetch_nothing(tmp_path, require_program, monkeypatch, address):
    """The drawings are rebuilt; and if they were not, the page's policy would stop them."""
    browser = require_program("chromium", "chromium-browser", "google-chrome")
    fetching = f"{SVG}><style>@import url({address}/sheet);</style></svg>"
    drawn = [*ATTACKS, f"<svg><image href='{address}/image'/></svg>", fetching]
    plain = tmp_path / "plain.html"
    pasted = [svg[svg.index("<svg") :] for svg in drawn]  # without what precedes the root
    parts = "".join(f"<figure>{svg}</figure>" for svg in pasted)
    plain.write_text(f"<!doctype html><title>softbeam</title><body>{parts}</body>")
    dom, _ = shown(browser, plain)
    assert "<title>softbeam 1 2 3</title>" in dom, "they do run as HTML"
    assert {*Asked.paths} >= {"/sheet", "/image"}
    Asked.paths.clear()

    names = [f"figure-6.{n}.svg" for n in range(len(drawn))]
    record = {"target": "figure-6.2", "text": "x", "claims": [], "files": names}
    (tmp_path / "figure-6.2.json").write_text(json.dumps(record))
    for name, svg in zip(names, ATTACKS, strict=False):
        (tmp_path / name).write_text(svg)
    page = write_report([tmp_path], tmp_path / "report.html")
    dom, said = shown(browser, page)
    assert "<title>softbeam</title>" in dom and said == "" and dom.count("<figure><svg") == 3
    for name, svg in zip(names[3:], drawn[3:], strict=True):
        (tmp_path / name).write_text(svg)
        with pytest.raises(UserError, match=f"{name} holds (href=http|style)"):
            write_report([tmp_path], tmp_path / "report.html")
        (tmp_path / name).unlink()

    monkeypatch.setattr(pages, "drawing", lambda path: pasted[names.index(path.name)])
    dom, said = shown(browser, write_report([tmp_path], tmp_path / "pasted.html"))
    assert "<title>softbeam</title>" in dom and Asked.paths == []
    assert said.count("Content Security Policy") == len(pasted), said


def test_tables_have_published_figures_and_claims_their_verdicts(tmp_path):
    write_table_record(tmp_path / "table-5.3.json")
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert '1.5 ±0.7<span class="printed">9.5</span>' in page and "3.0</td>" in page
    assert '<td class="reproduced">reproduced</td>' in page
    assert TITLE not in page and "&lt;/script&gt;" in page
    assert json.loads(as_script(TITLE)) == TITLE and "<" not in as_script(TITLE)


@pytest.mark.slow
def test_a_picture_is_what_the_soft_beam_mixes(run):
    made, *others = (both.soft for both in pictures(run, k=2, alpha=3.0))
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
    assert chosen.soft == others[-1] and 0 < chosen.share < 1
    with pytest.raises(UserError, match="--sentences 99999: dev of .* has"):
        pictures(run, sentences=[99999])
    assert made.read == made.source.split()
    drawn = layout(made)
    assert [head["word"] for head in drawn["heads"]] == made.read
    assert shortened("NP" * 7) == "NP" * 7 and len(shortened("NP" * 9)) == 15
    assert len(drawn["nodes"]) == 2 * len(made.steps)
    assert all(0 < n["x"] < drawn["width"] and 0 < n["y"] < drawn["height"] for n in drawn["nodes"])
