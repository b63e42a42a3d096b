"""Write designs as ranked CSV or FASTA."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.data.fasta import Named, as_fasta, is_fasta, packed
from softbeam.runtime.files import write_atomic

if TYPE_CHECKING:
    from softbeam.sampling.texts import designs
else:
    designs = lazy("softbeam.sampling.texts.designs")

FORMS = ".csv or .fasta, also with .gz"


def is_table(path: Path) -> bool:
    """Tell whether a file is one of designs, by its name."""
    return is_fasta(path) or path.name.lower().removesuffix(".gz").endswith(".csv")


def samples_of(path: Path) -> Path:
    """Return the file of samples that belongs to a file of designs."""
    return path.with_name(path.name.removesuffix(".gz")).with_suffix(".jsonl")


def write_designs(path: Path, rows: Sequence[Any]) -> None:
    """Write rows, named tuples with a name, a sequence and figures, as CSV or FASTA."""
    if is_fasta(path):
        text = as_fasta([Named(heading(row), row.sequence) for row in rows])
    else:
        text = designs.as_csv(rows[0]._fields if rows else designs.Design._fields, rows)
    write_atomic(path, packed(path, text))


def heading(row: Any) -> str:
    """Return the name of a design in FASTA, with its figures."""
    figures = {k: v for k, v in row._asdict().items() if k not in ("name", "sequence")}
    shown = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in figures.items())
    return " ".join([row.name, *shown])
