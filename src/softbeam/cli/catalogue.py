"""Commands for what can be downloaded: data, models."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import overwrite_argument, parser, say_json
from softbeam.errors import UserError

if TYPE_CHECKING:
    from softbeam.data import catalogue as corpora
    from softbeam.models import catalogue as pretrained
    from softbeam.training import fairseq
else:
    corpora = lazy("softbeam.data.catalogue")
    pretrained = lazy("softbeam.models.catalogue")
    fairseq = lazy("softbeam.training.fairseq")

JSON = "print the same as a last line of JSON"


def data(words: list[str]) -> int:
    """Run `softbeam data`."""
    command = parser(
        "data",
        "list: print all corpora; show NAME: print origin, licence, files; fetch NAME: download.",
    )
    command.add_argument("action", type=str, choices=["list", "show", "fetch"])
    command.add_argument("name", type=str, nargs="?", default=None)
    command.add_argument("--json", action="store_true", help=JSON)
    parsed = command.parse_args(words)
    summary: dict[str, Any]
    if parsed.action == "list":
        summary = {"corpora": {name: corpora.describe(name) for name in corpora.CORPORA}}
        for name, row in summary["corpora"].items():
            print(f"{name:16} {row['title']}")
    elif parsed.action == "show":
        summary = corpora.describe(named(parsed, corpora.CORPORA))
        show_corpus(summary)
    else:
        paths = [str(path) for path in corpora.fetch(named(parsed, corpora.CORPORA))]
        summary = {"name": parsed.name, "files": paths}
        print("\n".join(paths))
    if parsed.json:
        say_json(summary)
    return 0


def named(parsed: Any, catalogue: "corpora.Catalogue[Any]") -> str:
    """Return the name on the command line; raises UserError if there is none."""
    if parsed.name is None:
        raise UserError(f"{parsed.action} needs a name; there are {', '.join(catalogue)}")
    return str(parsed.name)


def show_corpus(corpus: dict[str, Any]) -> None:
    """Print the description of a corpus: what it is, its origin, and where its files are."""
    for key in ("name", "title", "licence", "note"):
        print(f"{key:8} {corpus[key]}")
    for origin in corpus["origin"]:
        print(f"origin   {' '.join(origin.values())}")
    for file in corpus["files"]:
        print(f"file     {file['name']}  {file['size']:,} bytes  {file['found'] or 'not here yet'}")
    if corpus["supply"]:
        print(f"supply   {corpus['supply']}")


def models(words: list[str]) -> int:
    """Run `softbeam models`."""
    command = parser(
        "models",
        "list: print all models; fetch NAME: download a model as a Hugging Face folder; convert "
        "FILE: convert a fairseq checkpoint of Mask-Predict to a run.",
    )
    command.add_argument("action", type=str, choices=["list", "fetch", "convert"])
    names = f"{', '.join(pretrained.MODELS)}; or a checkpoint"
    command.add_argument("name", type=str, nargs="?", default=None, help=names)
    command.add_argument(
        "--source-dict", type=str | None, default=None, help="convert: dict.de.txt"
    )
    command.add_argument(
        "--target-dict", type=str | None, default=None, help="convert: dict.en.txt"
    )
    command.add_argument(
        "--out", type=str, default="runs/converted", help="convert: the run folder"
    )
    overwrite_argument(command)
    command.add_argument("--json", action="store_true", help=JSON)
    parsed = command.parse_args(words)
    summary: dict[str, Any]
    if parsed.action == "list":
        summary = {"models": [pretrained.describe(name) for name in pretrained.MODELS]}
        for row in summary["models"]:
            print(f"{row['name']:12} {row['title']} ({row['licence']})")
            print(f"{'':12} {row['found'] or 'not here yet'}")
    elif parsed.action == "fetch":
        folder = pretrained.fetch(named(parsed, pretrained.MODELS))
        summary = {"name": parsed.name, "folder": str(folder)}
        print(folder)
    else:
        folder = convert(parsed)
        summary = {"checkpoint": parsed.name, "folder": str(folder)}
        print(folder)
    if parsed.json:
        say_json(summary)
    return 0


def convert(parsed: Any) -> Path:
    """Convert a checkpoint of Mask-Predict to a run folder, and return the folder."""
    files = (parsed.name, parsed.source_dict, parsed.target_dict)
    if None in files:
        raise UserError("convert needs a checkpoint, --source-dict and --target-dict")
    checkpoint, source, target = map(Path, files)
    out = Path(parsed.out)
    return fairseq.convert(checkpoint, source, target, out, overwrite=parsed.overwrite)
