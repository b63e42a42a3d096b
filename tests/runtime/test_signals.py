"""Signals that ask to stop: once after the step, twice at once; and none is lost."""

import ctypes
import os
import signal
import time

import pytest

from softbeam.runtime.signals import STOP_SIGNALS, ending, hurried, signum_of, stopping


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


def wait_for_ever() -> None:
    """An operation outside of Python that no signal interrupts: a mutex that is locked twice."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_an_operation_that_no_signal_interrupts_is_left(number, tmp_path):
    child = os.fork()
    if child == 0:
        with stopping(), hurried(0.05, lambda n: (tmp_path / "finished").write_text(str(int(n)))):
            (tmp_path / "begun").touch()
            wait_for_ever()
        os._exit(0)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    started = time.monotonic()
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + number
    assert (tmp_path / "finished").read_text() == str(int(number))
    assert time.monotonic() - started < 2


def test_a_block_that_ends_in_time_is_not_hurried():
    with stopping() as seen, hurried(30.0, lambda n: os._exit(1)):
        os.kill(os.getpid(), signal.SIGINT)
    assert seen == [signal.SIGINT]
    with hurried(0.0, lambda n: os._exit(1)):
        pass
    assert signal.set_wakeup_fd(-1) == -1
