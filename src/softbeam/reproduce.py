"""Tables and figures by name: `softbeam reproduce table-6.1`. Nothing here loads torch at once."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from softbeam.errors import UserError
from softbeam.files import write_text

TARGETS = {
    "table-6.1": "training objectives of energy-based models, by held-out NLL",
    "figure-6.1": "projecting a masked LM's conditionals onto a joint, by training size",
    "table-6.2": "Metropolis-Hastings and degenerate Gibbs, proposals of five temperatures",
    "table-6.3": "the same with proposals within a nucleus",
    "table-6.4": "blocks that shrink",
    "table-6.5": "annealing the target",
    "table-6.6": "sampling around the modes, against mask-predict",
    "figure-6.2": "energy and quality by the sweep",
    "figure-6.3": "acceptance of shrinking blocks by the sweep",
    "figure-6.4": "annealing by the sweep",
}
ENERGY_BASED = ("table-6.1", "figure-6.1")
PRESETS = {
    "cpu": "minutes on two cores",
    "paper": "the published sizes of data, larger models",
    "tiny": "seconds: whether everything works, not what comes out",
}


def reproduce(
    what: str,
    *,
    preset: str = "cpu",
    out: Path,
    seeds: int = 5,
    jobs: int | None = None,
    distinct: bool = False,
    run: Path | None = None,
    start: Literal["greedy", "random"] = "greedy",
    quiet: bool = False,
) -> dict[str, Any]:
    """Compute a target's cells, or find them in the folder, and write `WHAT.json` and `WHAT.txt`.

    What was finished before is not computed again, also if another target left it in the folder.
    """
    if what not in TARGETS:
        raise UserError(f"no table or figure {what!r}; there are {', '.join(TARGETS)}")
    if preset not in PRESETS:
        raise UserError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    jobs = os.cpu_count() or 1 if jobs is None else jobs
    for name, count in (("seeds", seeds), ("jobs", jobs)):
        if count < 1:
            raise UserError(f"--{name} {count}: must be at least 1")
    import torch

    from softbeam import energy_tables, sampling_tables
    from softbeam.runs import environment

    torch.set_num_threads(1)
    head = {"target": what, "preset": preset, "seeds": datasets(seeds)}
    began = environment()
    if what in ENERGY_BASED:
        make = {"table-6.1": energy_tables.table_6_1, "figure-6.1": energy_tables.figure_6_1}[what]
        found = make(preset, out, seeds=datasets(seeds), jobs=jobs, distinct=distinct, quiet=quiet)
    else:
        found = sampling_tables.make(
            what, preset, out, run=run, start=start, chains=seeds, jobs=jobs, quiet=quiet
        )
    record = head | found | {"environment": began}
    write_text(out / f"{what}.txt", found["text"] + "\n")
    write_text(out / f"{what}.json", json.dumps(record, indent=1) + "\n")
    return record


def datasets(seeds: int) -> Sequence[int]:
    """The seeds 1, 2, ...: more of them keep the first."""
    return list(range(1, seeds + 1))
