"""What an HTML page shows of a file of samples: traces, autocorrelations, texts by the sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softbeam.errors import UserError
from softbeam.reports.charts import lines_svg, readable
from softbeam.sampling.texts.files import read_header, read_samples
from softbeam.sampling.texts.summary import TextChains, chains_by_text

MOST_TEXTS, MOST_CHAINS, MOST_SWEEPS = 3, 4, 200  # of a file on a page
MOST_LAGS = 40


def chains(path: Path) -> dict[str, Any]:
    """What a page shows of a file of samples; raises UserError if the file has no samples."""
    by_text = chains_by_text(read_samples(path))[:MOST_TEXTS]
    if not by_text:
        raise UserError(f"{path} has no samples yet")
    return {
        "name": readable(path.name),
        "mlm": read_header(path)["mlm"],
        "texts": [sweeps_of(text) for text in by_text],
        "figures": [figure for text in by_text for figure in figures(text)],
    }


def sweeps_of(text: TextChains) -> list[list[dict[str, Any]]]:
    """The first chains of a text, sweep by sweep: text and energy."""
    chains = range(min(MOST_CHAINS, text.trace.energy.shape[1]))
    sweeps = range(min(MOST_SWEEPS, text.trace.energy.shape[0]))
    return [
        [
            {"text": text.texts[s][c], "energy": round(float(text.trace.energy[s, c]), 3)}
            for s in sweeps
        ]
        for c in chains
    ]


def figures(text: TextChains) -> list[dict[str, str]]:
    """Charts of each chain's energy by the sweep, and of its autocorrelation."""
    sweeps = list(range(1, text.trace.energy.shape[0] + 1))
    energy = [
        (f"chain {c + 1}", sweeps, text.trace.energy[:, c].tolist())
        for c in range(text.trace.energy.shape[1])
    ]
    charts = [
        {"title": f"Energy, text {text.index + 1}", "svg": lines_svg("sweep", "energy", energy)}
    ]
    correlated = autocorrelations(text)
    if correlated:
        svg = lines_svg("lag, sweeps", "autocorrelation", correlated)
        charts.append(
            {"title": f"Autocorrelation of the energy, text {text.index + 1}", "svg": svg}
        )
    return charts


def autocorrelations(text: TextChains) -> list[tuple[str, list[int], list[float]]]:
    """Lags and autocorrelations of each chain's energy after the burn-in.

    A chain that never moved has none.
    """
    from arviz_stats.base import array_stats

    kept = text.trace.samples().energy
    if len(kept) < 4:
        return []
    by_chain: Sequence[Any] = [
        (c, array_stats.autocorr(kept[:, c].numpy())[:MOST_LAGS])
        for c in range(kept.shape[1])
        if float(kept[:, c].std()) > 0
    ]
    return [(f"chain {c + 1}", list(range(len(a))), a.tolist()) for c, a in by_chain]
