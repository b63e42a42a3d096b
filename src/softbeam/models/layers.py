"""Transformer layers: attention of a sequence to itself and to a source, without padding."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Memory(NamedTuple):
    """Keys and values that a layer attends to, for each source; `real` is False for padding."""

    key: Float[Tensor, "sources heads time each"]
    value: Float[Tensor, "sources heads time each"]
    real: Bool[Tensor, "#sources 1 #queries time"]

    def of(self, owner: Int[Tensor, " rows"]) -> "Memory":
        """Select the memory of rows that belong to these sources."""
        return Memory(*(part[owner] for part in self))


class Cache(NamedTuple):
    """Keys and values of all positions so far: a decoder's state, whose rows can be mixed.

    All rows have the same number of positions, so that a mixture of rows mixes equal positions.
    """

    key: Float[Tensor, "rows heads time each"]
    value: Float[Tensor, "rows heads time each"]

    def grown(self, new: "Cache") -> "Cache":
        """Append new positions."""
        return Cache(torch.cat([self.key, new.key], 2), torch.cat([self.value, new.value], 2))

    def seen_by_last(self, queries: int) -> Memory:
        """The memory of the last positions: each attends to those before it and to itself."""
        time = self.key.shape[2]
        seen = torch.ones(queries, time, dtype=torch.bool, device=self.key.device)
        return Memory(self.key, self.value, seen.tril(time - queries)[None, None])


class Attention(nn.Module):
    """Multi-head attention: queries from one sequence, a memory from the same or another."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise ValueError(f"heads={heads} must divide the width {width}")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.joined = nn.Linear(width, width)

    def memory(
        self, x: Float[Tensor, "rows time width"], real: Bool[Tensor, "rows time"]
    ) -> Memory:
        """Compute the memory of a sequence."""
        return Memory(*self.cache(x), real[:, None, None])

    def cache(self, x: Float[Tensor, "rows time width"]) -> Cache:
        """Compute keys and values."""
        return Cache(*(self.split(part) for part in self.key_value(x).chunk(2, -1)))

    def forward(
        self, x: Float[Tensor, "rows time width"], memory: Memory
    ) -> Float[Tensor, "rows time width"]:
        """Attend to a memory; n successive rows may share the memory of one source."""
        query = self.split(self.query(x).reshape(len(memory.key), -1, x.shape[2]))
        seen = scaled_dot_product_attention(query, memory.key, memory.value, attn_mask=memory.real)
        return self.joined(seen.transpose(1, 2).reshape(x.shape))

    def empty(self, rows: int) -> Cache:
        """The cache before the first position."""
        width = self.query.in_features
        none = self.query.weight.new_empty(rows, self.heads, 0, width // self.heads)
        return Cache(none, none)

    def split(self, x: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows heads time each"]:
        """Divide the width among the heads."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Self-attention, attention to a source if there is one, and a feed-forward layer.

    The output of each part is added to its input.

    Args:
        width: width of inputs and outputs.
        heads: heads of each attention.
        hidden: width of the feed-forward layer.
        dropout: dropout of each part's output, while training.
        source: include attention to a source.
        norm_first: normalize the input of each part instead of the sum.
        eps: number added to variances when normalizing.
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
        """Compute new positions left to right, after those of the cache; extend the cache."""
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
        """Apply the parts after self-attention, whose output is `seen`."""
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
        """Compute the memory of a source, once for everything that is decoded from it."""
        assert self.source is not None
        return self.source.memory(source, real)

    def added(self, x: Tensor, part: Tensor, norm: nn.Module) -> Tensor:
        """Add a part's output to its input, and normalize the sum unless `norm_first` is set."""
        total: Tensor = x + self.dropout(part)
        return total if self.norm_first else norm(total)


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The sizes of a Transformer.

    Args:
        width: width of the embeddings and of each layer.
        layers: number of layers, on each side if there are two.
        heads: heads of each attention; they share the width.
        hidden: width of the feed-forward layers; by default four times `width`.
        longest: largest number of positions, on each side if there are two.
        dropout: dropout while training.
        norm_first: normalize before each part of a layer instead of after it.
        eps: number added to variances when normalizing.
    """

    width: int = 256
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    longest: int = 256
    dropout: float = 0.1
    norm_first: bool = True
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_sizes(width=self.width, layers=self.layers, heads=self.heads, longest=self.longest)

    def stack(self, *, source: bool = False, layers: int | None = None) -> nn.ModuleList:
        """Make the layers of one side, or some; with `source`, they also attend to a source."""
        return nn.ModuleList(
            Layer(
                self.width,
                self.heads,
                self.hidden or 4 * self.width,
                self.dropout,
                source=source,
                norm_first=self.norm_first,
                eps=self.eps,
            )
            for _ in range(self.layers if layers is None else layers)
        )

    def last_norm(self) -> nn.Module:
        """Make the normalization after the last layer; layers that normalize last need none."""
        return nn.LayerNorm(self.width, self.eps) if self.norm_first else nn.Identity()


def embedding(rows: int, width: int) -> nn.Embedding:
    """Make a table whose rows have about unit length, so that it can also be an output layer."""
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


def check_sizes(**sizes: int) -> None:
    """Raise ValueError if a size is below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def kept_tokens(vocab: int, specials: list[int]) -> Bool[Tensor, " vocab"]:
    """True for the tokens that a text may hold: all but the specials."""
    if outside := [i for i in specials if not 0 <= i < vocab]:
        raise ValueError(f"specials: {outside[0]} must be from 0 to {vocab - 1}")
    kept = torch.ones(vocab, dtype=torch.bool)
    kept[specials] = False
    return kept
