"""Texts of batches, and the user's own functions that a file names, for costs of texts."""

from typing import Any

from torch import Tensor

from softbeam.data.encoding import Codecs
from softbeam.data.vocabulary import Pieces
from softbeam.errors import UserError
from softbeam.objectives.functions import Reward
from softbeam.objectives.losses.texts import Texts
from softbeam.runtime.allowed import is_allowed
from softbeam.sampling.certified_kernels import imported


def texts_of(codecs: Codecs) -> Texts:
    """Write a run's tokens with spaces between them; its vocabularies say which they are."""

    def prompts(source: Tensor) -> list[str]:
        if source.dim() == 3:  # a word is a row of pieces, or its own number and its letters
            in_pieces = isinstance(codecs.source, Pieces)
            source = source.flatten(1) if in_pieces else source[:, :, 0]
        return [" ".join(codecs.source.decode(row)) for row in source.tolist()]

    def outputs(rows: list[list[int]]) -> list[str]:
        return [" ".join(codecs.target.decode(row)) for row in rows]

    return Texts(prompts, outputs)


def tokenizer_texts(tokenizer: Any, adapter: Any) -> Texts:
    """Decode the numbers of an adapter of a Hugging Face model; special tokens are left out.

    Prompts are empty if the model reads something other than texts.
    """

    def outputs(rows: list[list[int]]) -> list[str]:
        order = adapter.order.tolist()
        ids = [[order[number] for number in row] for row in rows]
        return list(tokenizer.batch_decode(ids, skip_special_tokens=True))

    def prompts(source: Tensor) -> list[str]:
        if getattr(adapter, "inputs", None) is not None:
            ids = adapter.inputs.get("input_ids")
            if ids is None:
                return [""] * len(source)
            rows = ids[source[:, 0] - 1].tolist()
            return list(tokenizer.batch_decode(rows, skip_special_tokens=True))
        return outputs([[n for n in row if n] for row in source.tolist()])

    return Texts(prompts, outputs)


def own_function(name: str) -> Reward:
    """Import a function that a file names; raises UserError if its module is not allowed."""
    module = name.partition(":")[0]
    if not is_allowed(module):
        raise UserError(
            f"reward {name}: runs code of {module}; if you trust it, add --allow-module {module}"
        )
    function: Reward = imported(name, "reward", ())
    return function
