"""Transformer layers: attention over real positions, of a sequence to itself and to a source."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Memory(NamedTuple):
    """What a layer's queries look at: keys and values for each source, and which are real."""

    key: Float[Tensor, "sources heads time each"]
    value: Float[Tensor, "sources heads time each"]
    real: Bool[Tensor, "#sources 1 #queries time"]

    def of(self, owner: Int[Tensor, " rows"]) -> "Memory":
        """The memory of rows that belong to these sources."""
        return Memory(*(part[owner] for part in self))


class Cache(NamedTuple):
    """Keys and values of the positions so far: a decoder's state, which can be gathered or mixed.

    All rows have come equally far, so that a mixture of rows mixes equal positions.
    """

    key: Float[Tensor, "rows heads time each"]
    value: Float[Tensor, "rows heads time each"]

    def grown(self, new: "Cache") -> "Cache":
        """With new positions after the old ones."""
        return Cache(torch.cat([self.key, new.key], 2), torch.cat([self.value, new.value], 2))

    def seen_by_last(self, queries: int) -> Memory:
        """What the last positions look at: each at those before it and at itself."""
        time = self.key.shape[2]
        seen = torch.ones(queries, time, dtype=torch.bool, device=self.key.device)
        return Memory(self.key, self.value, seen.tril(time - queries)[None, None])


class Attention(nn.Module):
    """Several heads that share the width; queries from one sequence, memories from another."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise ValueError(f"heads={heads} do not divide the width {width}")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.joined = nn.Linear(width, width)

    def memory(
        self, x: Float[Tensor, "rows time width"], real: Bool[Tensor, "rows time"]
    ) -> Memory:
        return Memory(*self.cache(x), real[:, None, None])

    def cache(self, x: Float[Tensor, "rows time width"]) -> Cache:
        return Cache(*(self.split(part) for part in self.key_value(x).chunk(2, -1)))

    def forward(
        self, x: Float[Tensor, "rows time width"], memory: Memory
    ) -> Float[Tensor, "rows time width"]:
        """Rows may be n times the memory's, n in turn for each source: they share its memory."""
        query = self.split(self.query(x).reshape(len(memory.key), -1, x.shape[2]))
        seen = scaled_dot_product_attention(query, memory.key, memory.value, attn_mask=memory.real)
        return self.joined(seen.transpose(1, 2).reshape(x.shape))

    def empty(self, rows: int) -> Cache:
        """The cache before the first position."""
        width = self.query.in_features
        none = self.query.weight.new_empty(rows, self.heads, 0, width // self.heads)
        return Cache(none, none)

    def split(self, x: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows heads time each"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Self-attention, attention to a source where there is one, and a feed-forward layer.

    Each is added to its input, normalized before (`norm_first`) or after the addition.

    Args:
        width: of inputs and outputs.
        heads: of each attention.
        hidden: width of the feed-forward layer.
        dropout: of each part's output, while training.
        source: with an attention to a source.
        norm_first: normalize what goes into each part instead of the sum.
        eps: added to variances.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float,
        *,
        source: bool = False,
        norm_first: bool = True,
        eps: float = 1e-5,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention, self.attention_norm = Attention(width, heads), nn.LayerNorm(width, eps)
        self.source = Attention(width, heads) if source else None
        self.source_norm = nn.LayerNorm(width, eps) if source else None
        self.hidden, self.back = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.hidden_norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        real: Bool[Tensor, "rows time"],
        source: Memory | None = None,
    ) -> Float[Tensor, "rows time width"]:
        y = self.attention_norm(x) if self.norm_first else x
        return self.attended(x, self.attention(y, self.attention.memory(y, real)), source)

    def extend(
        self, x: Float[Tensor, "rows time width"], cache: Cache, source: Memory
    ) -> tuple[Float[Tensor, "rows time width"], Cache]:
        """The same left to right: positions after the cache's, and the cache with them."""
        y = self.attention_norm(x) if self.norm_first else x
        cache = cache.grown(self.attention.cache(y))
        seen = self.attention(y, cache.seen_by_last(x.shape[1]))
        return self.attended(x, seen, source), cache

    def attended(
        self,
        x: Float[Tensor, "rows time width"],
        seen: Float[Tensor, "rows time width"],
        source: Memory | None,
    ) -> Float[Tensor, "rows time width"]:
        """What follows the self-attention, whose output is `seen`."""
        x = self.added(x, seen, self.attention_norm)
        if self.source is not None and self.source_norm is not None:
            assert source is not None
            y = self.source_norm(x) if self.norm_first else x
            x = self.added(x, self.source(y, source), self.source_norm)
        y = self.hidden_norm(x) if self.norm_first else x
        return self.added(x, self.back(gelu(self.hidden(y))), self.hidden_norm)

    def remember(
        self, source: Float[Tensor, "sources time width"], real: Bool[Tensor, "sources time"]
    ) -> Memory:
        """What `forward` needs of a source, computed once for all that is decoded from it."""
        assert self.source is not None
        return self.source.memory(source, real)

    def added(self, x: Tensor, part: Tensor, norm: nn.Module) -> Tensor:
        total: Tensor = x + self.dropout(part)
        return total if self.norm_first else norm(total)


def embedding(rows: int, width: int) -> nn.Embedding:
    """A table whose rows have about unit length, so that it can also be an output layer."""
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


def check_sizes(**sizes: int) -> None:
    """An error that names the first size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def kept_tokens(vocab: int, specials: list[int]) -> Bool[Tensor, " vocab"]:
    """True for the tokens that a text may hold."""
    if outside := [i for i in specials if not 0 <= i < vocab]:
        raise ValueError(f"specials: {outside[0]} is not a number from 0 to {vocab - 1}")
    kept = torch.ones(vocab, dtype=torch.bool)
    kept[specials] = False
    return kept
