"""Records and drawings of Table 6.1 and Figure 6.1, with verdicts on the claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softbeam.data import catalogue
from softbeam.experiments.energies.cells import Fit, run
from softbeam.experiments.energies.claims import (
    SEC_6_2,
    By,
    caps,
    check_text,
    checks_of,
    claims_of,
    equalities,
    growth_claims,
)
from softbeam.experiments.energies.sequences import SYNTHETIC, Data
from softbeam.experiments.energies.tables import PRESETS, PRINTED, figure_cells, table_cells
from softbeam.experiments.order import Order
from softbeam.reports.charts import figure_of, save_chart
from softbeam.reports.tables import Rows, columns_of, number, summary, table_text
from softbeam.reports.verdicts import claim_text, judged, with_holm
from softbeam.runtime.cells import Result, records
from softbeam.runtime.grid import run_grid
from softbeam.runtime.text_tables import aligned

Finished = list[tuple[Fit, Result]]
COLUMNS = (
    *("True", "LL", "PLL", "MLM", "KL", "KL+PLL", "NCE", "PCD"),
    *("MLM-masks", "NCE-MLM", "residual", "-PLL", "-MLM"),
)
TITLES = {
    "palindromes": "palindromes",
    "hmm-low": "HMM, low entropy",
    "hmm-high": "HMM, high entropy",
    "phonemes": "phonemes",
    "phonemes-distinct": "phonemes, distinct",
}
NOTES = """\
NLL: mean over held-out sequences with the model's own log Z; ± is the standard deviation over the
datasets. True: the generator's own NLL on the same sequences. -PLL, -MLM: the objectives' values on
held-out sequences, each of the model trained with it. KL starts from that row's MLM and projects
it. MLM-masks also reads masked tokens; NCE-MLM has its samples as noise, and residual is an energy
on top of it (chapter 7). Phonemes are normalized given their length; LL is left out there: it would
take all 39^6 sequences at every update."""


def make(what: str, order: Order) -> dict[str, Any]:
    """Compute a target's fits, or find them; returns its results, its verdicts and its text."""
    cells_of, show = TARGETS[what]
    done = finish(
        what, cells_of(PRESETS[order.preset], order.seeds, distinct=order.distinct), order
    )
    shown = show(done, order.folder)
    title = "held-out NLL, nats per sequence"
    name = what.replace("-", " ").capitalize()
    head = f"{name}: {title}, mean of {len(order.seeds)} datasets (preset {order.preset})"
    heading = {"title": title, "repeated": "datasets", "text": f"{head}\n{shown['text']}"}
    return shown | heading | {"cells": records(done, order.folder)}


def finish(name: str, cells: Sequence[Fit], order: Order) -> Finished:
    """Compute all cells; teachers, whose weights others need, are among the first."""
    if any(cell.data.startswith("phonemes") for cell in cells):
        order.check_files({"cmudict": catalogue.locate("cmudict", "cmudict")})
    alone = [c for c in cells if c.teacher is None]
    alone.sort(key=lambda c: not c.reserved)
    taught = [c for c in cells if c.teacher is not None]
    for title, part in ((name, alone), (f"{name}, projections", taught)):
        order.results(part, run, title)
    return list(zip(cells, run_grid(cells, run, order.folder, quiet=True), strict=True))


# The table


def table_6_1(done: Finished, folder: Path) -> dict[str, Any]:
    """Table 6.1: training objectives compared by held-out NLL, with the orderings it claims.

    Nothing is written to the folder.
    """
    groups = {name: by_objective(group) for name, group in by_row(done).items()}
    rows = with_all_columns({name: figures_of(by) for name, by in groups.items()})
    columns = columns_of(rows)
    published = {
        name: [PRINTED[name].get(column) for column in columns] for name in rows if name in PRINTED
    }
    log_z = {name: how_normalized(by) for name, by in groups.items()}
    checks = [check for name, by in groups.items() for check in checks_of(name, by)]
    claims = [claim for name, by in groups.items() for claim in claims_of(name, by)]
    claims = with_holm([*claims, *growth_claims(groups)])
    checks = [*checks, *equalities(claims), caps(done)]
    digits = dict.fromkeys(columns, 3)
    normalized = [f"{name}: log Z {how}" for name, how in log_z.items()]
    lines = [*map(claim_text, claims), *map(check_text, checks)]
    shown = table_text(rows, published, digits)
    return {
        "rows": rows,
        "published": published,
        "digits": digits,
        "log_z": log_z,
        "claims": claims,
        "checks": checks,
        "text": "\n".join(["", shown, "", *normalized, "", NOTES, "", *lines]),
    }


def by_row(done: Finished) -> dict[str, Finished]:
    """Results by the rows of the table, in the thesis's order."""
    rows: dict[str, Finished] = {}
    order = [*SYNTHETIC, "phonemes", "phonemes-distinct"]
    for cell, result in sorted(done, key=lambda d: (order.index(d[0].data), d[0].size)):
        rows.setdefault(row_name(cell), []).append((cell, result))
    return rows


def row_name(cell: Fit) -> str:
    """The thesis's name of a row: p-1k, h-10k+, ..."""
    if cell.data not in SYNTHETIC:
        return "phoneme" if cell.data == "phonemes" else "phoneme, distinct"
    size = f"{cell.size // 1000}k" if cell.size % 1000 == 0 else str(cell.size)
    letter = "p" if cell.data == "palindromes" else "h"
    return f"{letter}-{size}{'+' if cell.data == 'hmm-high' else ''}"


def by_objective(done: Finished) -> dict[str, list[Result]]:
    """Results by the objective of their fit."""
    results: dict[str, list[Result]] = {}
    for cell, result in done:
        results.setdefault(cell.objective, []).append(result)
    return results


def figures_of(by: By) -> dict[str, list[float]]:
    """NLL of the generator, if known, and of every objective; values of PLL and MLM themselves."""
    first = next(iter(by.values()))
    true = {"True": [r["true_nll"] for r in first]} if "true_nll" in first[0] else {}
    own = {f"-{m}": [r[m.lower()] for r in by[m]] for m in ("PLL", "MLM") if m in by}
    return true | {m: [r["nll"] for r in results] for m, results in by.items()} | own


def with_all_columns(rows: Rows) -> dict[str, dict[str, Sequence[float | None]]]:
    """Rows with the same columns in one order; a missing value is an empty list."""
    order = [c for c in COLUMNS if any(c in row for row in rows.values())]
    return {name: {c: row.get(c, []) for c in order} for name, row in rows.items()}


def how_normalized(by: By) -> str:
    """How log Z was computed: "exact", or sampled lengths and the error that they add to NLL."""
    first = next(iter(by.values()))[0]["log_z"]
    sampled = [length for length, log_z in first.items() if log_z["how"] != "exact"]
    if not sampled:
        return "exact"
    worst = ", ".join(
        f"{method} {max(r['log_z_error'] for r in results):.3f}" for method, results in by.items()
    )
    enumerated = [length for length in first if length not in sampled]
    exact = f"exact to length {max(enumerated)}, " if enumerated else ""
    return f"{exact}AIS at {', '.join(sampled)} (adds a standard error: {worst})"


# The figure

LINES = {"PLL": "PL only", "MLM": "MLM only", "KL": "KL projection", "KL+PLL": "KL + PL"}


def figure_6_1(done: Finished, folder: Path) -> dict[str, Any]:
    """Figure 6.1: NLL against training size for PL alone and for projections of a large MLM."""
    panels = [panel_of(data, done) for data in dict.fromkeys(cell.data for cell, _ in done)]
    panels.sort(key=lambda panel: list(TITLES).index(panel["data"]))
    claims = with_holm(claim for panel in panels for claim in panel["claims"])
    shown = [f"\n{panel_text(panel)}" for panel in panels]
    text = "\n".join([*shown, "", *map(claim_text, claims)])
    files = [file.name for file in draw(panels, folder)]
    return {"panels": panels, "claims": claims, "files": files, "text": text}


def panel_of(data: Data, done: Finished) -> dict[str, Any]:
    """The lines of one dataset: NLL by method and training size, the teacher's, the truth's."""
    here = [(cell, result) for cell, result in done if cell.data == data]
    students = [(c, r) for c, r in here if not c.reserved]
    sizes = sorted({cell.size for cell, _ in students})

    def of(method: str) -> list[Result]:
        return [r for c, r in students if c.objective == method]

    def values(method: str, size: int) -> list[float]:
        return [r["nll"] for c, r in students if (c.objective, c.size) == (method, size)]

    def ahead(method: str, size: int) -> list[float]:
        """How far a method's NLL is below that of PL alone, on the same sequences."""
        pairs = zip(values(method, size), values("PLL", size), strict=True)
        return [pl - kl for kl, pl in pairs]

    teachers = [result for cell, result in here if cell.reserved]
    few, many = sizes[0], sizes[-1]
    claims = [
        judged(f"{data}, {few}: NLL({m}) < NLL(PLL)", ahead(m, few), source="thesis, Figure 6.1")
        for m in ("KL", "KL+PLL")
    ]
    for method in ("PLL", "KL", "KL+PLL"):
        pairs = zip(values(method, few), teachers, strict=True)
        below = [teacher["nll"] - nll for nll, teacher in pairs]
        claim = f"{data}, {few}: NLL({method}) is below the large MLM's"
        claims.append(judged(claim, below, source=SEC_6_2))
    if many > few:
        more = [a - b for a, b in zip(ahead("KL", few), ahead("KL", many), strict=True)]
        claim = f"{data}: KL gains more over PLL with {few} than with {many}"
        claims.append(judged(claim, more, source=SEC_6_2))
    return {
        "data": data,
        "sizes": sizes,
        "lines": {m: [summary(values(m, size)) for size in sizes] for m in LINES},
        "teacher": {"size": teachers[0]["trained"], **summary([r["nll"] for r in teachers])},
        "true": summary([r["true_nll"] for _, r in students]) if data in SYNTHETIC else None,
        "log_z": how_normalized({"MLM": teachers} | {LINES[m]: of(m) for m in LINES}),
        "claims": claims,
    }


def panel_text(panel: Mapping[str, Any]) -> str:
    """The table of one dataset, with a row for each training size."""
    lines = [["size", *LINES.values()]]
    for i, size in enumerate(panel["sizes"]):
        lines.append([f"{size:,}", *(number(panel["lines"][method][i]) for method in LINES)])
    head = (
        f"{TITLES[panel['data']]}: MLM of {panel['teacher']['size']:,} {number(panel['teacher'])}"
    )
    if panel["true"] is not None:
        head += f", true {panel['true']['mean']:.3f}"
    return f"{head}; log Z {panel['log_z']}\n{aligned(lines)}"


def draw(panels: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw Figure 6.1 and write it as PNG and SVG; returns both paths."""
    chart, all_axes = figure_of(len(panels), 3.6 * len(panels), 3.6)
    styles = zip(LINES.items(), ("tab:blue", "tab:gray", "tab:red", "tab:purple"), strict=True)
    colors = {method: (label, color) for (method, label), color in styles}
    for axes, panel in zip(all_axes, panels, strict=True):
        for method, (label, color) in colors.items():
            line = panel["lines"][method]
            axes.errorbar(
                panel["sizes"],
                [point["mean"] for point in line],
                yerr=[point["spread"] or 0.0 for point in line],
                label=label,
                color=color,
                marker="o",
                ms=3,
                lw=1.4,
                capsize=2,
            )
        teacher, true = panel["teacher"], panel["true"]
        name = f"MLM ({teacher['size']:,})"
        axes.axhline(teacher["mean"], color="tab:gray", ls="--", lw=1.2, label=name)
        if true is not None:
            axes.axhline(true["mean"], color="black", ls=":", lw=1.2, label="true")
        axes.set_xscale("log")
        axes.set_title(TITLES[panel["data"]], fontsize=10)
        axes.set_xlabel("training sequences")
        axes.legend(frameon=False, fontsize=7)
    all_axes[0].set_ylabel("held-out NLL, nats")
    return save_chart(chart, folder, "figure-6.1")


TARGETS = {"table-6.1": (table_cells, table_6_1), "figure-6.1": (figure_cells, figure_6_1)}
