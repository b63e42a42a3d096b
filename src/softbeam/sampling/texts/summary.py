"""Summarize a file of samples: a table of rates and diagnostics, and a plot of the traces."""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from softbeam._lazy import lazy
from softbeam.errors import UserError
from softbeam.runtime.files import Types, read_object, write_atomic, write_text
from softbeam.runtime.text_tables import aligned
from softbeam.sampling.chains import Trace
from softbeam.sampling.diagnostics import HIGH, mixing, text_mixing, unique_ratio
from softbeam.sampling.texts.files import (
    Header,
    checkpoint_of,
    clear,
    plot_of,
    read_samples,
    same_settings,
    summary_of,
    with_accepted,
)

if TYPE_CHECKING:
    from matplotlib import figure, ticker
else:
    figure, ticker = lazy("matplotlib.figure"), lazy("matplotlib.ticker")

RATES = {"accept": "accept", "repeated": "self", "novel": "novel", "stuck": "stuck"}
SUMMARY: Types = {"header": dict, "samples": str, "seconds": (int, float), "texts": list}
MOST_TEXTS = 6  # in one plot
NOTHING = -1  # stands where a text has ended, in place of a token

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class TextChains:
    """The chains of one text: their trace, and their texts after each sweep."""

    index: int
    trace: Trace
    texts: Sequence[Sequence[str]]  # sweep, chain
    tokens: Int[Tensor, "sweep chain time"]


def chains_by_text(rows: Iterable[Row]) -> list[TextChains]:
    """Group the rows of a file by text."""
    by_text: dict[int, list[Row]] = {}
    for row in rows:
        by_text.setdefault(row["index"], []).append(row)
    return [text_chains(index, kept) for index, kept in by_text.items()]


def text_chains(index: int, rows: Sequence[Row]) -> TextChains:
    """Collect the complete sweeps of a text's chains; an incomplete last sweep is left out."""
    chains = 1 + max(row["chain"] for row in rows)
    sweeps = len(rows) // chains
    rows = rows[: sweeps * chains]
    if not sweeps or [row["chain"] for row in rows] != list(range(chains)) * sweeps:
        raise UserError(f"the rows of text {index} are not complete sweeps of {chains} chains")

    def table(name: str) -> Tensor:
        values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        return values.unflatten(0, (-1, chains))

    texts, proposals = [row["text"] for row in rows], table("proposals").clamp_min(1)
    trace = Trace(
        tuple(row["phase"] for row in rows[::chains]),
        table("temperature")[:, 0],
        table("energy"),
        *(table(name) / proposals for name in ("accepted", "repeated", "novel", "stuck")),
    )
    width = max(len(row["tokens"]) for row in rows)
    padded = [row["tokens"] + [NOTHING] * (width - len(row["tokens"])) for row in rows]
    tokens = torch.tensor(padded).unflatten(0, (-1, chains))
    by_sweep = [texts[i : i + chains] for i in range(0, len(texts), chains)]
    return TextChains(index, trace, by_sweep, tokens)


def summary(
    chains: TextChains,
    *,
    seconds: float | None = None,
    features: Mapping[str, Callable[[str], float]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Summarize the chains of one text after their burn-in.

    Args:
        chains: the chains.
        seconds: the time spent on them, for the effective sample size per second.
        features: functions of a text that chains should agree about, besides the energy.
    """
    samples = chains.trace.samples()
    texts = [text for s in chains.trace.kept for text in chains.texts[s]]
    values = {
        name: torch.tensor([float(f(text)) for text in texts]).view_as(samples.energy)
        for name, f in features.items()
    }
    mixed = mixing(values, seconds=seconds)
    own = text_mixing(samples.energy, chains.tokens[chains.trace.kept], seconds=seconds)
    return {
        "index": chains.index,
        **{short: float(getattr(samples, name).mean()) for name, short in RATES.items()},
        "energy": own.mean,
        **{name: value for name, value in own._asdict().items() if name != "mean"},
        "unique": unique_ratio(texts),
        "samples": len(texts),
        **lengths_of(chains.tokens[chains.trace.kept]),
        "lowest_energy": float(samples.energy.min()),
        "lowest_text": texts[int(samples.energy.argmin())],
        **({"features": {name: m._asdict() for name, m in mixed.items()}} if mixed else {}),
    }


def lengths_of(tokens: Int[Tensor, "sweep chain time"]) -> dict[str, Any]:
    """Summarize the lengths of texts, if they differ."""
    lengths = (tokens != NOTHING).sum(-1).double()
    low, high = int(lengths.min()), int(lengths.max())
    return {"tokens": [low, float(lengths.mean()), high]} if low < high else {}


def length_note(row: Row) -> str:
    """Say which lengths the samples of a text have."""
    low, mean, high = row["tokens"]
    return f"text {row['index']}: {low} to {high} tokens, {mean:.1f} on average"


def as_table(rows: Sequence[Row]) -> str:
    """Align the summaries as a table; the column stuck appears only if it is not all zeros."""
    columns = {
        "text": ("index", "d"),
        "accept": ("accept", ".3f"),
        "self": ("self", ".3f"),
        "novel": ("novel", ".3f"),
        "stuck": ("stuck", ".3f"),
        "R-hat": ("rhat", ".3f"),
        "ESS": ("ess", ".0f"),
        "ESS/s": ("ess_per_s", ".1f"),
        "unique": ("unique", ".3f"),
        "energy": ("energy", ".2f"),
        "lowest": ("lowest_energy", ".2f"),
    }
    if not any(row["stuck"] for row in rows):
        del columns["stuck"]
    cells = [
        [title, *("-" if row[key] is None else format(row[key], form) for row in rows)]
        for title, (key, form) in columns.items()
    ]
    texts = [["lowest-energy text", *(row["lowest_text"] for row in rows)]]
    if any(row.get("name") for row in rows):
        texts.insert(0, ["name", *((row.get("name") or "")[:24] for row in rows)])
    return aligned(list(zip(*cells, *texts, strict=True)), ">" * len(cells) + "<" * len(texts))


def advice(rows: Sequence[Row]) -> list[str]:
    """Say which texts have chains that disagree, and what to do."""
    high = [row for row in rows if (row["rhat"] or 0) > row.get("limit", HIGH)]
    if not high:
        return []
    which = ", ".join(str(row["index"]) for row in high[:10]) + (" …" if len(high) > 10 else "")
    first = high[0].get("worst", "energy")
    limit = min(row.get("limit", HIGH) for row in high)
    return [
        f"R-hat above {limit:.2f} (text {which}; of {first}): chains disagree; more --sweeps and "
        "--burn-in help"
    ]


# The whole file


def finish(
    out: Path, header: Header, *, seconds: float, named: Path | None = None
) -> dict[str, Any]:
    """Write the summary and the plot of a complete file of samples beside it.

    Args:
        out: the file of samples.
        header: its first line.
        seconds: the time that sampling took.
        named: the path that the file will have in the end, if it is another one.
    """
    named = named or out
    texts = chains_by_text(read_samples(out))
    each = seconds / len(texts)  # texts are sampled side by side
    record = {"header": header, "samples": str(named), "seconds": seconds, "plot": None}
    record["texts"] = [summary(chains, seconds=each) | named_as(chains, header) for chains in texts]
    if find_spec("matplotlib") is not None:
        record["plot"] = str(plot_of(named))
        write_plot(texts, plot_of(out))
    write_text(summary_of(out), json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    clear(out)
    return record


def named_as(chains: TextChains, header: Header) -> dict[str, Any]:
    """Return the name of a text, if its file has names."""
    names = header.get("names")
    return {} if names is None else {"name": names[chains.index]}


def finished(out: Path, header: Header, *, accept: bool = False) -> dict[str, Any] | None:
    """Read the summary of a complete file; None if there is no such file.

    Raises UserError if the file was written with other settings, or with other files of the model
    and this is not accepted.
    """
    if not (out.exists() and summary_of(out).exists()) or checkpoint_of(out).exists():
        return None
    path = summary_of(out)
    record = read_object(path, "the summary of a file of samples", SUMMARY, needed=True)
    same_settings(out, record["header"], header)
    accepted = with_accepted(out, record["header"], header, accept=accept)
    if accepted.get("accepted") != record["header"].get("accepted"):
        record["header"] = accepted
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def as_text(record: Mapping[str, Any]) -> str:
    """Render a summary: the table, notes about it, and the names of the files."""
    settings, rows = record["header"]["settings"], record["texts"]
    chains = f"{settings['chains']} chains, {settings['sweeps']} sweeps"
    missing = "no plot: matplotlib is not installed (pip install 'softbeam[report]')"
    return "\n".join(
        [
            as_table(rows),
            *(f"note: {line}" for line in (*record["header"]["caveats"], *advice(rows))),
            *(length_note(row) for row in rows if "tokens" in row),
            f"{chains} ({settings['burn_in']} burn-in), {record['seconds']:.1f} s: "
            f"{record['samples']}, {record['plot'] or missing}",
        ]
    )


# The plot


def write_plot(texts: Sequence[TextChains], path: Path) -> None:
    """Plot energies and rates by sweep; the first few texts have a row each."""
    drawn = texts[:MOST_TEXTS]
    height = 0.9 + 2.5 * len(drawn)
    chart = figure.Figure(figsize=(9.6, height))
    margins = {"left": 0.1, "right": 0.99, "bottom": 0.5 / height, "top": 1 - 0.4 / height}
    chart.subplots_adjust(**margins, hspace=0.12)  # a layout of matplotlib's draws everything twice
    axes = chart.subplots(len(drawn), 2, squeeze=False, sharex=True)
    stuck = any(bool(text.trace.stuck.any()) for text in drawn)
    names = [name for name in RATES if stuck or name != "stuck"]
    for (left, right), text in zip(axes, drawn, strict=True):
        draw_energy(left, text.trace, f"energy, text {text.index}")
        draw_rates(right, text.trace, names)
    for last in axes[-1]:
        last.set_xlabel("sweep")
    axes[0, 1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    more = f", first {len(drawn)} of {len(texts)} texts" if len(texts) > len(drawn) else ""
    chains = texts[0].trace.energy.shape[1]
    axes[0, 0].set_title(f"{chains} chains{more}", fontsize="medium")
    data = io.BytesIO()
    chart.savefig(data, format="png", dpi=150, pil_kwargs={"compress_level": 1})
    write_atomic(path, data.getvalue())


def draw_energy(axes: Any, trace: Trace, label: str) -> None:
    """Draw a line for each chain."""
    dress(axes, trace)
    chains = trace.energy.shape[1]
    for chain in range(chains):
        axes.plot(
            range(len(trace.phase)),
            trace.energy[:, chain],
            lw=1.0,
            alpha=0.85 if chains <= 10 else 0.4,
            color=f"C{chain % 10}",
        )
    axes.set_ylabel(label)


def draw_rates(axes: Any, trace: Trace, names: Sequence[str]) -> None:
    """Draw a line for each rate, the mean over the chains."""
    dress(axes, trace)
    for i, name in enumerate(names):
        rate = getattr(trace, name).mean(1)
        axes.plot(range(len(trace.phase)), rate, lw=1.4, color=f"C{i}", label=RATES[name])
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("share of proposals")


def dress(axes: Any, trace: Trace) -> None:
    """Shade the burn-in, and draw light grid lines and no frame."""
    burnt = len(trace.phase) - len(trace.kept)
    if burnt:
        axes.axvspan(-0.5, burnt - 0.5, color="0.5", alpha=0.15, lw=0)
        axes.annotate(
            "burn-in", (0.0, 1.0), (2, -2), xycoords="axes fraction",
            textcoords="offset points", va="top", fontsize="small", color="0.4",
        )  # fmt: skip
    axes.set_xlim(-0.5, max(len(trace.phase) - 0.5, 0.5))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
