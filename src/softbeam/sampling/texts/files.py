"""Files of samples: JSON lines, written sweep by sweep, that an interrupted run can resume.

The first line holds all settings, texts and versions. Then follows a line for each chain after each
sweep. A checkpoint beside the file holds the chains, the generator and the length of the file at
that moment. To resume, whatever was written later is cut off and sampled again, which gives the
same bytes. An incomplete last line is left by an interrupted write, and readers ignore it.

Texts are sampled in groups, each with its own generator. The workers of a cluster sample groups in
any order; their lines, put together in the order of groups, are those of one process.
"""

import glob
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from softbeam import __version__
from softbeam.errors import Interrupted, UserError, check_range
from softbeam.runtime import inputs, outputs
from softbeam.runtime.files import (
    Growing,
    Types,
    cannot_read,
    check_fields,
    json_object,
    load_checkpoint,
    open_input,
    read_rows,
    remove,
    remove_parts,
    save_checkpoint,
    write_atomic,
)
from softbeam.runtime.grid import remove_results
from softbeam.runtime.progress import Progress
from softbeam.runtime.signals import ending, hurried, signum_of, stopping
from softbeam.sampling.chains import Record
from softbeam.sampling.texts.estimate import estimated
from softbeam.sampling.texts.sampler import Sampler, generator, group_size, sampler, samplers
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.types import ChainState, TextModel

Header = dict[str, Any]
T = TypeVar("T")
ADDED = {
    "lengths": None,
    "length_offset": 0.0,
    "stride": 8,
    "pieces": 3,
}  # settings that older files do not have
PATIENCE = 0.7  # seconds that the model's current operation may take after a signal


def make_header(
    name: str,
    texts: Sequence[str],
    config: SamplingConfig,
    threads: int,
    model: inputs.Files = MappingProxyType({}),
) -> Header:
    """Collect everything that the samples depend on: the first line of a file.

    Args:
        name: of the model.
        texts: to sample.
        config: the settings.
        threads: of the processor.
        model: the files of the model, whose digests are kept.
    """
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) for package in ("torch", "transformers")}
    return {
        "softbeam": __version__,
        "versions": versions,
        "mlm": name,
        "threads": threads,
        "settings": json.loads(json.dumps(asdict(config))),  # lists, as they are read back
        "caveats": config.caveats(),
        "texts": list(texts),
        "inputs": {name: facts["sha256"] for name, facts in inputs.digests(model).items()},
    }


def checkpoint_of(out: Path) -> Path:
    """The checkpoint of a file of samples."""
    return out.with_name(out.name + ".checkpoint")


def parts_of(out: Path) -> Path:
    """The folder of groups that the workers of a cluster have finished."""
    return out.with_name(out.name + ".parts")


def summary_of(out: Path) -> Path:
    """The summary of a file of samples; it exists once the samples are complete."""
    return out.with_name(out.name.removesuffix(".jsonl") + ".json")


def plot_of(out: Path) -> Path:
    """The plot of a file of samples."""
    return out.with_suffix(".png")


@contextmanager
def sample_files(
    out: Path, *, read: Iterable[Path], resume: bool, overwrite: bool
) -> Iterator[Path]:
    """Own a file of samples with its summary and plot; gives the path to write to.

    With `overwrite`, that is a file in a new folder beside, and what comes out takes the place of
    the old files in the end.

    Raises UserError if another process has a file, or one exists and may not be replaced.
    """
    together = [out, summary_of(out), plot_of(out), checkpoint_of(out)]
    if len({*together}) < len(together):
        raise UserError(f"--out {out}: the plot has the same name; give a name that ends in .jsonl")
    goes_on = resume and out.exists()
    hint = "--resume goes on with it, --overwrite replaces it"
    with outputs.owned_files(together, overwrite=overwrite or goes_on, inputs=read, hint=hint):
        if not overwrite or not any(path.exists() for path in together):
            yield out
            return
        folder = out.with_name(f".{out.name}.new")
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        with outputs.existing_folder(folder):
            with outputs.replacement(out):
                yield folder / out.name
            remove(summary_of(out), checkpoint_of(out))  # they belong to the old samples
            for path in (out, plot_of(out), summary_of(out)):
                if (folder / path.name).exists():
                    os.replace(folder / path.name, path)
        shutil.rmtree(folder, ignore_errors=True)


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
    """Sample all texts of the header into a file, and return the seconds that it took.

    Args:
        mlm: the masked language model.
        header: the first line, from `make_header`.
        config: the settings that the header was made from.
        out: the file.
        resume: continue a file with the same header, if there is one.
        every: seconds between two checkpoints, which are saved only after a complete sweep.
        quiet: show no progress.
    """
    groups = samplers(mlm, header["texts"], config)  # checks all texts before any is sampled
    tensors, facts = begin(out, header, resume=resume)
    start, sweep, state = facts.get("group", 0), facts["sweep"], None
    rng = generator(config, start)
    if tensors:
        check_place(facts, len(groups), config.sweeps, checkpoint_of(out))
        state = load_state(tensors, mlm, groups[start], rng, checkpoint_of(out))
    with (
        Growing(out, facts["bytes"]) as file,
        Progress("sample", len(groups) * config.sweeps, quiet=quiet) as progress,
        stopping() as stop,
    ):
        progress.skip(start * config.sweeps + sweep)
        writer = Writer(file, checkpoint_of(out), header, facts, every)
        stopped = f"stopped; --resume continues {out} after its last complete sweep"

        def finish(signum: int) -> None:
            writer.save()
            print(f"softbeam sample: {stopped}", file=sys.stderr, flush=True)

        try:
            with hurried(PATIENCE, finish):
                if not quiet:
                    with at_once(stop):
                        left = progress.total - int(progress.done)
                        progress.say(estimated(mlm, groups, config, sweeps=left))
                for group in range(start, len(groups)):
                    run = partial(groups[group].run, rng, state=state, first=sweep)
                    for record in stoppable(partial(run, on_step=progress.within), stop):
                        rows = sample_rows(mlm, record, config, group)
                        writer.write(rows, group, record, rng)
                        progress.advance(shown=progress_of(record))
                    rng, state, sweep = generator(config, group + 1), None, 0
        except KeyboardInterrupt as signal:
            writer.save()
            raise Interrupted(signum_of(signal), stopped) from None
        except Exception:
            if not tensors and file.file.tell() == facts["bytes"]:
                remove(out)  # no sample was drawn
            raise
    return writer.seconds()


def group_lines(
    mlm: TextModel, texts: Sequence[str], config: SamplingConfig, group: int
) -> Iterator[bytes]:
    """Sample a group of texts alone, and yield its lines, sweep by sweep."""
    chains = sampler(mlm, texts, config)
    for record in chains.run(generator(config, group)):
        yield b"".join(map(as_line, sample_rows(mlm, record, config, group)))


def write_groups(header: Header, out: Path, groups: Iterable[bytes]) -> None:
    """Write a file of samples whose groups, in order, were sampled elsewhere."""
    first = as_line(header)
    with Growing(out, len(first)) as file:
        for lines in groups:
            file.append(lines)
        file.synced()


@contextmanager
def at_once(stop: Sequence[int]) -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt inside the block, also one that was noted before it."""
    with ending():
        if stop:
            raise KeyboardInterrupt(stop[0])
        yield


def stoppable(run: Callable[[], Iterator[T]], stop: Sequence[int]) -> Iterator[T]:
    """Yield what `run` yields; a signal ends the work between two of them at once."""
    with at_once(stop):
        records = run()
    while True:
        with at_once(stop):
            record = next(records, None)
        if record is None:
            return
        yield record


def clear(out: Path) -> None:
    """Remove what only an unfinished file needs: its checkpoint, and groups of a cluster."""
    remove(checkpoint_of(out))
    remove_results(parts_of(out))


def progress_of(record: Record) -> dict[str, str]:
    """Numbers of a sweep for the progress line."""
    return {
        "energy": f"{record.state.energy.mean():.2f}",
        "accept": f"{record.counts.rate('accepted').mean():.2f}",
        "novel": f"{record.counts.rate('novel').mean():.2f}",
    }


def sample_rows(
    mlm: TextModel, record: Record, config: SamplingConfig, group: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each chain after a sweep; its tokens are without padding."""
    tokens, counts = record.state.tokens, torch.stack(list(record.counts), -1).tolist()
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
            "tokens": tokens[i][tokens[i] != mlm.pad_id].tolist(),
        }


class Writer:
    """Append sweeps to the file, and save a checkpoint from time to time."""

    def __init__(
        self, file: Growing, checkpoint: Path, header: Header, facts: dict[str, Any], every: float
    ):
        self.file, self.checkpoint, self.header = file, checkpoint, header
        self.before, self.every = float(facts["seconds"]), every
        self.started = self.saved = time.monotonic()
        self.unsaved: tuple[dict[str, torch.Tensor], dict[str, int]] | None = None

    def write(
        self, rows: Iterator[dict[str, Any]], group: int, record: Record, rng: torch.Generator
    ) -> None:
        """Append the rows of a sweep; save a checkpoint if it is time for one."""
        self.file.append(b"".join(map(as_line, rows)))
        tensors = record.state._asdict() | {"random": rng.get_state()}
        place = {"group": group, "sweep": record.sweep + 1, "bytes": self.file.file.tell()}
        self.unsaved = tensors, place
        if time.monotonic() - self.saved >= self.every:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of the last complete sweep, if there is none yet."""
        if self.unsaved is None:
            return
        tensors, place = self.unsaved
        self.file.synced()
        facts = {"seconds": self.seconds(), "header": self.header, "processes": 1}
        save_checkpoint(self.checkpoint, tensors, place | facts)
        self.saved, self.unsaved = time.monotonic(), None

    def seconds(self) -> float:
        """Seconds of sampling so far, including the runs that this one resumes."""
        return self.before + time.monotonic() - self.started


def begin(
    out: Path, header: Header, *, resume: bool
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """State to resume from: tensors and facts of a checkpoint. Without one, start a new file.

    Raises UserError if the file or its checkpoint belongs to other settings or processes.
    """
    checkpoint, summary = checkpoint_of(out), summary_of(out)
    for path in (out, checkpoint, summary, plot_of(out)):
        remove_parts(path.parent, glob.escape(path.name))
    if resume and out.exists():
        same_settings(out, read_header(out), header)
        if checkpoint.exists():
            tensors, facts = load_checkpoint(checkpoint)
            check_facts(checkpoint, facts)
            same_settings(checkpoint, facts["header"], header)
            if facts["processes"] != 1:
                raise UserError(
                    f"{out} was started by {facts['processes']} processes of torchrun; "
                    "give another --out to start again"
                )
            return tensors, facts
    remove(summary, checkpoint)  # they belong to the old samples
    first = as_line(header)
    write_atomic(out, first)
    return {}, {"sweep": 0, "seconds": 0.0, "bytes": len(first)}


def check_place(facts: dict[str, Any], groups: int, sweeps: int, checkpoint: Path) -> None:
    """Raise UserError if a checkpoint lies after the end of the run."""
    check_range(f"{checkpoint}: group", facts["group"], below=groups)
    check_range(f"{checkpoint}: sweep", facts["sweep"], most=sweeps)


def check_facts(checkpoint: Path, facts: dict[str, Any]) -> None:
    """Raise UserError if the facts of a checkpoint are incomplete or malformed."""
    counts = [facts.get(name) for name in ("group", "sweep", "bytes", "processes")]
    right = all(isinstance(count, int) and count >= 0 for count in counts)
    seconds = facts.get("seconds")
    if not (right and isinstance(seconds, int | float) and isinstance(facts.get("header"), dict)):
        others = {name: value for name, value in facts.items() if name != "header"}
        raise UserError(f"{checkpoint} is not a checkpoint of sampling: {others}")


def load_state(
    tensors: dict[str, torch.Tensor],
    mlm: TextModel,
    chains: Sampler,
    rng: torch.Generator,
    checkpoint: Path,
) -> ChainState:
    """Restore the chains and the generator from a checkpoint.

    Raises UserError if the checkpoint does not fit the texts.
    """
    like = chains.tokens
    try:
        state = ChainState(tensors["tokens"], tensors["energy"])
        shapes = (state.tokens.shape, state.tokens.dtype, state.energy.shape)
        if shapes != (like.shape, like.dtype, like.shape[:1]):
            raise ValueError(
                f"chains of shape {tuple(state.tokens.shape)}, not {tuple(like.shape)}"
            )
        fits = chains.fits(state.tokens, mlm.allowed, mlm.pad_id)
        if not fits or not bool(state.energy.isfinite().all()):
            raise ValueError("its chains do not fit the texts")
        rng.set_state(tensors["random"])
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"cannot resume from {checkpoint}: {error}") from None
    return state


def as_line(value: dict[str, Any]) -> bytes:
    """Encode a value as a line of JSON."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8")


def same_settings(path: Path, header: Header, wanted: Header) -> None:
    """Raise UserError if a file was started with settings other than those wanted."""
    for name, value in wanted.items():
        if header.get(name) == value or name in ("inputs", "accepted"):
            continue
        if name == "settings" and isinstance(before := header.get(name), dict):
            if (before := ADDED | before) == value:
                continue
            other = (key for key in value if before.get(key) != value[key])
            header, name = before, next(other, "further settings")
            value = value.get(name)
        raise UserError(
            f"{path} was started with {name} {header.get(name)!r}, not {value!r}; "
            "give another --out to start again"
        )


def resumed_header(out: Path, header: Header, *, accept: bool) -> Header:
    """Return the header to resume a file with: with all changes that were accepted.

    Raises UserError if files of the model have changed since the checkpoint and this is not
    accepted.
    """
    checkpoint = checkpoint_of(out)
    if not checkpoint.exists():
        return header
    facts = load_checkpoint(checkpoint)[1]
    check_facts(checkpoint, facts)
    return with_accepted(out, facts["header"], header, accept=accept)


def with_accepted(path: Path, before: Header, header: Header, *, accept: bool) -> Header:
    """Return the header with all changes of the model's files that were accepted.

    Raises UserError if the files differ from those of the earlier header and this is not accepted.
    """
    known = before.get("inputs") if isinstance(before.get("inputs"), dict) else {}
    old = {name: {"sha256": str(digest)} for name, digest in (known or {}).items()}
    now = {n: {"path": header["mlm"], "sha256": d} for n, d in header.get("inputs", {}).items()}
    changed = inputs.changes(old, now)
    if changed and not accept:
        raise inputs.refusal(path, changed)
    earlier = before.get("accepted")
    accepted = list(earlier) if isinstance(earlier, list) else []
    accepted += [inputs.acceptance(changed)] if changed else []
    return header | ({"accepted": accepted} if accepted else {})


# Reading

HEADER: Types = {"settings": dict, "texts": list, "mlm": str}
NUMBER = (int, float)
COUNTED = ("proposals", "accepted", "repeated", "novel", "stuck")
ROW: Types = {
    **{"index": int, "chain": int, "phase": str, "text": str, "tokens": list},
    **{"temperature": NUMBER, "energy": NUMBER},
    **dict.fromkeys(COUNTED, NUMBER),
}
LARGEST = 1e100  # of a number in a row: its square is finite
MOST_TOKENS = 2**31  # of any vocabulary
LEAST = dict.fromkeys(("index", "chain", "temperature", *COUNTED), 0.0) | {"energy": -LARGEST}


def read_header(path: Path) -> Header:
    """Read the first line of a file of samples. Raises UserError if it is not one."""
    try:
        with open_input(path) as file:
            line = file.readline()
    except OSError as error:
        raise cannot_read(path, error) from None
    return json_object(line, f"{path} is not a file of samples", HEADER, needed=True)


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of samples, without an incomplete last line.

    Raises UserError if a row lacks a field, or a number is out of range.
    """
    rows = read_rows(path, what := "a row of samples")
    next(rows, None)
    for number, row in enumerate(rows, 2):
        wrong = f"{path}, line {number}, is not {what}"
        check_fields(row, wrong, ROW, needed=True)
        for name, least in LEAST.items():
            if not least <= row[name] <= LARGEST:
                raise UserError(f"{wrong}: its {name} is {str(row[name])[:60]!r}")
        numbers = [type(token) is int and 0 <= token < MOST_TOKENS for token in row["tokens"]]
        if not numbers or not all(numbers):
            raise UserError(f"{wrong}: its tokens are {str(row['tokens'])[:60]}")
        yield row
