"""How a table or figure is to be reproduced, and the grid that its cells are run on."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from softbeam._lazy import lazy
from softbeam.runtime import inputs
from softbeam.runtime.cells import C, Result, Work
from softbeam.runtime.grid import ALONE, Workers, run_grid
from softbeam.training.config import RunConfig

if TYPE_CHECKING:
    from softbeam.training import many
else:
    many = lazy("softbeam.training.many")  # loads torch


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
        models: runs to sample from (Tables 6.2 to 6.6 and their figures); if there are none, a
            model of the arm is trained for each seed.
        arm: the models that are trained for these tables; a name of `samplers.arms.ARMS`.
        judge: a left-to-right run that scores texts (low-energy-texts); None trains one.
        part: the folder of records below the folder of results; None for that folder itself.
        start: the first texts of chains: all positions predicted at once, or random tokens.
        finished: whether only finished runs are shown, and none is run (Tables 3.1 to 5.6).
        only: a pattern for the names of the runs that are trained, as "ner/*"; what is finished is
            shown (Tables 3.1 to 5.6).
        accept_changed_inputs: go on also if data or weights have changed since results were made.
    """

    folder: Path
    seeds: Sequence[int]
    preset: str = "cpu"
    workers: Workers = ALONE
    quiet: bool = False
    distinct: bool = False
    models: Sequence[Path] = ()
    arm: str = "words-smoothed"
    judge: Path | None = None
    part: str | None = None
    start: Literal["greedy", "random"] = "greedy"
    finished: bool = False
    only: str = "*"
    accept_changed_inputs: bool = False

    @property
    def shown(self) -> Path:
        """Where tables and figures are written."""
        return self.folder if self.part is None else self.folder / self.part

    def results(
        self, cells: Sequence[C], work: Work[C], title: str, *, again: Container[C] = ()
    ) -> list[Result]:
        """The results of cells, in their order; those without one in the folder are run.

        Those of `again` are run even if they have one.
        """
        return run_grid(
            cells,
            work,
            self.folder,
            workers=self.workers,
            again=again,
            title=title,
            quiet=self.quiet,
        )

    def check_runs(self, runs: Mapping[Path, RunConfig]) -> None:
        """Raises UserError if what existing runs depend on has changed and is not accepted."""
        many.check_inputs(runs, accept=self.accept_changed_inputs)

    def check_files(self, files: inputs.Files) -> None:
        """Raises UserError if files differ from those that earlier results were made with."""
        inputs.remember(self.folder, files, accept=self.accept_changed_inputs)
