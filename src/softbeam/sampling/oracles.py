"""Masked language models whose law of texts is known, to audit samplers with.

Their conditionals are those of a joint distribution: given any set of visible tokens they are
exact. So whatever a sampler gets wrong is its own doing and not the model's. Tokens are 0 to
vocab - 1, then a mask and padding.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.tensors import draw


class Oracle(ABC):
    """A joint distribution of texts of `time` tokens of a vocabulary, as a masked language model.

    Args:
        vocab: the number of tokens.
        time: the length of every text.
    """

    def __init__(self, vocab: int, time: int):
        self.vocab, self.time = vocab, time
        self.mask_id, self.pad_id = vocab, vocab + 1
        self.allowed = torch.arange(vocab + 2) < vocab

    @abstractmethod
    def log_conditionals(
        self, tokens: Int[Tensor, "rows time"], masked: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        """log p(y_t | the tokens that are not masked), at every masked t."""

    @abstractmethod
    def energy(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        """-log p of texts."""

    @abstractmethod
    def sample(self, count: int, rng: Generator) -> Int[Tensor, "count time"]:
        """Draw texts exactly."""

    @abstractmethod
    def pairs(self) -> Float[Tensor, "edges vocab vocab"]:
        """The probability of each two tokens at the positions (t, t + 1)."""

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Give the exact conditionals, as a masked language model does."""
        cells = self.log_conditionals(tokens, masked)[masked]
        return torch.cat([cells, cells.new_full((len(cells), 2), -torch.inf)], 1)

    def hidden(self, count: int) -> tuple[Int[Tensor, "count time"], Bool[Tensor, "count time"]]:
        """Return texts without any token, and their hidden positions: all."""
        tokens = torch.full((count, self.time), self.mask_id)
        return tokens, torch.ones_like(tokens, dtype=torch.bool)


class TableOracle(Oracle):
    """A joint distribution given by the probability of every text.

    Args:
        log_joint: log p of every text, an axis for each position; it is normalized.
    """

    def __init__(self, log_joint: Tensor):
        super().__init__(log_joint.shape[0], log_joint.dim())
        self.log_joint = log_joint.double() - log_joint.double().flatten().logsumexp(0)

    @classmethod
    def random(
        cls, vocab: int = 3, time: int = 4, *, scale: float = 2.0, seed: int = 0
    ) -> "TableOracle":
        """Make a random joint: log p of every text is normal, with the standard deviation scale."""
        rng = torch.Generator().manual_seed(seed)
        shape = (vocab,) * time
        return cls(scale * torch.randn(shape, generator=rng, dtype=torch.float64))

    @classmethod
    def sticky(cls, vocab: int = 3, time: int = 4, *, stay: float = 0.9) -> "TableOracle":
        """Make texts whose next token is the same with the probability `stay`, else any other."""
        texts = every(vocab, time)
        same = (texts[:, 1:] == texts[:, :-1]).sum(-1)
        p = stay**same * ((1 - stay) / (vocab - 1)) ** (time - 1 - same)
        return cls(p.log().unflatten(0, (vocab,) * time))

    def energy(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        """-log p of texts."""
        return -self.log_joint[tuple(tokens.T)]

    def log_conditionals(
        self, tokens: Int[Tensor, "rows time"], masked: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        """Sum the joint over the texts that agree with what is visible."""
        texts = every(self.vocab, self.time)
        agrees = ((texts == tokens[:, None]) | masked[:, None]).all(-1)
        weight = self.log_joint.flatten().where(agrees, -torch.inf)
        holds = texts.T[:, :, None] == torch.arange(self.vocab)  # time, texts, vocab
        table = weight[:, None, :, None].where(holds, -torch.inf).logsumexp(2)
        return table.log_softmax(-1)

    def sample(self, count: int, rng: Generator) -> Int[Tensor, "count time"]:
        """Draw texts exactly."""
        p = self.log_joint.flatten().exp()
        return every(self.vocab, self.time)[p.multinomial(count, replacement=True, generator=rng)]

    def pairs(self) -> Float[Tensor, "edges vocab vocab"]:
        """The probability of each two tokens at the positions (t, t + 1)."""
        joint, axes = self.log_joint.exp(), range(self.time)
        tables = []
        for t in range(self.time - 1):
            others = [axis for axis in axes if axis not in (t, t + 1)]
            tables.append(joint.sum(others) if others else joint)
        return torch.stack(tables)


class MarkovOracle(Oracle):
    """A Markov chain of tokens, with exact conditionals by messages from both sides.

    Args:
        start: log p of the first token.
        step: log p of a token (columns) after each token (rows).
        time: the length of every text.
    """

    def __init__(
        self, start: Float[Tensor, " vocab"], step: Float[Tensor, "vocab vocab"], time: int
    ):
        super().__init__(len(start), time)
        self.start, self.step = start.double().log_softmax(-1), step.double().log_softmax(-1)

    @classmethod
    def random(
        cls, vocab: int = 27, time: int = 128, *, scale: float = 2.0, seed: int = 0
    ) -> "MarkovOracle":
        """Make a random chain, whose log-probabilities are normal before they are normalized."""
        rng = torch.Generator().manual_seed(seed)
        tables = torch.randn(vocab + 1, vocab, generator=rng, dtype=torch.float64) * scale
        return cls(tables[0], tables[1:], time)

    @classmethod
    def of_texts(
        cls, texts: Int[Tensor, "texts time"], vocab: int, *, smoothing: float = 0.1
    ) -> "MarkovOracle":
        """Estimate a chain from texts, by counts of tokens and of neighbours."""
        first = torch.bincount(texts[:, 0], minlength=vocab).double() + smoothing
        edges = (texts[:, :-1] * vocab + texts[:, 1:]).flatten()
        counts = torch.bincount(edges, minlength=vocab**2).double().unflatten(0, (vocab, vocab))
        return cls(first.log(), (counts + smoothing).log(), texts.shape[1])

    def energy(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        """-log p of texts."""
        return -(self.start[tokens[:, 0]] + self.step[tokens[:, :-1], tokens[:, 1:]].sum(-1))

    def log_conditionals(
        self, tokens: Int[Tensor, "rows time"], masked: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        """Pass messages from the left and from the right, and add them."""
        here = torch.arange(self.vocab) == tokens[:, :, None]
        evidence = torch.where(here | masked[:, :, None], 0.0, -torch.inf).double()
        left, right = [self.start.expand(len(tokens), -1)], [torch.zeros_like(evidence[:, 0])]
        for t in range(self.time - 1):
            message = left[-1] + evidence[:, t]
            left.append((message[:, :, None] + self.step).logsumexp(1))
            back = right[-1] + evidence[:, self.time - 1 - t]
            right.append((back[:, None] + self.step).logsumexp(2))
        return (torch.stack(left, 1) + torch.stack(right[::-1], 1)).log_softmax(-1)

    def sample(self, count: int, rng: Generator) -> Int[Tensor, "count time"]:
        """Draw texts exactly, from left to right."""
        columns = [draw(self.start.exp().expand(count, -1), rng)]
        while len(columns) < self.time:
            columns.append(draw(self.step.exp()[columns[-1][:, 0]], rng))
        return torch.cat(columns, 1)

    def pairs(self) -> Float[Tensor, "edges vocab vocab"]:
        """The probability of each two tokens at the positions (t, t + 1)."""
        p, tables = self.start.exp(), []
        for _ in range(self.time - 1):
            tables.append(p[:, None] * self.step.exp())
            p = p @ self.step.exp()
        return torch.stack(tables)


def every(vocab: int, time: int) -> Int[Tensor, "texts time"]:
    """List all texts, in the order of the cells of a table."""
    return torch.cartesian_prod(*[torch.arange(vocab)] * time).reshape(-1, time)


def table_index(tokens: Int[Tensor, "texts time"], vocab: int) -> Int[Tensor, " texts"]:
    """The place of each text in `every`."""
    powers = vocab ** torch.arange(tokens.shape[1] - 1, -1, -1)
    return (tokens * powers).sum(-1)
