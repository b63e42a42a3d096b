"""The command line. Nothing heavy is imported before a command is known to be well formed."""

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from softbeam import __version__
from softbeam._lazy import lazy
from softbeam.errors import UserError
from softbeam.runtime import ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.signals import ending

if TYPE_CHECKING:
    from softbeam.cli import failures, parser
    from softbeam.runtime import cluster as clusters
else:
    clusters = lazy("softbeam.runtime.cluster")
    failures, parser = lazy("softbeam.cli.failures"), lazy("softbeam.cli.parser")


@dataclass(frozen=True)
class Command:
    """A command, whose module is imported when it is called.

    Args:
        name: of the command, and of the function that runs it.
        module: of this package, in which the function is.
        summary: the command's line in the overview.
    """

    name: str
    module: str
    summary: str

    def __call__(self, words: list[str]) -> int:
        code: int = getattr(import_module(f"softbeam.cli.{self.module}"), self.name)(words)
        return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: returns 0 on success, and 2 after a line on standard error for a user error.

    A signal that asks to stop prints a line too, and gives 128 plus its number: 130 or 143. A pipe
    whose reader has gone gives 141, without a line. After `--debug`, which every command accepts,
    the traceback is printed before the line.
    """
    if argv is None:
        write_utf8()
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in given if word != DEBUG]
    try:
        if not words or words[0] in ("-h", "--help", "--version"):
            about = words[:1] == ["--version"]
            print(f"softbeam {__version__}" if about else overview(), flush=True)
            return 0
        if words[0] not in COMMANDS:
            near = parser.nearest(words[0], COMMANDS)
            raise UserError(f"no command {words[0]!r}; there are {', '.join(COMMANDS)}{near}")
        ranks.check()
        if ranks.world() > 1 and words[0] not in TOGETHER:
            raise UserError(f"runs as one process; torchrun is for {', '.join(TOGETHER)} only")
        more, modules = allowed_by(words[1:])
        with ending(), allowing(modules), clusters.kept_open():
            code = COMMANDS[words[0]](more)
            sys.stdout.flush()  # here, where a closed pipe is noticed
            return code
    except BrokenPipeError:
        forget_output()
        return CLOSED_PIPE
    except (Exception, KeyboardInterrupt) as error:
        end = failures.explained(words, error)
        if end is None:
            raise
        if DEBUG in given:
            traceback.print_exc()
        line, code = end
        print(f"softbeam {words[0]}: {' '.join(line.splitlines())}", file=sys.stderr)
        return code


def forget_output() -> None:
    """Send what is left to print nowhere: nobody reads it, and its failure would be reported."""
    with open(os.devnull, "wb") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # not a file, or closed
                os.dup2(nowhere.fileno(), stream.fileno())


CLOSED_PIPE = 128 + 13  # what a shell reports of a program that SIGPIPE ended
DEBUG = "--debug"
TOGETHER = ("train",)  # what several processes can do for one command


def allowed_by(words: list[str]) -> tuple[list[str], list[str]]:
    """The words without each `--allow-module NAME`, and these names.

    The flag is of the command line alone: no parser has it, so that no file can set it.
    """
    left: list[str] = []
    modules: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, name = word.partition("=")
        if flag.replace("_", "-") != "--allow-module":
            left.append(word)
        else:
            modules.append(name if equals else next(rest, ""))
    return left, modules


def write_utf8() -> None:
    """Make the output UTF-8 in any locale; file names that are not UTF-8 keep their bytes."""
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def overview() -> str:
    rows = [f"  {c.name:10} {c.summary}" for c in COMMANDS.values() if isinstance(c, Command)]
    return "\n".join(
        [
            "softbeam: train sequence models that know how they will be decoded.",
            "",
            "usage: softbeam COMMAND … (each has --help; --debug shows the traceback of an error)",
            "",
            *rows,
            "",
            "Files can name only softbeam's own classes and functions. --allow-module NAME after a",
            "command, as often as needed, allows and imports a module of your own.",
        ]
    )


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    command.name: command
    for command in (
        Command(
            "train", "train", "Train a model: softbeam train RECIPE [--data.train FILE …] --out RUN"
        ),
        Command(
            "compare",
            "train",
            "Compare ways to train: softbeam compare RECIPE --try A --try B [--seeds 1,2,3]",
        ),
        Command(
            "sweep",
            "train",
            "Compare settings: softbeam sweep RECIPE --over pretrain.lr=0.01,0.003 [--seeds 1,2]",
        ),
        Command(
            "decode",
            "runs",
            "Decode new inputs: softbeam decode RUN --input FILE [--beam 5] [--format conll]",
        ),
        Command(
            "evaluate",
            "runs",
            "Score a run: "
            "softbeam evaluate RUN [--split dev | --data.test FILE] [--beam 3] [--json]",
        ),
        Command(
            "analyze",
            "runs",
            "Show where runs go wrong, side by side: softbeam analyze RUN… [--beams 1,2,3,5,10,20]",
        ),
        Command(
            "export",
            "export",
            "Make a run ready for others: softbeam export RUN --out FOLDER | --push USER/NAME",
        ),
        Command(
            "data",
            "catalogue",
            "The catalogue of corpora: softbeam data list | show NAME | fetch NAME",
        ),
        Command(
            "models",
            "catalogue",
            "Real masked language models: softbeam models list | fetch NAME | convert CHECKPOINT",
        ),
        Command(
            "demo",
            "report",
            "The whole story on packaged data in a few minutes: softbeam demo [--quick]",
        ),
        Command(
            "report",
            "report",
            "One self-contained HTML page about runs: softbeam report DIR… | claims [TABLE…]",
        ),
        Command(
            "play",
            "play",
            'Watch beams and chains in a browser: softbeam play RUN | --mlm NAME --text "…"',
        ),
        Command(
            "reproduce",
            "report",
            "Reproduce a table of the thesis: "
            "softbeam reproduce table-6.1 [--preset cpu] [--jobs 2]",
        ),
        Command(
            "sample",
            "sample",
            'Sample a masked LM: softbeam sample --mlm NAME --text "…[MASK]…" --out samples.jsonl',
        ),
        Command(
            "score",
            "sample",
            "Score texts by pseudo-log-likelihood: "
            "softbeam score --mlm NAME --input FILE [--per-token]",
        ),
        Command(
            "infill",
            "sample",
            "Fill all gaps of a text jointly: "
            'softbeam infill --mlm NAME --text "… [MASK] [MASK] …"',
        ),
        Command(
            "mutants",
            "mutants",
            "Score variants of proteins: softbeam mutants --mlm NAME --fasta FILE [--score all]",
        ),
        Command(
            "certify",
            "sample",
            "Check that a sampler is right: softbeam certify KERNEL [--energy local|raw] [--json]",
        ),
        Command(
            "audit",
            "audit",
            "Check which law a sampler draws from: softbeam audit confidence --steps 4 [--json]",
        ),
        Command(
            "power",
            "power",
            'Sample p^alpha of a causal LM: softbeam power --lm smollm2-135m --text "…" --alpha 4',
        ),
        Command(
            "bench",
            "bench",
            "Measure speed: softbeam bench all | train | soft-beam | decode | growth | exact | …",
        ),
    )
}
