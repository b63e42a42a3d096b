"""The recipe of `softbeam train` that has no target: masked-lm."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.cli.parser import add_fields, overwrite_argument, parser, say_json, split_flag
from softbeam.errors import check_threads
from softbeam.training.mlm_config import MlmConfig

if TYPE_CHECKING:
    import torch

    from softbeam.training import own_mlm
else:
    torch, own_mlm = lazy("torch"), lazy("softbeam.training.own_mlm")

NAME = "masked-lm"
ABOUT = "A masked language model of your own texts, lines or FASTA: plain, diffusion or hollow."
ALIASES = {"--data.train": "--train", "--data.dev": "--dev"}  # as other recipes call them


def train_mlm(words: list[str]) -> int:
    """Run `softbeam train masked-lm`."""
    arguments = parser(
        f"train {NAME}",
        "Train a masked language model on lines of text or on FASTA; `sample`, `score` and "
        "`infill` take its folder as --mlm.",
    )
    add_fields(arguments, MlmConfig)
    add = arguments.add_argument
    add("--out", type=str, default=f"runs/{NAME}", help="folder of the model")
    add("--threads", type=int, default=1, help="number of processor threads")
    add("--quiet", action="store_true", help="show no progress")
    overwrite_argument(arguments)
    add("--json", action="store_true", help="print the summary as a last line of JSON")
    named = [part for word in words for part in split_flag(word)]
    parsed = arguments.parse_args([ALIASES.get(word, word) for word in named])
    check_threads(parsed.threads)
    config = MlmConfig(**{f.name: parsed[f.name] for f in fields(MlmConfig)})
    torch.set_num_threads(parsed.threads)
    out = Path(parsed.out)
    summary = own_mlm.train_own(config, out, quiet=parsed.quiet, overwrite=parsed.overwrite)
    score = summary["pseudo_log_likelihood"]
    held_out = "no text is held out" if score is None else f"{score:.3f} nats a held-out token"
    print(f"{summary['parameters']:,} parameters, {summary['vocabulary']} {config.units}")
    print(f"pseudo-log-likelihood: {held_out}")
    print(f"{out}: softbeam sample --mlm {out} --length 20")
    if parsed.json:
        say_json({"out": str(out)} | summary)
    return 0
