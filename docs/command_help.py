"""Make a page of what `softbeam COMMAND --help` prints."""

import contextlib
import io
import os

from softbeam.cli import COMMANDS, overview

MORE = {  # commands whose own help only lists what can follow
    "train": ["train tagging"],
    "bench": [f"bench {what}" for what in ("train", "soft-beam", "exact", "sampler", "score")],
}


def page() -> str:
    """Return the overview and the help of every command, each under its own heading."""
    os.environ["COLUMNS"] = "84"  # the width at which argparse breaks lines
    parts = [block("softbeam --help", overview())]
    for command in COMMANDS:
        parts.append(f"## `softbeam {command}`\n")
        lines = [command, *MORE.get(command, [])]
        parts += [block(f"softbeam {line} --help", help_text(line)) for line in lines]
    return "\n".join(parts)


def help_text(line: str) -> str:
    """Return what a command prints when it is asked for help."""
    command, *words = line.split()
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        COMMANDS[command]([*words, "--help"])
    return out.getvalue()


def block(caption: str, text: str) -> str:
    return f"```{{code-block}} text\n:caption: {caption}\n\n{text.rstrip()}\n```\n"
