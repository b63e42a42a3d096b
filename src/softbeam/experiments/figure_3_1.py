"""Figure 3.1 of the thesis, drawn from a small random model: the same every time."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softbeam.errors import UserError
from softbeam.experiments.order import Order
from softbeam.models.lstm import Seq2Seq
from softbeam.objectives.losses.feedback import hard_argmax, mixed_scores, soft_argmax_embedding
from softbeam.reports.charts import figure_of, image, require_charts
from softbeam.runtime.files import write_atomic
from softbeam.types import Batch


def always_sampled_loss(model: Seq2Seq, batch: Batch, alpha: float | None) -> float:
    """Loss of the targets if own predictions are always fed: hard, or soft with alpha (2017)."""
    never = torch.zeros_like(batch.mask)
    feedback = hard_argmax if alpha is None else soft_argmax_embedding
    scores = mixed_scores(
        model(batch.source),
        batch.target,
        never,
        feedback=feedback,
        alpha=alpha or 1.0,
        rng=torch.Generator(),
    )
    log_probs = scores.log_softmax(-1).gather(-1, batch.target[..., None])
    return -log_probs.sum().item()


@cache
@torch.no_grad()
def along_a_line(
    alphas: tuple[float | None, ...], *, points: int = 400, seed: int = 3
) -> tuple[Tensor, dict[float | None, Tensor]]:
    """The objective along a line through parameter space, for hard argmax (None) and for alphas.

    The model is a small random decoder; the line moves all its weights at once.
    """
    torch.manual_seed(seed)
    model = Seq2Seq(8, 6, embedding=8, hidden=8).double().eval()
    for parameter in model.parameters():
        parameter.mul_(3.0)
    start = [p.clone() for p in model.parameters()]
    direction = [torch.randn_like(p) for p in start]
    source, target = torch.randint(1, 8, (1, 6)), torch.randint(0, 6, (1, 6))
    batch = Batch.of(source, target)
    where = torch.linspace(-0.6, 0.6, points, dtype=torch.float64)
    losses: dict[float | None, list[float]] = {alpha: [] for alpha in alphas}
    for x in where:
        for parameter, base, change in zip(model.parameters(), start, direction, strict=True):
            parameter.copy_(base + x * change)
        for alpha in alphas:
            losses[alpha].append(always_sampled_loss(model, batch, alpha))
    return where, {alpha: torch.tensor(values) for alpha, values in losses.items()}


def figure_3_1(out: Path) -> Path:
    """Draw thesis Figure 3.1: the discontinuous objective and its continuous relaxations."""
    require_charts(out.parent)
    torch.set_num_threads(1)
    chart, (axes,) = figure_of(1, 7, 3.6)
    form, forms = out.suffix.removeprefix("."), chart.canvas.get_supported_filetypes()
    if form not in forms:
        raise UserError(f"{out}: no figure of the form {form!r}; there are {', '.join(forms)}")
    where, losses = along_a_line((None, 1.0, 10.0))
    colors = ("tab:red", "tab:blue", "tab:purple")
    for (alpha, values), color in zip(losses.items(), colors, strict=True):
        label = "hard argmax" if alpha is None else f"soft argmax, alpha = {alpha:g}"
        y = values.clone()
        if alpha is None:  # jumps are drawn as gaps
            jump = (values[1:] - values[:-1]).abs() > 20 * (values[1:] - values[:-1]).abs().median()
            y[1:][jump] = float("nan")
        axes.plot(where, y, color=color, label=label, lw=1.6)
    axes.set_xlabel("place along a line in parameter space")
    axes.set_ylabel("loss of the target")
    axes.legend(frameon=False)
    write_atomic(out, image(chart, form))
    return out


def make(what: str, order: Order) -> dict[str, Any]:
    """Write the figure as PNG and SVG; returns its record, which has no claims."""
    files = [figure_3_1(order.folder / f"{what}.{form}").name for form in ("png", "svg")]
    return {"files": files, "claims": [], "text": f"{what}: {', '.join(files)}"}
