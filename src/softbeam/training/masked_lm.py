"""Training a masked language model from scratch: cross-entropy at tokens hidden at random.

Every chosen token is hidden. BERT keeps a tenth of them and replaces another tenth, for readers
that see texts without masks; sampling and scoring never do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from softbeam.objectives.losses.masked import Hide, hidden_at_rate, masked_cross_entropy
from softbeam.training.optimization import ramp
from softbeam.types import Loss, MaskedLM

LossOf = Callable[[Any, Tensor, Tensor], Loss]  # (model, texts, hidden)


def train_mlm(
    model: nn.Module,
    texts: Int[Tensor, "texts time"],
    *,
    updates: int,
    rng: Generator,
    batch: int = 64,
    learning_rate: float = 1e-3,
    hide: Hide = hidden_at_rate,
    loss: LossOf = masked_cross_entropy,
    watch: Callable[[int, float], None] | None = None,
) -> None:
    """Train a model that is a `MaskedLM` on texts padded on the right; it ends in evaluation mode.

    Adam, whose rate rises over the first twentieth of the updates and then falls to 0. The same
    generator gives the same model.

    Args:
        model: the module; changed in place.
        texts: all of them; each update takes some of like lengths.
        updates: number of updates.
        rng: of batches, of what is hidden, and of dropout.
        batch: texts of an update.
        learning_rate: at its highest.
        hide: which tokens are to be predicted.
        loss: of the model, texts and what is hidden in them.
        watch: called with the update and its loss, in nats a token.
    """
    if not isinstance(model, MaskedLM):
        raise ValueError(f"model: {type(model).__name__} has no logits at masked cells")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    rise = max(updates // 20, 1)
    rate = partial(ramp, updates=updates, rise=rise, fall=updates - rise)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    order = (texts != model.pad_id).sum(1).argsort(stable=True)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))  # dropout's
        for update in range(updates):
            first = int(torch.randint(max(len(texts) - batch, 0) + 1, (), generator=rng))
            rows = texts[order[first : first + batch]]
            real = rows != model.pad_id
            rows, real = (table[:, : int(real.sum(1).max())] for table in (rows, real))
            value = loss(model, rows, hide(real, rng))
            optimizer.zero_grad()
            (value.total / value.size).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if watch is not None:
                watch(update, value.total.item() / value.size)
    model.eval()


@torch.inference_mode()
def held_out_loss(
    mlm: MaskedLM, texts: Int[Tensor, "texts time"], rng: Generator
) -> Float[Tensor, ""]:
    """Nats a hidden token, at BERT's rate."""
    loss = masked_cross_entropy(mlm, texts, hidden_at_rate(texts != mlm.pad_id, rng))
    return loss.total / loss.size
