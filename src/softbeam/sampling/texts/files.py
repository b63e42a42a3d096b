"""Samples as a file: JSON lines, streamed sweep by sweep; after a kill the same bytes go on.

The first line holds all settings, texts and versions; then comes one line for each chain after
each sweep. A checkpoint beside the file holds the chains, the generator and the file's length at
that moment: what was written after it is cut off and sampled again, the same. A line is whole if it
has an end: only a kill leaves one without, which no reader here takes for a sample.

Texts that are sampled side by side have a generator of their own. Of several processes each takes
some of these groups and writes a file as if they were all there are; the first one puts the others'
behind its own, which gives the bytes that one process gives.
"""

import glob
import json
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from softbeam import __version__
from softbeam.errors import Interrupted, UserError, limited
from softbeam.runtime import ranks
from softbeam.runtime.files import (
    Growing,
    Types,
    check_fields,
    json_object,
    load_checkpoint,
    read_rows,
    remove,
    remove_parts,
    save_checkpoint,
    write_atomic,
)
from softbeam.runtime.progress import Progress
from softbeam.runtime.signals import stopping
from softbeam.sampling.chains import Record
from softbeam.sampling.texts.sampler import Sampler, sample, sampler
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.tensors import may_stand
from softbeam.types import ChainState, TextModel

Header = dict[str, Any]
CHUNK = 1 << 20  # bytes that are copied at a time


def make_header(name: str, texts: Sequence[str], config: SamplingConfig, threads: int) -> Header:
    """All that the bytes of a file depend on."""
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) for package in ("torch", "transformers")}
    return {
        "softbeam": __version__,
        "versions": versions,
        "mlm": name,
        "threads": threads,
        "settings": json.loads(json.dumps(asdict(config))),  # as it is read back
        "caveats": config.caveats(),
        "texts": list(texts),
    }


def checkpoint_of(out: Path) -> Path:
    return out.with_name(out.name + ".checkpoint")


def summary_of(out: Path) -> Path:
    """The file that is there when the samples are whole."""
    return out.with_name(out.name.removesuffix(".jsonl") + ".json")


def plot_of(out: Path) -> Path:
    return out.with_suffix(".png")


def write_samples(
    mlm: TextModel,
    header: Header,
    config: SamplingConfig,
    out: Path,
    *,
    resume: bool = False,
    every: float = 2.0,
    quiet: bool = False,
) -> float:
    """Sample all texts of the header into the file; returns the seconds that it took.

    Args:
        mlm: the masked language model.
        header: of `make_header`.
        config: the settings that the header was made of.
        out: the file.
        resume: go on with a file that was begun with the same header, if there is one.
        every: seconds between two checkpoints; one is only made after a whole sweep.
        quiet: no progress.
    """
    groups = grouped(header["texts"], config)
    chains = [sampler(mlm, texts, config) for texts in groups]  # what is wrong is said at once
    mine, part = ranks.block(len(groups)), part_of(out, ranks.rank())
    tensors, facts = begin(part, header, resume=resume)
    start, sweep, state = facts.get("group", mine.start), facts["sweep"], None
    rng = generator(config, start)
    if tensors:
        check_place(facts, mine.stop, config.sweeps, checkpoint_of(part))
        state = resumed(tensors, mlm, chains[start], rng, checkpoint_of(part))
    with (
        Growing(part, facts["bytes"]) as file,
        Progress("sample", len(mine) * config.sweeps, quiet=quiet) as progress,
        stopping() as stop,
    ):
        progress.skip((start - mine.start) * config.sweeps + sweep)
        writer = Writer(file, checkpoint_of(part), header, facts, every)
        for group in range(start, mine.stop):
            for record in sample(chains[group], rng, state=state, first=sweep):
                rows = sample_rows(mlm, chains[group], record, config, group)
                writer.write(rows, group, record, rng, now=bool(stop))
                progress.advance(shown=shown(record))
                if stop:
                    raise Interrupted(
                        stop[0], f"stopped after a whole sweep; --resume goes on with {out}"
                    )
            rng, state, sweep = generator(config, group + 1), None, 0
    seconds = max(ranks.gathered(writer.seconds()))  # now all of them are done
    if ranks.first():
        append(out, [part_of(out, rank) for rank in range(1, ranks.world())])
    return seconds


def generator(config: SamplingConfig, group: int) -> torch.Generator:
    """The random numbers of texts that are sampled side by side."""
    return torch.Generator().manual_seed(config.stream(group))


def part_of(out: Path, rank: int) -> Path:
    """The file that a process writes; the first one's becomes the whole."""
    return out.with_name(f"{out.name}.{rank}-of-{ranks.world()}") if rank else out


def append(out: Path, parts: Sequence[Path]) -> None:
    """Put what other processes have written behind the file; their headers are its own."""
    with Growing(out, out.stat().st_size) as file:
        for part in parts:
            with part.open("rb") as other:
                other.readline()
                while chunk := other.read(CHUNK):
                    file.append(chunk)
        file.synced()


def clear(out: Path) -> None:
    """Remove what only an unfinished file needs: the processes' parts, and the checkpoints."""
    parts = [part_of(out, rank) for rank in range(1, ranks.world())]
    remove(*parts, *map(checkpoint_of, parts), checkpoint_of(out))


def grouped(texts: Sequence[str], config: SamplingConfig) -> list[Sequence[str]]:
    """Texts that are sampled side by side."""
    size = group_size(config)
    return [texts[i : i + size] for i in range(0, len(texts), size)]


def group_size(config: SamplingConfig) -> int:
    return max(1, config.at_once // config.chains)


def shown(record: Record) -> dict[str, str]:
    """What progress shows of a sweep."""
    return {
        "energy": f"{record.state.energy.mean():.2f}",
        "accept": f"{record.counts.rate('accepted').mean():.2f}",
        "novel": f"{record.counts.rate('novel').mean():.2f}",
    }


def sample_rows(
    mlm: TextModel, chains: Sampler, record: Record, config: SamplingConfig, group: int
) -> Iterator[dict[str, Any]]:
    """A row for each chain after a sweep; ids are those of the text and of the frame around it."""
    tokens, counts = record.state.tokens, torch.stack(list(record.counts), -1).tolist()
    real = chains.tokens != mlm.pad_id
    texts = mlm.decode(tokens)
    for i, energy in enumerate(record.state.energy.tolist()):
        yield {
            "index": group * group_size(config) + i // config.chains,
            "chain": i % config.chains,
            "sweep": record.sweep,
            "phase": record.phase,
            "temperature": record.temperature,
            "energy": energy,
            **dict(zip(record.counts._fields, counts[i], strict=True)),
            "text": texts[i],
            "tokens": tokens[i][real[i]].tolist(),
        }


class Writer:
    """Appends sweeps to the file, and from time to time makes a checkpoint."""

    def __init__(
        self, file: Growing, checkpoint: Path, header: Header, facts: dict[str, Any], every: float
    ):
        self.file, self.checkpoint, self.header = file, checkpoint, header
        self.before, self.every = float(facts["seconds"]), every
        self.started = self.saved = time.monotonic()

    def write(
        self,
        rows: Iterator[dict[str, Any]],
        group: int,
        record: Record,
        rng: torch.Generator,
        *,
        now: bool,
    ) -> None:
        """The rows of a sweep, and a checkpoint if it is time or must be now."""
        self.file.append(b"".join(map(as_line, rows)))
        if not now and time.monotonic() - self.saved < self.every:
            return
        facts = {"group": group, "sweep": record.sweep + 1, "bytes": self.file.synced()}
        tensors = record.state._asdict() | {"random": rng.get_state()}
        about = {"seconds": self.seconds(), "header": self.header, "processes": ranks.world()}
        save_checkpoint(self.checkpoint, tensors, facts | about)
        self.saved = time.monotonic()

    def seconds(self) -> float:
        """Of all sittings."""
        return self.before + time.monotonic() - self.started


def begin(
    out: Path, header: Header, *, resume: bool
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The file as it is to be gone on with: tensors and facts of its checkpoint, if it has one."""
    checkpoint, summary = checkpoint_of(out), summary_of(out)
    for path in (out, checkpoint, summary, plot_of(out)):
        remove_parts(path.parent, glob.escape(path.name))
    if resume and out.exists():
        same_settings(out, read_header(out), header)
        if checkpoint.exists():
            tensors, facts = load_checkpoint(checkpoint)
            check_facts(checkpoint, facts)
            same_settings(checkpoint, facts["header"], header)
            if facts["processes"] != ranks.world():
                raise UserError(
                    f"{out} was begun by {facts['processes']} processes, not {ranks.world()}; "
                    "give another --out to sample anew"
                )
            return tensors, facts
    remove(summary, checkpoint)  # or the old ones would be taken for those of the new samples
    first = as_line(header)
    write_atomic(out, first)
    return {}, {"sweep": 0, "seconds": 0.0, "bytes": len(first)}


def check_place(facts: dict[str, Any], groups: int, sweeps: int, checkpoint: Path) -> None:
    """A UserError if a checkpoint is of a place behind the end."""
    limited(f"{checkpoint}: group", facts["group"], below=groups)
    limited(f"{checkpoint}: sweep", facts["sweep"], most=sweeps)


def check_facts(checkpoint: Path, facts: dict[str, Any]) -> None:
    """A UserError if the facts are not those of a moment between two sweeps."""
    counts = [facts.get(name) for name in ("group", "sweep", "bytes", "processes")]
    right = all(isinstance(count, int) and count >= 0 for count in counts)
    seconds = facts.get("seconds")
    if not (right and isinstance(seconds, int | float) and isinstance(facts.get("header"), dict)):
        found = {name: value for name, value in facts.items() if name != "header"}
        raise UserError(f"{checkpoint} holds no moment of a sampling: {found}")


def resumed(
    tensors: dict[str, torch.Tensor],
    mlm: TextModel,
    chains: Sampler,
    rng: torch.Generator,
    checkpoint: Path,
) -> ChainState:
    """The chains as a checkpoint has them, and the generator as it was; or a sentence."""
    like = chains.tokens
    try:
        state = ChainState(tensors["tokens"], tensors["energy"])
        shapes = (state.tokens.shape, state.tokens.dtype, state.energy.shape)
        if shapes != (like.shape, like.dtype, like.shape[:1]):
            raise ValueError(
                f"chains of shape {tuple(state.tokens.shape)}, not {tuple(like.shape)}"
            )
        kept = torch.where(chains.free, may_stand(state.tokens, mlm.allowed), state.tokens == like)
        if not bool(kept.all()) or not bool(state.energy.isfinite().all()):
            raise ValueError("its chains are none of these texts")
        rng.set_state(tensors["random"])
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{checkpoint} cannot be gone on from: {error}") from None
    return state


def as_line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8")


def same_settings(path: Path, found: Header, wanted: Header) -> None:
    """Refuse to go on with other settings than those the file was begun with."""
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        if name == "settings":
            before = dict(found.get(name, {}))
            name = next(key for key in value if before.get(key) != value[key])
            found, value = before, value[name]
        raise UserError(
            f"{path} was begun with {name} {found.get(name)!r}, not {value!r}; "
            "give another --out to sample anew"
        )


# Reading

HEADER: Types = {"settings": dict, "texts": list, "mlm": str}
NUMBER = (int, float)
COUNTED = ("proposals", "accepted", "repeated", "novel", "stuck")
ROW: Types = {
    **{"index": int, "chain": int, "phase": str, "energy": NUMBER, "text": str},
    **dict.fromkeys(COUNTED, NUMBER),
}


def read_header(path: Path) -> Header:
    """The first line of a file of samples, or a sentence."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    return json_object(line, f"{path} is not a file of samples", HEADER, needed=True)


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of samples; a last one without its end, which a kill cut, is none."""
    rows = read_rows(path, what := "a row of samples")
    next(rows, None)
    for number, row in enumerate(rows, 2):
        yield check_fields(row, f"{path}, line {number}, is not {what}", ROW, needed=True)
