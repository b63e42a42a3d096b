"""Input files that are limited, and YAML without aliases."""

import os

import pytest
import yaml

from softbeam.errors import UserError, check_range
from softbeam.runtime.files import largest_file, read_input
from softbeam.runtime.memory import memory
from softbeam.runtime.plain_yaml import load_plain


def test_a_file_is_read_up_to_the_limit_which_a_variable_sets(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_input(path, 5) == b"12345"
    with pytest.raises(UserError, match="x has more than 4 bytes; SOFTBEAM_LARGEST_FILE"):
        read_input(path, 4)
    monkeypatch.setenv("SOFTBEAM_LARGEST_FILE", "1K")
    assert read_input(path, 4) == b"12345"
    assert largest_file(4) == 1024


@pytest.mark.parametrize("value", ["-1", "1.5G", "many", "9" * 30])
def test_a_limit_that_is_no_number_of_bytes_is_refused(value, monkeypatch):
    monkeypatch.setenv("SOFTBEAM_LARGEST_FILE", value)
    with pytest.raises(UserError, match="must be a number of bytes, as 500M or 20G"):
        largest_file(1)


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe cannot be read: it is not a regular file"):
        read_input(tmp_path / "pipe")


def test_plain_yaml_has_numbers_and_anchors_but_no_aliases():
    assert load_plain("a: &x 1e-3\nb: [1, {c: text}]") == {"a": 0.001, "b": [1, {"c": "text"}]}
    with pytest.raises(yaml.YAMLError, match=r"the alias \*x is refused"):
        load_plain("a: &x 1\nb: *x")


def test_the_memory_is_known_and_not_larger_than_the_machines():
    limit, machine = memory(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limit is not None and 0 < limit <= machine


def test_numbers_without_limits_are_those_that_machines_can_hold():
    check_range("x", 10**9)
    check_range("x", 1e30)
    check_range("x", None)
    for value, said in (
        (10**9 + 1, "at most 1,000,000,000"),
        (-1e31, "at least -1e"),
        (1e31, "at most 1e"),
    ):
        with pytest.raises(UserError, match=said):
            check_range("x", value)
    with pytest.raises(UserError, match="x 1e-31: must be at least 1e-30 and above 0"):
        check_range("x", 1e-31, above=0)
