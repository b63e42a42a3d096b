"""Changed files are noticed by their content and named; accepting them is recorded."""

import gzip
import json
import os

import pytest

from softbeam.errors import UserError
from softbeam.runtime import inputs


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    return {"data.train": tmp_path / "a", "data.dev": tmp_path / "b"}


@pytest.fixture
def folder(tmp_path, files):
    inputs.record(tmp_path / "run", files)
    return tmp_path / "run"


def test_equal_content_is_no_change_whatever_its_time(folder, files):
    os.utime(files["data.train"], (1, 1))
    inputs.check(folder, files, accept=False)


def test_packed_content_has_the_digest_of_the_content(tmp_path, files):
    for level in (1, 9):
        (tmp_path / "a.gz").write_bytes(gzip.compress(b"a", level))
        assert inputs.digest(tmp_path / "a.gz") == inputs.digest(files["data.train"])


def test_a_change_of_the_same_size_and_time_is_noticed(folder, files):
    before = files["data.dev"].stat()
    files["data.dev"].write_text("c")
    os.utime(files["data.dev"], ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match=r"begun with other content of data.dev \(.*b\); restore"):
        inputs.check(folder, files, accept=False)


def test_an_accepted_change_is_recorded_and_stays_accepted(folder, files):
    identity = inputs.read(folder)["identity"]
    files["data.dev"].write_text("c")
    inputs.check(folder, files, accept=True)
    inputs.check(folder, files, accept=False)
    record = json.loads((folder / "inputs.json").read_text())
    (accepted,) = record["accepted"]
    assert set(accepted["changed"]) == {"data.dev"} and record["identity"] == identity
    assert accepted["changed"]["data.dev"]["to"] == record["inputs"]["data.dev"]["sha256"]


def test_a_folder_without_a_record_accepts_everything_and_a_new_file_is_added(tmp_path, files):
    inputs.check(tmp_path, files, accept=False)
    assert inputs.read(tmp_path) is None
    inputs.remember(tmp_path, {"data.dev": files["data.dev"]}, accept=False)
    inputs.remember(tmp_path, {"data.train": files["data.train"]}, accept=False)
    files["data.dev"].write_text("c")
    with pytest.raises(UserError, match="data.dev"):
        inputs.remember(tmp_path, files, accept=False)


def test_a_damaged_record_is_named(folder, files):
    (folder / "inputs.json").write_text('{"identity": 7}')
    with pytest.raises(UserError, match="inputs.json is not a record of inputs: its identity is"):
        inputs.check(folder, files, accept=False)
