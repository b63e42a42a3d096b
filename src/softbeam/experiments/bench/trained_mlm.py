"""A small word-level masked language model of captions, trained once and kept in the cache."""

import re
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from softbeam.data.batches import pad
from softbeam.data.catalogue import cache_dir, locate
from softbeam.data.readers import read_lines
from softbeam.data.vocabulary import MASK, MASKED, PAD, Vocabulary
from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.runtime.files import write_atomic
from softbeam.runtime.progress import Progress
from softbeam.training.masked_lm import held_out_loss, train_mlm

LONGEST = 40
SHAPE = TransformerShape(width=128, layers=2, heads=4, longest=LONGEST)


class Trained(NamedTuple):
    """A trained model, and texts that it was not trained on."""

    model: TransformerMlm
    vocabulary: Vocabulary
    held_out: list[list[int]]  # without unknown words


def trained_mlm(
    *, updates: int = 4000, seed: int = 0, quiet: bool = False, folder: Path | None = None
) -> Trained:
    """A Transformer over 5,899 words of Multi30k's English, from the cache or trained now."""
    texts = {split: words(locate("multi30k", f"raw/{split}.en.gz")) for split in ("train", "val")}
    vocabulary = Vocabulary.build(texts["train"], specials=MASKED, min_count=2)
    model = empty(vocabulary, seed)
    rows = {split: [vocabulary.encode(text) for text in texts[split]] for split in texts}
    path = (folder or cache_dir() / "bench") / f"multi30k-mlm-{updates}-{seed}.safetensors"
    if not loaded(model, path):
        train(model, table(rows["train"]), table(rows["val"]), updates, seed, quiet)
        write_atomic(path, save({k: v.contiguous() for k, v in model.state_dict().items()}))
    allowed = model.allowed.tolist()
    held_out = [row for row in rows["val"] if all(allowed[i] for i in row)]
    return Trained(model.eval(), vocabulary, held_out)


def words(path: Path) -> list[list[str]]:
    return [re.findall(r"\w+|[^\w\s]", " ".join(line).lower()) for line in read_lines(path)]


def empty(vocabulary: Vocabulary, seed: int) -> TransformerMlm:
    specials = [i for name in MASKED if (i := vocabulary.id(name)) is not None]
    pad_id, mask_id = (vocabulary.index[name] for name in (PAD, MASK))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TransformerMlm(
            len(vocabulary), SHAPE, pad_id=pad_id, mask_id=mask_id, specials=specials
        )


def table(rows: list[list[int]]) -> Int[Tensor, "texts time"]:
    return pad([row[:LONGEST] for row in rows])


def loaded(model: TransformerMlm, path: Path) -> bool:
    """Load a model's weights from a file; False if it is missing or does not fit the model."""
    try:
        model.load_state_dict(load(path.read_bytes()))
    except (OSError, RuntimeError, SafetensorError):
        return False
    return True


def train(
    model: TransformerMlm, texts: Tensor, held_out: Tensor, updates: int, seed: int, quiet: bool
) -> None:
    rng = torch.Generator().manual_seed(seed)
    with Progress("training a masked LM on Multi30k", updates, quiet=quiet) as progress:

        def watch(update: int, loss: float) -> None:
            progress.advance(shown={"loss": f"{loss:.2f}"})

        train_mlm(model, texts, updates=updates, rng=rng, watch=watch)
        progress.say(f"held out: {held_out_loss(model, held_out, rng):.2f} nats a hidden word")
