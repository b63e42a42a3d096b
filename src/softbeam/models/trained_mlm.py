"""Masked language models of one's own: a network, its vocabulary, and a file that holds both."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.data.batches import pad
from softbeam.data.texts import Form, Units
from softbeam.data.vocabulary import MASK, PAD, Vocabulary
from softbeam.errors import UserError
from softbeam.models.hollow import HollowMlm
from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.models.residues import amino_acids
from softbeam.runtime.files import load_checkpoint, save_checkpoint
from softbeam.tensors import may_stand
from softbeam.types import Prompts, WordParts

GAP = re.compile(r"\[MASK\]|<mask>")
SPECIALS = (PAD, MASK)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a masked language model is, apart from its weights.

    Args:
        form: plain (hides some tokens), diffusion (hides any number of them) or hollow.
        units: what tokens are: characters, or words between spaces.
        shape: the sizes of the network.
        tokens: the vocabulary, without specials.
    """

    form: Form
    units: Units
    shape: TransformerShape
    tokens: tuple[str, ...]

    def build(self) -> TransformerMlm | HollowMlm:
        """Make the network, with random weights."""
        kind = HollowMlm if self.form == "hollow" else TransformerMlm
        vocabulary = Vocabulary(self.tokens, SPECIALS)
        pad_id, mask_id = vocabulary.index[PAD], vocabulary.index[MASK]
        return kind(len(vocabulary), self.shape, pad_id=pad_id, mask_id=mask_id)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Description":
        """Read a description that JSON has kept. Raises ValueError if it is none."""
        values: dict[str, Any] = {f.name: facts.get(f.name) for f in fields(cls)}
        form, units, shape, tokens = values.values()
        if form not in get_args(Form) or units not in get_args(Units):
            raise ValueError(f"form {form!r}, units {units!r}")
        if not isinstance(shape, dict) or not isinstance(tokens, list):
            raise ValueError("its shape or its tokens are missing")
        if not all(isinstance(token, str) for token in tokens):
            raise ValueError("its tokens are not texts")
        numbers = [v for v in shape.values() if v is not None]
        if not all(isinstance(v, int | float) and abs(v) < 10**6 for v in numbers):
            raise ValueError(f"its shape is {shape}")
        return cls(form=form, units=units, shape=TransformerShape(**shape), tokens=tuple(tokens))


class TrainedMlm:
    """A `TextModel` made of a network of softbeam and its vocabulary, without gradients.

    Texts have no frame: every token of a text is one of the vocabulary. A hollow network also has
    `every_logits`, which is None for others.
    """

    def __init__(self, description: Description, model: TransformerMlm | HollowMlm):
        self.description, self.model = description, model.eval().requires_grad_(False)
        self.vocabulary = Vocabulary(description.tokens, SPECIALS)
        self.pad_id, self.mask_id, self.longest = model.pad_id, model.mask_id, model.longest
        self.allowed = model.allowed.cpu()
        names = dict(enumerate(self.vocabulary.tokens))
        self.alphabet = amino_acids(names.__getitem__, self.allowed)
        spaced = " " in description.tokens
        letters = [spaced and name.isalnum() for name in self.vocabulary.tokens]
        self.word_parts = WordParts(*[torch.tensor(letters)] * 4)

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype, device: torch.device) -> "TrainedMlm":
        """Load the file that `softbeam train masked-lm` wrote. Raises UserError if it is none."""
        tensors, facts = load_checkpoint(path)
        try:
            description = Description.of(facts)
            model = description.build()
            model.load_state_dict(tensors)
        except (ValueError, TypeError, KeyError, RuntimeError, UserError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{path} is no masked language model: {reason}") from None
        if not all(bool(t.isfinite().all()) for t in tensors.values()):
            raise UserError(f"the weights in {path} are not all finite")
        return cls(description, model.to(device=device, dtype=dtype))

    def save(self, path: Path) -> None:
        """Write the model to a file."""
        facts = asdict(self.description)
        save_checkpoint(path, dict(self.model.state_dict()), facts)

    def to(self, device: str | torch.device) -> "TrainedMlm":
        """Move the network to a device."""
        self.model.to(device)
        return self

    # Scores

    @torch.no_grad()
    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Score the masked cells, each given the unmasked ones; `owner` is not read."""
        device = self.model.bias.device
        logits = self.model.logits(*(part.to(device) for part in (tokens, masked, owner)))
        return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()

    @property
    def every_logits(self) -> Any:
        """The function that scores every cell in one pass, if the network is hollow."""
        return self._every if isinstance(self.model, HollowMlm) else None

    @torch.no_grad()
    def _every(self, tokens: Tensor, owner: Tensor) -> Tensor:
        assert isinstance(self.model, HollowMlm)
        device = self.model.bias.device
        logits = self.model.every_logits(tokens.to(device), owner.to(device))
        return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()

    # Texts

    def encode(self, texts: str | Sequence[str]) -> Prompts:
        """Convert texts to tokens; `[MASK]` or `<mask>` is a gap of one token.

        Raises UserError if the model has no token for a part of a text, or a text is too long.
        """
        rows = [self._ids(text) for text in ([texts] if isinstance(texts, str) else texts)]
        tokens = pad(rows, self.pad_id) if rows else torch.zeros(0, 0, dtype=torch.long)
        hidden = tokens == self.mask_id
        return Prompts(tokens, hidden, tokens == self.pad_id)

    def _ids(self, text: str) -> list[int]:
        names = tokens_of(text, self.description.units)
        unknown = [name for name in names if name not in self.vocabulary.index or name == PAD]
        if unknown:
            raise UserError(f"the model has no token for {unknown[0]!r} of {text[:40]!r}")
        if len(names) > self.longest:
            raise UserError(
                f"a text has {len(names)} tokens; the model's limit is {self.longest}: "
                f"{text[:40]!r}…"
            )
        return [self.vocabulary.index[name] for name in names]

    def decode(self, tokens: Int[Tensor, "chain time"]) -> list[str]:
        """Convert tokens to texts, without padding."""
        shown = may_stand(tokens, self.allowed) | (tokens == self.mask_id)
        space = " " if self.description.units == "words" else ""
        rows = zip(tokens, shown, strict=True)
        return [space.join(self.token_names(row[kept].tolist())) for row, kept in rows]

    def token_names(self, ids: Sequence[int]) -> list[str]:
        """The names of tokens; that of the mask is `[MASK]`."""
        return ["[MASK]" if i == self.mask_id else self.vocabulary.tokens[i] for i in ids]

    def token_id(self, name: str) -> int | None:
        """The number of the token of this name; None if there is none."""
        return self.vocabulary.index.get(MASK if GAP.fullmatch(name) else name)

    def word_ids(self, text: str) -> list[int]:
        """The tokens of a piece of text; none if a part of it is unknown."""
        names = tokens_of(text, self.description.units)
        known = all(name in self.vocabulary.index for name in names)
        return [self.vocabulary.index[name] for name in names] if known else []


def tokens_of(text: str, units: Units) -> list[str]:
    """Split a text into tokens; a gap is the token of the mask."""
    if units == "words":
        return GAP.sub(f" {MASK} ", text).split()
    parts = GAP.split(text)
    return [*parts[0], *(token for part in parts[1:] for token in (MASK, *part))]
