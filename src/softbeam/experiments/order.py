"""How a table or figure is to be reproduced, and the grid that its cells are run on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from softbeam.runtime.cells import C, Result, Work
from softbeam.runtime.grid import ALONE, Workers, run_grid


@dataclass(frozen=True, kw_only=True)
class Order:
    """How a table or figure is to be reproduced.

    Args:
        folder: where results are written, and where finished ones are found.
        seeds: a seed for each repetition.
        preset: the sizes of data and models: cpu, paper or tiny.
        workers: the processes that compute cells.
        quiet: whether no progress is printed.
        distinct: whether each phoneme sequence is used once (Table 6.1, Figure 6.1).
        run: the run to sample from (Tables 6.2 to 6.6 and their figures); None trains a model for
            each seed.
        start: the first texts of chains: all positions predicted at once, or random tokens.
    """

    folder: Path
    seeds: Sequence[int]
    preset: str = "cpu"
    workers: Workers = ALONE
    quiet: bool = False
    distinct: bool = False
    run: Path | None = None
    start: Literal["greedy", "random"] = "greedy"

    def results(self, cells: Sequence[C], work: Work[C], title: str) -> list[Result]:
        """The results of cells, in their order; cells without a result in the folder are run."""
        return run_grid(
            cells, work, self.folder, workers=self.workers, title=title, quiet=self.quiet
        )
