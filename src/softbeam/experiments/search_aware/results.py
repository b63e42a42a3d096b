"""Records of Tables 3.1 to 5.6: rows of finished runs, and verdicts on the claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

from softbeam.data.task import Task
from softbeam.errors import UserError
from softbeam.experiments.order import Order
from softbeam.experiments.search_aware.cells import (
    Training,
    compute,
    decoded,
    has_sentences,
    lost_starts,
    sentence_scores,
    training,
    with_starts,
)
from softbeam.experiments.search_aware.planned import FULL
from softbeam.experiments.search_aware.planned_tables import OURS as PLAN
from softbeam.experiments.search_aware.presets import runs, tables_of
from softbeam.experiments.search_aware.tables import Claim, Table, Value, signed_sum
from softbeam.reports.tables import table_text
from softbeam.reports.verdicts import Judged, claim_text, judged, with_holm
from softbeam.runtime.cells import Result, read_result, records
from softbeam.training.kinds import Problems, Scored, kind_of
from softbeam.training.metrics import in_bucket, length_ratio_of, precision_of
from softbeam.training.significance import Gaps, sentence_gaps

Done = Mapping[Training, Result]


def make(what: str, order: Order) -> dict[str, Any]:
    """Train a table's runs, or find them trained; returns its rows, its verdicts and its text.

    If only finished runs are asked for, figures and claims that need others are left out.
    """
    table = tables_of(order.preset)[what]()
    done, cells = (found if order.finished else finish)([what], order), cells_of([what], order)
    judge = Judge(done, order.preset, order.seeds, order.folder)
    rows = {
        name: {column: judge.figures(value) for column, value in row.items()}
        for name, row in table.rows.items()
        if any(value.path and judge.has(value) for value in row.values())
    }
    known = [c for c in table.claims if all(judge.has(table.value(place)) for place in c.places)]
    claims = with_holm(judge.verdict(claim, table) for claim in known)
    about = table.title
    if len(done) < len(cells):
        about += (
            f"; {len(done)} of {len(cells)} runs are finished, and what needs others is left out"
        )
    plan = f", {PLAN}" if order.preset == FULL else ""
    title = f"{what}: {about}; mean of {len(order.seeds)} seeds (preset {order.preset}{plan})"
    published = {name: row for name, row in table.published.items() if name in rows}
    shown = table_text(rows, published, table.digits) if rows else "no row is finished"
    return {
        "title": about,
        "repeated": "seeds",
        "rows": rows,
        "published": published,
        "digits": dict(table.digits),
        "claims": claims,
        "cells": records(done.items(), order.folder),
        "text": "\n".join([title, "", shown, "", *map(claim_text, claims)]).rstrip(),
    }


def finish(tables: Sequence[str], order: Order) -> Done:
    """Train the runs of some tables, or find them trained; starts before what needs them.

    Returns those that are finished: all, unless the order names the runs that are trained. A start
    is trained again if its weights were deleted and something is still to start from them. Its
    earlier result stays until then. Raises UserError if the order names none of the runs.
    """
    every = cells_of(tables, order)
    cells = [cell for cell in every if fnmatchcase(cell.run, order.only)]
    if not cells:
        names = ", ".join(dict.fromkeys(cell.run for cell in every))
        raise UserError(f"--only {order.only}: no run has such a name; there are {names}")
    title = tables[0] if len(tables) == 1 else "training"
    lost = lost_starts(cells, order.folder)
    for part in with_starts(cells):
        order.check_runs({c.folder(order.folder): c.config(order.folder) for c in part})
        order.results(part, compute, title, again=lost)
    return found(tables, order)


def found(tables: Sequence[str], order: Order) -> Done:
    """The finished ones of the runs of some tables."""
    results = ((cell, read_result(cell, order.folder)) for cell in cells_of(tables, order))
    return {cell: result for cell, result in results if result is not None}


def cells_of(tables: Sequence[str], order: Order) -> list[Training]:
    """The cells of some tables, each once."""
    made = tables_of(order.preset)
    names = dict.fromkeys(name for table in tables for name in runs_of(made[table]()))
    return [training(order.preset, name, seed) for name in names for seed in order.seeds]


def runs_of(table: Table) -> list[str]:
    """The names of the runs behind a table and its claims, each once."""
    places = [place for claim in table.claims for place in claim.places]
    shown = [value for row in table.rows.values() for value in row.values() if value.path]
    return list(dict.fromkeys(value.run for value in [*shown, *map(table.value, places)]))


@dataclass(frozen=True)
class Judge:
    """Judge claims by the metrics and the sentences of finished runs."""

    done: Done
    preset: str
    seeds: Sequence[int]
    folder: Path

    def has(self, value: Value) -> bool:
        """Whether the runs behind a value are finished for all seeds, if it has a figure."""
        return not value.path or all(cell in self.done for cell in self.cells(value.run))

    def figures(self, value: Value) -> list[float | None]:
        """A value of the table for every seed."""
        if not value.path or not self.has(value):
            return [None for _ in self.seeds]
        return [at(self.done[cell], value.path) for cell in self.cells(value.run)]

    def cells(self, run: str) -> list[Training]:
        return [training(self.preset, run, seed) for seed in self.seeds]

    def verdict(self, claim: Claim, table: Table) -> Judged:
        """Judge a claim by the seeds and, if its values are made of sentences, by these."""
        values = [table.value(p) for p in claim.places]
        figures = zip(*(self.figures(value) for value in values), strict=True)
        gaps = [signed_sum([x or 0.0 for x in by_seed]) for by_seed in figures]
        return judged(
            claim.text,
            self.tested(values) or gaps,
            source=claim.source,
            within=claim.within,
            published=table.printed(claim),
        )

    def tested(self, values: Sequence[Value]) -> Gaps | None:
        """The differences of runs with the effects of sentences, or those of two differences.

        None if the values are not made of sentences, or if their scores are missing: a folder may
        have kept nothing but the results.
        """
        sides = [self.by_sentence(value) for value in values]
        gaps = []
        for ours, theirs in zip(sides[::2], sides[1::2], strict=True):
            if ours is None or theirs is None or ours[0].metric != theirs[0].metric:
                return None
            a, b = ([seed.scores for seed in side] for side in (ours, theirs))
            gaps.append(sentence_gaps(a, b, statistic=ours[0].statistic))
        if len(gaps) == 1:
            return gaps[0]
        same = self.sentences_of(values[0]) == self.sentences_of(values[2])
        return gaps[0].less(gaps[1], same_sentences=same)

    def sentences_of(self, value: Value) -> tuple[Any, ...]:
        """What a value's sentences are: a task, a split, and a bucket of lengths if it has one."""
        path = [str(part) for part in value.path]
        bucket = path[3:4] if "bleu_by_source_length" in path else []
        return runs(self.preset)[value.run].config.data, path[1].split()[0], *bucket

    def by_sentence(self, value: Value) -> list[Scored] | None:
        """The sentence scores behind a value, for every seed; None if there are none."""
        if value.path[:1] != ("decodes",):
            return None
        decode, *path = map(str, value.path[1:])
        cells = self.cells(value.run)
        if not all(has_sentences(cell, self.folder) for cell in cells):
            return None
        by_seed = [scores_at(path, cell, decode, self.folder) for cell in cells]
        scores = [scored for scored in by_seed if scored is not None]
        return scores if len(scores) == len(by_seed) else None


def scores_at(path: Sequence[str], cell: Training, decode: str, folder: Path) -> Scored | None:
    """The sentence scores behind the value at a path; None if sentences do not make it up."""
    whole = sentence_scores(cell, decode, folder)
    match whole.metric, *path:
        case metric, name if name == metric:
            return whole
        case "exact_matches", "word_accuracy":
            return whole
        case "f1", "accuracy" | "outside" | "macro_f1":
            return None
        case "bleu", "length_ratio":
            return Scored("length_ratio", whole.scores, length_ratio_of)
        case "bleu", "precisions", place:
            n = int(place) + 1
            return Scored(f"{n}-grams", whole.scores, partial(precision_of, n=n))
        case "bleu", "bleu_by_source_length", bucket, "score":
            rows = [whole.scores[i] for i in in_bucket(int(bucket), source_lengths(cell, decode))]
            return Scored("bleu", rows, whole.statistic) if rows else None
    return None


def source_lengths(cell: Training, decode: str) -> list[int]:
    """Source lengths of the sentences that a run decoded."""
    return [len(source) for source in decoded_problems(cell.preset, cell.run, decode).sources]


def decoded_problems(preset: str, run: str, decode: str) -> Problems:
    return read_once(preset, runs(preset)[run].config.data, decode.split()[0])


@cache
def read_once(preset: str, data: Task, split: str) -> Problems:
    return kind_of(data).problems(decoded(preset, data.load(), split))


def at(result: Any, path: Sequence[str | int]) -> float | None:
    for name in path:
        result = result[name]
    return None if result is None else float(result)
