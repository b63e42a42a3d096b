"""Progress: a bar on a terminal; elsewhere at most a line a minute, whatever is counted."""

import io
import re

import pytest

from softbeam.runtime import progress
from softbeam.runtime.progress import Progress


@pytest.fixture
def now(monkeypatch):
    """A clock that the test moves."""
    time = [1000.0]
    monkeypatch.setattr(progress, "printed", 0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time[0])
    return time


def test_without_a_terminal_there_is_at_most_a_line_a_minute(now, capsys):
    """Of all stages together: each second an update, each five an epoch."""
    said = []
    for stage in ("pretrain", "finetune"):
        with Progress(stage, 300) as shown:
            for second in range(300):
                now[0] += 1
                shown.advance(1, {"loss": "1.0"})
                if second % 5 == 4:
                    shown.note(f"epoch {second // 5}")
                said += [(now[0], line) for line in capsys.readouterr().err.splitlines()]
    times = [time for time, _ in said]
    assert len(said) == 10 and all(b - a >= 60 for a, b in zip(times, times[1:], strict=False))
    assert said[1][1] == "pretrain  61/300  loss 1.0  3:59 left"


def test_what_must_not_be_missed_is_always_said(now, capsys):
    with Progress("pretrain", 3) as shown:
        shown.advance()
        shown.say("skipped an update")
        shown.say("and another one")
    assert capsys.readouterr().err.splitlines()[1:] == ["skipped an update", "and another one"]


def test_the_share_of_an_item_counts_for_the_time_that_is_left(now, capsys):
    with Progress("sample", 50) as shown:
        shown.skip(10)
        now[0] += 90
        shown.within(0.5, {"sweep": "11"})
    assert capsys.readouterr().err == "sample  10.5/50  sweep 11  1:58:30 left\n"


def test_a_terminal_has_a_bar_and_quiet_has_nothing(now, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with Progress("sample", 4) as shown:
        shown.advance(1, {"energy": "-3.2"})
        shown.within(0.5)
        shown.note("first line")
        shown.note("second line")
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "first line" in text and "second line" in text and "1/4" in text and "━" in text
    with Progress("sample", 4, quiet=True) as shown:
        shown.advance()
        shown.say("nothing")
    assert "nothing" not in terminal.getvalue()
