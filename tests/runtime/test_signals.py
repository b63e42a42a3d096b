"""Signals that ask to stop: once after the step, twice at once; and none is lost."""

import os
import signal

import pytest

from softbeam.runtime.signals import STOP_SIGNALS, ending, signum_of, stopping


@pytest.fixture(autouse=True)
def handlers():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_signal_is_noted_and_its_second_raises():
    with pytest.raises(KeyboardInterrupt) as stop, stopping() as seen:
        for number in STOP_SIGNALS:  # a launcher may send one after the other
            os.kill(os.getpid(), number)
        assert seen == list(STOP_SIGNALS)
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the second SIGTERM has not raised")
    assert signum_of(stop.value) == signal.SIGTERM


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_where_there_is_nothing_to_finish_they_raise(number):
    with pytest.raises(KeyboardInterrupt) as stop, ending():
        os.kill(os.getpid(), number)
        pytest.fail("it has not raised")
    assert signum_of(stop.value) == number
    assert signum_of(KeyboardInterrupt()) == signal.SIGINT


def test_a_step_within_a_command_is_finished():
    with ending(), stopping() as seen:
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
