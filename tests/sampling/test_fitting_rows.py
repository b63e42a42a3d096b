"""The largest batch of rows that fits, with a model that runs out of memory."""

import pytest
import torch

from softbeam.sampling.fitting_rows import FittingRows
from softbeam.sampling.masking import WrappedMlm
from softbeam.sampling.texts import api
from softbeam.sampling.tiny import TinyMLM, every_text
from support.pretended_device import pretended_device
from support.tiny_bert import letter_mlm


class Small(WrappedMlm):
    """A model whose device has memory for a number of rows."""

    def __init__(self, mlm, room: int):
        super().__init__(mlm)
        self.room, self.sizes = room, []

    def logits(self, tokens, masked, owner):
        self.sizes.append(len(tokens))
        if len(tokens) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().logits(tokens, masked, owner)


def rows(n):
    tokens = every_text(TinyMLM(words=4), time=4)[:n]
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[torch.arange(n), torch.arange(n) % 4] = True
    return tokens, masked, torch.zeros(n, dtype=torch.long)


@pytest.mark.parametrize("room", [1, 3, 10, 50, 1000])
def test_batches_become_smaller_until_they_fit_and_give_the_same(room):
    mlm = TinyMLM(words=4)
    fitting = FittingRows(small := Small(mlm, room), first=16)
    expected = mlm.logits(*rows(200))
    torch.testing.assert_close(fitting.logits(*rows(200)), expected, rtol=0, atol=1e-12)
    assert max(size for size in small.sizes if size <= room) > room / 2 or room == 1000
    small.sizes.clear()
    fitting.logits(*rows(200))
    assert room == 1000 or max(small.sizes) <= room  # what did not fit is not tried again


def test_batches_grow_without_a_limit_elsewhere_than_on_the_cpu():
    class There(WrappedMlm):
        def logits(self, tokens, masked, owner):
            return super().logits(tokens, masked, owner).to("pretended")

    calls = [rows(200)[i].repeat(8, *[1] * (rows(200)[i].dim() - 1)) for i in range(3)]
    here, there = FittingRows(TinyMLM(words=4)), FittingRows(There(TinyMLM(words=4)))
    with pretended_device():
        here.logits(*calls)
        there.logits(*calls)
    assert here.limit == 256 and there.limit > 256


def test_a_row_that_does_not_fit_and_other_errors_are_raised():
    with pytest.raises(torch.OutOfMemoryError):
        FittingRows(Small(TinyMLM(words=4), 0)).logits(*rows(5))
    broken = TinyMLM(words=4)
    broken.logits = lambda *_: torch.zeros(2, 3) @ torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        FittingRows(broken).logits(*rows(5))


def test_the_samples_are_those_of_fixed_batches():
    mlm, settings = letter_mlm(), {"chains": 2, "sweeps": 4, "burn_in": 1}
    fixed = api.sample(mlm, "AC[MASK]D[MASK]", **settings)
    assert api.sample(mlm, "AC[MASK]D[MASK]", rows="auto", **settings).texts == fixed.texts
    scores = [api.score(mlm, ["ACD", "KL"], rows=rows)[1].score for rows in (256, "auto")]
    assert scores[0] == pytest.approx(scores[1])
    filled = [api.infill(mlm, "A[MASK]", samples=4, burn_in=1, rows=r) for r in (256, "auto")]
    assert [f.text for f in filled[0]] == [f.text for f in filled[1]]
