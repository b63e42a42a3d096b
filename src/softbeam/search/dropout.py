"""Dropout while a search is trained: none, the same for a whole sentence, or anew at each step.

Dropout of a beam row and step that is drawn anew makes the search compare hypotheses by different
networks, which is not what happens at test time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from softbeam.search.decoders import Wrapped, stepwise_scores
from softbeam.types import Decoder, ReadoutDecoder, State

MODES = ("none", "shared", "independent")
RATES = (  # what modules call a dropout rate, of torch and of Hugging Face
    "dropout",
    "dropout_p",
    "dropout_prob",
    "dropout_rate",
    "attention_dropout",
    "activation_dropout",
)
KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@contextmanager
def searching(model: nn.Module, mode: str) -> Iterator[Callable[[Tensor], Decoder]]:
    """Give the function from sources to the decoders that are searched, with this dropout.

    Args:
        model: from sources to decoders, in training mode or not.
        mode: none has no dropout anywhere; shared draws one mask for each sentence and each place
            in the decoder, for all rows of the beam and all steps (Gal and Ghahramani 2016);
            independent is the model's own, drawn anew for every row and step.
    """
    if mode not in MODES:
        raise ValueError(f"search_dropout={mode!r} is none of {', '.join(MODES)}")
    if mode == "independent" or not model.training:
        yield model
    elif mode == "shared":
        yield lambda source: shared_dropout(model, model(source), len(source))
    else:
        with without_dropout(model):
            yield model


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set every dropout rate of a model to 0; its modules stay in training mode."""
    before: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        names = ("p",) if isinstance(module, KINDS) else RATES
        rates = [(name, getattr(module, name, None)) for name in names]
        before += [(module, name, rate) for name, rate in rates if isinstance(rate, float)]
    try:
        for module, name, _ in before:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, rate in before:
            setattr(module, name, rate)


class Masks:
    """The masks of some sentences, one for each place where a decoder's step has dropout.

    Args:
        model: whose dropout it is.
        sentences: how many there are.
    """

    def __init__(self, model: nn.Module, sentences: int):
        self.places = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        self.sentences = sentences
        self.drawn: dict[tuple[int, int], Tensor] = {}

    @contextmanager
    def used(self, left: Tensor, rows: int) -> Iterator[None]:
        """Let all dropout use the masks, in one step of n rows for each sentence that is left."""
        owner = left.repeat_interleave(rows // max(len(left), 1))
        calls = dict.fromkeys(map(id, self.places), 0)

        def masked(module: nn.Dropout, x: Tensor) -> Tensor:
            key = id(module), calls[id(module)]
            calls[id(module)] += 1
            if key not in self.drawn:
                ones = x.new_ones(self.sentences, *[1] * (x.dim() - 2), x.shape[-1])
                self.drawn[key] = nn.functional.dropout(ones, module.p)
            return x * self.drawn[key][owner]

        for module in self.places:
            module.forward = partial(masked, module)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in self.places:
                del module.forward


class SharedDropout(Wrapped):
    """A decoder whose steps have the same dropout in all rows of a sentence and at all times."""

    def __init__(self, decoder: Decoder, masks: Masks, left: Tensor):
        super().__init__(decoder)
        self.masks, self.left = masks, left

    def step(self, state: State, emb: Tensor) -> tuple[Tensor, State]:
        with self.masks.used(self.left, len(emb)):
            return self.decoder.step(state, emb)

    def forced(self, target: Tensor) -> Tensor:
        return stepwise_scores(self, target)

    def fed(self, emb: Tensor) -> Tensor:
        state, _ = self.start()
        scores = []
        for one in emb.unbind(1):
            score, state = self.step(state, one)
            scores.append(score)
        return torch.stack(scores, 1)

    def narrowed(self, sentences: Tensor) -> "SharedDropout":
        self.left = self.left[sentences]
        return self


class SharedReadout(SharedDropout):
    """The same of a decoder with a separate output layer."""

    decoder: ReadoutDecoder

    @property
    def output_layer(self) -> Any:
        return self.decoder.output_layer

    def advance(self, state: State, emb: Tensor) -> tuple[Tensor, State]:
        with self.masks.used(self.left, len(emb)):
            return self.decoder.advance(state, emb)


def shared_dropout(model: nn.Module, decoder: Decoder, sentences: int) -> Decoder:
    """Give a decoder of a model's the same dropout in all rows of a sentence and at all times."""
    kind = SharedReadout if isinstance(decoder, ReadoutDecoder) else SharedDropout
    left = torch.arange(sentences, device=decoder.embedding.device)
    return kind(decoder, Masks(model, sentences), left)
