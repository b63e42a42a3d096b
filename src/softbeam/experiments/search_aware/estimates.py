"""The cells behind tables before they run: which are done, and how long the others may take."""

from collections.abc import Sequence
from functools import cache
from statistics import mean

from softbeam.data.task import Task
from softbeam.experiments.order import Order
from softbeam.experiments.search_aware.cells import Training, with_starts
from softbeam.experiments.search_aware.results import cells_of
from softbeam.objectives.base import SearchObjective
from softbeam.objectives.scheduled_sampling import FeedbackObjective
from softbeam.runtime.cells import read_record
from softbeam.runtime.text_tables import aligned
from softbeam.training.config import CONFIG, RunConfig, Stage
from softbeam.training.defaults import settled

# Seconds of one core for a target token in an epoch of cross-entropy, with its share of dev: 11,303
# sentences of ccg-ewt take 14 seconds, 10,000 pairs of Multi30k 31
TAGGED, GENERATED = 7.5e-5, 2.6e-4
FED, SEARCHED = 2.0, 1.4  # times as much: own predictions are fed; for each element of a beam
DECODED = 15.0  # seconds for the searches on dev and test


def listed(tables: Sequence[str], order: Order) -> str:
    """List the cells of tables and of their starts, with the hours that are left."""
    cells = [cell for part in with_starts(cells_of(tables, order)) for cell in part]
    seconds = {cell: measured(cell, order) for cell in cells}
    lines, left = [["cell", "state", "minutes"]], 0.0
    for cell in cells:
        took = seconds[cell]
        others = [s for c, s in seconds.items() if c.settings == cell.settings and s is not None]
        expected = mean(others) if others else expected_seconds(cell.config(order.folder))
        begun = (cell.folder(order.folder) / CONFIG).is_file()
        left += expected if took is None else 0.0
        state = "done" if took is not None else "begun" if begun else "to do"
        lines.append([str(cell), state, f"{(expected if took is None else took) / 60:.1f}"])
    done = sum(s is not None for s in seconds.values())
    total = f"{len(cells)} cells, {done} done; about {left / 3600:.1f} hours of one core are left"
    return f"{aligned(lines)}\n{total}"


def measured(cell: Training, order: Order) -> float | None:
    """The seconds that a finished cell took; None if it is not finished."""
    record = read_record(cell, order.folder)
    return None if record is None else float(record["seconds"] or 0.0)


def expected_seconds(config: RunConfig) -> float:
    """How long a run may take on one core: epochs, target tokens, and what its objective costs.

    It is right to a factor of two; patience may end a stage earlier.
    """
    each = TAGGED if config.data.kind == "tagging" else GENERATED
    work = sum(settled(stage).epochs * times(stage) for _, stage in config.stages)
    return DECODED + config.restarts * work * target_tokens(config.data) * each


def times(stage: Stage) -> float:
    """What an update costs, in updates of cross-entropy."""
    if isinstance(stage.objective, SearchObjective):
        return 1 + SEARCHED * int(getattr(stage.objective, "k", 1))
    return FED if isinstance(stage.objective, FeedbackObjective) else 1.0


@cache
def target_tokens(data: Task) -> int:
    """The number of target tokens of the training split."""
    return sum(len(example.target) for example in data.load().split("train"))
