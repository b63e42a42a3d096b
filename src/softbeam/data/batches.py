"""Padded batches of examples of similar length, in a seeded order that can start anywhere."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from softbeam.runtime import ranks
from softbeam.types import Batch, Ends

Token = int | tuple[int, ...]  # a number, or one and those of the pieces of a word


class Encoded(NamedTuple):
    """One example as numbers. -1 in a target is a label unknown to the vocabulary."""

    source: Sequence[Token]
    target: list[int]


class Position(NamedTuple):
    """The next batch of training."""

    epoch: int = 0
    batch: int = 0


def collate(examples: Sequence[Encoded], *, eos: int | None = None) -> Batch:
    """Pad examples, or none, with 0 on the right; the mask is True at the known targets.

    Args:
        eos: the number of the end mark, if the target's vocabulary has one.
    """
    source = pad([e.source for e in examples])
    target = pad([e.target for e in examples], fill=-1)
    lengths = torch.tensor([len(e.target) for e in examples], dtype=torch.long)
    return Batch(source, target.clamp(min=0), target >= 0, Ends(lengths, eos))


def pad(rows: Sequence[Sequence[Token]], fill: int = 0) -> torch.Tensor:
    """Fill rows up to one width, at least one column; tokens of several numbers up to one depth."""
    width = max([1, *map(len, rows)])
    depth = max([0, *(len(token) for row in rows for token in row if isinstance(token, tuple))])
    if not depth:
        cells = [[*row, *[fill] * (width - len(row))] for row in rows]
        return torch.tensor(cells, dtype=torch.long).reshape(len(rows), width)
    numbers = [fill] * (len(rows) * width * depth)
    for r, row in enumerate(rows):
        for t, token in enumerate(row):
            start = (r * width + t) * depth
            pieces = token if isinstance(token, tuple) else (token,)
            numbers[start : start + len(pieces)] = pieces
    return torch.tensor(numbers, dtype=torch.long).reshape(len(rows), width, depth)


def width(example: Encoded) -> int:
    """The number of columns that an example takes in a batch."""
    return max(len(example.source), len(example.target), 1)


def in_budget(order: Sequence[int], widths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cut the order into consecutive groups whose padded size stays within `tokens`.

    An example wider than the budget is a group by itself: nothing is dropped.
    """
    groups: list[list[int]] = []
    widest = 0
    for i in order:
        widest = max(widest, widths[i])
        if not groups or widest * (len(groups[-1]) + 1) > tokens:
            groups.append([])
            widest = widths[i]
        groups[-1].append(i)
    return groups


class Batches:
    """Training batches; equal seeds give equal batches in the same order, from any position.

    Each epoch shuffles the examples, sorts them by length (ties stay shuffled), cuts them by the
    token budget, and shuffles the batches. Of several processes each takes its share of every
    batch, which may be none of its examples.
    """

    def __init__(
        self, examples: Sequence[Encoded], *, tokens: int, seed: int, eos: int | None = None
    ):
        if tokens < 1:
            raise ValueError(f"tokens={tokens}: a batch needs a budget of at least 1")
        self.examples = examples
        self.widths = [width(e) for e in examples]
        self.tokens = tokens
        self.seed = seed
        self.eos = eos

    def plan(self, epoch: int) -> list[list[int]]:
        """The epoch's batches as lists of example numbers, a function of seed and epoch alone."""
        rng = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        shuffled = torch.randperm(len(self.examples), generator=rng).tolist()
        by_width = sorted(shuffled, key=self.widths.__getitem__)
        groups = in_budget(by_width, self.widths, self.tokens)
        return [groups[i] for i in torch.randperm(len(groups), generator=rng).tolist()]

    def epoch(self, start: Position) -> Iterator[tuple[Position, Batch]]:
        """Yield the rest of an epoch from a position; each batch with the position after it."""
        plan = self.plan(start.epoch)
        for number in range(start.batch, len(plan)):
            share = [self.examples[i] for i in ranks.share(plan[number])]
            batch = collate(share, eos=self.eos)
            last = number + 1 == len(plan)
            after = Position(start.epoch + 1, 0) if last else Position(start.epoch, number + 1)
            yield after, batch


def in_order(examples: Sequence[Encoded], *, tokens: int) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of all examples, sorted by width, with the numbers of their examples."""
    widths = [width(e) for e in examples]
    order = sorted(range(len(examples)), key=widths.__getitem__)
    for group in in_budget(order, widths, tokens):
        yield group, collate([examples[i] for i in group])
