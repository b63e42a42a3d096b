"""What each fuzz target reads: bytes go in, and only a UserError of one line may come out.

A target is a reader of files that someone else may have written. Its first inputs are good files,
or nearly good ones, from which a fuzzer changes bytes.
"""

import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save

from softbeam.data import readers
from softbeam.data.catalogue import convert
from softbeam.data.corpora import ENTRIES
from softbeam.data.tasks import Tagging
from softbeam.data.vectors import read_vectors
from softbeam.data.vocabulary import (
    SOURCE,
    TARGET,
    Pieces,
    Spelled,
    Subwords,
    Vocabulary,
    load_codec,
)
from softbeam.errors import UserError
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.drawings import drawing
from softbeam.reports.page import read_records
from softbeam.reports.records import read_record
from softbeam.reports.results import TABLES, read_tables
from softbeam.reports.verdicts import claim_text, judged
from softbeam.runtime import cells, inputs
from softbeam.runtime.files import load_checkpoint
from softbeam.sampling.texts.files import make_header, read_header, read_samples
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.sampling.texts.summary import chains_by_text
from softbeam.training import fairseq
from softbeam.training.config import RunConfig, Stage, from_yaml, to_yaml
from softbeam.training.input_forms import read_inputs
from softbeam.training.runs import read_metrics, read_summary


class Target(NamedTuple):
    """A reader, the name of the file that it is given, and first inputs."""

    file: str
    read: Callable[[Path], object]
    seeds: list[bytes]


@dataclass(frozen=True)
class Cell:
    number: int


SHOWN = {"title": "a", "note": "", "rows": [{"x": "b", "y": 1.5}, {"x": "c", "y": 2}]}
VECTORS = b"2 3\na 0.1 -2 3e-1\nb 1 2 3\n"
JSONL = b'{"words": ["a", "b"]}\n{"text": "a b"}\n'
AUTO = b"ID=1\n(<L N NN NN dog N>)\n"
FILES = {str(file.derive): file for entry in ENTRIES for file in entry.files}
ZIPPED = next(file for form, file in FILES.items() if "tatoeba" in form)
TARRED = next(file for form, file in FILES.items() if "ccg" in form and "dev" in form)


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def lines(*rows: object) -> bytes:
    return b"".join(as_json(row) + b"\n" for row in rows)


def zipped() -> bytes:
    with zipfile.ZipFile(held := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deu.txt", "Go.\tGeh.\tx\n" * 3)
    return held.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(held := io.BytesIO()), mode="w:gz") as archive:
        info = tarfile.TarInfo("folder/en_ewt-ud-dev.auto")
        info.size = len(AUTO)
        archive.addfile(info, io.BytesIO(AUTO))
    return held.getvalue()


def published() -> bytes:
    args = Namespace(arch=fairseq.ARCHITECTURE)
    torch.save({"model": {"encoder.version": torch.ones(1)}, "args": args}, held := io.BytesIO())
    return held.getvalue()


def shown_record(path: Path) -> None:
    """Read the record as `report` and as `report claims` do."""
    for claim in read_record(path)["claims"]:
        claim_text(claim)
    read_records(path.parent)


def shown_samples(path: Path) -> None:
    chains_by_text(read_samples(path))


COLUMNS = b"a\tb\tc\nx\ty\tz\n\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><defs><style>%s</style></defs>'
RULE = b"*{stroke-linejoin: round; stroke-linecap: butt}"
PATH = b'<g id="a" clip-path="url(#b)"><path d="M 0 0" style="fill: #000000; stroke: none"/></g>'
SENTENCES = [("a", "man"), ("a", "woman")]
CODECS = (
    Vocabulary.build(SENTENCES, specials=TARGET),
    Subwords.train(SENTENCES, size=20, specials=TARGET),
    Spelled.build(SENTENCES, Vocabulary.build(SENTENCES, specials=SOURCE)),
    Pieces(
        Subwords.train(SENTENCES, size=20, specials=TARGET).tokenizer.to_str(),
        {"model_type": "bert"},
        frame=([1], [2]),
        unknown=2,
        longest=9,
    ),
)
CONFIG = to_yaml(RunConfig(finetune=Stage(objective=DirectLoss()))).encode()
OLD_CONFIG = b"data: {class_path: softbeam.data.tasks.Stress}\nselect: {method: beam, beam: 3}\n"
RECORD = {"target": "table-5.3", "text": "x\ny", "title": "t", "claims": [judged("c", [1.0, 2.0])]}
TABLE = {"rows": {"a": {"dev": [1.0, None]}}, "published": {"a": [9.5]}, "digits": {"dev": 1}}
RECORD |= TABLE | {"seeds": [1, 2], "preset": "cpu", "repeated": "seeds", "files": ["x.svg"]}
COUNTS = {"proposals": 4, "accepted": 2, "repeated": 1, "novel": 1, "stuck": 0}
SAMPLE = {"index": 0, "chain": 0, "sweep": 0, "phase": "sample", "text": "AB"} | COUNTS
SAMPLE |= {"energy": 1.5, "temperature": 1.0, "tokens": [3, 4]}
SAMPLES = lines(make_header("m", ["A"], SamplingConfig(), 1), SAMPLE)
TRAINED = {"kind": "train", "stage": "pretrain", "epoch": 0, "update": 50, "loss": 2.5}
SCORED = {"kind": "dev", "stage": "pretrain", "update": 5, "metric": "f1", "value": 6.0}
SUMMARY = {"metrics": {"f1": 1.5}, "epoch": 0, "parameters": 12, "seconds": 3.5}
INPUTS = {"identity": "x", "inputs": {}, "accepted": []}
CHECKPOINT = save({"model.x": torch.ones(1)}, {"facts": '{"update": 3}'})

TARGETS: dict[str, Target] = {
    "columns": Target("x.conll", readers.read_columns, [COLUMNS]),
    "supertags": Target("x.txt", readers.read_supertags, [COLUMNS]),
    "ccg-auto": Target("x.auto", readers.read_ccg_auto, [AUTO]),
    "tsv": Target("x.tsv", readers.read_tsv, [b"a b\tc\nx\ty\n"]),
    "parallel": Target("x.txt", lambda path: readers.read_parallel(path, path), [b"a b\nc\n"]),
    "cmudict": Target("x.dict", readers.read_cmudict, [b"word  W ER1 D\n;;; c\nA(1) AH0\n"]),
    "texts": Target("x.txt", readers.read_texts, [b"a b\n[MASK]\n"]),
    "gzip": Target("x.gz", readers.read_columns, [gzip.compress(COLUMNS)]),
    "zip": Target("x", lambda path: convert(ZIPPED, path.read_bytes()), [zipped()]),
    "tar": Target("x", lambda path: convert(TARRED, path.read_bytes()), [tarred()]),
    "vectors": Target("v.txt", lambda path: read_vectors(str(path), ["a", "B"]), [VECTORS]),
    "new-inputs": Target("new", lambda path: read_inputs(str(path), Tagging()), [COLUMNS, JSONL]),
    "tables": Target(
        TABLES, lambda path: read_tables(path.parent), [as_json({"title": "t", "tables": [SHOWN]})]
    ),
    "vocabulary": Target("s.json", load_codec, [as_json(c.to_json()) for c in CODECS]),
    "configuration": Target("config.yaml", from_yaml, [CONFIG, OLD_CONFIG]),
    "checkpoint": Target("c.safetensors", load_checkpoint, [CHECKPOINT]),
    "metrics": Target(
        "metrics.jsonl", lambda path: read_metrics(path.parent), [lines(TRAINED, SCORED)]
    ),
    "summary": Target("summary.json", lambda path: read_summary(path.parent), [as_json(SUMMARY)]),
    "record": Target("table-5.3.json", shown_record, [as_json(RECORD)]),
    "drawing": Target("x.svg", drawing, [SVG % RULE + PATH + b"</svg>"]),
    "cell": Target(
        f"results/{cells.key(Cell(1))}.json",
        lambda path: cells.read_result(Cell(1), path.parents[1]),
        [as_json({"cell": "Cell", "number": 1, "seconds": 1.0, "result": {"a": 1}})],
    ),
    "inputs": Target(
        inputs.NAME,
        lambda path: inputs.check(path.parent, {"train": path}, accept=False),
        [as_json(INPUTS | {"inputs": {"dev": {"path": "x", "sha256": "y"}}})],
    ),
    "sample-header": Target("s.jsonl", read_header, [SAMPLES]),
    "samples": Target("s.jsonl", shown_samples, [SAMPLES]),
    "published-vocabulary": Target("d.txt", fairseq.vocabulary, [b"the 7\ndog 6\n"]),
    "published-checkpoint": Target("c.pt", fairseq.read, [published()]),
}


@cache
def place(name: str) -> Path:
    """The path of a target's file, in a folder of its own that lasts as long as the process."""
    path = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-")) / TARGETS[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def run_target(name: str, content: bytes) -> None:
    """Let a target read some bytes; any error but a UserError of one line is a finding."""
    path = place(name)
    path.write_bytes(content)
    try:
        TARGETS[name].read(path)
    except UserError as error:
        assert str(error) and len(str(error).splitlines()) == 1, f"not one line: {error}"
