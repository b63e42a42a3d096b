"""Commands for finished runs: decode, evaluate, analyze."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softbeam._lazy import lazy
from softbeam.cli.parser import (
    Parser,
    as_lists,
    device_argument,
    field_docs,
    files_in,
    overwrite_argument,
    parser,
    say_json,
    threads_argument,
)
from softbeam.data.task import Task
from softbeam.data.tasks import Tagging
from softbeam.errors import WIDEST_BEAM, UserError, check_range
from softbeam.runtime.devices import check_name
from softbeam.runtime.files import write_text
from softbeam.runtime.outputs import folder, new_file
from softbeam.runtime.text_tables import aligned
from softbeam.training.config import CONFIG, from_yaml
from softbeam.training.own_search import own_search, scores_title, search_record, search_title
from softbeam.training.searches import FLAGS, SEARCHES, Beam, Search
from softbeam.training.threads import checked_threads

if TYPE_CHECKING:
    import torch

    from softbeam.reports import analysis, analysis_charts, charts, headroom
    from softbeam.training import baselines, comparing, input_forms as forms, runs
else:
    torch = lazy("torch")
    analysis = lazy("softbeam.reports.analysis")
    analysis_charts = lazy("softbeam.reports.analysis_charts")
    charts = lazy("softbeam.reports.charts")
    headroom = lazy("softbeam.reports.headroom")
    baselines = lazy("softbeam.training.baselines")
    comparing = lazy("softbeam.training.comparing")
    forms, runs = lazy("softbeam.training.input_forms"), lazy("softbeam.training.runs")

ANALYSIS = "analysis.json"
OWN = "as the run was trained if not given"


def decode(words: list[str]) -> int:
    """Run `softbeam decode`."""
    command = parser(
        "decode",
        "Outputs of a run for new inputs: plain lines, CoNLL columns or JSON lines. Columns, "
        "comments and fields of the inputs are kept, and the labels are added.",
    )
    search_arguments(command)
    command.add_argument(
        "--input", type=str, default=None, help="file; standard input if - or in a pipe"
    )
    command.add_argument(
        "--input-format",
        type=Literal["text", "conll", "jsonl"] | None,
        default=None,
        help="text (a sentence a line), conll (a token a line) or jsonl; recognized if not given",
    )
    command.add_argument(
        "--output", type=str, default="-", help="file; standard output if - or not given"
    )
    overwrite_argument(command)
    command.add_argument(
        "--format",
        type=Literal["text", "conll", "jsonl"] | None,
        default=None,
        help="of the outputs; as the inputs if not given",
    )
    data_arguments(command, ("word", "separator", "comment"))
    parsed, search = parse_search(command, words)
    if parsed.input is None and sys.stdin.isatty():
        raise UserError("--input is missing: a file, or - for standard input")
    source = parsed.input or "-"
    torch.set_num_threads(parsed.threads)
    with output_of(parsed, lambda: [Path(source)]) as write:
        run = runs.load_run(parsed.run, device=parsed.device)
        task = with_data(run.config.data, parsed)
        forms.check_form(parsed.format, task)
        inputs = forms.read_inputs(source, task, parsed.input_format)
        if inputs.form != "text" and parsed.input_format is None and not parsed.quiet:
            note = f"read as {inputs.form}; --input-format text would read a sentence a line"
            print(f"{source}: {note}", file=sys.stderr)
        outputs = run.decode(inputs.sources, search, quiet=parsed.quiet)
        write(forms.render(inputs, outputs, form=parsed.format, nbest=search.nbest))
    return 0


def data_arguments(command: Parser, names: Iterable[str]) -> None:
    """Add flags that change where a run's data are, or in which columns."""
    documented = field_docs(Tagging)
    types = {f.name: f.type for f in fields(Tagging)}
    for name in names:
        kind: Any = types[name]
        text = f"{documented[name]} (as in training if not given)"
        command.add_argument(f"--data.{name}", type=kind | None, default=None, help=text)


def with_data(task: Task, parsed: Any) -> Task:
    """Change a task by the flags of `data_arguments`; raises UserError if it lacks the setting."""
    values = {name: parsed.data.get(name) for name in COLUMN_SETTINGS}
    given = {name: value for name, value in values.items() if value is not None}
    for name in given.keys() - {f.name for f in fields(task)}:
        kind = type(task).__name__
        raise UserError(f"--data.{name} {given[name]}: is no setting of {kind}, the run's task")
    return replace(task, **given)


COLUMN_SETTINGS = ("word", "tag", "separator", "comment")


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
    """Run `softbeam evaluate`."""
    command = parser("evaluate", "Decode a split of a run's data, or a new file, and score it.")
    search_arguments(command)
    command.add_argument(
        "--split", type=str | None, default=None, help="train, dev (if not given) or test"
    )
    files = {
        "test": "a new labelled file to score: columns for tagging, else a TSV of both sides",
        "test_source": "of a translation: new sentences to score, one on a line",
        "test_target": "their translations",
    }
    for name, text in files.items():
        command.add_argument(f"--data.{name}", type=str | None, default=None, help=text)
    data_arguments(command, COLUMN_SETTINGS)
    command.add_argument("--json", action="store_true", help="figures as a last line of JSON")
    command.add_argument("--output", type=str, default=None, help="also write the outputs here")
    overwrite_argument(command)
    command.add_argument(
        "--against",
        type=str,
        default=None,
        help="another run: is it different? Or its seeds, as b-1,b-2: of the run and of --with",
    )
    command.add_argument(
        "--with",
        type=str,
        default=None,
        help="further seeds of the run, as a-2,a-3, for --against",
    )
    command.add_argument(
        "--check-normalization", action="store_true", help="raw and normalized scores, and log Z"
    )
    parsed, search = parse_search(command, words)
    mine, others = [parsed.run, *folders_of(parsed["with"])], folders_of(parsed.against)
    if len(mine) != max(len(others), 1):
        counts = f"--against has {len(others)} runs, and with --with there are {len(mine)} of ours"
        raise UserError(f"{counts}: give each seed its partner")
    if parsed.check_normalization and isinstance(search, Beam) and search.k < 2:
        raise UserError(f"--beam {search.k}: --check-normalization needs a beam of at least 2")
    new = new_files(parsed)
    split = parsed.split or ("test" if new else "dev")
    torch.set_num_threads(parsed.threads)
    config = Path(parsed.run) / CONFIG
    read = [Path(path) for path in new]
    with output_of(parsed, lambda: read or from_yaml(config).data.load().paths.values()) as write:
        run = runs.load_run(parsed.run, device=parsed.device)
        if new:
            examples = with_data(run.config.data, parsed).read_new(new)
            run = run.with_split(split, examples, title=" + ".join(new))
        seeds = [run, *(runs.load_run(path, device=parsed.device) for path in mine[1:])]
        partners = [runs.load_run(path, device=parsed.device) for path in others]
        for partner in [*seeds, *partners]:
            run.check_kind(partner)
        evaluation = run.evaluate(split, search, quiet=parsed.quiet)
        write("".join(" ".join(tokens) + "\n" for tokens in evaluation.outputs))
    show_figures(evaluation.conditions())
    show_figures(evaluation.metrics)
    record = {"run": parsed.run} | evaluation.record()
    if figures := run.baselines(split):
        record["baselines"] = figures
        print(baselines.as_text(split, figures))
        if warning := baselines.warning(run.kind, evaluation.metrics, figures):
            print(warning, file=sys.stderr)
    if (gain := headroom.headroom(run, split)) is not None:
        record["headroom"] = gain
        print(headroom.as_text(split, gain))
    if partners:
        ours, theirs = (
            [
                comparing.Searched(r, r.own_search(parsed.search, **search_settings(parsed)))
                for r in found
            ]
            for found in (seeds, partners)
        )
        comparison = comparing.compare_runs(
            ours, theirs, split, quiet=parsed.quiet, evaluation=evaluation
        )
        how = theirs[0].search or partners[0].config.select
        record["against"] = {"search": search_record(how)} | comparison._asdict()
        searched = f"{search_title(how)}, {scores_title(how.normalize)}"
        print(f"\nagainst {', '.join(others)}: {searched}")
        show_figures(comparison._asdict())
    if parsed.check_normalization:
        record["normalization"] = analysis.check_split(run, split, search, quiet=parsed.quiet)
        print("\nbeam search with raw and with normalized scores")
        show_figures({k: v for k, v in record["normalization"].items() if v is not None})
    if parsed.json:
        say_json(record)
    return 0


def folders_of(given: str | None) -> list[str]:
    """Split folders that are separated by commas; a folder that exists is not split."""
    if given is None:
        return []
    return [given] if Path(given).exists() else given.split(",")


def new_files(parsed: Any) -> list[str]:
    """Return the files of --data.test, or of --data.test-source and --data.test-target."""
    data = parsed.data
    if (data.test_source is None) != (data.test_target is None):
        raise UserError("--data.test-source and --data.test-target: give both")
    if data.test is not None and data.test_source is not None:
        raise UserError(f"--data.test {data.test}: give it or --data.test-source, not both")
    new = [path for path in (data.test, data.test_source, data.test_target) if path is not None]
    if new and parsed.split not in (None, "test"):
        raise UserError(f"--split {parsed.split}: --data.test is the split test")
    return new


def analyze(words: list[str]) -> int:
    """Run `softbeam analyze`."""
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
    threads_argument(command)
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.add_argument("--json", action="store_true", help="everything as a last line of JSON")
    parsed = command.parse_args(as_lists(words, ("--beams",)))
    for beam in parsed.beams or [0]:
        check_range("--beams", beam, least=1, most=WIDEST_BEAM)
    parsed.threads = checked_threads(parsed.threads)
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
    threads_argument(command)
    device_argument(command)
    command.add_argument("--quiet", action="store_true", help="no progress")


def search_flags() -> dict[str, str]:
    """Map fields of searches to the flags of decode and evaluate that set them."""
    names = dict.fromkeys(f.name for kind in SEARCHES.values() for f in fields(kind))
    return {name: FLAGS.get(name, name.replace("_", "-")) for name in names}


def parse_search(command: Parser, words: list[str]) -> tuple[Any, Search]:
    """Parse the arguments; what they leave open of the search is as the run was trained."""
    parsed = command.parse_args(words)
    parsed.threads = checked_threads(parsed.threads)
    check_name(parsed.device)
    config = from_yaml(Path(parsed.run) / CONFIG)
    return parsed, own_search(Path(parsed.run), config, parsed.search, search_settings(parsed))


def search_settings(parsed: Any) -> dict[str, Any]:
    """Return the settings of a search that the command line gives."""
    values = {name: parsed[flag.replace("-", "_")] for name, flag in search_flags().items()}
    return {name: value for name, value in values.items() if value is not None}


def show_figures(figures: dict[str, Any]) -> None:
    """Print a line for each figure; tables of figures follow, a row a line."""
    tables = {}
    for name, value in figures.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            tables[name] = value
        else:
            print(f"{name:24} {shown(value)}")
    for name, rows in tables.items():
        print(f"\n{name.replace('_', ' ')}")
        titles = [key.replace("_", " ") for key in rows[0]]
        print(aligned([titles, *([shown(v) for v in row.values()] for row in rows)], ">"))


def shown(value: Any) -> str:
    """Write a figure for people: four digits, an interval as `1.2 to 3.4`."""
    if isinstance(value, tuple) and len(value) == 2:
        return " to ".join(map(shown, value))
    if isinstance(value, list | tuple):
        return "  ".join(map(shown, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
