"""An output that exists is resumed, replaced by a whole one, or refused; an input never is one."""

import os
import signal

import pytest

from softbeam.errors import Interrupted, UserError
from softbeam.runtime import outputs
from softbeam.runtime.locks import Held


def ours(folder):
    return "a thing" if (folder / "thing").is_file() else None


def opened(out, **options):
    return outputs.folder(out, describe=ours, **options)


def written(out, text="new", **options):
    with opened(out, **options) as place:
        (place / "thing").write_text(text)


@pytest.fixture
def thing(tmp_path):
    written(tmp_path / "x", "old")
    return tmp_path / "x"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# Folders


def test_a_new_or_empty_folder_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new" / "deep", tmp_path / "empty"):
        written(out)
        assert names(out) == ["thing"]


def test_an_error_leaves_no_folder_that_was_not_there(tmp_path):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new" / "deep", tmp_path / "empty"):
        with pytest.raises(RuntimeError), opened(out):
            raise RuntimeError
    assert names(tmp_path) == ["empty"] and names(tmp_path / "empty") == []


def test_what_exists_is_refused_resumed_or_replaced(thing):
    with pytest.raises(UserError, match="x holds a thing: --resume keeps it and goes on, --over"):
        written(thing)
    assert (thing / "thing").read_text() == "old"
    with opened(thing, resume=True) as place:
        assert place == thing
    written(thing, overwrite=True)
    assert (thing / "thing").read_text() == "new"
    assert names(thing) == ["thing"] and names(thing.parent) == ["x"]


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_the_folder_of_somebody_else_is_never_written(tmp_path, options):
    (tmp_path / "config.yaml").write_text("theirs")
    with pytest.raises(UserError, match="not empty, and softbeam did not write what is in it"):
        written(tmp_path, **options)
    assert names(tmp_path) == ["config.yaml"]


def test_the_old_folder_stays_until_the_new_one_is_whole(thing):
    with opened(thing, overwrite=True) as place:
        (place / "thing").write_text("new")
        assert (thing / "thing").read_text() == "old"
    assert (thing / "thing").read_text() == "new"
    with pytest.raises(RuntimeError), opened(thing, overwrite=True) as place:
        raise RuntimeError
    assert (thing / "thing").read_text() == "new" and names(thing.parent) == ["x"]


def test_a_replacement_that_was_stopped_goes_on(thing):
    with pytest.raises(Interrupted, match="--overwrite --resume goes on, and .*x is as it was"):
        with opened(thing, overwrite=True) as place:
            (place / "half").write_text("1")
            raise Interrupted(signal.SIGTERM, "stopped")
    assert names(thing) == ["thing"]
    with opened(thing, overwrite=True, resume=True) as place:
        assert names(place) == [".softbeam-lock", "half"]
    assert names(thing) == ["half"]


def test_a_replacement_begins_anew_without_resume(thing):
    with pytest.raises(RuntimeError), opened(thing, overwrite=True) as place:
        (place / "half").write_text("1")
        raise RuntimeError
    written(thing, overwrite=True)
    assert names(thing) == ["thing"] and names(thing.parent) == ["x"]


def test_a_kill_between_the_renames_loses_nothing(thing):
    thing.rename(thing.with_name(".x.old"))
    with opened(thing, resume=True) as place:
        assert (place / "thing").read_text() == "old"


def test_through_a_link_the_folder_itself_is_replaced(thing):
    link = thing.with_name("link")
    link.symlink_to(thing)
    written(link, overwrite=True)
    assert link.is_symlink() and (thing / "thing").read_text() == "new"
    with opened(thing, resume=True), pytest.raises(Held), opened_elsewhere(link):
        pass


def opened_elsewhere(out):
    """As another process sees it: not as the owner of the folder."""
    from softbeam.runtime.locks import owned

    return owned(out)


def test_an_owner_of_a_folder_owns_it_also_further_inside(thing):
    with opened(thing, overwrite=True) as outer, opened(outer) as inner:
        assert inner == outer != thing
        (inner / "thing").write_text("new")
    assert (thing / "thing").read_text() == "new"


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_an_input_is_not_the_output(thing, options):
    link = thing.with_name("link")
    link.symlink_to(thing)
    for name in (thing, link):
        with pytest.raises(UserError, match="x is an input of this command"):
            written(thing, inputs=[name], **options)
    assert (thing / "thing").read_text() == "old"


def test_a_folder_with_an_input_inside_is_not_replaced(thing):
    with pytest.raises(UserError, match="holds .*thing, an input of this command"):
        written(thing, inputs=[thing / "thing"], overwrite=True)
    assert (thing / "thing").read_text() == "old"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="not a folder|Not a directory"):
            written(out)


# Files


def test_a_file_that_exists_is_replaced_only_if_asked(tmp_path):
    out = tmp_path / "deep" / "out"
    with outputs.new_file(out, overwrite=False):
        out.write_text("old")
    with pytest.raises(UserError, match="out exists; --overwrite replaces it, or give another"):
        with outputs.new_file(out, overwrite=False):
            pass
    with outputs.new_file(out, overwrite=True):
        pass
    assert names(out.parent) == ["out"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_an_input_is_not_replaced_under_another_name(tmp_path, link):
    (tmp_path / "input").write_text("x")
    link(tmp_path / "input", tmp_path / "out")
    for out in ("input", "out"):
        with pytest.raises(UserError, match="is an input of this command"):
            with outputs.new_file(
                tmp_path / out, overwrite=True, inputs=[tmp_path / "none", tmp_path / "input"]
            ):
                pass


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, overwrite, said in (
        ("pipe", True, "is not a regular file"),
        ("pipe", False, "exists"),
        ("dangling", False, "exists"),
        (".", True, "is not the name of a file"),
    ):
        with pytest.raises(UserError, match=said):
            with outputs.new_file(tmp_path / name, overwrite=overwrite):
                pass
