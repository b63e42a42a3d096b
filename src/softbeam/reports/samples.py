"""What an HTML page shows of a file of samples: traces, autocorrelations, texts by the sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softbeam.errors import UserError
from softbeam.reports.charts import Curve, color_of, lines_svg, readable
from softbeam.reports.results import ResultTable
from softbeam.sampling.texts.files import read_header, read_samples
from softbeam.sampling.texts.summary import TextChains, chains_by_text, summary

MOST_TEXTS, MOST_CHAINS, MOST_SWEEPS = 3, 4, 200  # of a file on a page
MOST_LAGS = 40
MOST_ROWS = 20  # of the table


def chains(path: Path) -> dict[str, Any]:
    """What a page shows of a file of samples; raises UserError if the file has no samples."""
    every = chains_by_text(read_samples(path))
    by_text = every[:MOST_TEXTS]
    if not by_text:
        raise UserError(f"{path} has no samples yet")
    mlm = read_header(path)["mlm"]
    return {
        "name": readable(path.name),
        "mlm": mlm,
        "table": result_table(f"Samples: {readable(path.name)}", mlm, every),
        "texts": [sweeps_of(text) for text in by_text],
        "figures": [figure for text in by_text for figure in figures(text)],
    }


def result_table(title: str, mlm: str, texts: Sequence[TextChains]) -> ResultTable:
    """What chains agree on, text by text: mean energy with its interval, R-hat, sample sizes."""
    rows = []
    for text in texts[:MOST_ROWS]:
        of = summary(text)
        spread, ess = float(text.trace.samples().energy.std()), of["ess"]
        half = 1.96 * spread / ess**0.5 if ess and spread == spread else None
        rows.append(
            {
                "text": str(text.index + 1),
                "energy": of["energy"],
                "95 % interval": "–" if half is None else f"±{half:.2f}",
                "R-hat": "–" if of["rhat"] is None else f"{of['rhat']:.3f}",
                "effective samples": "–" if ess is None else f"{ess:.0f} of {of['samples']}",
                "accepted": of["accept"],
                "unique": of["unique"],
                "lowest-energy text": of["lowest_text"],
            }
        )
    sweeps, chains = texts[0].trace.energy.shape
    more = f" The first {MOST_ROWS} of {len(texts)} texts." if len(texts) > MOST_ROWS else ""
    note = f"{chains} chains of {sweeps} sweeps a text, {mlm}; numbers are of the sweeps after "
    return ResultTable(title, rows, f"{note}burn-in. R-hat above 1.05: chains disagree.{more}")


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
        Curve(f"chain {c + 1}", [(sweeps, text.trace.energy[:, c].tolist())], color_of(c))
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


def autocorrelations(text: TextChains) -> list[Curve]:
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
    return [
        Curve(f"chain {c + 1}", [(range(len(a)), a.tolist())], color_of(c)) for c, a in by_chain
    ]
