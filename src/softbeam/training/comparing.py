"""Compare trained runs with others on the same sentences, over seeds and sentences."""

from collections.abc import Sequence
from typing import NamedTuple

from softbeam.errors import UserError
from softbeam.training.decoding import best
from softbeam.training.evaluation import Evaluation
from softbeam.training.kinds import Comparison
from softbeam.training.runs import Run
from softbeam.training.searches import Search


class Searched(NamedTuple):
    """A run, and the search that finds its outputs; the run's own if not given."""

    run: Run
    search: Search | None = None


def compare_runs(
    ours: Sequence[Searched],
    theirs: Sequence[Searched],
    split: str,
    *,
    quiet: bool = True,
    evaluation: Evaluation,
) -> Comparison:
    """Test how far runs are above others, on a split of the first run's data.

    Raises UserError if a run is of another kind of task, or if the numbers of runs differ.

    Args:
        ours: the runs of a system, one for each seed.
        theirs: their partners, in the same order.
        split: train, dev or test.
        quiet: show no progress.
        evaluation: of the first run on the split.
    """
    first = ours[0].run
    if len(ours) != len(theirs):
        counts = f"{len(ours)} runs are compared with {len(theirs)}"
        raise UserError(f"{counts}: every run needs a partner, of the same seed")
    for run, _ in [*ours, *theirs]:
        first.check_kind(run)
    sources, references = first.problems(split)
    further, others = (
        [best(run.decode(sources, search, quiet=quiet)) for run, search in runs]
        for runs in (ours[1:], theirs)
    )
    return first.kind.compare(references, [evaluation.outputs, *further], others)
