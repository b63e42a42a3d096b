"""What the thesis claims about Table 6.1 and Figure 6.1."""

from collections.abc import Mapping, Sequence
from typing import Any

from softbeam.experiments.energies.cells import Fit
from softbeam.experiments.energies.tables import PRINTED
from softbeam.reports.verdicts import Judged, judged
from softbeam.runtime.cells import Result

By = Mapping[str, Sequence[Result]]  # the results of each objective, dataset by dataset
SEC_6_2 = "thesis, Sec. 6.2.3"
EQUAL = 0.05  # nats a sequence; two objectives whose difference is surely smaller are equal
NEAR = 0.5  # nats a sequence; our reading of "similar values", up to 0.40 apart in the thesis


def claims_of(row: str, by: By) -> list[Judged]:
    """Judge NLL(LL) < NLL(PLL) < NLL(MLM), and whether the objectives' values are similar."""
    pairs = [pair for pair in (("LL", "PLL"), ("PLL", "MLM"), ("LL", "MLM")) if {*pair} <= {*by}]
    orderings = [
        judged(
            f"{row}: NLL({low}) < NLL({high})",
            gaps(by, low, high),
            source=SEC_6_2,
            published=printed_gap(row, low, high),
        )
        for low, high in pairs
    ]
    own = [b["mlm"] - a["pll"] for a, b in zip(by["PLL"], by["MLM"], strict=True)]
    near = f"{row}: -PLL and -MLM of their own models are within {NEAR:g} nats"
    return [*orderings, judged(near, own, source=SEC_6_2, within=NEAR)]


def growth_claims(groups: Mapping[str, By]) -> list[Judged]:
    """Judge whether the objectives come nearer to each other with more data.

    The text says so of all data; where the printed table says otherwise, nothing is claimed.
    """
    claims = []
    for few in groups:
        many = few.replace("1k", "10k")
        if many == few or many not in groups:
            continue
        for low, high in (("LL", "PLL"), ("PLL", "MLM")):
            nearer_by = less(printed_gap(few, low, high), printed_gap(many, low, high))
            if nearer_by is not None and nearer_by <= 0:
                continue
            before, after = (gaps(groups[row], low, high) for row in (few, many))
            claim = f"{many}: NLL({high}) is nearer to NLL({low}) than with {few}"
            nearer = [a - b for a, b in zip(before, after, strict=True)]
            claims.append(judged(claim, nearer, source=SEC_6_2, published=nearer_by))
    return claims


def printed_gap(row: str, low: str, high: str) -> float | None:
    """How far the printed NLL of `high` is above that of `low`; None if one is not printed."""
    figures = PRINTED.get(row, {})
    return less(figures.get(high), figures.get(low))


def less(a: float | None, b: float | None) -> float | None:
    """The difference of two printed figures, to as many digits; None if one is missing."""
    return None if a is None or b is None else round(a - b, 6)


def gaps(by: By, low: str, high: str) -> list[float]:
    """How far the NLL of the objective `high` is above that of `low`, dataset by dataset."""
    return [b["nll"] - a["nll"] for a, b in zip(by[low], by[high], strict=True)]


def checks_of(row: str, by: By) -> list[dict[str, Any]]:
    """Checks of the computation: no NLL is below the entropy, and AIS agrees with enumeration."""
    checks = []
    above = [r["expected_nll"] - r["entropy"] for rs in by.values() for r in rs if "entropy" in r]
    if above:
        text = f"the nearest is {min(above):.4f} nats above"
        holds = min(above) > -1e-6
        checks.append({"claim": f"{row}: no model below the entropy", "holds": holds, "text": text})
    sampled = [r["ais_check"] for rs in by.values() for r in rs if "ais_check" in r]
    if sampled:
        off = [abs(s["log_z"] - s["exact"]) / s["error"] for s in sampled]
        text = (
            f"standard errors off at the longest exact length: {', '.join(f'{x:.1f}' for x in off)}"
        )
        holds = sum(x <= 3 for x in off) >= 0.95 * len(off)
        checks.append({"claim": f"{row}: AIS agrees with exact", "holds": holds, "text": text})
    return checks


def equalities(claims: Sequence[Judged]) -> list[dict[str, Any]]:
    """Say of undecided orders whether their intervals show equality within `EQUAL` nats."""
    checks = []
    for claim in claims:
        if " < " in claim["claim"] and claim["verdict"] == "undecided" and claim["interval"]:
            low, high = claim["interval"]
            text = f"{low:.4f} to {high:.4f}"
            holds = -EQUAL <= low and high <= EQUAL
            name = f"{claim['claim'].replace(' < ', ' = ')} within {EQUAL:g}"
            checks.append({"claim": name, "holds": holds, "text": text})
    return checks


def caps(done: Sequence[tuple[Fit, Result]]) -> dict[str, Any]:
    """Check that every fit stopped by its dev loss, and not at its largest number of updates."""
    stopped = [str(cell) for cell, result in done if result["updates"] >= cell.updates]
    text = f"{len(stopped)} of {len(done)}" + (f": {'; '.join(stopped)}" if stopped else "")
    return {"claim": "no fit stops at its cap", "holds": not stopped, "text": text}


def check_text(check: Mapping[str, Any]) -> str:
    verdict = "holds" if check["holds"] else "DOES NOT HOLD"
    return f"{check['claim']:38} {verdict:13}  {check['text']}"
