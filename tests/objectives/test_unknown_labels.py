"""Batches of which nothing is known: every objective leaves such rows out, and has the loss 0."""

import pytest
import torch

from softbeam.objectives import OBJECTIVES, DirectLoss, Distillation, UniformMasking
from softbeam.objectives.energy import Likelihood, MaskedLikelihood, Pseudolikelihood
from softbeam.objectives.soft_beam import SoftHinge
from softbeam.types import Batch, Ends
from support.objective_toys import EOS, batch_of, build, call, rows_of

SPECIAL = (Distillation, UniformMasking)  # with a teacher; of another kind of model
TRAINED = [kind() for kind in OBJECTIVES if kind not in SPECIAL]
TRAINED += [DirectLoss(finish=True, extra=2, cross_entropy=0.5), SoftHinge(log_z_penalty=0.1)]
ALL = [*TRAINED, UniformMasking(), Likelihood(), Pseudolikelihood(), MaskedLikelihood(hide=0.5)]
name = {"ids": lambda objective: type(objective).__name__}


def unknown(batch: Batch) -> Batch:
    return batch._replace(mask=torch.zeros_like(batch.mask))


EMPTY = {
    "only unknown labels": unknown(batch_of([3, 4])),
    "no rows": rows_of(batch_of([3, 4]), []),
    "no steps": Batch(
        torch.ones(2, 3).long(),
        torch.zeros(2, 0).long(),
        torch.zeros(2, 0).bool(),
        Ends(torch.zeros(2).long(), EOS),
    ),
}


@pytest.mark.parametrize("batch", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("objective", ALL, **name)
def test_a_batch_without_a_known_label_has_no_loss_and_no_gradient(objective, batch):
    model = build()
    loss = call(objective, model, batch)
    loss.total.backward()
    assert loss.total.item() == 0 and loss.size == 0
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("objective", TRAINED, **name)
def test_a_row_without_a_known_label_changes_nothing(objective):
    """The loss and gradient are those of the other rows alone."""
    model, batch = build(), batch_of([3, 5, 4])
    mask = batch.mask.clone()
    mask[1] = False
    losses = [
        call(objective, model, batch._replace(mask=mask)),
        call(objective, model, rows_of(batch, [0, 2])),
    ]
    assert losses[0].size == losses[1].size == 7
    gradients = [torch.autograd.grad(x.total, [*model.parameters()]) for x in losses]
    for one, two in zip(
        *([x.total, *g] for x, g in zip(losses, gradients, strict=True)), strict=True
    ):
        torch.testing.assert_close(one, two)
