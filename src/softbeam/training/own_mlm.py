"""Train a masked language model of one's own on texts, and write it to a folder."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from softbeam import __version__
from softbeam.data.batches import pad
from softbeam.data.task import fraction
from softbeam.data.texts import Form, read_sequences
from softbeam.data.vocabulary import Vocabulary
from softbeam.errors import UserError
from softbeam.models.catalogue import OWN
from softbeam.models.layers import TransformerShape
from softbeam.models.trained_mlm import SPECIALS, Description, TrainedMlm, tokens_of
from softbeam.objectives.losses import masked as losses
from softbeam.runtime import locks, outputs
from softbeam.runtime.files import write_text
from softbeam.runtime.progress import Progress
from softbeam.sampling.energies import LocalEnergy
from softbeam.training.masked_lm import train_mlm
from softbeam.training.mlm_config import MlmConfig

SUMMARY = "summary.json"
HELD_OUT = 2048  # tokens of dev that are scored, about
SIZES = ("width", "layers", "heads", "longest", "dropout")
FORMS: dict[Form, tuple[Any, Any]] = {  # what is hidden, and the loss
    "plain": (losses.hidden_at_rate, losses.masked_cross_entropy),
    "diffusion": (losses.hidden_uniformly, losses.any_order_cross_entropy),
    "hollow": (losses.hidden_or_none, losses.one_pass_cross_entropy),
}


class Texts(NamedTuple):
    """Tokens to train on, and to score, within the limit of the model."""

    train: list[list[str]]
    dev: list[list[str]]


def train_own(
    config: MlmConfig, out: Path, *, quiet: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Train a model, write it into a folder with a summary, and return the summary.

    Raises UserError if the texts cannot be read, or the folder may not be written.
    """
    if config.train is None:
        raise UserError("--train is missing: a file of texts, one on a line, or FASTA")
    read = [Path(name) for name in (config.train, config.dev) if name is not None]
    hint = "--overwrite replaces it"
    with outputs.folder(
        out, describe=content_of, inputs=read, overwrite=overwrite, hint=hint
    ) as at:
        texts = read_both(config)
        vocabulary = Vocabulary.build(texts.train, specials=SPECIALS)
        tokens = tuple(vocabulary.tokens[len(SPECIALS) :])
        sizes = {name: getattr(config, name) for name in SIZES}
        described = Description(
            form=config.form, units=config.units, shape=TransformerShape(**sizes), tokens=tokens
        )
        rng = torch.Generator().manual_seed(config.seed)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            model = described.build()
        hide, loss = FORMS[config.form]
        rows = pad([vocabulary.encode(text) for text in texts.train])
        with Progress("train masked-lm", config.updates, quiet=quiet) as progress:
            train_mlm(
                model,
                rows,
                updates=config.updates,
                rng=rng,
                batch=config.batch,
                learning_rate=config.lr,
                hide=hide,
                loss=loss,
                watch=lambda _, value: progress.advance(shown={"loss": f"{value:.3f}"}),
            )
        trained = TrainedMlm(described, model)
        trained.save(at / OWN)
        summary = summarized(config, trained, texts)
        write_text(at / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    return summary


def content_of(folder: Path) -> str | None:
    """Say what `train_own` left in a folder; None if it holds anything else."""
    names = {path.name for path in folder.iterdir()} - {locks.NAME}
    return "a masked language model" if OWN in names and names <= {OWN, SUMMARY} else None


def read_both(config: MlmConfig) -> Texts:
    """Read the texts, and cut long ones; without a dev file, hold out a tenth by a hash."""
    train = read_sequences(config.train or "")
    if config.dev is not None:
        dev = read_sequences(config.dev)
    else:
        dev = [text for text in train if fraction(text) < 0.1]
        train = [text for text in train if fraction(text) >= 0.1] or train
    return Texts(pieces(train, config), pieces(dev, config))


def pieces(texts: Sequence[str], config: MlmConfig) -> list[list[str]]:
    """Split texts into tokens, and these into pieces that the model can read."""
    split = [tokens_of(text, config.units) for text in texts]
    return [
        tokens[first : first + config.longest]
        for tokens in split
        for first in range(0, len(tokens), config.longest)
    ]


def summarized(config: MlmConfig, mlm: TrainedMlm, texts: Texts) -> dict[str, Any]:
    """Collect the settings, sizes, and the score of held-out texts."""
    known = mlm.vocabulary.index
    dev = [text for text in texts.dev if all(token in known for token in text)]
    dev = dev[: 1 + HELD_OUT // max(map(len, dev), default=1)]
    return {
        "softbeam": __version__,
        "settings": asdict(config),
        "parameters": sum(p.numel() for p in mlm.model.parameters()),
        "vocabulary": len(mlm.description.tokens),
        "texts": {"train": len(texts.train), "dev": len(texts.dev), "scored": len(dev)},
        "pseudo_log_likelihood": pseudo_log_likelihood(mlm, encoded(mlm, dev)) if dev else None,
    }


def encoded(mlm: TrainedMlm, texts: Sequence[Sequence[str]]) -> Int[Tensor, "texts time"]:
    """Convert tokens to numbers, padded on the right."""
    return pad([mlm.vocabulary.encode(text) for text in texts])


@torch.no_grad()
def pseudo_log_likelihood(mlm: TrainedMlm, tokens: Int[Tensor, "texts time"]) -> float:
    """The mean log-probability of a token given all others of its text, in nats."""
    return -float(LocalEnergy(mlm)(tokens).sum() / (tokens != mlm.pad_id).sum())
