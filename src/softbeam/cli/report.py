"""Commands that show results: demo, report, reproduce."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from softbeam.cli.parser import (
    accept_argument,
    device_argument,
    files_in,
    overwrite_argument,
    parser,
    say_json,
    whole_numbers,
)
from softbeam.cli.workers import worker_arguments, workers_of
from softbeam.errors import check_range
from softbeam.runtime import outputs
from softbeam.runtime.devices import check_name


def demo(words: list[str]) -> int:
    """Run `softbeam demo`."""
    command = parser(
        "demo", "Train taggers for their search, sample a masked model, write a report."
    )
    command.add_argument("--out", type=str, default="runs/demo", help="folder for runs and report")
    command.add_argument("--quick", action="store_true", help="less data and training: a minute")
    number = "dictionary words to train on; 8000 if not given, 4000 with --quick"
    command.add_argument("--words", type=int | None, default=None, help=number)
    device_argument(command)
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.add_argument("--json", action="store_true", help="the tables as a last line of JSON")
    parsed = command.parse_args(words)
    check_range("--words", parsed.words, least=20)
    check_name(parsed.device)
    from softbeam.experiments.demo import FULL, QUICK, demo as run

    size = QUICK if parsed.quick else FULL
    size = replace(size, words=parsed.words or size.words)
    tables = run(Path(parsed.out), size=size, quiet=parsed.quiet, device=parsed.device)
    if parsed.json:
        say_json(tables | {"report": str(Path(parsed.out) / "report.html")})
    return 0


def report(words: list[str]) -> int:
    """Run `softbeam report`."""
    if words[:1] == ["claims"]:
        return claims(words[1:])
    command = parser(
        "report", "Write one HTML page about runs, tables and samples, or draw figure-3.1."
    )
    command.add_argument(
        "runs",
        type=str,
        nargs="+",
        help="run folders, folders of runs, folders of reproduce, files of samples (.jsonl), "
        "tables of mutants (.csv); or figure-3.1",
    )
    command.add_argument("--out", type=str, default=None, help="the file to write")
    overwrite_argument(command)
    command.add_argument("--beams", type=int, default=1, help="how many runs get pictures of beams")
    command.add_argument(
        "--sentences",
        type=str,
        default="",
        help="the sentences of dev whose beams are drawn, counted from 1, as 3,17; "
        "a few short ones if not given",
    )
    parsed = command.parse_args(words)
    if parsed.runs == ["figure-3.1"]:
        from softbeam.experiments.figure_3_1 import figure_3_1

        picture = Path("figure-3.1.png" if parsed.out is None else parsed.out)
        with outputs.new_file(picture, overwrite=parsed.overwrite):
            print(figure_3_1(picture))
        return 0
    from softbeam.reports.page import write_report

    check_range("--beams", parsed.beams, least=0)
    sentences = whole_numbers("--sentences", parsed.sentences) if parsed.sentences else []
    page = Path("report.html" if parsed.out is None else parsed.out)
    paths = [Path(path) for path in parsed.runs]
    read = [file for path in paths for file in files_in(path) if file.suffix != ".html"]
    with outputs.new_file(page, overwrite=parsed.overwrite, inputs=read):
        print(write_report(paths, page, beams=parsed.beams, sentences=sentences))
    return 0


def claims(words: list[str]) -> int:
    """The papers' claims with our verdicts: softbeam report claims [TABLE…] [--json]"""
    from softbeam.experiments.reproduce import claims_in
    from softbeam.reports.verdicts import claim_text, verdict_counts

    command = parser("report claims", "Print the verdicts on the papers' claims about tables.")
    command.add_argument(
        "tables", type=str, nargs="*", help="as table-4.1; every table of the folder if not given"
    )
    command.add_argument(
        "--results", type=str, default="results", help="folder of reproduce's files"
    )
    command.add_argument("--json", action="store_true", help="print a last line of JSON")
    parsed = command.parse_args(words)
    by_table = claims_in(Path(parsed.results), parsed.tables)
    for name, judged in by_table.items():
        print(name)
        for claim in judged:
            print(f"  {claim_text(claim)}")
    counts = verdict_counts(claim for judged in by_table.values() for claim in judged)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if parsed.json:
        say_json({"claims": by_table, "counts": counts})
    return 0


def reproduce(words: list[str]) -> int:
    """Run `softbeam reproduce`."""
    from softbeam.experiments.reproduce import (
        ALL,
        ARMS,
        PRESETS,
        TARGETS,
        TRAINED,
        listed,
        prepare,
        reproduce as run,
        targets_of,
        totals,
    )
    from softbeam.runtime.progress import clock

    command = parser("reproduce", "Compute a table or figure; finished parts are not run again.")
    targets = "; ".join(f"{k}: {v}" for k, v in TARGETS.items())
    command.add_argument("what", type=str, help=f"{targets}; {ALL}: all of these")
    sizes = "; ".join(f"{k}: {v}" for k, v in PRESETS.items())
    command.add_argument("--preset", type=str, default="cpu", help=sizes)
    command.add_argument("--out", type=str, default="runs/reproduce", help="folder of results")
    command.add_argument(
        "--list",
        action="store_true",
        help="run nothing: print the cells of tables 3.1 to 5.6, which are done, and how long the "
        "others may take",
    )
    command.add_argument(
        "--finished",
        action="store_true",
        help="run nothing: show the rows and claims of tables 3.1 to 5.6 whose runs are finished",
    )
    command.add_argument(
        "--only",
        type=str,
        default="*",
        help='train only the runs of tables 3.1 to 5.6 whose names match, as "ner/*", and show '
        "what is finished",
    )
    seeds = "number of seeds; if not given, 3, 5 for table-6.1 and figure-6.1, the plan's for full"
    command.add_argument("--seeds", type=int | None, default=None, help=seeds)
    worker_arguments(command, jobs=None)
    accept_argument(command)
    command.add_argument("--distinct", action="store_true", help="use each phoneme sequence once")
    command.add_argument(
        "--models",
        type=str,
        nargs="+",
        default=[],
        help="for tables 6.2 to 6.6, figures 6.2 to 6.4, sampling-order and low-energy-texts: runs "
        "of masked-translation or masked-g2p to sample from; of a single one, --seeds chains are "
        "sampled; if none is given, --seeds runs are trained",
    )
    arms = "; ".join(f"{k}: {v}" for k, v in ARMS.items())
    command.add_argument(
        "--arm", type=str | None, default=None, help=f"which models are trained for these; {arms}"
    )
    command.add_argument(
        "--judge",
        type=str | None,
        default=None,
        help="for low-energy-texts: a left-to-right run that scores texts; needed with --models",
    )
    command.add_argument(
        "--start",
        type=Literal["greedy", "random"],
        default="greedy",
        help="first texts of these chains: all positions predicted at once, or random tokens",
    )
    command.add_argument("--quiet", action="store_true", help="print no progress")
    command.add_argument("--json", action="store_true", help="print the record as a line of JSON")
    parsed = command.parse_args(words)
    if parsed.list:
        out = Path(parsed.out)
        print(listed(parsed.what, preset=parsed.preset, out=out, seeds=parsed.seeds))
        return 0
    knobs_of_models = {
        "models": [Path(model) for model in parsed.models],
        "arm": parsed.arm,
        "judge": Path(parsed.judge) if parsed.judge else None,
    }
    names = ("preset", "seeds", "distinct", "start", "quiet", "finished", "only")
    knobs = {name: parsed[name] for name in (*names, "accept_changed_inputs")}
    if parsed.jobs is None:
        parsed.jobs = 1 if parsed.cluster is not None else os.cpu_count() or 1
    knobs["workers"] = workers_of(parsed)
    out, started, records = Path(parsed.out), time.monotonic(), []
    if parsed.what == ALL and not parsed.finished:
        shared = ("preset", "seeds", "workers", "quiet", "only", "accept_changed_inputs")
        prepare(out=out, **knobs_of_models, **{name: knobs[name] for name in shared})
        knobs["finished"] = parsed.only != "*"
    wanted = targets_of(parsed.preset) if parsed.what == ALL else [parsed.what]
    if knobs["finished"] and parsed.what == ALL:
        wanted = [what for what in wanted if what in TRAINED]
    for what in wanted:
        records.append(run(what, out=out, **knobs_of_models, **knobs))
        print(records[-1]["text"], flush=True)
        if parsed.json:
            say_json(records[-1])
    if parsed.what == ALL:
        print(f"all: {totals(records)}; now {clock(time.monotonic() - started)}")
    return 0
