"""What adapters of Hugging Face decoders share: the numbers of tokens, and caches as tensors."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from softbeam.errors import UserError
from softbeam.tensors import map_state

State = tuple[tuple[Tensor, Tensor], ...]  # keys and values of each layer: rows heads time each


class HfModel(nn.Module):
    """A Hugging Face model whose padding has the number 0; `model` stays an ordinary one.

    Everything else here takes 0 for padding. So 0 and `pad_id` change places, in sources, targets,
    embeddings and scores; all other tokens keep their numbers. `renumbered` goes either way.
    """

    order: Tensor

    def __init__(self, model: Any, pad_id: int):
        super().__init__()
        if model.is_gradient_checkpointing:
            raise UserError(
                "gradient checkpointing leaves no cache to decode with: call "
                "gradient_checkpointing_disable(), and use Form(checkpoint=True)"
            )
        self.model, self.pad_id = model, pad_id
        order = torch.arange(self.tokens.num_embeddings)
        order[[0, pad_id]] = order[[pad_id, 0]]
        self.register_buffer("order", order.to(self.tokens.weight.device), persistent=False)

    @property
    def tokens(self) -> nn.Embedding:
        """The table of the decoder's inputs."""
        table: nn.Embedding = self.model.get_decoder().get_input_embeddings()
        return table

    @property
    def eos(self) -> int:
        """The number of the end mark."""
        found = setting(self.model, "eos_token_id")
        several = found if isinstance(found, list) else [found]
        if len(several) > 1:
            raise UserError(f"eos_token_id={found}: a search has one end mark, of your choice")
        return int(self.order[several[0]])

    @property
    def longest(self) -> int | None:
        """The largest number of positions; None where there is no limit."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def renumbered(self, ids: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The model's own numbers of these tokens, or ours of the model's."""
        return self.order[ids]

    def embedding(self) -> Float[Tensor, "vocab emb"]:
        """What the model takes as `inputs_embeds` for each token, scaled where it does not scale.

        A scale of the table itself (BART) is applied to numbers alone; one of the decoder (Marian)
        to embeddings too. As in the model's own training, what is looked up as padding (with which
        Marian starts, too) has no gradient.
        """
        table = self.tokens.weight * getattr(self.tokens, "embed_scale", 1.0)
        fixed = self.tokens.padding_idx
        if fixed is not None and table.requires_grad:
            row = torch.tensor([fixed], device=table.device)
            table.register_hook(lambda gradient: gradient.index_fill(0, row, 0.0))
        return table if self.pad_id == 0 else table[self.order]

    def in_order(self, scores: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
        """The model's scores by our numbers."""
        return scores if self.pad_id == 0 else scores[..., self.order]


class HfDecoder(ABC):
    """A `FusedDecoder` of a Hugging Face model, bound to its sources by a subclass.

    Args:
        adapter: the model.
        first: what each source's output begins with, as embeddings.
        empty: a state before the first position.
    """

    def __init__(self, adapter: HfModel, first: Float[Tensor, "batch emb"], empty: State):
        self.adapter, self.first, self.empty = adapter, first, empty
        self._embedding = adapter.embedding()
        self._wide: dict[tuple[int, bool], Any] = {}

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]:
        return self._embedding

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        return self.empty, self.first

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        scores, state = self.extend(state, emb[:, None])
        return self.adapter.in_order(scores[:, 0]), state

    def forced(self, target: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Scores of every step given the gold prefix, in one call."""
        return self.fed(torch.cat([self.first[:, None], self.embedding[target[:, :-1]]], 1))

    def fed(self, emb: Float[Tensor, "batch time emb"]) -> Float[Tensor, "batch time vocab"]:
        """Scores of every step when these embeddings are fed, in one call."""
        return self.adapter.in_order(self.extend(self.empty, emb)[0])

    @abstractmethod
    def extend(
        self, state: State, emb: Float[Tensor, "rows time emb"]
    ) -> tuple[Float[Tensor, "rows time vocab"], State]:
        """The model's scores of what follows the state's positions, and the state with them."""

    @property
    @abstractmethod
    def sources(self) -> Any:
        """A nested tuple of tensors, a row for each source, that all rows of a beam share."""

    def widened(self, rows: int) -> Any:
        """`sources` repeated for so many rows; computed once for each width of a beam."""
        n = rows // len(self.first)
        key = n, torch.is_grad_enabled()  # what was made without a graph has no gradient later
        if key not in self._wide:
            self._wide[key] = map_state(lambda part: part.repeat_interleave(n, 0), self.sources)
        return self._wide[key]

    def check_positions(self, last: int) -> None:
        longest = self.adapter.longest
        if longest is not None and last > longest:
            raise ValueError(f"{last} positions; the model has {longest}")


def as_cache(state: State) -> DynamicCache:
    """Plain tensors as a Hugging Face cache, not copied; appending to it changes no argument."""
    cache = DynamicCache()
    for key, value in state:
        layer: Any = DynamicLayer()
        layer.keys, layer.values, layer.is_initialized = key, value, True
        layer.dtype, layer.device = key.dtype, key.device
        cache.layers.append(layer)
    return cache


def as_state(cache: Any, first: int = 0) -> State:
    """The keys and values of a cache from position `first` on."""
    return tuple((x.keys[:, :, first:], x.values[:, :, first:]) for x in cache.layers)


def setting(model: Any, name: str) -> Any:
    """A value of the generation configuration, or of the model's."""
    for owner in (model.generation_config, model.config):
        if (value := getattr(owner, name, None)) is not None:
            return value
    raise UserError(f"{type(model).__name__} has no {name}: set it in its generation_config")
