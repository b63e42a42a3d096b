"""The playground shows the numbers of the library, to nobody but the browser that has its token."""

import os
import re
import signal
import socket
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

import softbeam
from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.reports.playground import chains as playing_chains
from softbeam.reports.playground.beams import BeamViews
from softbeam.reports.playground.chains import ChainViews, Playing
from softbeam.reports.playground.server import JSON, Asked, playground
from softbeam.reports.soft_beams import STEPS, both_beams, hard_choices, searched_by
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.search.decoders import forced_scores
from softbeam.training.runs import load_run
from softbeam.training.searches import SoftBeamSearch
from support.playing import served

TEXT = "AC[MASK]D[MASK]E[MASK]"
CONFIG = SamplingConfig(chains=3, sweeps=6, burn_in=0, seed=5)
STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"


@pytest.fixture(scope="module")
def mlm(letters_mlm):
    return softbeam.load_mlm(str(letters_mlm))


@pytest.fixture(params=["run", "mt"])  # a tagger, and a translator, whose outputs end
def views(request, good, monkeypatch):
    monkeypatch.chdir(good)
    return BeamViews(load_run(good / request.param, device="cpu"), request.param)


# Beams


def test_outputs_on_the_page_are_those_of_decoding(views):
    """By another way to the same search: the run's own, with as many steps."""
    asked = {"source": views.sentences()[0][1], "k": 3, "alpha": 2.5}
    found = views.beams(asked)
    longest = {"max_ratio": 0.0, "max_extra": STEPS}
    search = views.run.own_search("soft-beam", k=3, nbest=3, alpha=2.5, **longest)
    assert isinstance(search, SoftBeamSearch)
    (outputs,) = views.run.decode([asked["source"]], search)
    assert [" ".join(one.tokens) for one in outputs] == [path.text for path in found.soft_paths]
    assert [one.score for one in outputs] == pytest.approx([p.score for p in found.soft_paths])


def plain_beam(searched) -> list[list[tuple[float, int, list[int], bool]]]:
    """The beam after each step, by sorting all continuations of all prefixes."""
    beam, steps = [(0.0, 0, [], False)], []
    for _ in range(searched.time):
        cells = []
        for j, (score, _, prefix, ended) in enumerate(beam):
            if ended:
                cells.append((score, j, [*prefix, len(searched.codec)], True))
                continue
            fed = torch.tensor([[*prefix, 0]])
            for token, more in enumerate(forced_scores(searched.decoder, fed)[0, -1].tolist()):
                cells.append((score + more, j, [*prefix, token], token == searched.eos))
        beam = sorted(cells, key=lambda cell: -cell[0])[: searched.k]
        steps.append(beam)
    return steps


@torch.inference_mode()
def test_the_hard_beam_is_that_of_plain_loops(views):
    number = views.numbers[0]
    searched = searched_by(views.run, views.example(number, ""), k=3, alpha=1.0)
    for ours, theirs in zip(hard_choices(searched), plain_beam(searched), strict=True):
        assert [(c.parent, c.token) for c in ours] == [(j, p[-1]) for _, j, p, _ in theirs]
        assert [c.score for c in ours] == pytest.approx([s for s, *_ in theirs], abs=1e-4)


def test_the_soft_beam_becomes_the_hard_one(views):
    number = views.numbers[0]
    soft, sharp = (views.beams({"sentence": number, "alpha": a}) for a in (0.1, 1e7))
    assert soft.share < 0.6 and soft.soft.steps != soft.hard.steps, "not at a small alpha"
    assert sharp.share == pytest.approx(1, abs=1e-3) and sharp.hard == soft.hard
    for ours, hard in zip(sharp.soft.steps, sharp.hard.steps, strict=True):
        for one, other in zip(ours, hard, strict=True):
            assert one.words[0][0] == other.words[0][0]
            assert one.parents == pytest.approx(other.parents, abs=1e-3)
            assert one.score == pytest.approx(other.score, abs=1e-3)
    texts = [[path.text for path in paths] for paths in (sharp.soft_paths, sharp.hard_paths)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"sentence": 9999}, "sentence 9999: must be at least 1 and at most 8"),
        ({"sentence": "1"}, "sentence 1: must be int"),
        ({"sentence": True}, "sentence True: must be int"),
        ({"source": "  "}, "source: give at least one word"),
        ({"source": "x" * 3000}, "source: its characters 3000: must be at most"),
        ({"source": "a", "k": 99}, "k 99: must be at least 1 and at most 8"),
        ({"source": "a", "alpha": 0}, "alpha 0: must be above 0"),
        ({"source": "a", "alpha": "inf"}, "alpha inf: must be a number"),
        ({"source": "a", "alpha": float("nan")}, "alpha nan"),
    ],
)
def test_what_cannot_be_drawn_is_said(asked, said, good, monkeypatch):
    monkeypatch.chdir(good)
    shown = BeamViews(load_run(good / "run", device="cpu"), "run")
    with pytest.raises(UserError, match=re.escape(said)):
        shown.beams(asked)


def test_a_run_whose_data_are_gone_shows_sentences_of_your_own(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = BeamViews(load_run(good / "run", device="cpu"), "run")
    assert shown.sentences() == [] and len(shown.beams({"source": "the cat"}).soft.steps) == 2


# Chains


def seen(playing: Playing) -> tuple[list[list[list[str]]], list[list[float]]]:
    """Tokens and energies of each chain after each sweep, put together from what a viewer gets."""
    done, start, by_sweep = 0, None, {}
    while True:
        news = playing.news(done)
        assert news.error == ""
        if start is None and news.start is not None:
            start = news.start
            tokens = [list(row) for row in start.tokens]
        for step in news.steps:
            for row, move in zip(tokens, step.moves, strict=True):
                if move.outcome == "accepted":
                    for cell, token in zip(move.cells, move.proposed, strict=True):
                        row[cell] = token
            energies = [move.energy for move in step.moves]
            by_sweep[step.sweep] = [list(row) for row in tokens], energies
        done += len(news.steps)
        if news.over and not news.steps:
            return [t for t, _ in by_sweep.values()], [e for _, e in by_sweep.values()]
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"kernel": "gibbs", "proposal_temperature": 2.0},
        {"kernel": "exact-gibbs"},
        {"block": 2, "forced": 1, "burn_in": 2},
        {"free": "all", "start": "random"},
    ],
    ids=str,
)
def test_chains_are_those_of_sample(mlm, change):
    """Every text and every energy, to the last bit."""
    config = softbeam.sampling.texts.settings.overridden(CONFIG, change)
    samples = softbeam.sample(mlm, TEXT, config)
    tokens, energies = seen(Playing(mlm, TEXT, config))
    assert energies == samples.trace.energy.tolist()
    texts = ["".join(row) for sweep in tokens[config.burn_in :] for row in sweep]
    assert texts == samples.texts[0]


@pytest.mark.slow
def test_chains_wait_for_their_viewer(mlm, monkeypatch):
    monkeypatch.setattr(playing_chains, "LEAD", 4)
    playing = Playing(mlm, TEXT, SamplingConfig(chains=1, sweeps=10**6, burn_in=0))
    for done in (0, 4):
        while len(playing.news(done).steps) < 4:
            time.sleep(0.002)
        time.sleep(0.05)
        assert len(playing.news(done).steps) == 4
    playing.stop(wait=True)
    assert playing.over and not playing.thread.is_alive()


def test_a_viewer_changes_what_is_sampled(mlm):
    views = ChainViews(mlm, "letters", TEXT, CONFIG)
    first = views.begin({"text": "A[MASK]", "chains": 2, "seed": 3, "kernel": "gibbs"})
    assert views.playing.config == CONFIG.__class__(
        chains=2, sweeps=6, burn_in=0, seed=3, kernel="gibbs"
    )
    begun = views.playing
    second = views.begin({"text": "C[MASK]"})
    begun.thread.join(10)
    assert begun.over and second["number"] == first["number"] + 1
    for asked, said in (
        ({"text": ""}, "text: give a text"),
        ({"text": "A" * 9999}, "text: its characters 9999"),
        ({"text": TEXT, "chains": 99}, "chains 99: must be at least 1 and at most 8"),
        ({"text": TEXT, "seed": "1"}, "seed 1: must be int"),
        ({"text": TEXT, "kernel": "none"}, "--kernel none: must be one of"),
        ({"text": "AC"}, "has no [MASK]"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            views.begin(asked)
    with pytest.raises(UserError, match="replaced"):
        views.news({"number": first["number"], "after": 0})
    assert views.playing.config.seed == CONFIG.seed, "a refused request changes nothing"
    views.stop(wait=True)


def test_an_error_of_the_model_reaches_the_viewer(mlm, monkeypatch):
    def fail(*words):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(type(mlm), "logits", fail)
    playing = Playing(mlm, TEXT, CONFIG)
    playing.thread.join(10)
    assert playing.news(0).over and playing.news(0).error == "out of memory"


# The server

HOST = "127.0.0.1:8000"


def asked(path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Asked:
    given = {"Host": HOST} | ({"Content-Type": JSON} if method == "POST" else {})
    return Asked(method, path, given | {n.replace("_", "-"): v for n, v in headers.items()}, body)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (asked("/{}/"), 200),
        (asked("/{}/", Host="localhost:8000"), 200),
        (asked("/{}/", Sec_Fetch_Site="none"), 200),
        (asked("/{}/news", "POST", b'{"after": 0}', Origin=f"http://{HOST}"), 400),
        (asked("/"), 403),
        (asked("/{}"), 403),
        (asked("//{}/"), 403),
        (asked("/wrong/"), 403),
        (asked("/{}x/"), 403),
        (asked("/{}/", Host="127.0.0.1:8001"), 403),
        (asked("/{}/", Host="evil.example:8000"), 403),
        (asked("/{}/", Host="127.0.0.1"), 403),
        (asked("/{}/", Host=""), 403),
        (asked("/{}/", Origin="http://evil.example"), 403),
        (asked("/{}/", Origin="null"), 403),
        (asked("/{}/", Origin="http://localhost:8000"), 403),
        (asked("/{}/", Sec_Fetch_Site="cross-site"), 403),
        (asked("/{}/", Sec_Fetch_Site="same-site"), 403),
        (asked("/{}/begin", "POST", b"{}", Content_Type="text/plain"), 403),
        (asked("/{}/begin"), 404),
        (asked("/{}/", "POST", b"{}"), 404),
        (asked("/{}/../../etc/passwd"), 404),
        (asked("/{}/actions", "POST", b"{}"), 404),
        (asked("/{}/beams", "POST", b"{}"), 404),  # no run was given
        (asked("/{}/begin", "POST", b"[]"), 400),
        (asked("/{}/begin", "POST", b"\xff"), 400),
        (asked("/{}/begin", "POST", b"[" * 60000), 400),
    ],
)
def test_a_request_without_the_token_or_of_another_page_is_refused(mlm, request_, status):
    play = playground(None, ChainViews(mlm, "letters", TEXT, CONFIG))
    answer = play.answer(request_._replace(path=request_.path.format(play.token)), 8000)
    assert answer.status == status
    assert play.token not in answer.text and "Traceback" not in answer.text
    if status != 200:
        assert answer.text.strip().count("\n") == 0, "one line"


def test_tokens_are_long_and_new():
    tokens = {playground(None, None).token for _ in range(5)}
    assert len(tokens) == 5 and min(map(len, tokens)) >= 43  # 32 bytes


def test_the_page_needs_nothing_from_elsewhere(mlm):
    text, policy = page_of(ChainViews(mlm, "<script>alert(1)", '"><img src=x>', CONFIG))
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script>alert" not in text and "<img" not in text


def page_of(views: ChainViews) -> tuple[str, str]:
    play = playground(None, views)
    answer = play.answer(asked(f"/{play.token}/"), 8000)
    return answer.text, answer.policy


def test_the_server_is_for_this_machine_alone(mlm):
    with served(playground(None, ChainViews(mlm, "letters", TEXT, CONFIG))) as at:
        assert [name for name, _ in at.sockets] == ["127.0.0.1"]
        status, headers, text = at.ask("")
        assert status == 200 and "softbeam play" in text
        assert headers["Referrer-Policy"] == "no-referrer" and headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store" and "Access-Control" not in str(headers)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert at.ask("", path="/")[0] == at.ask("", Host="evil.example")[0] == 403
        assert at.ask("begin", "{" * 10)[0] == 400
        with socket.create_connection(("127.0.0.1", at.port), timeout=30) as raw:
            head = f"POST /{at.play.token}/begin HTTP/1.1\r\nHost: 127.0.0.1:{at.port}\r\n"
            raw.sendall(f"{head}Content-Type: {JSON}\r\nContent-Length: 100000\r\n\r\n".encode())
            assert raw.recv(99).split()[1] in (b"400", b"413"), "too much, before it is sent"
        status, _, begun = at.ask("begin", {"text": TEXT})
        assert status == 200 and begun == {"number": 1}
        while not (news := at.ask("news", {"number": 1, "after": 0})[2])["steps"]:
            time.sleep(0.01)
        assert news["start"]["free"] == [2, 4, 6] and news["error"] == ""
        assert at.ask("news", {"number": 7, "after": 0})[0] == 400
        assert at.ask("", Origin="http://evil.example")[0] == 403


@pytest.mark.slow
def test_ctrl_c_ends_it_in_the_middle_of_a_computation(letters_mlm, monkeypatch, capsys):
    """While chains wait for a slow model; the address goes to the browser and to the output."""
    opened, slow = list[str](), threading.Event()
    monkeypatch.setattr("webbrowser.open", opened.append)
    logits = softbeam.models.HfMaskedLM.logits

    def slowly(*words, **options):
        slow.set()
        time.sleep(0.05)
        return logits(*words, **options)

    monkeypatch.setattr(softbeam.models.HfMaskedLM, "logits", slowly)

    def press() -> None:
        while not opened:
            time.sleep(0.01)
        _, _, host, token, _ = opened[0].split("/")
        play = playground(None, None)
        at = served_at(play, int(host.partition(":")[2]), token)
        assert at.ask("begin", {"text": TEXT})[0] == 200
        assert slow.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    code = main(["play", "--mlm", str(letters_mlm), "--sweeps", "100000"])
    thread.join()
    said = capsys.readouterr()
    assert code == 130 and said.err == "softbeam play: interrupted\n"
    assert said.out.splitlines()[0] == opened[0]
    assert [t for t in threading.enumerate() if t.name.startswith("asyncio")] == []


def served_at(play, port: int, token: str):
    from dataclasses import replace

    from support.playing import Served

    return Served(replace(play, token=token), port, [])


# Recordings


def drawing(path: Path) -> ElementTree.Element:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000 and "<script" not in text and "href" not in text
    assert re.findall(r"https?://[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]
    return ElementTree.fromstring(text)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["run --beam 2", f"--mlm mlm --text {TEXT} --steps 7"])
def test_a_recording_is_the_same_every_time(words, good, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(good)
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        assert main(["play", *words.split(), "--record", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    root = drawing(files[0])
    assert len(list(root.iter(f"{SVG}animate"))) > 10 and root.find(f"{SVG}g[@id='still']")
    assert main(["play", *words.split(), "--record", str(files[0])]) == 2, "it exists"


@pytest.mark.slow
def test_a_recording_has_the_energies_of_sample(good, mlm, tmp_path, monkeypatch):
    """In the moment that is shown without motion: texts and energies after the last step."""
    monkeypatch.chdir(good)
    words = f"--mlm mlm --text {TEXT} --chains 2 --sweeps 4 --burn-in 0 --seed 3 --steps 12"
    assert main(["play", *words.split(), "--record", str(tmp_path / "a.svg")]) == 0
    samples = softbeam.sample(mlm, TEXT, chains=2, sweeps=4, burn_in=0, seed=3)
    still = drawing(tmp_path / "a.svg").find(f"{SVG}g[@id='still']")
    texts = [element.text for element in still.iter(f"{SVG}text")]
    cells = 7
    for c in range(2):
        shown = texts[c * (cells + 1) : (c + 1) * (cells + 1)]
        assert "".join(shown[:cells]) == samples.texts[0][-2 + c]
        assert shown[cells] == f"{samples.trace.energy[-1, c]:.1f}"


@pytest.mark.slow
def test_a_beams_recording_has_the_weights_of_its_alphas(good, tmp_path, monkeypatch):
    monkeypatch.chdir(good)
    assert main(["play", "run", "--beam", "2", "--record", str(tmp_path / "a.svg")]) == 0
    views = BeamViews(load_run(good / "run", device="cpu"), "run", k=2)
    number = views.numbers[0]
    ends = [
        both_beams(views.run, number, views.example(number, ""), k=2, alpha=alpha)
        for alpha in (0.1, 100.0)
    ]
    moving = drawing(tmp_path / "a.svg").find(f"{SVG}g[@class='moving']")
    sizes = [
        [float(value) for value in animate.get("values").split(";")]
        for circle in moving.findall(f"{SVG}circle")
        for animate in circle.findall(f"{SVG}animate[@attributeName='r']")
    ]
    weights = [
        [3 + 8 * one.words[0][1] for step in beams.soft.steps for one in step] for beams in ends
    ]
    assert [size[0] for size in sizes] == pytest.approx(weights[0], abs=0.006)
    assert [size[-1] for size in sizes] == pytest.approx(weights[1], abs=0.006)


@pytest.mark.parametrize("name", ["soft-beam", "chains"])
def test_the_readmes_recordings_are_small_and_move(name):
    root = drawing(STATIC / f"{name}.svg")
    assert len(list(root.iter(f"{SVG}animate"))) > 50 and root.find(f"{SVG}title") is not None
