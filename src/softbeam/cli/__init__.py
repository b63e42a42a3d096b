"""The command line. Nothing heavy is imported before a command is known to be well formed."""

import io
import sys
from collections.abc import Callable, Sequence

from softbeam import __version__
from softbeam.cli.bench import bench
from softbeam.cli.catalogue import data, models
from softbeam.cli.report import demo, report, reproduce
from softbeam.cli.runs import analyze, decode, evaluate
from softbeam.cli.sample import certify, infill, sample, score
from softbeam.cli.train import compare, sweep, train
from softbeam.cli.worker import worker
from softbeam.errors import Interrupted, UserError
from softbeam.runtime import ranks
from softbeam.runtime.allowed import allowing
from softbeam.runtime.signals import ending, signum_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: returns 0 on success, and 2 after a line on standard error for a user error.

    A signal that asks to stop prints a line too, and gives 128 plus its number: 130 or 143.
    """
    if argv is None:
        write_utf8()
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
        if ranks.world() > 1 and words[0] not in TOGETHER:
            raise UserError(f"runs as one process; under torchrun there are {', '.join(TOGETHER)}")
        more, modules = allowed_by(words[1:])
        with ending(), allowing(modules):
            return COMMANDS[words[0]](more)
    except UserError as error:
        print(f"softbeam {words[0]}: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"softbeam {words[0]}: {GOES_ON.get(words[0], stop)}", file=sys.stderr)
        return 128 + stop.signum
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:  # an unforeseen problem with a disk or folder
        where = f"{error.filename}: " if error.filename else ""
        said = " ".join((error.strerror or str(error)).split())
        print(f"softbeam {words[0]}: {where}{said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"softbeam {words[0]}: {GOES_ON.get(words[0], 'interrupted')}", file=sys.stderr)
        return 128 + signum_of(stop)


GOES_ON = dict.fromkeys(
    ("compare", "sweep", "reproduce"), "stopped; the same command continues after what is finished"
)
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
            "usage: softbeam COMMAND … (each has --help)",
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
