"""The public names: each door's stub is its list, every name resolves, and nothing heavy loads."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import softbeam

ROOT = Path(softbeam.__file__).parent
DOORS = ["softbeam", *(f"softbeam.{p}" for p in "search sampling models data training".split())]


def stub_names(door: str) -> list[str]:
    """The names that a type checker sees."""
    path = ROOT.joinpath(*door.split(".")[1:]) / "__init__.pyi"
    imports = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)]
    names = [alias for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias in names), "an import without `as` is private"
    return [alias.name for alias in names]


@pytest.mark.parametrize("door", DOORS)
def test_a_door_offers_what_its_stub_says(door):
    module = importlib.import_module(door)
    names = stub_names(door)
    assert len(names) == len({*names})
    assert sorted(names) == sorted(module.__all__) == sorted(dir(module))
    for name in names:
        value = getattr(module, name)
        assert value.__doc__ or name.isupper(), f"{door}.{name} has no docstring"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = softbeam.no_such_name


@pytest.mark.parametrize("door", [*DOORS, "softbeam.objectives"])
def test_a_door_opens_without_torch(door):
    code = f"import sys, {door}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_objective_is_public():
    from softbeam import objectives

    assert {kind.__name__ for kind in objectives.OBJECTIVES} <= {*objectives.__all__}
