"""A finished run at work: decode a user's lines, score a split."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from softbeam.data.readers import read_lines
from softbeam.errors import UserError
from softbeam.runtime.progress import Progress
from softbeam.training.config import Search
from softbeam.training.evaluation import Output, best, compare, decode, evaluate_outputs, problems
from softbeam.training.runs import Run, load_run


def load(folder: Path, *, threads: int) -> Run:
    """The run on the best device there is."""
    torch.set_num_threads(threads)
    run = load_run(folder)
    found = torch.accelerator.current_accelerator()
    run.model.to(found if found is not None and torch.accelerator.is_available() else "cpu")
    return run


def read_inputs(path: str) -> list[str]:
    """The lines to decode, from a file (plain or .gz) or from standard input."""
    return [" ".join(tokens) for tokens in read_lines(path)]


def decode_lines(
    run: Run, lines: Sequence[str], search: Search, *, quiet: bool
) -> list[list[Output]]:
    """Outputs for each line, best first; an empty line is an error that names it."""
    sources = [run.config.data.tokens(line) for line in lines]
    empty = [i for i, source in enumerate(sources, 1) if not source]
    if empty:
        raise UserError(f"input line {empty[0]}: expected at least one token, found an empty line")
    with Progress("decode", len(sources), quiet=quiet) as progress:
        return decode(run.model, sources, run.codecs, search, on_batch=progress.advance)


def render(
    lines: Sequence[str], outputs: Sequence[Sequence[Output]], *, style: str, nbest: int
) -> str:
    """One output on a line; with n-best or as JSONL also its input's number and score."""
    rows = []
    for number, (line, found) in enumerate(zip(lines, outputs, strict=True)):
        for rank, output in enumerate(found):
            text = " ".join(output.tokens)
            if style == "jsonl":
                row = {"line": number, "rank": rank, "score": output.score}
                rows.append(json.dumps(row | {"input": line, "output": text}, ensure_ascii=False))
            else:
                rows.append(f"{number}\t{output.score:.4f}\t{text}" if nbest > 1 else text)
    return "".join(row + "\n" for row in rows)


def evaluate_split(
    run: Run, split: str, search: Search, *, quiet: bool
) -> tuple[dict[str, Any], list[list[str]]]:
    """The metrics of a split with the search that gave them, and the outputs."""
    started = time.monotonic()
    examples = run.config.data.load().split(split)
    with Progress(f"decode {split}", len(examples), quiet=quiet) as progress:
        metrics, outputs = evaluate_outputs(
            run.model,
            examples,
            run.config.data.kind,
            run.codecs,
            search,
            on_batch=progress.advance,
        )
    seconds = round(time.monotonic() - started, 2)
    found = {"search": asdict(search), "metrics": metrics, "sentences": len(outputs)}
    return found | {"seconds": seconds}, outputs


def compare_split(
    run: Run,
    outputs: Sequence[Sequence[str]],
    other: Run,
    split: str,
    search: Search,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """How sure the difference of a run's outputs from another run's is, on the run's split."""
    kind = run.config.data.kind
    sources, references = problems(kind, run.config.data.load().split(split))
    with Progress(f"decode {split}", len(sources), quiet=quiet) as progress:
        theirs = best(decode(other.model, sources, other.codecs, search, on_batch=progress.advance))
    return compare(kind, references, outputs, theirs)
