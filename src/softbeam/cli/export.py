"""The command that makes a run ready for others: export."""

from pathlib import Path
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.cli.parser import device_argument, overwrite_argument, parser, threads_argument
from softbeam.errors import UserError
from softbeam.training.threads import checked_threads

if TYPE_CHECKING:
    import torch

    from softbeam.training import runs
else:
    torch, runs = lazy("torch"), lazy("softbeam.training.runs")


def export(words: list[str]) -> int:
    """Run `softbeam export`."""
    command = parser(
        "export",
        "A folder for others, with what is needed to decode with a run and a model card. "
        "--push uploads it to the Hugging Face hub.",
    )
    command.add_argument("run", type=str, help="folder of a finished run")
    command.add_argument("--out", type=str | None, default=None, help="folder to be written")
    command.add_argument(
        "--push",
        type=str | None,
        default=None,
        help="upload it to the hub as USER/NAME",
    )
    command.add_argument("--private", action="store_true", help="as a private model")
    command.add_argument(
        "--split",
        type=str | None,
        default="auto",
        help="score this split for the card: test if there is one; none scores nothing anew",
    )
    command.add_argument(
        "--license", type=str | None, default=None, help="of the model, such as apache-2.0"
    )
    overwrite_argument(command)
    threads_argument(command)
    device_argument(command)
    command.add_argument("--quiet", action="store_true", help="no progress")
    parsed = command.parse_args(words)
    if (parsed.out is None) == (parsed.push is None):
        raise UserError("--out FOLDER or --push USER/NAME: give one of them")
    torch.set_num_threads(checked_threads(parsed.threads))
    run = runs.load_run(parsed.run, device=parsed.device)
    said = {"split": parsed.split, "license": parsed.license, "quiet": parsed.quiet}
    if parsed.out is None:
        print(run.push_to_hub(parsed.push, private=parsed.private, **said).commit_url)
        return 0
    run.save_pretrained(parsed.out, overwrite=parsed.overwrite, **said)
    print(f"in {parsed.out}: {', '.join(sorted(p.name for p in Path(parsed.out).glob('[!.]*')))}")
    return 0
