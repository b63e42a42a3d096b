"""The runs and tables of a preset by name: `full` has arms that the others have not."""

from collections.abc import Callable, Mapping

from softbeam.experiments.search_aware import planned, planned_tables, runs as smaller, tables
from softbeam.experiments.search_aware.planned import FULL
from softbeam.experiments.search_aware.runs import PlannedRun
from softbeam.experiments.search_aware.tables import Table


def runs(preset: str) -> Mapping[str, PlannedRun]:
    """All runs of a preset, by names like `ner/ce`."""
    return planned.runs() if preset == FULL else smaller.runs(preset)


def tables_of(preset: str) -> Mapping[str, Callable[[], Table]]:
    """The tables of a preset, by name."""
    return planned_tables.TABLES if preset == FULL else tables.TABLES
