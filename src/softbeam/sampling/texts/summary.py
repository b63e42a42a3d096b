"""What a file of samples says: a table of rates and diagnostics, and a plot of the traces."""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from softbeam.errors import UserError
from softbeam.runtime.files import Types, read_object, write_atomic, write_text
from softbeam.runtime.text_tables import aligned
from softbeam.sampling.diagnostics import mixing, unique_ratio
from softbeam.sampling.texts.files import (
    Header,
    checkpoint_of,
    clear,
    plot_of,
    read_samples,
    same_settings,
    summary_of,
)

RATES = {"accepted": "accept", "repeated": "self", "novel": "novel", "stuck": "stuck"}
SUMMARY: Types = {"header": dict, "samples": str, "seconds": (int, float), "texts": list}
MOST_TEXTS = 6  # in one figure
HIGH = 1.05  # R-hat above which chains disagree

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Traces:
    """The chains of one text, all sweeps."""

    index: int
    phase: tuple[str, ...]
    energy: Float[Tensor, "sweep chain"]
    counts: Mapping[str, Float[Tensor, "sweep chain"]]  # with proposals
    texts: Sequence[Sequence[str]]  # sweep, chain

    @property
    def kept(self) -> list[int]:
        """The sweeps after the burn-in."""
        return [s for s, phase in enumerate(self.phase) if phase == "sample"]

    def rate(self, name: str) -> Float[Tensor, "sweep chain"]:
        return self.counts[name] / self.counts["proposals"].clamp_min(1)


def traces(rows: Iterable[Row]) -> list[Traces]:
    """The rows of a file by text."""
    by_text: dict[int, list[Row]] = {}
    for row in rows:
        by_text.setdefault(row["index"], []).append(row)
    return [text_traces(index, kept) for index, kept in by_text.items()]


def text_traces(index: int, rows: Sequence[Row]) -> Traces:
    """The whole sweeps of a text's chains; a last sweep that was cut off is left out."""
    chains = 1 + max(row["chain"] for row in rows)
    sweeps = len(rows) // chains
    rows = rows[: sweeps * chains]
    if not sweeps or [row["chain"] for row in rows] != list(range(chains)) * sweeps:
        raise UserError(f"the rows of text {index} are not whole sweeps of {chains} chains")

    def table(name: str) -> Tensor:
        values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        return values.unflatten(0, (-1, chains))

    texts = [row["text"] for row in rows]
    return Traces(
        index,
        tuple(row["phase"] for row in rows[::chains]),
        table("energy"),
        {name: table(name) for name in ("proposals", *RATES)},
        [texts[i : i + chains] for i in range(0, len(texts), chains)],
    )


def summary(
    found: Traces,
    *,
    seconds: float | None = None,
    features: Mapping[str, Callable[[str], float]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The figures of one text's chains, after their burn-in.

    Args:
        found: the chains.
        seconds: spent on them, from which comes ESS a second.
        features: functions of a text that chains should agree about, besides the energy.
    """
    kept = found.kept
    energy = found.energy[kept]
    texts = [text for s in kept for text in found.texts[s]]
    values = {
        name: torch.tensor([float(f(text)) for text in texts]).view_as(energy)
        for name, f in features.items()
    }
    mixed = mixing({"energy": energy, **values}, seconds=seconds)
    figures = mixed.pop("energy")
    best = int(energy.argmin())
    return {
        "index": found.index,
        **{short: float(found.rate(name)[kept].mean()) for name, short in RATES.items()},
        "energy": figures.mean,
        "rhat": figures.rhat,
        "ess": figures.ess,
        "ess_per_s": figures.ess_per_s,
        "unique": unique_ratio(texts),
        "samples": len(texts),
        "lowest_energy": float(energy.min()),
        "lowest_text": texts[best],
        **({"features": {name: m._asdict() for name, m in mixed.items()}} if mixed else {}),
    }


def as_table(rows: Sequence[Row]) -> str:
    """The summaries, aligned; stuck only where something was."""
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
    texts = ["lowest-energy text", *(row["lowest_text"] for row in rows)]
    return aligned(list(zip(*cells, texts, strict=True)), ">" * len(cells) + "<")


def advice(rows: Sequence[Row]) -> list[str]:
    """A sentence where chains disagree."""
    high = [row["index"] for row in rows if row["rhat"] is not None and row["rhat"] > HIGH]
    if not high:
        return []
    which = ", ".join(map(str, high[:10])) + (" …" if len(high) > 10 else "")
    return [f"R-hat above {HIGH} (text {which}): chains disagree; more --sweeps and --burn-in help"]


# The whole file


def finish(out: Path, header: Header, *, seconds: float) -> dict[str, Any]:
    """The summary and the plot, written beside a file of samples that is whole."""
    found = traces(read_samples(out))
    each = seconds / len(found)  # texts are sampled side by side
    made = {"header": header, "samples": str(out), "seconds": seconds, "plot": None}
    made["texts"] = [summary(text, seconds=each) for text in found]
    if find_spec("matplotlib") is not None:
        made["plot"] = str(plot_of(out))
        write_plot(found, plot_of(out))
    write_text(summary_of(out), json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    clear(out)
    return made


def finished(out: Path, header: Header) -> dict[str, Any] | None:
    """The summary of a file that is whole and of the same settings, if it is there."""
    if not (out.exists() and summary_of(out).exists()) or checkpoint_of(out).exists():
        return None
    path = summary_of(out)
    made = read_object(path, "the summary of a file of samples", SUMMARY, needed=True)
    same_settings(out, made["header"], header)
    return made


def as_text(made: Mapping[str, Any]) -> str:
    """The table, what to think of it, and where everything is."""
    settings, rows = made["header"]["settings"], made["texts"]
    chains = f"{settings['chains']} chains, {settings['sweeps']} sweeps"
    plot = made["plot"] or "no plot, as matplotlib is not installed: pip install 'softbeam[report]'"
    return "\n".join(
        [
            as_table(rows),
            *(f"note: {line}" for line in (*made["header"]["caveats"], *advice(rows))),
            f"{chains} ({settings['burn_in']} burn-in), {made['seconds']:.1f} s: "
            f"{made['samples']}, {plot}",
        ]
    )


# The plot


def write_plot(found: Sequence[Traces], path: Path) -> None:
    """Energy by sweep of each chain, and the rates by sweep; a row for each of the first texts."""
    from matplotlib.figure import Figure

    drawn = found[:MOST_TEXTS]
    chart = Figure(figsize=(9.6, 0.9 + 2.5 * len(drawn)), layout="constrained")
    axes = chart.subplots(len(drawn), 2, squeeze=False, sharex=True)
    stuck = any(bool(text.counts["stuck"].any()) for text in drawn)
    names = [name for name in RATES if stuck or name != "stuck"]
    for (left, right), text in zip(axes, drawn, strict=True):
        draw_energy(left, text)
        draw_rates(right, text, names)
    for last in axes[-1]:
        last.set_xlabel("sweep")
    axes[0, 1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    left_out = len(found) - len(drawn)
    more = f", first {len(drawn)} of {len(found)} texts" if left_out else ""
    axes[0, 0].set_title(f"{found[0].energy.shape[1]} chains{more}", fontsize="medium")
    data = io.BytesIO()
    chart.savefig(data, format="png", dpi=150)
    write_atomic(path, data.getvalue())


def draw_energy(axes: Any, text: Traces) -> None:
    dress(axes, text)
    chains = text.energy.shape[1]
    for chain in range(chains):
        axes.plot(
            range(len(text.phase)),
            text.energy[:, chain],
            lw=1.0,
            alpha=0.85 if chains <= 10 else 0.4,
            color=f"C{chain % 10}",
        )
    axes.set_ylabel(f"energy, text {text.index}")


def draw_rates(axes: Any, text: Traces, names: Sequence[str]) -> None:
    dress(axes, text)
    for i, name in enumerate(names):
        rate = text.rate(name).mean(1)
        axes.plot(range(len(text.phase)), rate, lw=1.4, color=f"C{i}", label=RATES[name])
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("share of proposals")


def dress(axes: Any, text: Traces) -> None:
    """Burn-in shaded, light lines, no frame."""
    from matplotlib.ticker import MaxNLocator

    burnt = len(text.phase) - len(text.kept)
    if burnt:
        axes.axvspan(-0.5, burnt - 0.5, color="0.5", alpha=0.15, lw=0)
        axes.annotate(
            "burn-in", (0.0, 1.0), (2, -2), xycoords="axes fraction",
            textcoords="offset points", va="top", fontsize="small", color="0.4",
        )  # fmt: skip
    axes.set_xlim(-0.5, max(len(text.phase) - 0.5, 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
