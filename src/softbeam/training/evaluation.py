"""Score the outputs of a trained model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs
from softbeam.data.readers import Example
from softbeam.search.decoders import forced_scores
from softbeam.training.decoding import OnBatch, best, decode, ignore
from softbeam.training.kinds import Kind
from softbeam.training.own_search import search_record, search_title
from softbeam.training.searches import Search


class Evaluation(NamedTuple):
    """Scores of a run on a split, and the outputs they are of.

    `corpus` names the corpus or the files, and `trained` the objective of the run's last stage.
    """

    split: str
    corpus: str
    trained: str
    search: Search
    metrics: dict[str, Any]
    outputs: list[list[str]]
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return everything but the outputs as values that JSON can hold."""
        return {
            "split": self.split,
            "corpus": self.corpus,
            "trained": self.trained,
            "search": search_record(self.search),
            "metrics": self.metrics,
            "sentences": len(self.outputs),
            "seconds": self.seconds,
        }

    def conditions(self) -> dict[str, str]:
        """Say in words what was scored and how, for the head of a table."""
        alpha = getattr(self.search, "alpha", None)
        return {
            "split": f"{self.split}, {len(self.outputs):,} sentences",
            "corpus": self.corpus,
            "search": search_title(self.search),
            "scores": "normalized" if self.search.normalize else "raw",
            "alpha": "none (a hard search)" if alpha is None else f"{alpha:.4g}",
            "trained": self.trained,
        }


def evaluate_outputs(
    model: nn.Module,
    examples: Sequence[Example],
    kind: Kind,
    codecs: Codecs,
    search: Search,
    *,
    on_batch: OnBatch = ignore,
) -> tuple[dict[str, Any], list[list[str]]]:
    """Decode and score examples; returns the metrics, and an output for each problem."""
    sources, references = kind.problems(examples)
    predicted = best(decode(model, sources, codecs, search, on_batch=on_batch))
    return kind.score(predicted, references, [len(source) for source in sources]), predicted


@torch.inference_mode()
def log_z(model: nn.Module, examples: Sequence[Encoded], *, tokens: int = 4000) -> dict[str, float]:
    """Signed mean and variance of log Z over the real tokens, gold prefixes fed (2019, Table 1)."""
    device = next(model.parameters()).device
    model.eval()
    parts = []
    for _, batch in in_order(examples, tokens=tokens):
        batch = batch.to(device)
        parts.append(forced_scores(model(batch.source), batch.target).logsumexp(-1)[batch.mask])
    values = torch.cat(parts)
    return {"mean": values.mean().item(), "variance": values.var(correction=0).item()}
