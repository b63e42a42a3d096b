"""Trained encoder-decoders with the tokenizers of their two sides, from a folder.

A folder has the weights and the source's tokenizer, as transformers writes them, and in `target`
the tokenizer of the outputs. 0 is padding on both sides.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Int
from safetensors import safe_open
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from softbeam.errors import UserError
from softbeam.models.gru import GruSeq2Seq
from softbeam.models.huggingface.masked import check_finite, quiet
from softbeam.models.huggingface.seq2seq import HfSeq2Seq

GRU = "gru.json"  # sizes of a model that transformers has no class for, instead of config.json
POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
WEIGHTS, TARGET = "model.safetensors", "target"


@dataclass(frozen=True)
class TextSeq2Seq:
    """A trained encoder-decoder for texts; `beam_search(m.model(m.encode(texts)), ...)` decodes.

    Args:
        model: calling it on sources gives a `Decoder`.
        source: tokenizer of the inputs.
        target: tokenizer of the outputs.
        eos: the output token that ends an output.
        longest: the largest number of output tokens, with the end mark.
    """

    model: nn.Module
    source: Any
    target: Any
    eos: int
    longest: int

    def encode(self, texts: Sequence[str]) -> Int[Tensor, "batch source_time"]:
        """Convert texts to sources. Raises UserError if a token is unknown or a text too long."""
        rows = []
        for number, text in enumerate(texts):
            try:
                ids = self.source(text, verbose=False)["input_ids"]
            except Exception as error:  # tokenizers raises Exception itself
                raise UserError(f"text {number}, {text[:40]!r}: {error}") from error
            if len(ids) > self.source.model_max_length:
                limit = self.source.model_max_length
                raise UserError(
                    f"text {number} has {len(ids)} tokens; the model's limit is {limit}"
                )
            rows.append(torch.tensor(ids))
        return pad_sequence(rows, batch_first=True)

    def limits(self, source: Int[Tensor, "batch source_time"]) -> Int[Tensor, " batch"]:
        """The largest number of output tokens for each source, for the `lengths` of a search."""
        return torch.full((len(source),), self.longest)

    def decode(self, tokens: Int[Tensor, "batch time"]) -> list[str]:
        """Convert outputs to texts: tokens and spaces, up to the end mark."""
        return [self.target.decode(row, skip_special_tokens=True) for row in tokens.tolist()]


def load(folder: str | Path, *, dtype: torch.dtype = torch.float32) -> TextSeq2Seq:
    """Load a folder. Raises UserError if it has no such model, or a part of it is missing."""
    folder = Path(folder)
    try:
        source = transformers.AutoTokenizer.from_pretrained(folder)
        target = transformers.AutoTokenizer.from_pretrained(folder / TARGET)
        if (folder / GRU).exists():
            sizes = json.loads((folder / GRU).read_text(encoding="utf-8"))
            eos, longest = sizes.pop("eos"), sizes.pop("longest")
            model: nn.Module = GruSeq2Seq(**sizes)
            load_model(model, folder / WEIGHTS)
        else:
            model = HfSeq2Seq(load_huggingface(folder))
            eos, longest = model.eos, model.longest
    except UserError:
        raise
    except Exception as error:  # transformers raises any class of error for a broken folder
        reason = " ".join(str(error).split())[:400]
        raise UserError(f"{folder} cannot be loaded as an encoder-decoder: {reason}") from error
    check_finite(model)
    return TextSeq2Seq(model.eval().to(dtype), source, target, eos, longest)


def load_huggingface(folder: Path) -> Any:
    """Load an encoder-decoder of transformers, with its own table of positions if it has one.

    Marian computes its table and leaves it out of files. A model whose configuration says
    `static_position_embeddings: false` has a learned one, which must be in the file; a copy that
    is loaded here saves it too. Raises UserError if it is missing.
    """
    with quiet():
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, use_safetensors=True)
    if model.config.pad_token_id != 0:
        raise UserError(f"{folder}: its padding is {model.config.pad_token_id}; it must be 0")
    if getattr(model.config, "static_position_embeddings", True):
        return model
    with safe_open(folder / WEIGHTS, "pt") as file:
        if missing := sorted(set(POSITIONS) - set(file.keys())):
            raise UserError(
                f"{folder / WEIGHTS} lacks {missing[0]}, which this model has learned: "
                "load it with softbeam.models.load_seq2seq before it is saved again"
            )
    model._keys_to_ignore_on_save = set()
    return model
