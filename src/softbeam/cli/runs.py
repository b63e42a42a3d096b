"""Commands for finished runs: decode, evaluate, analyze."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import (
    Parser,
    as_lists,
    field_docs,
    files_in,
    overwrite_argument,
    parser,
    say_json,
)
from softbeam.errors import WIDEST_BEAM, UserError, check_range, check_threads
from softbeam.runtime.files import write_text
from softbeam.runtime.outputs import folder, new_file
from softbeam.training.config import CONFIG, from_yaml
from softbeam.training.searches import FLAGS, SEARCHES, Beam, Search, name_of

if TYPE_CHECKING:
    import torch

    from softbeam.reports import analysis, analysis_charts, charts
    from softbeam.training import decoding, runs
else:
    torch = lazy("torch")
    analysis = lazy("softbeam.reports.analysis")
    analysis_charts = lazy("softbeam.reports.analysis_charts")
    charts = lazy("softbeam.reports.charts")
    decoding, runs = lazy("softbeam.training.decoding"), lazy("softbeam.training.runs")

ANALYSIS = "analysis.json"
OWN = "the search that chose the run's weights if not given"


def decode(words: list[str]) -> int:
    """Decode new inputs: softbeam decode RUN --input FILE [--search beam --beam 5]"""
    command = parser(
        "decode", "Outputs of a run for new inputs, one on a line (- reads standard input)."
    )
    search_arguments(command)
    command.add_argument(
        "--input", type=str, required=True, help="inputs, one on a line; - for stdin"
    )
    command.add_argument(
        "--output", type=str, default="-", help="file; standard output if - or not given"
    )
    overwrite_argument(command)
    command.add_argument("--format", type=str, choices=["text", "jsonl"], default="text")
    parsed, search = parse_search(command, words)
    torch.set_num_threads(parsed.threads)
    with output_of(parsed, lambda: [Path(parsed.input)]) as write:
        run = runs.load_run(parsed.run)
        lines = decoding.read_inputs(parsed.input)
        outputs = run.decode(lines, search, quiet=parsed.quiet)
        write(decoding.render(lines, outputs, style=parsed.format, nbest=search.nbest))
    return 0


@contextmanager
def output_of(
    parsed: Any, inputs: Callable[[], Iterable[Path]]
) -> Iterator[Callable[[str], object]]:
    """Give a function that writes a text to --output, and check first that it may be written.

    The files of the run, and those that `inputs` returns, are not replaced.
    """
    if parsed.output in (None, "-"):
        yield sys.stdout.write if parsed.output else str
        return
    out = Path(parsed.output)
    read = [*files_in(Path(parsed.run)), *inputs()] if out.exists() else []
    with new_file(out, overwrite=parsed.overwrite, inputs=read):
        yield lambda text: write_text(out, text)


def evaluate(words: list[str]) -> int:
    """Score a run: softbeam evaluate RUN --split dev [--search beam --beam 3] [--json]"""
    command = parser("evaluate", "Decode a split of a run's data and score it.")
    search_arguments(command)
    command.add_argument("--split", type=str, default="dev", help="train, dev or test")
    command.add_argument("--json", action="store_true", help="figures as a last line of JSON")
    command.add_argument("--output", type=str, default=None, help="also write the outputs here")
    overwrite_argument(command)
    command.add_argument("--against", type=str, default=None, help="another run: is it different?")
    command.add_argument(
        "--check-normalization", action="store_true", help="raw and normalized scores, and log Z"
    )
    parsed, search = parse_search(command, words)
    if parsed.check_normalization and isinstance(search, Beam) and search.k < 2:
        raise UserError(f"--beam {search.k}: --check-normalization needs a beam of at least 2")
    torch.set_num_threads(parsed.threads)
    config = Path(parsed.run) / CONFIG
    with output_of(parsed, lambda: from_yaml(config).data.load().paths.values()) as write:
        run = runs.load_run(parsed.run)
        other = None if parsed.against is None else runs.load_run(parsed.against)
        if other is not None:
            run.check_kind(other)
        evaluation = run.evaluate(parsed.split, search, quiet=parsed.quiet)
        write("".join(" ".join(tokens) + "\n" for tokens in evaluation.outputs))
    show_figures(evaluation.metrics)
    record = {"run": parsed.run} | evaluation.record()
    if other is not None:
        comparison = run.compare(
            other, parsed.split, search, quiet=parsed.quiet, evaluation=evaluation
        )
        record["against"] = comparison._asdict()
        print(f"\nagainst {parsed.against} (paired bootstrap over sentences)")
        show_figures(record["against"])
    if parsed.check_normalization:
        record["normalization"] = analysis.check_split(
            run, parsed.split, search, quiet=parsed.quiet
        )
        print("\nbeam search with raw and with normalized scores")
        show_figures({k: v for k, v in record["normalization"].items() if v is not None})
    if parsed.json:
        say_json(record)
    return 0


def analyze(words: list[str]) -> int:
    """Show where runs go wrong, side by side: softbeam analyze RUN… [--beams 1,2,3,5,10,20]"""
    command = parser(
        "analyze", "Tables and figures of runs of one task: beam sizes, errors, lengths."
    )
    command.add_argument("runs", type=str, nargs="+", help="folders of finished runs")
    command.add_argument("--split", type=str, default="dev", help="train, dev or test")
    command.add_argument("--beams", type=list[int], default=[1, 2, 3, 5, 10, 20], help="beam sizes")
    command.add_argument(
        "--normalize",
        type=bool | None,
        default=None,
        help="normalized scores; as each run's select",
    )
    command.add_argument(
        "--limit", type=int | None, default=None, help="use only the first LIMIT examples"
    )
    command.add_argument("--out", type=str, default="runs/analysis", help="folder for the figures")
    overwrite_argument(command)
    command.add_argument("--threads", type=int, default=1, help="processor threads")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.add_argument("--json", action="store_true", help="everything as a last line of JSON")
    parsed = command.parse_args(as_lists(words, ("--beams",)))
    for beam in parsed.beams or [0]:
        check_range("--beams", beam, least=1, most=WIDEST_BEAM)
    check_threads(parsed.threads)
    check_range("--limit", parsed.limit, least=1)
    out, analyzed = Path(parsed.out), [Path(run) for run in parsed.runs]
    charts.require_charts(out)
    with folder(
        out,
        describe=analysis_in,
        inputs=analyzed,
        overwrite=parsed.overwrite,
        hint="--overwrite replaces it",
    ) as place:
        measures = analysis.analyze(
            analyzed,
            split=parsed.split,
            beams=parsed.beams,
            normalize=parsed.normalize,
            limit=parsed.limit,
            threads=parsed.threads,
            quiet=parsed.quiet,
        )
        print(analysis_charts.as_text(measures))
        text = json.dumps(measures, indent=1, ensure_ascii=False) + "\n"
        figures = analysis_charts.write_figures(measures, place)
        write_text(place / ANALYSIS, text)
    names = ", ".join(dict.fromkeys(path.stem for path in figures))
    print(f"\nin {out}: {ANALYSIS}, and as .png and .svg {names}")
    if parsed.json:
        say_json(measures)
    return 0


def analysis_in(place: Path) -> str | None:
    """Say whether a folder is that of an analysis."""
    return "an analysis" if (place / ANALYSIS).is_file() else None


def search_arguments(command: Parser) -> None:
    """Add the run folder and the flags of all searches, shared by decode and evaluate."""
    command.add_argument("run", type=str, help="folder of a finished run")
    command.add_argument("--search", type=str, default=None, help=f"{', '.join(SEARCHES)}; {OWN}")
    for name, flag in search_flags().items():
        kinds = {k: s for k, s in SEARCHES.items() if name in {f.name for f in fields(s)}}
        first = next(iter(kinds.values()))
        text = field_docs(first)[name]
        only = f" ({', '.join(kinds)})" if len(kinds) < len(SEARCHES) else ""
        kind: Any = next(f.type for f in fields(first) if f.name == name)
        command.add_argument(f"--{flag}", type=kind | None, default=None, help=text + only)
    command.add_argument("--threads", type=int, default=1, help="processor threads")
    command.add_argument("--quiet", action="store_true", help="no progress")


def search_flags() -> dict[str, str]:
    """Map fields of searches to the flags of decode and evaluate that set them."""
    names = dict.fromkeys(f.name for kind in SEARCHES.values() for f in fields(kind))
    return {name: FLAGS.get(name, name.replace("_", "-")) for name in names}


def parse_search(command: Parser, words: list[str]) -> tuple[Any, Search]:
    """Parse the arguments; the search is that of --search, or the run's own without it."""
    parsed = command.parse_args(words)
    check_threads(parsed.threads)
    if parsed.search is None:
        search = from_yaml(Path(parsed.run) / CONFIG).select
    elif parsed.search in SEARCHES:
        search = SEARCHES[parsed.search]()
    else:
        raise UserError(f"--search {parsed.search}: there are {', '.join(SEARCHES)}")
    values = {name: parsed[flag.replace("-", "_")] for name, flag in search_flags().items()}
    given = {name: value for name, value in values.items() if value is not None}
    for name in given.keys() - {f.name for f in fields(search)}:
        flag = f"--{search_flags()[name]} {given[name]}"
        raise UserError(f"{flag}: is no setting of the search {name_of(search)}")
    return parsed, replace(search, **given)


def show_figures(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        print(f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}")
