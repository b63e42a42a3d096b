"""Shared parts of adapters of Hugging Face decoders: token numbers, and caches as tensors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from softbeam.errors import UserError
from softbeam.tensors import gather, map_state

State = tuple[tuple[Tensor, Tensor], ...]  # keys and values of each layer: rows heads time each


CHECKPOINTING = "gradient_checkpointing"  # the attribute of modules


class HfModel(nn.Module):
    """A Hugging Face model, renumbered so that padding is 0; `model` itself is unchanged.

    The rest of softbeam takes 0 for padding. So 0 and `pad_id` change places in sources, targets,
    embeddings and scores; all other tokens keep their numbers. `renumbered` converts both ways.

    Gradient checkpointing of the model works: each step of the decoder is computed again in the
    backward pass. The model's own form of it, layer by layer, keeps no cache to decode with.
    """

    order: Tensor

    def __init__(self, model: Any, pad_id: int):
        super().__init__()
        self.model, self.pad_id = model, pad_id
        order = torch.arange(self.tokens.num_embeddings)
        order[[0, pad_id]] = order[[pad_id, 0]]
        self.register_buffer("order", order.to(self.tokens.weight.device), persistent=False)

    @contextmanager
    def cached(self) -> Iterator[None]:
        """Turn off the model's own gradient checkpointing in a block, as it keeps no cache."""
        layers: list[Any] = [m for m in self.modules() if getattr(m, CHECKPOINTING, False)]
        for layer in layers:
            setattr(layer, CHECKPOINTING, False)
        try:
            yield
        finally:
            for layer in layers:
                setattr(layer, CHECKPOINTING, True)

    @property
    def tokens(self) -> nn.Embedding:
        """The table of the decoder's inputs."""
        table: nn.Embedding = self.model.get_decoder().get_input_embeddings()
        return table

    @property
    def eos(self) -> int:
        """The number of the end mark."""
        given = setting(self.model, "eos_token_id")
        several = given if isinstance(given, list) else [given]
        if len(several) > 1:
            raise UserError(f"eos_token_id={given}: must be a single number, of your choice")
        return int(self.order[several[0]])

    @property
    def longest(self) -> int | None:
        """The largest number of positions; None if there is no limit."""
        config = self.model.config
        own = getattr(config, "max_target_positions", None)  # of Whisper
        return getattr(config, "max_position_embeddings", None) if own is None else own

    def renumbered(self, ids: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Convert the model's numbers of tokens to those used here, or back."""
        return self.order[ids]

    def embedding(self) -> Float[Tensor, "vocab emb"]:
        """Compute the `inputs_embeds` of each token.

        The model applies a scale of the table (BART) only to token numbers, so it is applied here;
        a scale of the decoder (Marian) also to embeddings. As in the model's own training, the row
        of the padding token, with which Marian starts, has no gradient.
        """
        table = self.tokens.weight * getattr(self.tokens, "embed_scale", 1.0)
        fixed = self.tokens.padding_idx
        if fixed is not None and table.requires_grad:
            row = torch.tensor([fixed], device=table.device)
            table.register_hook(lambda gradient: gradient.index_fill(0, row, 0.0))
        return table if self.pad_id == 0 else table[self.order]

    def in_order(self, scores: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
        """Reorder the model's scores by the numbers used here."""
        if self.pad_id == 0:
            return scores
        swapped = torch.tensor([0, self.pad_id], device=scores.device)
        return scores.index_copy(-1, swapped, scores.index_select(-1, swapped.flip(0)))


class HfDecoder(ABC):
    """A `FusedDecoder` of a Hugging Face model, bound to its sources by a subclass.

    Args:
        adapter: the model.
        first: the embedding that each output starts with.
        empty: the state before the first position.
        sources: a nested tuple of tensors with a row for each source; all rows of a beam share it.
    """

    def __init__(
        self, adapter: HfModel, first: Float[Tensor, "batch emb"], empty: State, sources: Any
    ):
        self.adapter, self.first, self.empty, self.sources = adapter, first, empty, sources
        self._embedding = adapter.embedding()
        self._wide: dict[tuple[int, bool], Any] = {}

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self._embedding

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        return self.empty, self.first

    def select(self, sentences: Int[Tensor, " left"]) -> "HfDecoder":
        """The decoder of some of the sources."""
        other = copy(self)
        other.first, other.empty = gather((self.first, self.empty), sentences)
        other.sources, other._wide = gather(self.sources, sentences), {}
        return other

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        scores, state = self.extended(state, emb[:, None])
        return self.adapter.in_order(scores[:, 0]), state

    def forced(self, target: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given the gold prefix, in one call."""
        return self.fed(torch.cat([self.first[:, None], self.embedding[target[:, :-1]]], 1))

    def fed(self, emb: Float[Tensor, "batch time emb"]) -> Float[Tensor, "batch time vocab"]:
        """Score every step given these input embeddings, in one call."""
        return self.adapter.in_order(self.extended(self.empty, emb)[0])

    def extended(
        self, state: State, emb: Float[Tensor, "rows time emb"]
    ) -> tuple[Float[Tensor, "rows time vocab"], State]:
        """Call `extend`; with gradient checkpointing, keep nothing of it but what it returns."""
        if not self.adapter.model.is_gradient_checkpointing:
            return self.extend(state, emb)

        def extend(state: State, emb: Tensor) -> tuple[Tensor, State]:
            with self.adapter.cached():
                return self.extend(state, emb)

        if not torch.is_grad_enabled():
            return extend(state, emb)
        self.widened(len(emb))  # is computed once, and so not inside
        scores, after = checkpoint(extend, state, emb, use_reentrant=False)
        return scores, after

    @abstractmethod
    def extend(
        self, state: State, emb: Float[Tensor, "rows time emb"]
    ) -> tuple[Float[Tensor, "rows time vocab"], State]:
        """Score the positions after those of the state; return the scores and the new state."""

    def widened(self, rows: int) -> Any:
        """Repeat `sources` for this number of rows; computed once for each width of a beam."""
        n = rows // len(self.first)
        key = n, torch.is_grad_enabled()  # a result without a graph cannot be used with gradients
        if key not in self._wide:
            self._wide[key] = map_state(lambda part: part.repeat_interleave(n, 0), self.sources)
        return self._wide[key]

    def check_positions(self, last: int) -> None:
        """Raise ValueError if the model has fewer positions."""
        longest = self.adapter.longest
        if longest is not None and last > longest:
            raise ValueError(f"{last} positions; the model's limit is {longest}")


def as_cache(state: State) -> DynamicCache:
    """Convert tensors to a Hugging Face cache without a copy; appending leaves them unchanged."""
    cache = DynamicCache()
    for key, value in state:
        layer: Any = DynamicLayer()
        layer.keys, layer.values, layer.is_initialized = key, value, True
        layer.dtype, layer.device = key.dtype, key.device
        cache.layers.append(layer)
    return cache


def as_state(cache: Any, first: int = 0, stop: int | None = None) -> State:
    """The keys and values of a cache from position `first` on, to before `stop` if it is given."""
    kept = slice(first, stop)
    return tuple((x.keys[:, :, kept], x.values[:, :, kept]) for x in cache.layers)


def setting(model: Any, name: str) -> Any:
    """Look up a value in the generation configuration, then in the model's configuration.

    Raises UserError if neither has it.
    """
    for owner in (model.generation_config, model.config):
        if (value := getattr(owner, name, None)) is not None:
            return value
    raise UserError(f"{type(model).__name__} has no {name}: set it in its generation_config")
