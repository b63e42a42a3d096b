"""Backbones of proteins from PDB files."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from softbeam.errors import UserError
from softbeam.runtime.files import read_input

ATOMS = ("N", "CA", "C", "O")
CODES = (
    "ALA A ARG R ASN N ASP D CYS C GLN Q GLU E GLY G HIS H ILE I LEU L LYS K MET M PHE F PRO P "
    "SER S THR T TRP W TYR Y VAL V MSE M"
)
LETTERS = dict(zip(CODES.split()[::2], CODES.split()[1::2], strict=True))


class Backbone(NamedTuple):
    """The residues of all chains of a structure, one after the other."""

    residues: str  # X: unknown
    chains: tuple[str, ...]  # of each residue
    places: tuple[int, ...]  # of each residue in its chain, with room for those that are missing
    atoms: tuple[tuple[tuple[float, ...], ...], ...]  # coordinates of N, CA, C and O


def read_backbone(path: Path) -> Backbone:
    """Read the first model of a PDB file.

    Residues without all four backbone atoms are left out; of several places of an atom the first
    counts. Raises UserError if the file cannot be read, or has no residue.
    """
    text = read_input(path).decode("utf-8", "replace")
    residues: dict[tuple[str, int, str], tuple[str, dict[str, tuple[float, ...]]]] = {}
    for number, line in enumerate(first_model(text.splitlines()), 1):
        try:
            key = line[21], int(line[22:26]), line[26]
            place = tuple(float(line[i : i + 8]) for i in (30, 38, 46))
        except (ValueError, IndexError) as error:
            raise UserError(f"{path}, atom {number}: {line[:54]!r} is no line of a PDB") from error
        _, atoms = residues.setdefault(key, (LETTERS.get(line[17:20], "X"), {}))
        atoms.setdefault(line[12:16].strip(), place)
    whole = {key: found for key, found in residues.items() if set(ATOMS) <= set(found[1])}
    if not whole:
        raise UserError(f"{path} has no residue with the atoms {', '.join(ATOMS)}")
    return Backbone(
        "".join(letter for letter, _ in whole.values()),
        tuple(chain for chain, _, _ in whole),
        tuple(places(residues, whole)),
        tuple(tuple(atoms[name] for name in ATOMS) for _, atoms in whole.values()),
    )


def first_model(lines: Iterable[str]) -> Iterable[str]:
    """The lines of the atoms of residues, up to the end of the first model."""
    for line in lines:
        if line.startswith("ENDMDL"):
            return
        if line.startswith("ATOM  ") or (line.startswith("HETATM") and line[17:20] == "MSE"):
            yield line


def places(
    residues: Iterable[tuple[str, int, str]], whole: Iterable[tuple[str, int, str]]
) -> list[int]:
    """Place residues in each chain by number: gaps stay open, an insertion takes one place."""
    found: dict[tuple[str, int, str], int] = {}
    last: dict[str, tuple[int, int]] = {}  # number and place of the last residue of each chain
    for key in residues:
        chain, number, _ = key
        before, place = last.get(chain, (number - 1, -1))
        place += max(1, number - before)
        found[key], last[chain] = place, (number, place)
    return [found[key] for key in whole]
