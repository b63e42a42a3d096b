"""Judge what the thesis says of Tables 6.2 to 6.6 and Figures 6.2 to 6.4, chain by chain.

Every value is an array over repetitions (models, or chains of one model) and over draws of sources,
so that a claim is arithmetic on arrays, and its interval is over both.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.stats import rankdata

from softbeam.data.task import KindName
from softbeam.experiments.samplers.finished import (
    Done,
    alike,
    energies_together,
    length_law,
    the,
)
from softbeam.reports.verdicts import Judged, judged
from softbeam.training.kinds import KINDS
from softbeam.training.metrics import Array
from softbeam.training.significance import drawn_gaps

TEMPERATURES = (2.0, 1.5, 1.0, 0.8, 0.5)  # thesis, Table 6.2
NUCLEI = (1.0, 0.99, 0.95, 0.9, 0.8)  # thesis, Table 6.3
COOLING = (0.02, 0.04, 0.06)  # thesis, Table 6.5

BOTH: tuple[Literal["local"], Literal["raw"]] = ("local", "raw")
MIXED = 1.1  # the largest R-hat of chains that have mixed
LAW = 0.1  # our reading of a novel rate that is that of independent sites
SAME = 0.05  # nats a token; our reading of equal energies
HIGH = 0.8  # our reading of "high acceptance rates (0.9 and 0.91)"
SEC_6_6, SEC_6_7, SEC_6_8 = "thesis, Sec. 6.6", "thesis, Sec. 6.7", "thesis, Sec. 6.8"
PLAN = "docs/experiments_plan_chapter_6.md"


class Statements(NamedTuple):
    """Make judged claims from chains, by comparing their settings."""

    done: Done
    kind: KindName
    source: str

    @property
    def quality(self) -> tuple[str, int]:
        """The name of the quality, and the sign of an improvement."""
        return KINDS[self.kind].quality, KINDS[self.kind].sign

    def more(
        self,
        text: str,
        a: Array,
        b: Array | float,
        *,
        sign: int = 1,
        needs: Sequence[Mapping[str, Any]] = (),
        within: float | None = None,
    ) -> Judged:
        """Judge the claim that a is above b, or below it with sign -1; or that they are near.

        It is not judged if the chains of one of the settings that it `needs` have not mixed.
        """
        gaps = sign * (a - b)
        sources = next(iter(self.done.values())).sources
        tested = gaps[:, 0].tolist() if gaps.shape[1] == 1 else drawn_gaps(gaps, sources)
        claim = judged(text, tested, source=self.source, within=within)
        rhats = [the(self.done, **knobs).rhat or 0.0 for knobs in needs]
        if max(rhats, default=0.0) > MIXED:
            claim["rhat"] = max(rhats)
        return claim

    def mean(self, name: str, **knobs: Any) -> Array:
        return the(self.done, **knobs).mean(name)

    def good(self, text: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Judged]:
        """Judge the claims that settings a have a lower energy and better quality than b."""
        quality, sign = self.quality
        return [
            self.more(
                text.format(f"a {how} {what}"),
                self.mean(name, **a),
                self.mean(name, **b),
                sign=way,
                needs=(a, b),
            )
            for how, what, name, way in (
                ("lower", "energy", "energy", -1),
                ("better", quality, "quality", sign),
            )
        ]

    def widths(self, name: str, knob: str, values: Sequence[float], method: str) -> Array:
        """The range of a value's means over the values of a knob, chain by chain."""
        each = [self.mean(name, method=method, **{knob: value}) for value in values]
        ranges: Array = np.ptp(each, axis=0)
        return ranges


def claims(what: str, done: Done, kind: KindName) -> list[Judged]:
    """Judge the claims of Sec. 6.6 to 6.8 that a table or figure can decide."""
    source, stated = STATED[what]
    return stated(Statements(done, kind, source))


def about_temperatures(told: Statements) -> list[Judged]:
    """Table 6.2."""
    hot, plain = {"temperature": 2.0}, {"temperature": 1.0}
    claims = about_proposals(told, "temperature", TEMPERATURES, "T={:g}")
    mh, gibbs = ({"method": method} for method in ("MH", "Gibbs"))
    novel = {
        (who["method"], of["temperature"]): told.mean("novel", **who, **of)
        for who in (mh, gibbs)
        for of in (hot, plain)
    }
    return [
        *claims,
        told.more(
            "MH moves less with T=2 than with 1",
            novel["MH", 1.0],
            novel["MH", 2.0],
            needs=(mh | hot, mh | plain),
        ),
        told.more(
            "degenerate Gibbs moves more with T=2 than with 1",
            novel["Gibbs", 2.0],
            novel["Gibbs", 1.0],
            needs=(gibbs | hot, gibbs | plain),
        ),
        told.more(
            "T=2: MH moves less than Gibbs",
            novel["Gibbs", 2.0],
            novel["MH", 2.0],
            needs=(mh | hot, gibbs | hot),
        ),
    ]


def about_nuclei(told: Statements) -> list[Judged]:
    """Table 6.3."""
    return about_proposals(told, "nucleus", NUCLEI, "nucleus {:g}")


def about_proposals(
    told: Statements, knob: str, values: Sequence[float], name: str
) -> list[Judged]:
    """Tables 6.2 and 6.3, proposals from wide to narrow: MH is better everywhere and steadier."""
    quality, sign = told.quality
    wide, narrow = ({knob: values[place]} for place in (0, -1))
    plain = {knob: 1.0}
    claims = []
    for value in values:
        each = [{"method": method, knob: value} for method in ("MH", "Gibbs")]
        text = name.format(value) + ": MH has {} than degenerate Gibbs"
        claims += told.good(text, *each)
    for shown, figure in (("energy", "energy"), (quality, "quality")):
        gibbs, mh = (told.widths(figure, knob, values, method) for method in ("Gibbs", "MH"))
        every = [{"method": m, knob: value} for m in ("MH", "Gibbs") for value in values]
        text = f"MH's {shown} depends less on the proposals"
        claims.append(told.more(text, gibbs, mh, needs=every))
    ends = [{"method": "Gibbs"} | end for end in (narrow, wide)]
    from_to = f"{name.format(values[-1])} than with {values[0]:g}"
    claims += told.good("degenerate Gibbs has {} with " + from_to, *ends)
    for method in ("MH", "Gibbs"):
        of = [{"method": method} | end for end in (plain, narrow)]
        before, after = (told.mean("novel", **each) for each in of)
        text = f"{method} moves less with {name.format(values[-1])}"
        claims.append(told.more(text, before, after, needs=of))
    return claims


def about_blocks(told: Statements) -> list[Judged]:
    """Table 6.4."""
    claims = []
    for energy in BOTH:
        mh = {"method": "MH", "energy": energy}
        single, blocks = (mh | {"blocks": b} for b in ("single", "shrinking"))
        claims += told.good(f"{energy}: blocks have {{}} than single sites", blocks, single)
        rates = [told.mean("novel", **of) for of in (blocks, single)]
        both = (blocks, single)
        claims.append(told.more(f"{energy}: blocks move more", *rates, needs=both))
        text = f"{energy}: blocks move twice as much"
        claims.append(told.more(text, rates[0], 2 * rates[1], needs=both))
        alone = next(cell for cell in told.done if alike(cell, single))
        if told.done[alone].by_source:
            text = f"{energy}: blocks move as independent sites do, 1 - (1 - a)^b, within {LAW:g}"
            expected = length_law(told.done[alone], alone.sweeps)
            claims.append(told.more(text, rates[0], expected, within=LAW, needs=both))
        text = f"{energy}: blocks have {{}} than degenerate Gibbs with blocks"
        claims += told.good(text, blocks, {"method": "Gibbs", "blocks": "shrinking"})
    return claims


def about_sweeps(told: Statements) -> list[Judged]:
    """Figure 6.2."""
    _, sign = told.quality
    gibbs = {"method": "Gibbs"}
    claims = []
    for energy in BOTH:
        mh = {"method": "MH", "energy": energy}
        claims += told.good(f"MH, {energy}, has {{}} than degenerate Gibbs", mh, gibbs)
        rates = [told.mean("novel", **of) for of in (gibbs, mh)]
        text = f"MH, {energy}, moves less than degenerate Gibbs"
        claims.append(told.more(text, *rates, needs=(mh, gibbs)))
        text = f"MH, {energy}, accepts over {HIGH:g} of the proposals"
        claims.append(told.more(text, told.mean("accept", **mh), HIGH, needs=(mh,)))
    wrong = the(told.done, **gibbs)
    text = "degenerate Gibbs is worse after the burn-in than at its start"
    claims.append(told.more(text, wrong.start["quality"], wrong.mean("quality"), sign=sign))
    text = "texts of lower energy have the better quality, by the sweep"
    return [*claims, told.more(text, correlations(told.done), 0.0, sign=-sign)]


def correlations(done: Done) -> Array:
    """Spearman's correlation of energy and quality over all samplers' sweeps, chain by chain.

    It is 0 where energy or quality never changes.
    """

    def ranks(name: str) -> Array:
        every = np.concatenate([chains.sweeps[name] for chains in done.values()])
        ranked: Array = rankdata(every, axis=0)
        return ranked - ranked.mean(0)

    energy, quality = ranks("energy"), ranks("quality")
    size = np.sqrt((energy**2).sum(0) * (quality**2).sum(0))
    correlation: Array = (energy * quality).sum(0) / np.where(size > 0, size, 1.0)
    return correlation


def about_shrinking(told: Statements) -> list[Judged]:
    """Figure 6.3."""
    claims = []
    for energy in BOTH:
        rates = the(told.done, method="MH", energy=energy).sweeps["accept"]
        few = min(3, len(rates) // 2)
        first, last = rates[:few].mean(0), rates[-few:].mean(0)
        claims.append(told.more(f"{energy}: the first proposals are accepted more", first, last))
    return claims


def about_cooling(told: Statements) -> list[Judged]:
    """Table 6.5."""
    quality, sign = told.quality
    claims = []
    for energy in BOTH:
        slow, fast = (the(told.done, energy=energy, cooling=c) for c in (COOLING[0], COOLING[-1]))
        best = [chains.best("quality", sign) for chains in (slow, fast)]
        low = [chains.best("energy", -1) for chains in (slow, fast)]
        rates = [chains.mean("accept") for chains in (slow, fast)]
        claims += [
            told.more(f"{energy}: the slowest annealing has the best {quality}", *best, sign=sign),
            told.more(f"{energy}: the fastest annealing has the lowest energy", *low),
            told.more(f"{energy}: the fastest annealing accepts least", *rates),
        ]
    return claims


def about_annealed_sweeps(told: Statements) -> list[Judged]:
    """Figure 6.4."""
    quality, sign = told.quality
    local, raw = (the(told.done, energy=energy) for energy in BOTH)
    claims = [
        told.more(
            f"{energy}: annealing lowers the energy",
            chains.sweeps["energy"][0],
            chains.sweeps["energy"][-1],
        )
        for energy, chains in zip(BOTH, (local, raw), strict=True)
    ]
    rates, goods = ([c.mean(name) for c in (raw, local)] for name in ("accept", "quality"))
    return [
        *claims,
        told.more("annealed, the raw energy accepts more than the local", *rates),
        told.more(f"annealed, the raw energy has the better {quality}", *goods, sign=sign),
    ]


def about_modes(told: Statements) -> list[Judged]:
    """Table 6.6: the last texts of annealed chains, and their texts of lowest energy."""
    _, sign = told.quality
    predicted = the(told.done, method="mask-predict").sweeps["quality"][-1]
    gibbs = the(told.done, method="Gibbs")
    start, wrong = gibbs.start["quality"], gibbs.sweeps["quality"][-1]
    claims = [
        told.more("degenerate Gibbs beats the warm start", wrong, start, sign=sign),
        told.more("mask-predict beats the warm start", predicted, start, sign=sign),
    ]
    others = {"the warm start": start, "degenerate Gibbs": wrong, "mask-predict": predicted}
    for energy in BOTH:
        chains = the(told.done, method="MH", energy=energy)
        texts = {"last": chains.sweeps["quality"][-1], "lowest": chains.mode["quality"]}
        for which, quality in texts.items():
            for name, other in others.items():
                text = f"annealed MH, {energy}, {which} texts, beats {name}"
                claims.append(told.more(text, quality, other, sign=sign))
    return claims


def about_orders(told: Statements) -> list[Judged]:
    """Orders of positions, chains that are half as long again, and footnote 9."""
    claims = []
    for energy in BOTH:
        same = [cell for cell in told.done if cell.energy == energy]
        short, long = min(cell.sweeps for cell in same), max(cell.sweeps for cell in same)
        usual = {"energy": energy, "order": "random", "sweeps": short}
        for text, other in (
            ("sequential order has the energy of random order", usual | {"order": "sequential"}),
            (f"{long} sweeps have the energy of {short}", usual | {"sweeps": long}),
        ):
            both = [told.mean("energy", **of) for of in (other, usual)]
            text = f"{energy}: {text}, within {SAME:g}"
            claims.append(told.more(text, *both, within=SAME, needs=(other, usual)))
        if values := energies_together(the(told.done, **usual)):
            text = f"{energy}: raw and local energies of texts go together (footnote 9)"
            claims.append(judged(text, values, source=told.source))
    return claims


STATED: Mapping[str, tuple[str, Callable[[Statements], list[Judged]]]] = {
    "table-6.2": (SEC_6_7, about_temperatures),
    "table-6.3": (SEC_6_7, about_nuclei),
    "table-6.4": (SEC_6_7, about_blocks),
    "table-6.5": (SEC_6_8, about_cooling),
    "table-6.6": (SEC_6_8, about_modes),
    "figure-6.2": (SEC_6_6, about_sweeps),
    "figure-6.3": (SEC_6_7, about_shrinking),
    "figure-6.4": (SEC_6_8, about_annealed_sweeps),
    "sampling-order": (PLAN, about_orders),
}
