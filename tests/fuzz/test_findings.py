"""What fuzzing has found is read again here, without a fuzzer; so are the first inputs."""

from pathlib import Path

import pytest

from fuzz.targets import TARGETS, place, run_target

FOLDER = Path(__file__).parents[1] / "fixtures" / "findings"
FINDINGS = sorted(path for path in FOLDER.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_finding_is_a_finding_no_more(path):
    run_target(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_the_first_inputs_are_good(name):
    path = place(name)
    for content in TARGETS[name].seeds:
        path.write_bytes(content)
        TARGETS[name].read(path)
        run_target(name, content[: len(content) // 2])


def test_another_error_is_a_finding(monkeypatch):
    def fail(path: Path) -> None:
        raise KeyError(path)

    monkeypatch.setitem(TARGETS, "texts", TARGETS["texts"]._replace(read=fail))
    with pytest.raises(KeyError):
        run_target("texts", b"x")
