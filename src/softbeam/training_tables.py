"""Tables 3.1 to 5.6: which figures of which runs, what was published, what is claimed of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from softbeam.cells import Result, records
from softbeam.claims import Judged, claim_text, judged
from softbeam.energy_tables import aligned, number, summary
from softbeam.evaluate import compare, problems
from softbeam.grid import Workers, run_grid
from softbeam.training_experiments import (
    Training,
    compute,
    outputs_of,
    training,
    with_starts,
)
from softbeam.training_experiments import decoded as sentences_of
from softbeam.training_runs import runs

Done = Mapping[Training, Result]


class Value(NamedTuple):
    """A figure of a run: names and numbers that lead to it in the result."""

    run: str
    path: tuple[str | int, ...]


class Claim(NamedTuple):
    """The first is better than the second; both by row and column."""

    text: str
    source: str
    better: tuple[str, str]
    worse: tuple[str, str]
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of figures, the same as published (on other data), and the claims."""

    title: str
    rows: Mapping[str, Mapping[str, Value]]
    published: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    claims: Sequence[Claim] = ()

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))


def decoded(run: str, decode: str, metric: str, *place: int) -> Value:
    return Value(run, ("decodes", decode, metric, *place))


# Chapter 3


def table_3_1() -> Table:
    def row(name: str) -> dict[str, Value]:
        return {
            "NER dev": decoded(f"ner/{name}", "dev greedy", "f1"),
            "NER test": decoded(f"ner/{name}", "test greedy", "f1"),
            "MT dev": decoded(f"mt/{name}", "dev greedy", "bleu"),
            "MT test": decoded(f"mt/{name}", "test greedy", "bleu"),
        }

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
            Claim(
                f"{task}: {better} beats {worse}",
                "thesis, Sec. 3.3.4",
                (better, f"{task} test"),
                (worse, f"{task} test"),
            )
            for task, better in (
                ("NER", "soft annealed, greedy"),
                ("MT", "soft annealed, sample"),
            )
            for worse in ("cross-entropy", f"Bengio et al., {better.split(', ')[1]}")
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
            Claim(f"{a} beats {b}", "thesis, Table 3.2", (a, "test"), (b, "test"))
            for a, b in (("k = 100", "k = 1"), ("k = 100", "always"), ("k = 10", "always"))
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


def table_4_1() -> Table:
    best, beam = "direct loss, annealed", "hard beam test"
    said = "thesis, Sec. 4.6"
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
                said,
                ("cross-entropy", beam),
                ("cross-entropy", "greedy test"),
            ),
            Claim("direct loss beats cross-entropy", said, (best, beam), ("cross-entropy", beam)),
            Claim(
                "direct loss beats as much more cross-entropy (ours)",
                "docs/results.md",
                (best, beam),
                ("more cross-entropy", beam),
            ),
            Claim("direct loss beats the hinge", said, (best, beam), ("hinge, annealed", beam)),
            Claim(
                "the hinge beats cross-entropy",
                said,
                ("hinge, annealed", beam),
                ("cross-entropy", beam),
            ),
            Claim(
                "the hinge beats as much more cross-entropy (ours)",
                "docs/results.md",
                ("hinge, annealed", beam),
                ("more cross-entropy", beam),
            ),
            Claim(
                "annealing beats alpha 1, direct loss",
                said,
                (best, beam),
                ("direct loss, alpha 1", beam),
            ),
            Claim(
                "annealing beats alpha 1, hinge",
                said,
                ("hinge, annealed", beam),
                ("hinge, alpha 1", beam),
            ),
        ],
    )


def table_4_2() -> Table:
    best, beam = "direct loss, annealed", "hard beam test"
    said = "thesis, Sec. 4.6"
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
                said,
                ("cross-entropy", "greedy test"),
                ("cross-entropy", beam),
            ),
            Claim(
                "direct loss with a beam beats cross-entropy, greedy",
                said,
                (best, beam),
                ("cross-entropy", "greedy test"),
            ),
            Claim(
                "the hinge is below cross-entropy",
                said,
                ("cross-entropy", beam),
                ("hinge, annealed", beam),
            ),
            Claim(
                "annealing beats alpha 1, direct loss",
                said,
                (best, beam),
                ("direct loss, alpha 1", beam),
            ),
        ],
    )


# Chapter 5


def table_5_1() -> Table:
    groups = {"CCG": ("ccg-bi", "accuracy"), "MT": ("mt", "bleu")}

    def row(group: str, metric: str, run: str) -> dict[str, Value]:
        run = f"{group}/{run}"
        places = [(split, what) for split in ("train", "dev") for what in ("mean", "variance")]
        found = {f"{split} {what}": Value(run, ("log_z", split, what)) for split, what in places}
        return found | {"quality": decoded(run, "dev beam", metric)}

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
            Claim(
                f"{task}: self-normalization shrinks {what}",
                "thesis, Sec. 5.3",
                (f"{task}, cross-entropy", f"dev {what}"),
                (f"{task}, self-normalized", f"dev {what}"),
            )
            for task in groups
            for what in ("mean", "variance")
        ],
    )


def start_rows(groups: Mapping[str, tuple[str, str]], runs_of: Mapping[str, str]) -> Any:
    """Rows of Tables 5.2 to 5.4; `groups`: columns to (group, metric), `runs_of`: roles to runs."""
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


def better(text: str, column: str, a: str, b: str) -> Claim:
    return Claim(f"{column}: {text}", "thesis, Sec. 5.5", (a, column), (b, column))


FROM_CROSS_ENTROPY = {
    "pretrain-greedy": (76.54, 92.59),
    "pretrain-beam": (77.76, 93.29),
    "locally normalized": (83.9, 93.76),
    "globally normalized": (83.93, 93.73),
}


def from_cross_entropy() -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = start_rows(
        CCG, {"start": "ce", "local": "direct-annealed", "global": "global"}
    )
    return found


def table_5_2() -> Table:
    local = "locally normalized"
    return Table(
        title="CCG supertagging from a cross-entropy start, dev accuracy",
        rows=from_cross_entropy(),
        published=FROM_CROSS_ENTROPY,
        claims=[
            better("local training improves on its start", column, local, "pretrain-beam")
            for column in CCG
        ],
    )


def table_5_3() -> Table:
    """With the rows of Table 5.2, since the text compares both starts."""
    local, everywhere, uni = "locally normalized", "globally normalized", "unidirectional"
    start, other = "pretrain-beam", "{}, cross-entropy start".format
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
            better("global training beats local training", uni, everywhere, local),
            *(better("global training improves on its start", c, everywhere, start) for c in CCG),
            *(better("local training improves on its start", c, local, start) for c in CCG),
            *(better("the start is below cross-entropy", c, other(start), start) for c in CCG),
            *(
                better(f"it beats {kind} training after cross-entropy", uni, everywhere, other(row))
                for kind, row in (("local", local), ("global", everywhere))
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
    local, everywhere, start = "locally normalized", "globally normalized", "pretrain-beam"
    return Table(
        title="translation from both starts, dev BLEU",
        rows={
            row: columns["regular"][row] | columns["self-normalized"][row]
            for row in columns["regular"]
        },
        published={
            "pretrain-greedy": (26.24, 25.42),
            "pretrain-beam": (27.62, 26.63),
            "locally normalized": (29.28, 27.71),
            "globally normalized": (26.24, 29.27),
        },
        claims=[
            better("local training improves on its start", "regular", local, start),
            better("local training improves on its start", "self-normalized", local, start),
            Claim(
                "the self-normalized start is below cross-entropy",
                "thesis, Sec. 5.5",
                (start, "regular"),
                (start, "self-normalized"),
            ),
            better("global training is hurt by its start", "regular", start, everywhere),
            better("global training improves on its start", "self-normalized", everywhere, start),
            better("global training beats local training", "self-normalized", everywhere, local),
        ],
    )


def mt_rows(columns: Mapping[str, tuple[str | int, ...]]) -> dict[str, dict[str, Value]]:
    names = {"pretrain-beam": "sn", "locally normalized": "sn-local"}
    names |= {"globally normalized": "sn-global"}
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
            better(f"global above local, {c}", c, "globally normalized", "locally normalized")
            for c in ("4-gram", "length ratio")
        ],
    )


def table_5_6() -> Table:
    shown = {"up to 10": 0, "11-15": 1, "16-20": 2}
    columns: dict[str, tuple[str | int, ...]] = {
        name: ("bleu_by_source_length", place, "score") for name, place in shown.items()
    }
    return Table(
        title="BLEU by source length (the thesis: 0-20, 20-30, 30-40, 40+), dev, self-normalized",
        rows=mt_rows(columns),
        claims=[
            better("global above local", c, "globally normalized", "locally normalized")
            for c in shown
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


# All of it


def make(
    what: str, preset: str, folder: Path, *, seeds: Sequence[int], workers: Workers, quiet: bool
) -> dict[str, Any]:
    """A table: its runs trained or found, its text, the verdicts on what is claimed."""
    table = TABLES[what]()
    names = list(dict.fromkeys(v.run for row in table.rows.values() for v in row.values()))
    cells = [training(preset, name, seed) for name in names for seed in seeds]
    for part in with_starts(cells):
        run_grid(part, compute, folder, workers=workers, title=what, quiet=quiet)
    results = run_grid(cells, compute, folder, quiet=True)
    done = dict(zip(cells, results, strict=True))
    rows = {name: figures(row, done, preset, seeds) for name, row in table.rows.items()}
    found = [verdict(claim, table, done, preset, seeds, folder) for claim in table.claims]
    title = f"{what}: {table.title}; mean of {len(seeds)} seeds (preset {preset})"
    text = "\n".join([title, "", text_of(table, rows), "", *map(claim_text, found)]).rstrip()
    return {
        "title": table.title,
        "rows": rows,
        "published": dict(table.published),
        "claims": found,
        "cells": records(done.items()),
        "text": text,
    }


def figures(
    row: Mapping[str, Value], done: Done, preset: str, seeds: Sequence[int]
) -> dict[str, list[float | None]]:
    """Each column's figure for every seed."""
    return {
        column: [at(done[training(preset, value.run, seed)], value.path) for seed in seeds]
        for column, value in row.items()
    }


def at(result: Any, path: Sequence[str | int]) -> float | None:
    for name in path:
        result = result[name]
    return None if result is None else float(result)


def verdict(
    claim: Claim, table: Table, done: Done, preset: str, seeds: Sequence[int], folder: Path
) -> Judged:
    """A claim judged by the seeds and, where both are outputs of one metric, by the sentences."""
    a, b = (table.rows[row][column] for row, column in (claim.better, claim.worse))
    pairs = [[done[training(preset, value.run, seed)] for value in (a, b)] for seed in seeds]
    gaps = [(at(x, a.path) or 0.0) - (at(y, b.path) or 0.0) for x, y in pairs]
    sentences = None
    if a.path[0] == b.path[0] == "decodes" and len(a.path) == 3:
        found = by_sentence(a, b, preset, seeds, folder)
        sentences = found if (found["metric"],) == a.path[2:] == b.path[2:] else None
    return judged(
        claim.text, gaps, source=claim.source, sentences=sentences, at_least=claim.at_least
    )


def by_sentence(
    a: Value, b: Value, preset: str, seeds: Sequence[int], folder: Path
) -> dict[str, Any]:
    """A paired bootstrap over the sentences of all seeds together."""
    decode = str(a.path[1])
    data = runs(preset)[a.run].config.data
    examples = sentences_of(preset, data.load(), decode.split()[0])
    references = problems(data.kind, examples).references
    outputs = [
        [
            tokens
            for seed in seeds
            for tokens in outputs_of(training(preset, v.run, seed), str(v.path[1]), folder)
        ]
        for v in (a, b)
    ]
    return compare(data.kind, references * len(seeds), *outputs)


def text_of(table: Table, rows: Mapping[str, Mapping[str, Sequence[float | None]]]) -> str:
    """Means and spreads, the published figures under them in brackets."""
    lines = [["", *table.columns]]
    for name, row in rows.items():
        known = {c: [v for v in row[c] if v is not None] for c in table.columns if c in row}
        shown = [number(summary(known[c]), 2) if known.get(c) else "-" for c in table.columns]
        lines.append([name, *shown])
        if name in table.published:
            printed = zip(table.columns, table.published[name], strict=True)
            lines.append(["  printed", *("" if v is None else f"({v:g})" for _, v in printed)])
    return aligned(lines)
