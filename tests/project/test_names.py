"""No name is used that nothing defines: the linters' own rules trip over shape strings."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import softbeam
from support.requirements import absent

ROOT = Path(softbeam.__file__).parent


def undefined(folder: Path) -> list[str]:
    """Undefined names outside of strings (in strings they are axes of a tensor's shape)."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        absent("ruff is not installed")
    words = [ruff, "check", "--isolated", "--select", "F821", "--output-format", "json"]
    done = subprocess.run([*words, str(folder)], capture_output=True, text=True, timeout=60)
    found = []
    for row in json.loads(done.stdout):
        path, where = Path(row["filename"]), row["location"]
        place = (where["row"], where["column"] - 1)
        strings = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
        if not any(
            (n.lineno, n.col_offset) <= place <= (n.end_lineno, n.end_col_offset) for n in strings
        ):
            found.append(f"{path.name}:{where['row']}: {row['message']}")
    return found


def test_every_name_is_defined():
    assert undefined(ROOT) == []


def test_the_check_sees_an_undefined_name(tmp_path):
    (tmp_path / "bad.py").write_text('def f(x: "batch vocab") -> int:\n    return missing\n')
    assert [text.split(":")[1] for text in undefined(tmp_path)] == ["2"]
