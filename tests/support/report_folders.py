"""Folders that `softbeam report` shows: a run and the record of a table, with hostile text."""

import json
from pathlib import Path

from softbeam.reports.verdicts import judged
from softbeam.training.config import RunConfig, to_yaml

ALERT = "<script>alert('x')</script>"
TITLE = "</script><script>document.title = 'broken into'</script>"


def write_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(RunConfig()))
    rows = [
        {"kind": "train", "stage": "pretrain", "epoch": 0, "update": 50, "loss": 2.5},
        {"kind": "train", "stage": "finetune", "epoch": 0, "update": 50, "loss": 1.5},
        {"kind": "dev", "stage": "pretrain", "epoch": 0, "update": 80, "value": 61.0}
        | {"metric": "accuracy"},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    summary = {"metrics": {"accuracy": 61.04}, "epoch": 0, "parameters": 1234, "seconds": 3.5}
    (folder / "summary.json").write_text(json.dumps(summary))
    facts = {"command": ["softbeam", ALERT], "commit": None, "python": "3", "packages": {}}
    (folder / "environment.json").write_text(json.dumps(facts | {"files": {"train": ALERT}}))
    return folder


def write_table_record(path: Path) -> None:
    claim = judged(f"a beats {TITLE}", [1.0, 1.1, 1.2], source="here")
    rows = {"start": {"dev": [1.0, 2.0]}, TITLE: {"dev": [3.0, None]}}
    made = {"target": "table-5.3", "title": TITLE, "preset": "cpu", "seeds": [1, 2], "text": TITLE}
    made |= {"rows": rows, "published": {"start": [9.5]}, "claims": [claim]}
    made |= {"digits": {"dev": 1}, "repeated": TITLE}
    path.write_text(json.dumps(made))
