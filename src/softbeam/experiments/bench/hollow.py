"""A hollow masked language model against a plain one: quality, agreement, and ESS/s of each chain.

Both are folders of `softbeam train masked-lm` that were trained on the same texts. Each has its own
Metropolis-Hastings chains of single sites, from the same held-out texts and with the same sites;
the plain model is sampled by the cached kernel. An effective sample size is that of the energy,
which is recorded after every step, without the first tenth of the steps. Seconds are of processor
time.
"""

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from softbeam.data.texts import read_sequences
from softbeam.errors import UserError
from softbeam.experiments.bench.sampler import some_blocks
from softbeam.models.catalogue import OWN
from softbeam.models.trained_mlm import TrainedMlm
from softbeam.sampling.diagnostics import bulk_ess
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.tiny import CountedMlm
from softbeam.types import MaskedLM

BURN_IN = 0.1  # of the steps


def chain_figures(
    mlm: MaskedLM, tokens: Int[Tensor, "chain time"], *, steps: int, temperature: float, seed: int
) -> dict[str, float]:
    """Run a chain from each text; returns rates, rows, times and effective sample sizes."""
    counted = CountedMlm(mlm)
    kernel = fast_metropolis_hastings(
        LocalEnergy(counted),
        MaskedConditionals(counted, temperature=temperature),
        temperature=temperature,
    )
    rng, energies, moved = torch.Generator().manual_seed(seed), [], 0
    state = kernel.init(tokens)
    rows, started = counted.rows, process_time()
    for positions in some_blocks(torch.ones_like(tokens, dtype=torch.bool), steps, seed):
        state, info = kernel.step(state, positions, rng)
        energies.append(state.energy)
        moved += int(info.moved.sum())
    seconds, proposals = process_time() - started, steps * len(tokens)
    ess = bulk_ess(torch.stack(energies)[int(BURN_IN * steps) :]) or float("nan")
    return {
        "ms_per_proposal": 1000 * seconds / proposals,
        "rows_per_proposal": (counted.rows - rows) / proposals,
        "moved": moved / proposals,
        "energy": float(torch.stack(energies)[int(BURN_IN * steps) :].mean()),
        "ess": ess,
        "ess_per_s": ess / ((1 - BURN_IN) * seconds),
    }


@torch.no_grad()
def own_log_probabilities(mlm: MaskedLM, tokens: Tensor) -> Tensor:
    """log p of each token of each text, given all its others."""
    rows = []
    for text in tokens:
        each = text.expand(len(text), -1)
        masked = torch.eye(len(text), dtype=torch.bool)
        logits = mlm.logits(each, masked, torch.zeros(len(text), dtype=torch.long))
        rows.append(logits.log_softmax(-1).gather(-1, text[:, None])[:, 0])
    return torch.stack(rows)


def run(
    *,
    plain: str = "runs/plain",
    hollow: str = "runs/hollow",
    texts: str = "dev.txt",
    time: int = 128,
    chains: int = 2,
    steps: int = 2560,
    scored: int = 50,
    temperature: float = 1.0,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare a hollow model with a plain one.

    Args:
        plain: folder of `softbeam train masked-lm --form plain`.
        hollow: folder of `softbeam train masked-lm --form hollow`.
        texts: file of texts that neither was trained on.
        time: tokens of the texts that are taken from it.
        chains: texts that chains start from.
        steps: proposals of a chain.
        scored: texts whose tokens are scored.
        temperature: of the target and of the proposals; chains of sharp models mix slowly at 1.
        progress: called with lines of text as they are known.
    """
    models = {"plain": loaded(plain), "hollow": loaded(hollow)}
    if models["hollow"].every_logits is None or models["plain"].every_logits is not None:
        raise UserError("--plain and --hollow: are models of another --form")
    if models["plain"].description.tokens != models["hollow"].description.tokens:
        raise UserError("--plain and --hollow: have other vocabularies; train them on one file")
    long = [text for text in read_sequences(texts) if len(text) == time]
    if len(long) < max(chains, scored):
        raise UserError(f"--texts {texts}: {len(long)} texts of {time} tokens are too few")
    tokens = models["plain"].encode(long).tokens
    rows: dict[str, dict[str, Any]] = {}
    scores = {
        name: own_log_probabilities(mlm, tokens[:scored]).flatten() for name, mlm in models.items()
    }
    for name, mlm in models.items():
        rows[name] = {
            "form": name,
            "parameters": sum(p.numel() for p in mlm.model.parameters()),
            "nats": -float(scores[name].mean()),
            **chain_figures(mlm, tokens[:chains], steps=steps, temperature=temperature, seed=1),
        }
        progress("  ".join(f"{key} {show(value)}" for key, value in rows[name].items()))
    found = {
        "ess_ratio": rows["hollow"]["ess_per_s"] / rows["plain"]["ess_per_s"],
        "nats_ratio": rows["hollow"]["nats"] / rows["plain"]["nats"],
        "correlation": float(torch.corrcoef(torch.stack(list(scores.values())))[0, 1]),
    }
    progress(
        f"hollow / plain: ESS/s {found['ess_ratio']:.1f}, nats a held-out token "
        f"{found['nats_ratio']:.3f}; correlation of log-probabilities {found['correlation']:.3f}"
    )
    sizes = {"time": time, "chains": chains, "steps": steps, "scored": scored}
    return {
        "bench": "hollow",
        **sizes,
        "temperature": temperature,
        "rows": list(rows.values()),
        **found,
    }


def loaded(folder: str) -> TrainedMlm:
    """Load a model of `softbeam train masked-lm`, in float32 on the CPU."""
    path = Path(folder) / OWN
    if not path.is_file():
        raise UserError(f"{folder}: has no model of softbeam train masked-lm")
    return TrainedMlm.load(path, dtype=torch.float32, device=torch.device("cpu"))


def show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
