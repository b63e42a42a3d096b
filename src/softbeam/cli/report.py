"""Commands that show results: demo, report, reproduce."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from softbeam.cli.parser import parser, say_json
from softbeam.cli.worker import worker_arguments, workers_of
from softbeam.errors import UserError, limited


def demo(words: list[str]) -> int:
    """The whole story on packaged data in a few minutes: softbeam demo [--quick]"""
    made = parser("demo", "Train taggers for their search, sample a masked model, write a report.")
    made.add_argument("--out", type=str, default="runs/demo", help="folder for runs and report")
    made.add_argument("--quick", action="store_true", help="less data and training: a minute")
    number = "dictionary words to train on; 8000 if not given, 4000 with --quick"
    made.add_argument("--words", type=int | None, default=None, help=number)
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="the tables as a last line of JSON")
    parsed = made.parse_args(words)
    limited("--words", parsed.words, least=20)
    from softbeam.experiments.demo import FULL, QUICK
    from softbeam.experiments.demo import demo as run

    size = QUICK if parsed.quick else FULL
    size = replace(size, words=parsed.words or size.words)
    tables = run(Path(parsed.out), size=size, quiet=parsed.quiet)
    if parsed.json:
        say_json(tables | {"report": str(Path(parsed.out) / "report.html")})
    return 0


def report(words: list[str]) -> int:
    """One self-contained HTML page about runs: softbeam report DIR… | claims [TABLE…]"""
    if words[:1] == ["claims"]:
        return claims(words[1:])
    made = parser("report", "Runs, tables and samples as one HTML page, or a figure: figure-3.1.")
    what = "runs, folders of runs or of reproduce, files of samples (.jsonl); or a figure"
    made.add_argument("runs", type=str, nargs="+", help=what)
    made.add_argument("--out", type=str, default=None, help="the file to write")
    made.add_argument("--beams", type=int, default=1, help="runs whose soft beams are drawn")
    made.add_argument(
        "--sentences",
        type=str,
        default="",
        help="whose: numbers in dev from 1, as 3,17; short ones",
    )
    parsed = made.parse_args(words)
    if parsed.runs == ["figure-3.1"]:
        from softbeam.experiments.figure_3_1 import figure_3_1

        print(figure_3_1(Path(parsed.out or "figure-3.1.png")))
        return 0
    from softbeam.reports.page import write_report

    if parsed.beams < 0:
        raise UserError(f"--beams {parsed.beams}: must be 0 or more")
    paths = [Path(r) for r in parsed.runs]
    try:
        sentences = [int(number) for number in parsed.sentences.split(",") if number]
    except ValueError:
        raise UserError(f"--sentences {parsed.sentences}: give numbers, as 3,17") from None
    page = Path(parsed.out or "report.html")
    print(write_report(paths, page, beams=parsed.beams, sentences=sentences))
    return 0


def claims(words: list[str]) -> int:
    """What the documents claim, with our verdicts: softbeam report claims [TABLE…] [--json]"""
    from softbeam.experiments.reproduce import claims_in
    from softbeam.reports.verdicts import claim_text, verdict_counts

    made = parser("report claims", "The verdicts on what the documents claim of tables.")
    made.add_argument(
        "tables", type=str, nargs="*", help="as table-4.1; all there are if not given"
    )
    made.add_argument("--results", type=str, default="results", help="folder of their JSON files")
    made.add_argument("--json", action="store_true", help="as a last line of JSON")
    parsed = made.parse_args(words)
    found = claims_in(Path(parsed.results), parsed.tables)
    for name, judged in found.items():
        print(name)
        for one in judged:
            print(f"  {claim_text(one)}")  # type: ignore[arg-type]
    counts = verdict_counts(one for judged in found.values() for one in judged)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if parsed.json:
        say_json({"claims": found, "counts": counts})
    return 0


def reproduce(words: list[str]) -> int:
    """A table or figure of the thesis: softbeam reproduce table-6.1 [--preset cpu] [--jobs 2]"""
    from softbeam.experiments.reproduce import ALL, PRESETS, TARGETS, prepare, totals
    from softbeam.experiments.reproduce import reproduce as run
    from softbeam.runtime.progress import clock

    made = parser("reproduce", "Compute a table or figure; what is finished is never run again.")
    names = "; ".join(f"{k}: {v}" for k, v in TARGETS.items())
    made.add_argument("what", type=str, help=f"{names}; {ALL}: every one of them")
    sizes = "; ".join(f"{k}: {v}" for k, v in PRESETS.items())
    made.add_argument("--preset", type=str, default="cpu", help=sizes)
    made.add_argument("--out", type=str, default="runs/reproduce", help="folder, shared by targets")
    seeds = "seeds to average over; 3 if not given, 5 for generated datasets"
    made.add_argument("--seeds", type=int | None, default=None, help=seeds)
    worker_arguments(made, jobs=None)
    made.add_argument("--distinct", action="store_true", help="each phoneme sequence once")
    made.add_argument(
        "--run",
        type=str | None,
        default=None,
        help="for tables 6.2 to 6.6 and their figures: a run of masked-translation or masked-g2p, "
        "of which --seeds chains are sampled; if not given, as many of the latter are trained",
    )
    made.add_argument(
        "--start",
        type=Literal["greedy", "random"],
        default="greedy",
        help="the first texts of those chains: all positions predicted at once, or random tokens",
    )
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="the record as a last line of JSON")
    parsed = made.parse_args(words)
    folder = Path(parsed.run) if parsed.run else None
    knobs = {k: parsed[k] for k in ("preset", "seeds", "distinct", "start", "quiet")}
    parsed.jobs = os.cpu_count() or 1 if parsed.jobs is None else parsed.jobs
    knobs["workers"] = workers_of(parsed)
    out, started, records = Path(parsed.out), time.monotonic(), []
    if parsed.what == ALL:
        few = ("preset", "seeds", "workers", "quiet")
        prepare(out=out, run=folder, **{name: knobs[name] for name in few})
    for what in TARGETS if parsed.what == ALL else [parsed.what]:
        records.append(run(what, out=out, run=folder, **knobs))
        print(records[-1]["text"], flush=True)
        if parsed.json:
            say_json(records[-1])
    if parsed.what == ALL:
        print(f"all: {totals(records)}; now {clock(time.monotonic() - started)}")
    return 0
