"""Sample, score and fill many texts in a cluster, to the bytes of one process.

Texts are cut into groups, which fix what the model gets together and the random numbers. A group
is a cell of a grid: any worker computes it, and its result is kept in a file until all are there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from softbeam.errors import UserError
from softbeam.models import catalogue
from softbeam.runtime import inputs
from softbeam.runtime.cells import Result, Work, read_record, read_result
from softbeam.runtime.cluster import Cluster
from softbeam.runtime.grid import Workers, compute_grid, grid_folder, remove_results
from softbeam.sampling.texts import files
from softbeam.sampling.texts.infill import fill_texts
from softbeam.sampling.texts.sampler import group_size
from softbeam.sampling.texts.score import score_texts
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.types import TextModel


@dataclass(frozen=True, kw_only=True)
class Model:
    """A masked language model, and how a worker loads it.

    Args:
        mlm: its folder or name.
        dtype: number format of its weights.
        device: where it runs.
        threads: of the processor.
        trust_remote_code: run the code that its folder or repository brings.
        files: the state of its files, which a worker must have too.
    """

    mlm: str
    dtype: str
    device: str
    threads: int
    trust_remote_code: bool
    files: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Texts that are sampled, scored or filled together.

    Args:
        command: what is done with them.
        number: of the group.
        first: the number of its first text.
        texts: the texts.
        model: the model.
        settings: what else the result depends on, in JSON.
    """

    command: str
    number: int
    first: int
    texts: tuple[str, ...]
    model: Model
    settings: str

    def __str__(self) -> str:
        return f"texts {self.first} to {self.first + len(self.texts) - 1}"


def groups(
    command: str, model: Model, texts: Sequence[str], size: int, settings: Mapping[str, Any]
) -> list[Group]:
    """Cut texts into groups of `size`."""
    return [
        Group(
            command=command,
            number=number,
            first=first,
            texts=tuple(texts[first : first + size]),
            model=model,
            settings=json.dumps(settings),
        )
        for number, first in enumerate(range(0, len(texts), size))
    ]


def state(mlm: str) -> str:
    """Return a hash of the files of a model on this machine."""
    digests = inputs.digests(catalogue.model_files(mlm))
    content = {name: facts["sha256"] for name, facts in digests.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def loaded(model: Model) -> TextModel:
    """Load a model, once for all groups of a process.

    Raises UserError if its files differ from those of the command.
    """
    torch.set_num_threads(model.threads)
    mlm = catalogue.load_mlm(
        model.mlm,
        dtype=model.dtype,
        device=model.device,
        trust_remote_code=model.trust_remote_code,
    )
    if state(model.mlm) != model.files:
        raise UserError(f"the files of {model.mlm} are not those that the command has")
    return mlm


def sampling_config(fields: Mapping[str, Any]) -> SamplingConfig:
    """Make settings of sampling from what JSON has kept of them."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return SamplingConfig(**values)


# What workers compute


def sample_group(cell: Group, folder: Path) -> Result:
    """Sample a group; returns its lines of the file of samples."""
    config = sampling_config(json.loads(cell.settings))
    lines = files.group_lines(loaded(cell.model), cell.texts, config, cell.number)
    return {"lines": b"".join(lines).decode("utf-8")}


def score_group(cell: Group, folder: Path) -> Result:
    """Score a group of texts."""
    knobs = json.loads(cell.settings)
    return {"rows": list(score_texts(loaded(cell.model), cell.texts, first=cell.first, **knobs))}


def fill_group(cell: Group, folder: Path) -> Result:
    """Fill the gaps of a group of texts."""
    knobs = json.loads(cell.settings)
    config = sampling_config(knobs.pop("config"))
    mlm = loaded(cell.model)
    return {"rows": list(fill_texts(mlm, cell.texts, config, first=cell.first, **knobs))}


# What the command does


def write_samples(
    model: Model,
    header: files.Header,
    config: SamplingConfig,
    out: Path,
    cluster: Cluster,
    *,
    resume: bool,
    quiet: bool,
) -> float:
    """Sample all texts of the header into a file; returns the seconds of all groups together.

    Groups that are finished stay in a folder beside the file until its summary is written.
    """
    if resume and files.checkpoint_of(out).exists():
        raise UserError(f"{out} was begun without --cluster; resume it without")
    files.begin(out, header, resume=resume)
    cells = groups("sample", model, header["texts"], group_size(config), asdict(config))
    folder = files.parts_of(out)
    with grid_folder(folder):
        workers = Workers(cluster=cluster)
        compute_grid(cells, sample_group, folder, workers=workers, title="sample", quiet=quiet)
        lines = ((read_result(cell, folder) or {})["lines"].encode("utf-8") for cell in cells)
        files.write_groups(header, out, lines)
        return sum(float((read_record(cell, folder) or {})["seconds"]) for cell in cells)


@contextmanager
def parts(folder: Path) -> Iterator[None]:
    """Own the folder of finished groups, which goes on with what is in it and is removed at last.

    After an error it is kept, so that the same command goes on.
    """
    with grid_folder(folder):
        yield
    remove_results(folder)


def rows(
    cells: Sequence[Group], work: Work[Group], folder: Path, cluster: Cluster, *, quiet: bool
) -> Iterator[Any]:
    """Compute groups, and yield the rows of all of them in order."""
    title = cells[0].command if cells else ""
    compute_grid(cells, work, folder, workers=Workers(cluster=cluster), title=title, quiet=quiet)
    for cell in cells:
        yield from (read_result(cell, folder) or {})["rows"]
