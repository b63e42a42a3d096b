"""Tables 3.1 to 5.6: the values of runs that they show, the published values, and the claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple


class Value(NamedTuple):
    """A value in a run's result: the names and numbers that lead to it."""

    run: str
    path: tuple[str | int, ...]


class Place(NamedTuple):
    """A value of the table, by row and column."""

    row: str
    column: str


class Claim(NamedTuple):
    """The claim that one value is larger than another.

    Args:
        text: the claim.
        source: where it is stated.
        better: the value that should be larger, of the table or of any run.
        worse: the value that should be smaller.
        than: two further values; better - worse should exceed the first minus the second.
        within: the largest difference of the two values, of either sign, if a small one is claimed.
    """

    text: str
    source: str
    better: Place | Value
    worse: Place | Value
    than: tuple[Place | Value, Place | Value] | None = None
    within: float | None = None

    @property
    def places(self) -> "tuple[Place | Value, ...]":
        """All values, in the order of `signed_sum`."""
        return (self.better, self.worse, *(self.than or ()))


def signed_sum(figures: Sequence[float]) -> float:
    """The first less the second, less the third and plus the fourth if there are four."""
    return sum(sign * x for sign, x in zip((1, -1, -1, 1), figures, strict=False))


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of values, the published values (on other data), and the claims."""

    title: str
    rows: Mapping[str, Mapping[str, Value]]
    published: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    digits: Mapping[str, int] = field(
        default_factory=dict
    )  # decimal places of a column; 2 if not given

    def value(self, place: Place | Value) -> Value:
        return place if isinstance(place, Value) else self.rows[place.row][place.column]

    def printed(self, claim: Claim) -> float | None:
        """The published size of a claim; None if one of its figures is not printed."""
        columns = list(next(iter(self.rows.values())))
        figures = [
            None
            if isinstance(place, Value) or place.row not in self.published
            else self.published[place.row][columns.index(place.column)]
            for place in claim.places
        ]
        present = [figure for figure in figures if figure is not None]
        return signed_sum(present) if len(present) == len(figures) else None


def decoded(run: str, decode: str, metric: str, *place: int) -> Value:
    return Value(run, ("decodes", decode, metric, *place))


# Chapter 3


BEST = {  # the better one of the soft forms in the thesis's Table 3.1, on test
    "NER": {"greedy": "soft annealed", "sample": "soft fixed"},
    "MT": {"greedy": "soft fixed", "sample": "soft annealed"},
}


def table_3_1() -> Table:
    def row(name: str) -> dict[str, Value]:
        return {
            "NER dev": decoded(f"ner/{name}", "dev greedy", "f1"),
            "NER test": decoded(f"ner/{name}", "test greedy", "f1"),
            "MT dev": decoded(f"mt/{name}", "dev greedy", "bleu"),
            "MT test": decoded(f"mt/{name}", "test greedy", "bleu"),
        }

    def better(task: str, a: str, b: str) -> Claim:
        column = f"{task} test"
        return Claim(
            f"{task}: {a} beats {b}", "thesis, Sec. 3.3.4", Place(a, column), Place(b, column)
        )

    names = {
        "cross-entropy": "more-ce",
        "Bengio et al., greedy": "hard-argmax",
        "soft fixed, greedy": "soft-argmax-fixed",
        "soft annealed, greedy": "soft-argmax-annealed",
        "Bengio et al., sample": "hard-sample",
        "soft fixed, sample": "soft-sample-fixed",
        "soft annealed, sample": "soft-sample-annealed",
    }
    return Table(
        title="scheduled sampling; cross-entropy has the same extra epochs",
        rows={name: row(run) for name, run in names.items()},
        published={
            "cross-entropy": (49.43, 53.32, 20.35, 19.11),
            "Bengio et al., greedy": (49.75, 54.83, 20.52, 19.85),
            "soft fixed, greedy": (51.65, 55.88, 21.32, 20.28),
            "soft annealed, greedy": (51.43, 56.33, 21.28, 20.18),
            "Bengio et al., sample": (50.90, 54.60, 20.40, 19.69),
            "soft fixed, sample": (51.13, 56.25, 20.48, 19.69),
            "soft annealed, sample": (50.99, 54.20, 21.36, 20.60),
        },
        claims=[
            *(better(task, name, "cross-entropy") for task in BEST for name in list(names)[1:]),
            *(
                better(task, f"{best[kind]}, {kind}", f"Bengio et al., {kind}")
                for task, best in BEST.items()
                for kind in ("greedy", "sample")
            ),
            better("NER", "soft annealed, greedy", "soft fixed, sample"),
            better("MT", "soft annealed, sample", "soft fixed, greedy"),
        ],
    )


def table_3_2() -> Table:
    names = {"k = 100": "k-100", "k = 10": "k-10", "k = 1": "k-1", "always": "always"}
    rows = {
        name: {
            "dev": decoded(f"ner/{run}", "dev greedy", "f1"),
            "test": decoded(f"ner/{run}", "test greedy", "f1"),
        }
        for name, run in names.items()
    }
    return Table(
        title="how fast own predictions replace gold: soft argmax, annealed, F1",
        rows=rows,
        published={
            "k = 100": (None, 56.33),
            "k = 10": (None, 55.88),
            "k = 1": (None, 55.30),
            "always": (None, 54.83),
        },
        claims=[
            Claim(f"{a} beats {b}", "thesis, Table 3.2", Place(a, "test"), Place(b, "test"))
            for a, b in combinations(names, 2)
        ],
    )


# Chapter 4

SEARCHES = {"greedy": "greedy", "hard beam": "beam", "soft beam": "soft"}


def search_rows(group: str, metric: str) -> dict[str, dict[str, Value]]:
    names = {
        "cross-entropy": "ce",
        "more cross-entropy": "more-ce",
        "hinge, annealed": "hinge-annealed",
        "hinge, alpha 1": "hinge-fixed",
        "direct loss, alpha 1": "direct-fixed",
        "direct loss, annealed": "direct-annealed",
    }
    return {
        name: {
            f"{shown} {split}": decoded(f"{group}/{run}", f"{split} {search}", metric)
            for shown, search in SEARCHES.items()
            for split in ("dev", "test")
        }
        for name, run in names.items()
    }


CE, MORE, HINGE, BEST_LOSS = (
    "cross-entropy",
    "more cross-entropy",
    "hinge, annealed",
    "direct loss, annealed",
)
GREEDY, BEAM, SOFT = "greedy test", "hard beam test", "soft beam test"
SEC_4_6 = "thesis, Sec. 4.6"
POINT = 1.0  # our reading of "we did not observe a large difference"


def beats(text: str, a: str, b: str, source: str = SEC_4_6) -> Claim:
    """The claim that row a beats row b with hard beam search on test."""
    return Claim(text, source, Place(a, BEAM), Place(b, BEAM))


def search_claims() -> list[Claim]:
    """The claims that the thesis makes of both tasks."""
    near = f"soft decoding is within {POINT:g} point of hard decoding, direct loss"
    return [
        Claim(
            "direct loss with a beam beats cross-entropy, greedy",
            SEC_4_6,
            Place(BEST_LOSS, BEAM),
            Place(CE, GREEDY),
        ),
        beats("direct loss beats cross-entropy", BEST_LOSS, CE),
        beats("direct loss beats the hinge", BEST_LOSS, HINGE),
        beats("annealing beats alpha 1, direct loss", BEST_LOSS, "direct loss, alpha 1"),
        beats("annealing beats alpha 1, hinge", HINGE, "hinge, alpha 1"),
        Claim(near, SEC_4_6, Place(BEST_LOSS, SOFT), Place(BEST_LOSS, BEAM), within=POINT),
    ]


def table_4_1() -> Table:
    ours = "docs/results/chapter-4.md"
    return Table(
        title="CCG supertagging, unidirectional encoder, accuracy",
        rows=search_rows("ccg-uni", "accuracy"),
        published={
            "cross-entropy": (80.15, 80.35, 82.17, 82.42, 81.62, 82.00),
            "hinge, annealed": (None, None, 83.03, 83.54, 82.82, 83.05),
            "hinge, alpha 1": (None, None, 83.02, 83.36, 82.49, 82.85),
            "direct loss, alpha 1": (None, None, 83.23, 82.65, 82.58, 82.82),
            "direct loss, annealed": (None, None, 85.69, 85.82, 85.58, 85.78),
        },
        claims=[
            Claim(
                "beam search helps the cross-entropy model",
                SEC_4_6,
                Place(CE, BEAM),
                Place(CE, GREEDY),
            ),
            *search_claims(),
            beats("the hinge beats cross-entropy", HINGE, CE),
            beats("direct loss beats as much more cross-entropy (ours)", BEST_LOSS, MORE, ours),
            beats("the hinge beats as much more cross-entropy (ours)", HINGE, MORE, ours),
        ],
    )


def table_4_2() -> Table:
    def of_tags(run: str, search: str) -> Value:
        return decoded(f"ccg-uni/{run}", f"test {search}", "accuracy")

    return Table(
        title="named entities, F1",
        rows=search_rows("ner", "f1"),
        published={
            "cross-entropy": (50.21, 54.92, 46.22, 51.34, 47.50, 52.78),
            "hinge, annealed": (None, None, 41.10, 45.98, 41.24, 46.34),
            "hinge, alpha 1": (None, None, 40.09, 44.67, 39.67, 43.82),
            "direct loss, alpha 1": (None, None, 49.88, 54.08, 50.73, 54.77),
            "direct loss, annealed": (None, None, 51.86, 56.15, 51.96, 56.38),
        },
        claims=[
            Claim(
                "beam search hurts the cross-entropy model",
                SEC_4_6,
                Place(CE, GREEDY),
                Place(CE, BEAM),
            ),
            *search_claims(),
            beats("the hinge is below cross-entropy", CE, HINGE),
            Claim(
                "supertagging (Table 4.1) gains more by direct loss",
                SEC_4_6,
                of_tags("direct-annealed", "beam"),
                of_tags("ce", "greedy"),
                than=(Place(BEST_LOSS, BEAM), Place(CE, GREEDY)),
            ),
        ],
    )


# Chapter 5


def table_5_1() -> Table:
    groups = {"CCG": ("ccg-bi", "accuracy"), "MT": ("mt", "bleu")}

    def row(group: str, metric: str, run: str) -> dict[str, Value]:
        run = f"{group}/{run}"
        places = [(split, what) for split in ("train", "dev") for what in ("mean", "variance")]
        values = {f"{split} {what}": Value(run, ("log_z", split, what)) for split, what in places}
        return values | {"quality": decoded(run, "dev beam", metric)}

    rows = {
        f"{task}, {shown}": row(group, metric, run)
        for task, (group, metric) in groups.items()
        for shown, run in (("cross-entropy", "ce"), ("self-normalized", "sn"))
    }
    return Table(
        title="log Z and dev quality (beam 3) of both kinds of start",
        rows=rows,
        published={
            "CCG, cross-entropy": (21.08, 9.57, 21.96, 9.18, 93.3),
            "CCG, self-normalized": (0.6, 0.29, 0.26, 0.08, 91.9),
            "MT, cross-entropy": (24.7, 115.4, 25.8, 129.1, 27.62),
            "MT, self-normalized": (0.65, 0.18, 0.7, 0.29, 26.63),
        },
        claims=[
            *(
                Claim(
                    f"{task}: self-normalization shrinks {what}",
                    "thesis, Sec. 5.3",
                    Place(f"{task}, cross-entropy", f"dev {what}"),
                    Place(f"{task}, self-normalized", f"dev {what}"),
                )
                for task in groups
                for what in ("mean", "variance")
            ),
            *(
                Claim(
                    f"{task}: it is within 1.5 points of cross-entropy",  # thesis: 1.4, 1.0
                    "thesis, Sec. 5.3",
                    Place(f"{task}, self-normalized", "quality"),
                    Place(f"{task}, cross-entropy", "quality"),
                    within=1.5,
                )
                for task in groups
            ),
        ],
    )


def start_rows(groups: Mapping[str, tuple[str, str]], runs_of: Mapping[str, str]) -> Any:
    """Rows of Tables 5.2 to 5.4.

    Args:
        groups: the group of runs and the metric of each column.
        runs_of: the run of each role (start, local, global).
    """
    rows = {
        "pretrain-greedy": ("start", "dev greedy"),
        "pretrain-beam": ("start", "dev beam"),
        "locally normalized": ("local", "dev beam"),
        "globally normalized": ("global", "dev beam"),
    }
    return {
        name: {
            column: decoded(f"{group}/{runs_of[role]}", decode, metric)
            for column, (group, metric) in groups.items()
        }
        for name, (role, decode) in rows.items()
    }


CCG = {"unidirectional": ("ccg-uni", "accuracy"), "bidirectional": ("ccg-bi", "accuracy")}


SEC_5_5 = "thesis, Sec. 5.5"
START, LOCAL, GLOBAL = "pretrain-beam", "locally normalized", "globally normalized"


def better(text: str, column: str, a: str, b: str) -> Claim:
    return Claim(f"{column}: {text}", SEC_5_5, Place(a, column), Place(b, column))


FROM_CROSS_ENTROPY = {
    "pretrain-greedy": (76.54, 92.59),
    "pretrain-beam": (77.76, 93.29),
    "locally normalized": (83.9, 93.76),
    "globally normalized": (83.93, 93.73),
}


def from_cross_entropy() -> dict[str, dict[str, Value]]:
    rows: dict[str, dict[str, Value]] = start_rows(
        CCG, {"start": "ce", "local": "direct-annealed", "global": "global"}
    )
    return rows


def table_5_2() -> Table:
    uni, bi = CCG
    return Table(
        title="CCG supertagging from a cross-entropy start, dev accuracy",
        rows=from_cross_entropy(),
        published=FROM_CROSS_ENTROPY,
        claims=[
            *(better("local training improves on its start", c, LOCAL, START) for c in CCG),
            better("global training improves on its start", uni, GLOBAL, START),
            Claim(
                "the bidirectional start is better", SEC_5_5, Place(START, bi), Place(START, uni)
            ),
            Claim(
                "local training gains less with a bidirectional encoder",
                SEC_5_5,
                Place(LOCAL, uni),
                Place(START, uni),
                than=(Place(LOCAL, bi), Place(START, bi)),
            ),
        ],
    )


def table_5_3() -> Table:
    """Table 5.3 with the rows of Table 5.2, since the thesis compares both starts."""
    uni, other = "unidirectional", "{}, cross-entropy start".format
    rows = start_rows(CCG, {"start": "sn", "local": "sn-local", "global": "sn-global"})
    return Table(
        title="CCG supertagging from a self-normalized start, dev accuracy",
        rows=rows | {other(name): row for name, row in from_cross_entropy().items()},
        published={
            "pretrain-greedy": (73.12, 91.23),
            "pretrain-beam": (73.83, 91.94),
            "locally normalized": (83.35, 92.78),
            "globally normalized": (85.50, 92.63),
        }
        | {other(name): figures for name, figures in FROM_CROSS_ENTROPY.items()},
        claims=[
            better("global training beats local training", uni, GLOBAL, LOCAL),
            *(better("global training improves on its start", c, GLOBAL, START) for c in CCG),
            *(better("local training improves on its start", c, LOCAL, START) for c in CCG),
            *(better("the start is below cross-entropy", c, other(START), START) for c in CCG),
            *(
                better(f"it beats {kind} training after cross-entropy", uni, GLOBAL, other(row))
                for kind, row in (("local", LOCAL), ("global", GLOBAL))
            ),
            Claim(
                f"{uni}: global training gains more than after cross-entropy",
                SEC_5_5,
                Place(GLOBAL, uni),
                Place(START, uni),
                than=(Place(other(GLOBAL), uni), Place(other(START), uni)),
            ),
        ],
    )


def table_5_4() -> Table:
    columns = {
        "regular": start_rows(
            {"regular": ("mt", "bleu")}, {"start": "ce", "local": "local", "global": "global"}
        ),
        "self-normalized": start_rows(
            {"self-normalized": ("mt", "bleu")},
            {"start": "sn", "local": "sn-local", "global": "sn-global"},
        ),
    }
    regular, own = columns
    return Table(
        title="translation from both starts, dev BLEU",
        rows={row: columns[regular][row] | columns[own][row] for row in columns[regular]},
        published={
            "pretrain-greedy": (26.24, 25.42),
            "pretrain-beam": (27.62, 26.63),
            "locally normalized": (29.28, 27.71),
            "globally normalized": (26.24, 29.27),
        },
        claims=[
            *(better("local training improves on its start", c, LOCAL, START) for c in columns),
            Claim(
                "the self-normalized start is below cross-entropy",
                SEC_5_5,
                Place(START, regular),
                Place(START, own),
            ),
            better("global training is hurt by its start", regular, START, GLOBAL),
            better("global training improves on its start", own, GLOBAL, START),
            better("global training beats local training", own, GLOBAL, LOCAL),
            Claim(
                "it is within 0.5 BLEU of local training after cross-entropy",  # 0.01 in the thesis
                SEC_5_5,
                Place(GLOBAL, own),
                Place(LOCAL, regular),
                within=0.5,
            ),
        ],
    )


def mt_rows(columns: Mapping[str, tuple[str | int, ...]]) -> dict[str, dict[str, Value]]:
    names = {START: "sn", LOCAL: "sn-local", GLOBAL: "sn-global"}
    return {
        name: {
            column: Value(f"mt/{run}", ("decodes", "dev beam", *path))
            for column, path in columns.items()
        }
        for name, run in names.items()
    }


def table_5_5() -> Table:
    columns: dict[str, tuple[str | int, ...]] = {
        f"{n + 1}-gram": ("precisions", n) for n in range(4)
    }
    columns["length ratio"] = ("length_ratio",)
    return Table(
        title="n-gram overlap and length, dev, self-normalized start",
        rows=mt_rows(columns),
        published={
            "pretrain-beam": (63.5, 35.7, 21.8, 13.7, 0.931),
            "locally normalized": (66.9, 39.4, 22.7, 14.0, 0.918),
            "globally normalized": (65.0, 39.1, 23.2, 14.7, 0.959),
        },
        claims=[
            *(
                better("global above local", c, GLOBAL, LOCAL)
                for c in ("3-gram", "4-gram", "length ratio")
            ),
            *(better("global below local", c, LOCAL, GLOBAL) for c in ("1-gram", "2-gram")),
        ],
        digits={"length ratio": 3},
    )


def table_5_6() -> Table:
    """Table 5.6, with three buckets up to 20 words: few sentences of Multi30k have more."""
    shown = {"up to 10": 0, "11-15": 1, "16-20": 2, "21-30": 3}
    columns: dict[str, tuple[str | int, ...]] = {
        name: ("bleu_by_source_length", place, "score") for name, place in shown.items()
    }
    return Table(
        title="BLEU by source length, dev, self-normalized start; the thesis has 29.36, 32.35 and "
        "33.21 up to 20 words, 24.71, 25.39 and 26.75 for 30-40, 24.50, 25.2 and 26.41 above",
        rows=mt_rows(columns),
        published={
            START: (None, None, None, 25.73),
            LOCAL: (None, None, None, 26.95),
            GLOBAL: (None, None, None, 28.08),
        },
        claims=[
            *(better("global above local", c, GLOBAL, LOCAL) for c in shown),
            Claim(
                "global gains more on the longest sources",
                SEC_5_5,
                Place(GLOBAL, "21-30"),
                Place(LOCAL, "21-30"),
                than=(Place(GLOBAL, "up to 10"), Place(LOCAL, "up to 10")),
            ),
        ],
    )


TABLES = {
    "table-3.1": table_3_1,
    "table-3.2": table_3_2,
    "table-4.1": table_4_1,
    "table-4.2": table_4_2,
    "table-5.1": table_5_1,
    "table-5.2": table_5_2,
    "table-5.3": table_5_3,
    "table-5.4": table_5_4,
    "table-5.5": table_5_5,
    "table-5.6": table_5_6,
}
