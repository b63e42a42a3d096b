"""The committed results are whole, and their verdicts follow from their own figures."""

import json
from pathlib import Path

import pytest

from softbeam.reproduce import TARGETS, claims_in

ROOT = Path(__file__).resolve().parents[1] / "results"
FILES = sorted(ROOT.rglob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_record_is_whole(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["target"] == path.stem in TARGETS and record["preset"] == "cpu"
    assert record["cells"] and all(cell["result"] for cell in record["cells"])
    assert record["environment"]["commit"] and record["environment"]["packages"]["torch"]
    for claim in record["claims"]:
        low, high = claim["interval"]
        agree = claim["right"] >= 2 / 3 * claim["repetitions"]
        if claim["verdict"] == "reproduced":
            assert agree and (low > 0 or claim["effect"] >= 0)
        elif claim["verdict"] == "not reproduced":
            assert high < 0
        else:
            assert not (low > 0 and agree)
    for file in record.get("files", []):
        assert "/" not in file


def test_no_file_names_a_folder_of_a_machine():
    for path in ROOT.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not any(start in text for start in ("/tmp/", "/home/", "/work/", "/root/")), path


def test_the_claims_of_the_repository_can_be_printed():
    assert set(claims_in(ROOT)) == {path.stem for path in ROOT.glob("*.json")}
