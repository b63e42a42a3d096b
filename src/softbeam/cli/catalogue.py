"""Commands for what is downloaded: data, models."""

from pathlib import Path
from typing import Any

from softbeam.cli.parser import parser, say_json
from softbeam.errors import UserError


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
    """Real masked language models: softbeam models list | fetch NAME | convert CHECKPOINT"""
    from softbeam.models import catalogue as pretrained

    made = parser(
        "models",
        "list: what there is; fetch NAME: get it, as a Hugging Face folder; convert FILE: a "
        "fairseq checkpoint of Mask-Predict as a run.",
    )
    made.add_argument("action", type=str, choices=["list", "fetch", "convert"])
    names = ", ".join(pretrained.names())
    made.add_argument("name", type=str, nargs="?", default=None, help=f"{names}; or a checkpoint")
    made.add_argument("--source-dict", type=str | None, default=None, help="convert: dict.de.txt")
    made.add_argument("--target-dict", type=str | None, default=None, help="convert: dict.en.txt")
    made.add_argument("--out", type=str, default="runs/converted", help="convert: the run's folder")
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
    if parsed.action == "convert":
        return convert(parsed)
    if parsed.name is None:
        raise UserError(f"fetch needs a name; there are {', '.join(pretrained.names())}")
    folder = str(pretrained.fetch(parsed.name))
    print(folder)
    if parsed.json:
        say_json({"name": parsed.name, "folder": folder})
    return 0


def convert(parsed: Any) -> int:
    """A checkpoint of Mask-Predict as a run."""
    given = (parsed.name, parsed.source_dict, parsed.target_dict)
    if None in given:
        raise UserError("convert needs a checkpoint, --source-dict and --target-dict")
    from softbeam.training.fairseq import convert as run

    checkpoint, source, target = map(Path, given)
    folder = str(run(checkpoint, source, target, Path(parsed.out)))
    print(folder)
    if parsed.json:
        say_json({"checkpoint": parsed.name, "folder": folder})
    return 0
