"""An output has one owner at a time, and a killed owner frees it at once."""

import signal
import threading
from functools import partial

import pytest

from softbeam.errors import UserError
from softbeam.runtime.locks import Held, is_held_here, lock_path, owned
from support.other_processes import end, holding


def test_a_second_owner_is_refused_with_the_name_of_the_first(tmp_path):
    with holding(partial(owned, tmp_path)) as child:
        with pytest.raises(Held) as refused, owned(tmp_path):
            pass
    text = str(refused.value)
    assert text.startswith(f"{tmp_path} is being written by process {child} on ")
    assert text.endswith("(softbeam train tagging --out held)") and "\n" not in text


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_a_holder_frees_the_output_although_its_file_stays(tmp_path, signum):
    with holding(partial(owned, tmp_path)) as child:
        end(child, signum)
        assert lock_path(tmp_path).exists()
        with owned(tmp_path):
            assert is_held_here(tmp_path)
    assert not lock_path(tmp_path).exists() and not is_held_here(tmp_path)


def test_a_lock_of_a_file_lies_beside_it_and_is_removed(tmp_path):
    with owned(tmp_path / "s.jsonl"), owned(tmp_path / "other.jsonl"):
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {".s.jsonl.lock", ".other.jsonl.lock"}
        with pytest.raises(Held), owned(tmp_path / "s.jsonl"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_another_thread_does_not_hold_what_this_one_holds(tmp_path):
    seen = []
    with owned(tmp_path):
        thread = threading.Thread(target=lambda: seen.append(is_held_here(tmp_path)))
        thread.start()
        thread.join()
        assert is_held_here(tmp_path) and seen == [False]


def test_an_error_inside_frees_the_output(tmp_path):
    with pytest.raises(RuntimeError), owned(tmp_path):
        raise RuntimeError
    with owned(tmp_path):
        pass


def test_the_lock_of_a_new_folder_of_the_same_name_is_left_alone(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    with owned(place):
        place.rename(tmp_path / "moved")
        place.mkdir()
        with holding(partial(owned, place)):
            assert lock_path(place).exists()
    assert lock_path(place).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "command": 7}'])
def test_a_damaged_lock_file_blocks_nobody_and_is_not_needed(tmp_path, text):
    lock_path(tmp_path).write_text(text)
    with owned(tmp_path):
        lock_path(tmp_path).write_text(text)
        with pytest.raises(Held, match="is being written by another process$"), owned(tmp_path):
            pass


def test_a_lock_that_cannot_be_made_is_an_error_of_the_user(tmp_path):
    lock_path(tmp_path).mkdir()
    with pytest.raises(UserError, match="cannot be written: .*Is a directory"), owned(tmp_path):
        pass
