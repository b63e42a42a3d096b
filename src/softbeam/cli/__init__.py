"""The command line. Nothing heavy is imported before a command is known to be well formed."""

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from softbeam import __version__
from softbeam.cli.bench import bench
from softbeam.cli.catalogue import data, models
from softbeam.cli.failures import explained
from softbeam.cli.parser import nearest
from softbeam.cli.report import demo, report, reproduce
from softbeam.cli.runs import analyze, decode, evaluate
from softbeam.cli.sample import certify, infill, sample, score
from softbeam.cli.train import compare, sweep, train
from softbeam.cli.worker import worker
from softbeam.errors import UserError
from softbeam.runtime import ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.signals import ending


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
            near = nearest(words[0], COMMANDS)
            raise UserError(f"no command {words[0]!r}; there are {', '.join(COMMANDS)}{near}")
        ranks.check()
        if ranks.world() > 1 and words[0] not in TOGETHER:
            raise UserError(f"runs as one process; under torchrun there are {', '.join(TOGETHER)}")
        more, modules = allowed_by(words[1:])
        with ending(), allowing(modules):
            code = COMMANDS[words[0]](more)
            sys.stdout.flush()  # here, where a closed pipe is noticed
            return code
    except BrokenPipeError:
        forget_output()
        return CLOSED_PIPE
    except (Exception, KeyboardInterrupt) as error:
        end = explained(words, error)
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
TOGETHER = ("train", "sample", "score", "infill")  # what several processes can do for one command


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
    rows = [f"  {name:10} {command.__doc__.splitlines()[0]}" for name, command in COMMANDS.items()]  # type: ignore[union-attr]
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
    command.__name__: command
    for command in (
        train,
        compare,
        sweep,
        decode,
        evaluate,
        analyze,
        data,
        models,
        demo,
        report,
        reproduce,
        worker,
        sample,
        score,
        infill,
        certify,
        bench,
    )
}
