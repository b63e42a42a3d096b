"""What the thesis says of Tables 6.2 to 6.6 and Figures 6.2 to 6.4, judged chain by chain."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, Literal, NamedTuple

from softbeam.cells import Result
from softbeam.claims import Judged, judged
from softbeam.sampling_experiments import Sampling

TEMPERATURES = (2.0, 1.5, 1.0, 0.8, 0.5)  # thesis, Table 6.2
NUCLEI = (1.0, 0.99, 0.95, 0.9, 0.8)  # thesis, Table 6.3
COOLING = (0.02, 0.04, 0.06)  # thesis, Table 6.5
QUALITY = {"translation": "BLEU", "transcription": "token error rate"}

Done = Mapping[Sampling, Result]
BOTH: tuple[Literal["local"], Literal["raw"]] = ("local", "raw")
HIGH = 0.8  # ours, for "high acceptance rates (0.9 and 0.91)"
SEC_6_6, SEC_6_7, SEC_6_8 = "thesis, Sec. 6.6", "thesis, Sec. 6.7", "thesis, Sec. 6.8"


def sampled(result: Result, name: str) -> list[float]:
    """A figure of each repetition, averaged over the sweeps after the burn-in."""
    kept = [line[name] for line in result["sweeps"] if line.get("phase", "sample") == "sample"]
    return [mean(values) for values in zip(*kept, strict=True)]


def best_of(result: Result, name: str, pick: Callable[..., float]) -> list[float]:
    """The best over all sweeps of each repetition."""
    lines = [line[name] for line in result["sweeps"]]
    return [pick(values) for values in zip(*lines, strict=True)]


def the(done: Done, **knobs: Any) -> Result:
    """The result of the one cell with these settings."""
    return next(r for c, r in done.items() if all(getattr(c, k) == v for k, v in knobs.items()))


class Statements(NamedTuple):
    """Chains by their settings, compared chain by chain."""

    done: Done
    kind: str
    source: str

    @property
    def quality(self) -> tuple[str, int]:
        """What it is called, and the sign of a better one."""
        return QUALITY[self.kind], 1 if self.kind == "translation" else -1

    def more(self, text: str, a: Sequence[float], b: Sequence[float], *, sign: int = 1) -> Judged:
        """a is above b, or below it with sign -1."""
        gaps = [sign * (x - y) for x, y in zip(a, b, strict=True)]
        return judged(text, gaps, source=self.source)

    def mean(self, name: str, **knobs: Any) -> list[float]:
        return sampled(the(self.done, **knobs), name)

    def good(self, text: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Judged]:
        """The chains with settings a have a lower energy and a better quality than those with b."""
        quality, sign = self.quality
        return [
            self.more(
                text.format(f"a {how} {what}"), self.mean(name, **a), self.mean(name, **b), sign=way
            )
            for how, what, name, way in (
                ("lower", "energy", "energy", -1),
                ("better", quality, "quality", sign),
            )
        ]

    def widths(self, name: str, knob: str, values: Sequence[float], method: str) -> list[float]:
        """How far a figure moves over the values of a knob, chain by chain."""
        each = [self.mean(name, method=method, **{knob: value}) for value in values]
        return [max(by_value) - min(by_value) for by_value in zip(*each, strict=True)]


def claims(what: str, done: Done, kind: str) -> list[Judged]:
    """The statements of Sec. 6.6 to 6.8 that a table or figure can decide."""
    source, stated = STATED[what]
    return stated(Statements(done, kind, source))


def about_temperatures(told: Statements) -> list[Judged]:
    """Table 6.2."""
    hot, plain = {"temperature": 2.0}, {"temperature": 1.0}
    found = about_proposals(told, "temperature", TEMPERATURES, "T={:g}")
    mh, gibbs = ({"method": method} for method in ("MH", "Gibbs"))
    novel = {
        (who["method"], of["temperature"]): told.mean("novel", **who, **of)
        for who in (mh, gibbs)
        for of in (hot, plain)
    }
    return [
        *found,
        told.more("MH moves less with T=2 than with 1", novel["MH", 1.0], novel["MH", 2.0]),
        told.more(
            "degenerate Gibbs moves more with T=2 than with 1",
            novel["Gibbs", 2.0],
            novel["Gibbs", 1.0],
        ),
        told.more("T=2: MH moves less than Gibbs", novel["Gibbs", 2.0], novel["MH", 2.0]),
    ]


def about_nuclei(told: Statements) -> list[Judged]:
    """Table 6.3."""
    return about_proposals(told, "nucleus", NUCLEI, "nucleus {:g}")


def about_proposals(
    told: Statements, knob: str, values: Sequence[float], name: str
) -> list[Judged]:
    """Of proposals from the widest to the narrowest: MH is better everywhere and steadier."""
    quality, sign = told.quality
    wide, narrow = ({knob: values[place]} for place in (0, -1))
    plain = {knob: 1.0}
    found = []
    for value in values:
        each = [{"method": method, knob: value} for method in ("MH", "Gibbs")]
        text = name.format(value) + ": MH has {} than degenerate Gibbs"
        found += told.good(text, *each)
    for shown, figure in (("energy", "energy"), (quality, "quality")):
        gibbs, mh = (told.widths(figure, knob, values, method) for method in ("Gibbs", "MH"))
        found.append(told.more(f"MH's {shown} depends less on the proposals", gibbs, mh))
    ends = [{"method": "Gibbs"} | end for end in (narrow, wide)]
    from_to = f"{name.format(values[-1])} than with {values[0]:g}"
    found += told.good("degenerate Gibbs has {} with " + from_to, *ends)
    for method in ("MH", "Gibbs"):
        before, after = (told.mean("novel", method=method, **of) for of in (plain, narrow))
        found.append(
            told.more(f"{method} moves less with {name.format(values[-1])}", before, after)
        )
    return found


def about_blocks(told: Statements) -> list[Judged]:
    """Table 6.4."""
    found = []
    for energy in BOTH:
        mh = {"method": "MH", "energy": energy}
        single, blocks = (mh | {"blocks": b} for b in ("single", "shrinking"))
        found += told.good(f"{energy}: blocks have {{}} than single sites", blocks, single)
        rates = [told.mean("novel", **of) for of in (blocks, single)]
        found.append(told.more(f"{energy}: blocks move more", *rates))
        doubled = [rates[0], [2 * rate for rate in rates[1]]]
        found.append(told.more(f"{energy}: blocks move twice as much", *doubled))
        text = f"{energy}: blocks have {{}} than degenerate Gibbs with blocks"
        found += told.good(text, blocks, {"method": "Gibbs", "blocks": "shrinking"})
    return found


def about_sweeps(told: Statements) -> list[Judged]:
    """Figure 6.2."""
    _, sign = told.quality
    gibbs = {"method": "Gibbs"}
    found = []
    for energy in BOTH:
        mh = {"method": "MH", "energy": energy}
        found += told.good(f"MH, {energy}, has {{}} than degenerate Gibbs", mh, gibbs)
        rates = [told.mean("novel", **of) for of in (gibbs, mh)]
        found.append(told.more(f"MH, {energy}, moves less than degenerate Gibbs", *rates))
        accepted = told.mean("accept", **mh)
        text = f"MH, {energy}, accepts over {HIGH:g} of the proposals"
        found.append(told.more(text, accepted, [HIGH] * len(accepted)))
    result = the(told.done, **gibbs)
    text = "degenerate Gibbs is worse after the burn-in than at its start"
    found.append(told.more(text, result["start"]["quality"], sampled(result, "quality"), sign=sign))
    together = [sign * rho for rho in correlations(told.done)]
    text = "texts of lower energy have the better quality, by the sweep"
    return [*found, told.more(text, [0.0] * len(together), together)]


def correlations(done: Done) -> list[float]:
    """Spearman's, of energy and quality over the sweeps of all samplers, chain by chain."""
    from scipy.stats import spearmanr

    lines = [line for result in done.values() for line in result["sweeps"]]
    pairs = zip(
        zip(*(line["energy"] for line in lines), strict=True),
        zip(*(line["quality"] for line in lines), strict=True),
        strict=True,
    )
    return [float(spearmanr(energy, quality).statistic) for energy, quality in pairs]


def about_shrinking(told: Statements) -> list[Judged]:
    """Figure 6.3."""
    found = []
    for energy in BOTH:
        lines = the(told.done, method="MH", energy=energy)["sweeps"]
        few = min(3, len(lines) // 2)
        first, last = (
            [mean(chain) for chain in zip(*(line["accept"] for line in some), strict=True)]
            for some in (lines[:few], lines[-few:])
        )
        found.append(told.more(f"{energy}: the first proposals are accepted more", first, last))
    return found


def about_cooling(told: Statements) -> list[Judged]:
    """Table 6.5."""
    quality, sign = told.quality
    pick = max if sign > 0 else min
    found = []
    for energy in BOTH:
        slow, fast = (the(told.done, energy=energy, cooling=c) for c in (COOLING[0], COOLING[-1]))
        best = [best_of(result, "quality", pick) for result in (slow, fast)]
        low = [best_of(result, "energy", min) for result in (slow, fast)]
        rates = [sampled(result, "accept") for result in (slow, fast)]
        found += [
            told.more(f"{energy}: the slowest annealing has the best {quality}", *best, sign=sign),
            told.more(f"{energy}: the fastest annealing has the lowest energy", *low),
            told.more(f"{energy}: the fastest annealing accepts least", *rates),
        ]
    return found


def about_annealed_sweeps(told: Statements) -> list[Judged]:
    """Figure 6.4."""
    quality, sign = told.quality
    local, raw = (the(told.done, energy=energy) for energy in BOTH)
    found = [
        told.more(
            f"{energy}: annealing lowers the energy",
            result["sweeps"][0]["energy"],
            result["sweeps"][-1]["energy"],
        )
        for energy, result in zip(BOTH, (local, raw), strict=True)
    ]
    rates, goods = ([sampled(r, name) for r in (raw, local)] for name in ("accept", "quality"))
    return [
        *found,
        told.more("annealed, the raw energy accepts more than the local", *rates),
        told.more(f"annealed, the raw energy has the better {quality}", *goods, sign=sign),
    ]


def about_modes(told: Statements) -> list[Judged]:
    """Table 6.6: last texts of annealed chains, and the lowest in energy that they saw."""
    _, sign = told.quality
    predicted = the(told.done, method="mask-predict")["sweeps"][-1]["quality"]
    gibbs = the(told.done, method="Gibbs")
    start, wrong = gibbs["start"]["quality"], gibbs["sweeps"][-1]["quality"]
    found = [
        told.more("degenerate Gibbs beats the warm start", wrong, start, sign=sign),
        told.more("mask-predict beats the warm start", predicted, start, sign=sign),
    ]
    others = {"the warm start": start, "degenerate Gibbs": wrong, "mask-predict": predicted}
    for energy in BOTH:
        chains = the(told.done, method="MH", energy=energy)
        for which, line in (("last", chains["sweeps"][-1]), ("lowest", chains["mode"])):
            for name, other in others.items():
                text = f"annealed MH, {energy}, {which} texts, beats {name}"
                found.append(told.more(text, line["quality"], other, sign=sign))
    return found


STATED: Mapping[str, tuple[str, Callable[[Statements], list[Judged]]]] = {
    "table-6.2": (SEC_6_7, about_temperatures),
    "table-6.3": (SEC_6_7, about_nuclei),
    "table-6.4": (SEC_6_7, about_blocks),
    "table-6.5": (SEC_6_8, about_cooling),
    "table-6.6": (SEC_6_8, about_modes),
    "figure-6.2": (SEC_6_6, about_sweeps),
    "figure-6.3": (SEC_6_7, about_shrinking),
    "figure-6.4": (SEC_6_8, about_annealed_sweeps),
}
