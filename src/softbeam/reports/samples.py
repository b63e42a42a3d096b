"""Files of samples for a page: traces, autocorrelation, and texts to step through."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softbeam.errors import UserError
from softbeam.reports.charts import lines_svg
from softbeam.sampling.texts.files import read_header, read_samples
from softbeam.sampling.texts.summary import Traces, traces

MOST_TEXTS, MOST_CHAINS, MOST_SWEEPS = 3, 4, 200  # of a file on a page
MOST_LAGS = 40


def chains(path: Path) -> dict[str, Any]:
    """What a page shows of a file of samples."""
    found = traces(read_samples(path))[:MOST_TEXTS]
    if not found:
        raise UserError(f"{path} has no samples yet")
    return {
        "name": path.name,
        "mlm": read_header(path)["mlm"],
        "texts": [browsed(one) for one in found],
        "figures": [figure for one in found for figure in figures(one)],
    }


def browsed(one: Traces) -> list[list[dict[str, Any]]]:
    """The first chains of a text, sweep by sweep: text and energy."""
    chains = range(min(MOST_CHAINS, one.energy.shape[1]))
    sweeps = range(min(MOST_SWEEPS, one.energy.shape[0]))
    return [
        [{"text": one.texts[s][c], "energy": round(float(one.energy[s, c]), 3)} for s in sweeps]
        for c in chains
    ]


def figures(one: Traces) -> list[dict[str, str]]:
    """Energy by the sweep, and how long it remembers itself, for each chain."""
    sweeps = list(range(1, one.energy.shape[0] + 1))
    energy = [
        (f"chain {c + 1}", sweeps, one.energy[:, c].tolist()) for c in range(one.energy.shape[1])
    ]
    made = [{"title": f"Energy, text {one.index + 1}", "svg": lines_svg("sweep", "energy", energy)}]
    memory = autocorrelations(one)
    if memory:
        svg = lines_svg("lag, sweeps", "autocorrelation", memory)
        made.append({"title": f"Autocorrelation of the energy, text {one.index + 1}", "svg": svg})
    return made


def autocorrelations(one: Traces) -> list[tuple[str, list[int], list[float]]]:
    """Of each chain after the burn-in; a chain that never moved has none."""
    from arviz_stats.base import array_stats

    kept = one.energy[one.kept]
    if len(kept) < 4:
        return []
    found: Sequence[Any] = [
        (c, array_stats.autocorr(kept[:, c].numpy())[:MOST_LAGS])
        for c in range(kept.shape[1])
        if float(kept[:, c].std()) > 0
    ]
    return [(f"chain {c + 1}", list(range(len(a))), a.tolist()) for c, a in found]
