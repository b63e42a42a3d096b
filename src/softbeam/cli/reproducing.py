"""Commands that show results: demo, report, reproduce."""

from pathlib import Path
from typing import Literal

from softbeam.cli.parsing import parser, say_json
from softbeam.errors import UserError


def demo(words: list[str]) -> int:
    """The whole story on packaged data in a few minutes: softbeam demo [--out runs/demo]"""
    made = parser("demo", "Train small models on packaged data, compare greedy and beam, report.")
    made.add_argument("--out", type=str, default="runs/demo", help="folder for runs and report")
    made.add_argument("--words", type=int, default=8000, help="dictionary words to train on")
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="the table as a last line of JSON")
    parsed = made.parse_args(words)
    if parsed.words < 1:
        raise UserError(f"--words {parsed.words}: must be at least 1")
    from softbeam.demo import demo as run

    rows = run(Path(parsed.out), words=parsed.words, quiet=parsed.quiet)
    if parsed.json:
        say_json({"rows": rows, "report": str(Path(parsed.out) / "report.html")})
    return 0


def report(words: list[str]) -> int:
    """One self-contained HTML page about runs: softbeam report DIR… [--out report.html]"""
    made = parser("report", "Run folders as one HTML page, or a figure by name: figure-3.1.")
    made.add_argument("runs", type=str, nargs="+", help="run folders, folders of them, or a figure")
    made.add_argument("--out", type=str, default=None, help="the file to write")
    parsed = made.parse_args(words)
    if parsed.runs == ["figure-3.1"]:
        from softbeam.figures import figure_3_1

        print(figure_3_1(Path(parsed.out or "figure-3.1.png")))
        return 0
    from softbeam.report import write_report

    print(write_report([Path(r) for r in parsed.runs], Path(parsed.out or "report.html")))
    return 0


def reproduce(words: list[str]) -> int:
    """A table or figure of the thesis: softbeam reproduce table-6.1 [--preset cpu] [--jobs 2]"""
    from softbeam.reproduce import PRESETS, TARGETS
    from softbeam.reproduce import reproduce as run

    made = parser("reproduce", "Compute a table or figure; what is finished is never run again.")
    made.add_argument("what", type=str, help="; ".join(f"{k}: {v}" for k, v in TARGETS.items()))
    sizes = "; ".join(f"{k}: {v}" for k, v in PRESETS.items())
    made.add_argument("--preset", type=str, default="cpu", help=sizes)
    made.add_argument("--out", type=str, default="runs/reproduce", help="folder, shared by targets")
    made.add_argument("--seeds", type=int, default=5, help="datasets, or chains, to average over")
    made.add_argument("--jobs", type=int, default=None, help="processes; one for each core")
    made.add_argument("--distinct", action="store_true", help="each phoneme sequence once")
    made.add_argument(
        "--run",
        type=str | None,
        default=None,
        help="for tables 6.2 to 6.6 and their figures: a run of masked-translation or masked-g2p; "
        "the latter is trained below --out if not given",
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
    names = ("preset", "seeds", "jobs", "distinct", "start", "quiet")
    folder = Path(parsed.run) if parsed.run else None
    knobs = {name: parsed[name] for name in names}
    found = run(parsed.what, out=Path(parsed.out), run=folder, **knobs)
    print(found["text"])
    if parsed.json:
        say_json(found)
    return 0
