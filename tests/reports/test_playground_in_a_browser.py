"""The playground in Chromium, clicked through: one browser for all tests, pages on two screens."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest

import softbeam
from softbeam.reports.playground.beams import BeamViews
from softbeam.reports.playground.chains import ChainViews
from softbeam.reports.playground.server import playground
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.training.runs import load_run
from support.chromium import Browser
from support.playing import served
from support.requirements import absent

pytestmark = pytest.mark.slow
TEXT = "AC[MASK]D[MASK]E"
CONFIG = SamplingConfig(chains=2, sweeps=4, burn_in=0, seed=3)
STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        absent(f"none of the programs {', '.join(names)} is installed")
    with Browser(program) as started:
        yield started


@pytest.fixture(scope="module")
def mlm(letters_mlm):
    return softbeam.load_mlm(str(letters_mlm))


@pytest.fixture(scope="module")
def at(good, mlm):
    """A playground with both halves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(good)
        beams = BeamViews(load_run(good / "run", device="cpu"), "<run>")
    with served(playground(beams, ChainViews(mlm, "letters", TEXT, CONFIG))) as address:
        yield address


def text(browser: Browser, selector: str) -> str:
    return browser.value(f"document.querySelector({json.dumps(selector)}).textContent")


def opened(browser: Browser, address: str, width: int, *, dark: bool) -> None:
    browser.size(width, 900, dark=dark)
    browser.open(address)
    browser.until("['.soft g', '.chain'].every((s) => document.querySelector(s) !== null)")


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_the_page_fits_its_screen(browser, at, width, dark):
    opened(browser, at.address, width, dark=dark)
    assert browser.value("failed") == [] and browser.said == []
    assert browser.value("document.documentElement.scrollWidth") == width
    assert text(browser, "#beams h2 .note") == "<run>"
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")
    names = "[...document.querySelectorAll('button, input, select, textarea')]"
    unnamed = f"{names}.filter((e) => !e.labels?.length && !e.textContent.trim()).length"
    assert browser.value(unnamed) == 0, "each control has a name"


def test_a_soft_beam_sharpens_as_alpha_is_moved(browser, at):
    views = at.play.beams
    opened(browser, at.address, 1200, dark=False)
    first = views.beams({"sentence": views.numbers[0], "alpha": 0.1})
    assert text(browser, ".share") == f"{100 * first.share:.1f} %"
    browser.click("#alpha", across=0.999)
    browser.until("document.querySelector('.alpha output').textContent === '100.0'")
    last = views.beams({"sentence": views.numbers[0], "alpha": 100.0})
    shown = f"{100 * last.share:.1f} %"
    browser.until(f"document.querySelector('.share').textContent === '{shown}'")
    assert (
        last.share > first.share and browser.value("+document.querySelector('#alpha').value") == 2
    )
    rows = browser.value(
        "[...document.querySelectorAll('.paths tbody tr')].map((r) => [...r.cells].map((c) => "
        "c.textContent))"
    )
    paths = zip(last.soft_paths, last.hard_paths, strict=True)
    assert rows == [
        [s.text, f"{s.score:.2f}", f"{s.hard_score:.2f}", h.text, f"{h.score:.2f}"]
        for s, h in paths
    ]
    browser.click(".soft g:nth-of-type(2) circle")  # the pointer is over it
    told = browser.until(
        "(t => t.startsWith('step 1, element 2') && t)(document.querySelector('#beams .told')"
        ".textContent)"
    )
    weight = last.soft.steps[0][1].words[0][1]
    assert f"words {last.soft.steps[0][1].words[0][0]} {weight:.2f}" in told
    assert browser.value("document.querySelectorAll('.hard g').length") == sum(
        len(step) for step in last.hard.steps
    )


def test_alpha_moves_by_itself_and_can_be_stopped(browser, at):
    opened(browser, at.address, 1200, dark=False)
    browser.click("#beams [name=play]")
    browser.until("document.querySelectorAll('.shares circle').length > 3")
    assert text(browser, "#beams [name=play]") == "Pause"
    browser.click("#beams [name=play]")
    assert text(browser, "#beams [name=play]") == "Play"


def test_a_sentence_of_ones_own_and_an_error(browser, at):
    opened(browser, at.address, 1200, dark=False)
    assert browser.value("document.querySelector('.own').offsetHeight") == 0
    browser.value(
        "(s => { s.value = '0'; s.dispatchEvent(new Event('input')); })"
        "(document.querySelector('[name=sentence]'))"
    )
    browser.click("[name=source]")
    browser.write("the cat <b>runs</b>")
    words = "[...document.querySelectorAll('.soft .read')].map((t) => t.textContent).join()"
    browser.until(f"{words} === 'the,cat,<b>runs</b>'")
    browser.click("#chains textarea")
    browser.write("")
    browser.click("#chains [name=begin]")
    browser.until("!document.querySelector('#chains .error').hidden")
    assert "give a text" in text(browser, "#chains .error")
    assert browser.value("failed") == []


def test_chains_move_step_by_step_as_sample_does(browser, at, mlm):
    opened(browser, at.address, 400, dark=True)
    samples = softbeam.sample(mlm, TEXT, CONFIG)
    shown = (
        "[...document.querySelectorAll('.chain')].map((c) => [[...c.querySelectorAll('.token')]"
        ".map((t) => t.textContent).join(''), c.querySelector('output').textContent])"
    )
    outcomes = set()
    for sweep in range(4):
        for step in (1, 2):
            browser.click("#chains [name=step]")
            place = f"sweep {sweep + 1}, step {2 * sweep + step}"
            browser.until(f"document.querySelector('.place').textContent === '{place}'")
            outcomes |= {*browser.value("[...document.querySelectorAll('.cell')].map((c) => "
                                        "c.classList[2]).filter(Boolean)")}  # fmt: skip
        texts = samples.texts[0][2 * sweep : 2 * sweep + 2]
        energies = [f"{energy:.2f}" for energy in samples.trace.energy[sweep].tolist()]
        assert browser.value(shown) == [list(both) for both in zip(texts, energies, strict=True)]
    assert outcomes <= {"accepted", "rejected", "same"} and len(outcomes) >= 2
    points = browser.value("document.querySelector('.energies polyline').points.length")
    assert points == 9, "the start and eight steps"
    assert text(browser, ".tally").startswith("Of 16 proposals")
    browser.click("#chains [name=step]")  # nothing is left, and nothing breaks
    assert browser.value("failed") == []


def test_chains_play_and_pause(browser, at):
    opened(browser, at.address, 1200, dark=False)
    browser.click("#chains [name=speed]", across=0.99)
    browser.click("#chains [name=play]")
    browser.until("document.querySelector('.place').textContent.endsWith('step 8')")
    browser.until("document.querySelector('#chains [name=play]').textContent === 'Play'")


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A page of another origin."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *words):
        return


def test_a_page_of_another_origin_gets_nothing(browser, at):
    """Even if it knew the token."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    number = at.play.chains.number
    browser.open(f"http://127.0.0.1:{server.server_port}/")
    begin = json.dumps(at.address + "begin")
    for options in (
        "{ method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' }",
        "{ method: 'POST', mode: 'no-cors', body: '{\"text\": \"A[MASK]\"}' }",
        "{}",
    ):
        found = browser.value(f"fetch({begin}, {options}).then((a) => a.text(), () => 'refused')")
        assert found in ("refused", ""), "opaque or refused"
    frame = (
        "new Promise((done) => { const f = document.createElement('iframe'); f.src = "
        f"{json.dumps(at.address)}; f.onload = () => done(f.contentDocument === null); "
        "document.body.append(f); })"
    )
    assert browser.value(frame), "not shown inside of another page"
    assert at.play.chains.number == number, "no chain was started"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["soft-beam", "chains"])
def test_recordings_move_unless_motion_is_not_wanted(browser, name):
    display = (
        "['.moving', '#still'].map((s) => getComputedStyle(document.querySelector(s)).display)"
    )
    address = (STATIC / f"{name}.svg").as_uri()
    browser.size(900, 500)
    browser.open(address)
    assert browser.value(display) == ["inline", "none"]
    values = "[...document.querySelectorAll('.moving circle')].map((c) => c.r.animVal.value)"
    if name == "soft-beam":
        before = browser.value(f"document.documentElement.setCurrentTime(0), {values}")
        after = browser.value(f"document.documentElement.setCurrentTime(8), {values}")
        assert before != after
    browser.open("about:blank#")
    browser.open(f"{address}#still")
    assert browser.value(display) == ["none", "inline"]
    wanted = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.call("Emulation.setEmulatedMedia", features=[wanted])
    browser.open(address)
    assert browser.value(display) == ["none", "inline"]
