"""Small models and batches on which the tests of objectives call them."""

import torch

from softbeam.data.batches import Encoded, collate
from softbeam.models.lstm import Seq2Seq
from softbeam.schedules import Moment
from softbeam.types import Batch

EOS = 1
START = Moment()


def build(seed: int = 0, **options) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2Seq(9, 7, embedding=5, hidden=6, **options).double().eval()


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    """Random sources and targets; targets end with the end mark and have it nowhere else."""
    rng = torch.Generator().manual_seed(seed)

    def draw(low: int, n: int) -> list[int]:
        return torch.randint(low, 7, (n,), generator=rng).tolist()

    return collate([Encoded(draw(1, n), [*draw(2, n - 1), EOS]) for n in lengths], eos=EOS)


def toy_batch(target: list[int], rows: int = 1) -> Batch:
    values = torch.tensor([target] * rows)
    return Batch.of(torch.ones_like(values), values, eos=EOS)


def rows_of(batch: Batch, rows, time: int | None = None) -> Batch:
    """The chosen rows of a batch, their first `time` columns."""
    source, target, mask = (part[rows][:, :time] for part in batch[:3])
    return Batch(source, target, mask, batch.ends._replace(lengths=batch.ends.lengths[rows]))


class Fixed(torch.nn.Module):
    """A model whose decoder is given."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, source):
        return self.decoder


def call(objective, model, batch, seed: int = 0, now: Moment = START):
    return objective(model, batch, now=now, rng=torch.Generator().manual_seed(seed))
