"""Samples as data of ArviZ (`arviz_base`), for its summaries and plots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam._lazy import lazy
from softbeam.errors import need
from softbeam.sampling.chains import Trace
from softbeam.sampling.diagnostics import token_features

if TYPE_CHECKING:
    import arviz_base
else:
    arviz_base = lazy("arviz_base")

NO_TOKEN = -1  # beyond the end of a shorter text
RATES = {"acceptance_rate": "accept", "repeated": "repeated", "novel": "novel", "stuck": "stuck"}


def to_arviz(
    energy: Float[Tensor, "prompt sweep chain"],
    tokens: Sequence[Int[Tensor, "sweep chain time"]],
    trace: Trace,
) -> Any:
    """Make the DataTree that `Samples.to_arviz` describes."""
    need("arviz_base", "arviz")
    energy = energy.double()
    prompts, _, chains = energy.shape
    each = [token_features(rows) for rows in tokens]
    names = [f"prompt {i}: {name}" for i, (found, _) in enumerate(each) for name in found]
    features = torch.cat([values for _, values in each])  # indicator, draw, chain
    time = max(rows.shape[-1] for rows in tokens)
    wide = [
        torch.nn.functional.pad(row, (0, time - row.shape[-1]), value=NO_TOKEN) for row in tokens
    ]
    rates = {
        name: getattr(trace.samples(), field).unflatten(1, (prompts, chains)).permute(2, 0, 1)
        for name, field in RATES.items()
    }
    groups = {
        "posterior": {"energy": energy.permute(2, 1, 0), "indicator": features.permute(2, 1, 0)},
        "sample_stats": {"lp": -energy.permute(2, 1, 0), **rates},
        "texts": {"tokens": torch.stack(wide).permute(2, 1, 0, 3)},
    }
    arrays = {
        group: {name: values.cpu().numpy() for name, values in own.items()}
        for group, own in groups.items()
    }
    every = ["prompt"]
    return arviz_base.from_dict(
        arrays,
        dims={
            "energy": every,
            "indicator": ["feature"],
            "lp": every,
            **dict.fromkeys(RATES, every),
            "tokens": ["prompt", "position"],
        },
        coords={"prompt": list(range(prompts)), "feature": names, "position": list(range(time))},
    )
