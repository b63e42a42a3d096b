"""The command line. Nothing heavy is imported before a command is known to be well formed."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from softbeam import __version__
from softbeam.errors import Interrupted, UserError
from softbeam.files import write_text

ALIASES = {"--search": "--method"}
TRAIN_ALIASES = {"--objective": "--finetune.objective", "--beam": "--finetune.objective.k"}


SHORT_FORMS = """
short forms:
  --objective NAME         --finetune.objective: cross-entropy, self-normalized, scheduled-sampling,
                           direct-loss, soft-hinge, hard-hinge, beam-search-optimization,
                           beam-crf, minimum-risk or reinforce, after the first stage
  --beam K                 --finetune.objective.k
  --skip-bad               --data.skip_bad true
"""


class Parser(ArgumentParser):
    """A parser whose complaints are one sentence and exit code 2."""

    more_help = ""  # printed after the options, as it is

    def format_help(self, *args: Any, **options: Any) -> str:
        return str(super().format_help(*args, **options)) + self.more_help

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(" ".join(message.split()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: 0 on success, 2 and one sentence for what a user can mend."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"softbeam {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise UserError(f"no command {words[0]!r}; there are {', '.join(COMMANDS)}")
        return COMMANDS[words[0]](words[1:])
    except UserError as error:
        print(f"softbeam {words[0]}: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"softbeam {words[0]}: {stop}", file=sys.stderr)
        return 128 + stop.signum
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("softbeam: interrupted", file=sys.stderr)
        return 130


def overview() -> str:
    rows = [f"  {name:10} {command.__doc__.splitlines()[0]}" for name, command in COMMANDS.items()]  # type: ignore[union-attr]
    return "\n".join(
        [
            "softbeam: train sequence models that know how they will be decoded.",
            "",
            "usage: softbeam COMMAND … (each has --help)",
            "",
            *rows,
        ]
    )


def parser(command: str, description: str, **options: Any) -> Parser:
    return Parser(prog=f"softbeam {command}", description=description, **options)


def say_json(value: dict[str, Any]) -> None:
    """One JSON object as the last line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def train(words: list[str]) -> int:
    """Train a model: softbeam train RECIPE [--data.train FILE …] --out RUN"""
    if not words or words[0] in ("-h", "--help"):
        print("usage: softbeam train RECIPE [--out RUN] [any field] (RECIPE --help lists them)\n")
        print(recipe_list())
        return 0
    config, parsed = parse_run("train", words)
    from softbeam.train import train as run

    summary = run(config, Path(parsed.out), quiet=parsed.quiet, resume=parsed.resume)
    show_summary(parsed.out, summary)
    if parsed.json:
        say_json({"run": parsed.out} | summary)
    return 0


def recipe_list() -> str:
    from softbeam.recipes import RECIPES

    docs = {name: (make.__doc__ or "").splitlines()[0] for name, make in RECIPES.items()}
    return "\n".join(f"  {name:12} {doc}" for name, doc in docs.items())


def parse_run(command: str, words: list[str]) -> tuple[Any, Any]:
    """A recipe's name and flags as a `RunConfig`, and the parsed flags themselves."""
    from softbeam.config import run_parser, to_run
    from softbeam.recipes import RECIPES

    if words[0] not in RECIPES:
        raise UserError(f"no recipe {words[0]!r}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[words[0]]()
    made = run_parser(recipe, parser(f"{command} {words[0]}", RECIPES[words[0]].__doc__ or ""))
    made.more_help = field_help({"data": recipe.data, "model": recipe.model}) + SHORT_FORMS
    made.add_argument("--out", type=str, default=f"runs/{words[0]}", help="folder of the run")
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="the summary as a last line of JSON")
    made.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    made.add_argument("--skip-bad", action="store_true", help="count malformed lines, go on")
    lenient = ["--data.skip_bad", "true"] if "--skip-bad" in words else []
    kept = [TRAIN_ALIASES.get(w, w) for w in words[1:] if w != "--skip-bad"]
    parsed = made.parse_args(class_names(kept) + lenient)
    return to_run(made, parsed), parsed


COMPARE_HELP = """usage: softbeam compare RECIPE --try TRIAL --try TRIAL … [--seeds 1,2] [any field]

Trains each trial with each seed below --out, from first stages that they share, and prints their
figures with a paired bootstrap against the first. A trial is the name of an objective for the
second stage, or a name and words of `softbeam train`:

  softbeam compare ccg --model.encoder uni --seeds 1,2,3 --try cross-entropy --try direct-loss \\
    --try "global: --objective direct-loss --finetune.objective.normalize false \\
           --select.normalize false"

  --try TRIAL     a way to train; give it at least twice
  --seeds LIST    seeds, 1 if not given
  --split NAME    what is scored: dev or test
  --out DIR       runs/compare-RECIPE; given again, finished runs are kept, stopped ones go on
  --quiet         no progress
  --json          the figures as a last line of JSON
"""


def compare(words: list[str]) -> int:
    """Ways to train side by side: softbeam compare RECIPE --try A --try B [--seeds 1,2,3]"""
    if not words or words[0] in ("-h", "--help"):
        print(COMPARE_HELP)
        print(recipe_list())
        return 0
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--try", dest="trials", action="append", default=[])
    own.add_argument("--seeds", default="1")
    own.add_argument("--split", default="dev")
    own.add_argument("--out", default=f"runs/compare-{words[0]}")
    for flag in ("--quiet", "--json"):
        own.add_argument(flag, action="store_true")
    parsed, shared = own.parse_known_args(words[1:])
    seeds = whole_numbers("--seeds", parsed.seeds)
    if len(parsed.trials) < 2:
        raise UserError(f"--try was given {len(parsed.trials)} times; a comparison needs two")
    configs = [(name, [words[0], *shared, *more]) for name, more in map(trial, parsed.trials)]
    made = [(name, parse_run("compare", line)[0]) for name, line in configs]
    from softbeam import compare as comparison

    found = comparison.compare(
        [comparison.Trial(name, config) for name, config in made],
        seeds,
        Path(parsed.out),
        split=parsed.split,
        quiet=parsed.quiet,
    )
    comparison.show(found["rows"], parsed.split)
    print(f"report: {found['report']}")
    if parsed.json:
        say_json(found)
    return 0


def trial(text: str) -> tuple[str, list[str]]:
    """`name: words`, or an objective's name alone."""
    name, colon, more = text.partition(":")
    return name.strip(), shlex.split(more) if colon else ["--objective", name.strip()]


def whole_numbers(option: str, text: str) -> list[int]:
    """`1,2,3` as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text}: must be whole numbers with commas, as 1,2,3") from None


def class_names(words: list[str]) -> list[str]:
    """`--finetune.objective direct-loss` as jsonargparse knows it: DirectLoss."""
    named = ("--pretrain.objective", "--finetune.objective")
    return [
        "".join(part.capitalize() for part in word.split("-"))
        if before in named and word.islower()
        else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def field_help(parts: dict[str, Any]) -> str:
    """The flags of the recipe's own classes, one on a line."""
    from docstring_parser import parse

    lines = []
    for prefix, value in parts.items():
        lines.append(f"\nfields of {prefix}, a {type(value).__name__}:")
        documented = {
            p.arg_name: p.description or ""
            for cls in reversed(type(value).__mro__)
            for p in parse(cls.__doc__ or "").params
        }
        for f in fields(value):
            text = " ".join(documented.get(f.name, "").split())
            lines.append(
                f"  {f'--{prefix}.{f.name}':24} {text} (default: {getattr(value, f.name)})"
            )
    return "\n".join([*lines, ""])


def show_summary(out: str, summary: dict[str, Any]) -> None:
    shown = [f"{k} {v:.2f}" for k, v in summary["metrics"].items() if isinstance(v, float)]
    seconds = f"{summary['seconds']:.0f} s"
    print(f"{out}: dev {', '.join(shown)} (epoch {summary['epoch'] + 1}, {seconds})")


def search_arguments(made: Parser) -> None:
    """The run folder and the flags of a search, shared by decode and evaluate."""
    from softbeam.config import Search

    made.add_argument("run", type=str, help="folder of a finished run")
    made.add_class_arguments(Search, None)
    made.add_argument("--threads", type=int, default=1, help="processor threads")
    made.add_argument("--quiet", action="store_true", help="no progress")


def parse_search(made: Parser, words: list[str]) -> tuple[Any, Any]:
    """Parsed arguments and their `Search`; `--search` is the method, and --nbest needs a beam."""
    from softbeam.config import Search

    parsed = made.parse_args([ALIASES.get(word, word) for word in words])
    search = Search(**{f.name: parsed[f.name] for f in fields(Search)})
    if search.beam < 1:
        raise UserError(f"--beam {search.beam}: must be at least 1")
    limit = search.beam if "beam" in search.method else 1
    if search.alpha <= 0:
        raise UserError(f"--alpha {search.alpha}: must be above 0")
    if not 1 <= search.nbest <= limit:
        raise UserError(f"--nbest {search.nbest}: must be from 1 to {limit} with {search.method}")
    return parsed, search


def decode(words: list[str]) -> int:
    """Outputs for new inputs: softbeam decode RUN --input FILE [--search beam --beam 5]"""
    made = parser(
        "decode", "Outputs of a run for new inputs, one on a line (- reads standard input)."
    )
    search_arguments(made)
    made.add_argument("--input", type=str, required=True, help="inputs, one on a line; - for stdin")
    made.add_argument("--output", type=str, default=None, help="file; standard output if not given")
    made.add_argument("--format", type=str, choices=["text", "jsonl"], default="text")
    parsed, search = parse_search(made, words)
    from softbeam import inference

    run = inference.load(Path(parsed.run), threads=parsed.threads)
    lines = inference.read_inputs(parsed.input)
    outputs = inference.decode_lines(run, lines, search, quiet=parsed.quiet)
    text = inference.render(lines, outputs, style=parsed.format, nbest=search.nbest)
    if parsed.output is None:
        sys.stdout.write(text)
    else:
        write_text(Path(parsed.output), text)
    return 0


def evaluate(words: list[str]) -> int:
    """Score a run: softbeam evaluate RUN --split dev [--search beam --beam 3] [--json]"""
    made = parser("evaluate", "Decode a split of a run's data and score it.")
    search_arguments(made)
    made.add_argument("--split", type=str, default="dev", help="train, dev or test")
    made.add_argument("--json", action="store_true", help="figures as a last line of JSON")
    made.add_argument("--output", type=str, default=None, help="also write the outputs here")
    made.add_argument("--against", type=str, default=None, help="another run: is it different?")
    made.add_argument(
        "--check-normalization", action="store_true", help="raw and normalized scores, and log Z"
    )
    parsed, search = parse_search(made, words)
    if parsed.check_normalization and search.method == "beam" and search.beam < 2:
        raise UserError(f"--beam {search.beam}: --check-normalization needs a beam of at least 2")
    from softbeam import inference

    run = inference.load(Path(parsed.run), threads=parsed.threads)
    found, outputs = inference.evaluate_split(run, parsed.split, search, quiet=parsed.quiet)
    if parsed.output is not None:
        text = "".join(" ".join(tokens) + "\n" for tokens in outputs)
        write_text(Path(parsed.output), text)
    show_figures(found["metrics"])
    if parsed.against is not None:
        other = inference.load(Path(parsed.against), threads=parsed.threads)
        found["against"] = inference.compare_split(
            run, outputs, other, parsed.split, search, quiet=parsed.quiet
        )
        print(f"\nagainst {parsed.against} (paired bootstrap over sentences)")
        show_figures(found["against"])
    if parsed.check_normalization:
        from softbeam.analysis import check_split

        found["normalization"] = check_split(run, parsed.split, search, quiet=parsed.quiet)
        print("\nbeam search with raw and with normalized scores")
        show_figures({k: v for k, v in found["normalization"].items() if v is not None})
    if parsed.json:
        say_json({"run": parsed.run, "split": parsed.split} | found)
    return 0


def analyze(words: list[str]) -> int:
    """Where runs go wrong, side by side: softbeam analyze RUN… [--beams 1,2,3,5,10,20]"""
    made = parser("analyze", "Tables and figures of runs of one task: beam sizes, errors, lengths.")
    made.add_argument("runs", type=str, nargs="+", help="folders of finished runs")
    made.add_argument("--split", type=str, default="dev", help="train, dev or test")
    made.add_argument("--beams", type=list[int], default=[1, 2, 3, 5, 10, 20], help="beam sizes")
    made.add_argument(
        "--normalize",
        type=bool | None,
        default=None,
        help="normalized scores; as each run's select",
    )
    made.add_argument("--limit", type=int | None, default=None, help="only the first so many")
    made.add_argument("--out", type=str, default="runs/analysis", help="folder for the figures")
    made.add_argument("--threads", type=int, default=1, help="processor threads")
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="everything as a last line of JSON")
    parsed = made.parse_args(as_lists(words, ("--beams",)))
    positive = [("beams", min(parsed.beams, default=0)), ("threads", parsed.threads)]
    for name, value in [*positive, ("limit", 1 if parsed.limit is None else parsed.limit)]:
        if value < 1:
            raise UserError(f"--{name} {value}: must be at least 1")
    from softbeam import charts

    out = Path(parsed.out)
    charts.require(out)
    from softbeam.analysis import analyze as run

    found = run(
        [Path(folder) for folder in parsed.runs],
        split=parsed.split,
        beams=parsed.beams,
        normalize=parsed.normalize,
        limit=parsed.limit,
        threads=parsed.threads,
        quiet=parsed.quiet,
    )
    print(charts.as_text(found))
    write_text(out / "analysis.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    figures = charts.write_figures(found, out)
    names = ", ".join(dict.fromkeys(path.stem for path in figures))
    print(f"\nin {out}: analysis.json, and as .png and .svg {names}")
    if parsed.json:
        say_json(found)
    return 0


def show_figures(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        print(f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}")


def data(words: list[str]) -> int:
    """The catalogue of corpora: softbeam data list | show NAME | fetch NAME"""
    from softbeam.data import catalogue

    made = parser(
        "data", "list: what there is; show NAME: origin, licence, files; fetch NAME: get it."
    )
    made.add_argument("action", type=str, choices=["list", "show", "fetch"])
    made.add_argument("name", type=str, nargs="?", default=None)
    made.add_argument("--json", action="store_true", help="the same as a last line of JSON")
    parsed = made.parse_args(words)
    if parsed.action == "list":
        rows = {name: catalogue.describe(name) for name in catalogue.names()}
        for name, row in rows.items():
            print(f"{name:16} {row['title']}")
        if parsed.json:
            say_json({"corpora": rows})
        return 0
    if parsed.name is None:
        raise UserError(f"{parsed.action} needs a name; there are {', '.join(catalogue.names())}")
    if parsed.action == "show":
        shown = catalogue.describe(parsed.name)
        show_corpus(shown)
        if parsed.json:
            say_json(shown)
        return 0
    paths = [str(path) for path in catalogue.fetch(parsed.name)]
    print("\n".join(paths))
    if parsed.json:
        say_json({"name": parsed.name, "files": paths})
    return 0


def show_corpus(shown: dict[str, Any]) -> None:
    """A corpus for a reader: what it is, where it comes from, where its files are now."""
    for key in ("name", "title", "licence", "note"):
        print(f"{key:8} {shown[key]}")
    for origin in shown["origin"]:
        print(f"origin   {' '.join(origin.values())}")
    for file in shown["files"]:
        print(f"file     {file['name']}  {file['size']:,} bytes  {file['found'] or 'not here yet'}")
    if shown["supply"]:
        print(f"supply   {shown['supply']}")


def models(words: list[str]) -> int:
    """Real masked language models: softbeam models list | fetch NAME"""
    from softbeam import pretrained

    made = parser("models", "list: what there is; fetch NAME: get it, as a Hugging Face folder.")
    made.add_argument("action", type=str, choices=["list", "fetch"])
    made.add_argument("name", type=str, nargs="?", default=None, help=", ".join(pretrained.names()))
    made.add_argument("--json", action="store_true", help="the same as a last line of JSON")
    parsed = made.parse_args(words)
    if parsed.action == "list":
        rows = [pretrained.describe(name) for name in pretrained.names()]
        for row in rows:
            print(f"{row['name']:12} {row['title']} ({row['licence']})")
            print(f"{'':12} {row['found'] or 'not here yet'}")
        if parsed.json:
            say_json({"models": rows})
        return 0
    if parsed.name is None:
        raise UserError(f"fetch needs a name; there are {', '.join(pretrained.names())}")
    folder = str(pretrained.fetch(parsed.name))
    print(folder)
    if parsed.json:
        say_json({"name": parsed.name, "folder": folder})
    return 0


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
    made.add_argument("--seeds", type=int, default=5, help="datasets to average over")
    made.add_argument("--jobs", type=int, default=None, help="processes; one for each core")
    made.add_argument("--distinct", action="store_true", help="each phoneme sequence once")
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument("--json", action="store_true", help="the record as a last line of JSON")
    parsed = made.parse_args(words)
    names = ("preset", "seeds", "jobs", "distinct", "quiet")
    found = run(parsed.what, out=Path(parsed.out), **{name: parsed[name] for name in names})
    print(found["text"])
    if parsed.json:
        say_json(found)
    return 0


def certify(words: list[str]) -> int:
    """Is a sampler right? softbeam certify KERNEL [--energy local|raw] [--json]"""
    made = parser(
        "certify",
        "Build a kernel's whole transition matrix on a small masked language model and check it; "
        "the exit code is 0 only if every certificate holds. KERNEL is a name (list shows them) or "
        "module:function, a function of a masked language model and an energy.",
    )
    made.add_argument("kernel", type=str, help="name, module:function, or list")
    made.add_argument("--energy", type=str, choices=["local", "raw"], default="local")
    made.add_argument("--words", type=int, default=3, help="size of the vocabulary")
    made.add_argument("--time", type=int, default=3, help="length of the texts")
    made.add_argument("--seed", type=int, default=0, help="of the model and of all samples")
    made.add_argument("--json", action="store_true", help="certificates as a last line of JSON")
    parsed = made.parse_args(words)
    for name, low, high in (("words", 2, 6), ("time", 2, 4)):
        if not low <= parsed[name] <= high:
            raise UserError(f"--{name} {parsed[name]}: must be from {low} to {high}")
    from softbeam.certify import KERNELS, certificates

    if parsed.kernel == "list":
        print("\n".join(f"{name:20} {kernel.what}" for name, kernel in KERNELS.items()))
        return 0
    names = ("energy", "words", "time", "seed")
    found = certificates(parsed.kernel, **{name: parsed[name] for name in names})
    for one in found:
        said = "holds" if one.holds else "FAILS"
        print(f"{said}  {one.name:28} {one.value:10.2e} (limit {one.limit:.0e})  {one.detail}")
    if parsed.json:
        rows = [one._asdict() for one in found]
        holds = all(one.holds for one in found)
        say_json({"kernel": parsed.kernel, "holds": holds, "certificates": rows})
    return 0 if all(one.holds for one in found) else 1


def bench(words: list[str]) -> int:
    """Measure speed: softbeam bench train | soft-beam | exact [--json]"""
    benches = {"train": bench_train, "soft-beam": bench_soft_beam, "exact": bench_exact}
    if not words or words[0] in ("-h", "--help"):
        rows = [f"  {name:12} {run.__doc__}" for name, run in benches.items()]
        print("usage: softbeam bench WHAT [--json] (WHAT --help lists the options)\n")
        print("\n".join(rows))
        return 0
    if words[0] not in benches:
        raise UserError(f"no benchmark {words[0]!r}; there are {', '.join(benches)}")
    return benches[words[0]](words[1:])


def bench_parser(name: str, description: str | None) -> Parser:
    made = parser(f"bench {name}", description or "")
    made.add_argument("--repeats", type=int, default=7, help="rounds; medians are reported")
    made.add_argument("--threads", type=int, default=1, help="processor threads")
    made.add_argument("--json", action="store_true", help="figures as a last line of JSON")
    return made


def parse_bench(made: Parser, words: list[str]) -> Any:
    parsed = made.parse_args(words)
    for name in ("repeats", "threads"):
        if parsed[name] < 1:
            raise UserError(f"--{name} {parsed[name]}: must be at least 1")
    import torch

    torch.set_num_threads(parsed.threads)
    return parsed


def bench_train(words: list[str]) -> int:
    """Cross-entropy training against a bare loop over torch.nn.LSTM."""
    parsed = parse_bench(bench_parser("train", bench_train.__doc__), words)
    from softbeam.bench.train import run

    found = run(repeats=parsed.repeats, threads=parsed.threads)
    for row in found["rows"]:
        print(
            f"{row['model']:24} softbeam {row['tokens_per_s']:9,.0f} tokens/s  "
            f"bare {row['bare_tokens_per_s']:9,.0f} tokens/s  ratio {row['ratio']:.2f}"
        )
    if parsed.json:
        say_json(found)
    return 0


def bench_soft_beam(words: list[str]) -> int:
    """Soft-beam training against cross-entropy and the plain reference: time and memory."""
    made = bench_parser("soft-beam", bench_soft_beam.__doc__)
    made.add_argument("--vocab", type=list[int], default=[10, 1284, 32000], help="sizes")
    made.add_argument("--k", type=list[int], default=[1, 3, 5], help="beam sizes")
    made.add_argument("--alpha", type=float, default=4.0, help="of the relaxation")
    made.add_argument("--candidates", type=int, default=64, help="of the pooled form")
    made.add_argument("--normalize", type=bool, default=False, help="local scores")
    made.add_argument("--memory", type=bool, default=True, help="peaks, in processes of their own")
    parsed = parse_bench(made, as_lists(words, ("--vocab", "--k")))
    from softbeam.bench.soft_beam import run

    def show(row: dict[str, Any]) -> None:
        ratios = "  ".join(
            f"{form} {row[form + '_s'] / row['ce_s']:5.1f}x"
            for form in ("reference", "dense", "pooled")
        )
        print(f"V={row['vocab']:<6} k={row['k']}  CE {row['ce_s']:.3f} s  {ratios}", flush=True)

    names = ("vocab", "k", "repeats", "alpha", "candidates", "normalize", "memory")
    found = run(**{name: parsed[name] for name in names}, progress=show)
    if parsed.json:
        say_json(found)
    return 0


def bench_exact(words: list[str]) -> int:
    """Pseudolikelihood and log Z of an LSTM random field: time and memory."""
    parsed = parse_bench(bench_parser("exact", bench_exact.__doc__), words)
    from softbeam.bench.exact import run

    found = run(repeats=parsed.repeats, progress=lambda line: print(line, flush=True))
    if parsed.json:
        say_json(found)
    return 0


def as_lists(words: list[str], options: tuple[str, ...]) -> list[str]:
    """`--k 3` and `--k 1,3` as the lists [3] and [1,3]."""
    return [
        f"[{word}]" if before in options and not word.startswith("[") else word
        for before, word in zip(["", *words], words, strict=False)
    ]


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    command.__name__: command
    for command in (
        train,
        compare,
        decode,
        evaluate,
        analyze,
        data,
        models,
        demo,
        report,
        reproduce,
        certify,
        bench,
    )
}


if __name__ == "__main__":
    sys.exit(main())
