"""The committed results are whole, and their verdicts follow from their own figures."""

import json
from pathlib import Path

import pytest

from softbeam.experiments.reproduce import DRAWN, TARGETS, claims_in

ROOT = Path(__file__).resolve().parents[2] / "results"
FILES = sorted(ROOT.rglob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_record_is_whole(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    full = path.parent.name == "full"
    assert record["target"] == path.stem in TARGETS
    assert record["preset"] == ("full" if full else "cpu")
    cells = record.get("cells", [])
    assert bool(cells) == (path.stem not in DRAWN) and all(cell["result"] for cell in cells)
    assert record["environment"]["commit"] and record["environment"]["packages"]["torch"]
    for claim in record["claims"]:
        low, high = claim["interval"]
        if claim["within"] is not None:  # as claimed: how far each end is inside of the margin
            low, high = (
                claim["within"] - max(abs(low), abs(high)),
                claim["within"] - max(low, -high),
            )
        expected = "reproduced" if low > 0 else "not reproduced" if high < 0 else "undecided"
        if full and claim["within"] is None and (size := claim["published"]) and high < size:
            smaller = {"reproduced": "reproduced smaller", "undecided": "published size excluded"}
            expected = smaller.get(expected, expected)
        assert claim["verdict"] == expected, claim
    for file in record.get("files", []):
        assert "/" not in file


def test_no_file_names_a_folder_of_a_machine():
    for path in ROOT.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not any(start in text for start in ("/tmp/", "/home/", "/work/", "/root/")), path


def test_the_claims_of_the_repository_can_be_printed():
    assert set(claims_in(ROOT)) == {path.stem for path in ROOT.glob("*.json")}
