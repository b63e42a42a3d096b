"""Heat maps of all substitutions of a sequence, as files and in HTML pages."""

import csv
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbeam.data.readers import read_texts
from softbeam.errors import UserError
from softbeam.reports.charts import image, readable
from softbeam.reports.results import ResultTable
from softbeam.sampling.texts.mutants import CHANGE, COLUMNS, SCORES, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTERS = "AVLIMCFWYHKRDENQSTGP"  # rows: hydrophobic, aromatic, charged, polar, special
BAND = 64  # positions side by side
CELL = 0.165  # inches
LEFT, RIGHT, ABOVE, BELOW = 0.3, 0.85, 0.5, 0.3  # inches around a band
LEAST = 24  # cells of the width, for the title
COLORS = (
    "#a50f2b",
    "#e58267",
    "#fbe3d6",
    "#f4f6f8",
    "#cfe3f0",
    "#5fa5cd",
    "#1f5c9d",
)  # low to high
MOST = 6  # maps in a picture or on a page
MOST_ROWS = 12  # of the table on a page


class Map(NamedTuple):
    """Scores of the substitutions of one sequence."""

    title: str
    wild: Mapping[int, str]  # the letter at each position
    values: Mapping[tuple[int, str], float]  # of a position and a letter


def map_of(title: str, scores: Iterable[tuple[str, float | None]]) -> Map:
    """Collect mutants of one substitution, as S31T, with their scores; others are left out."""
    wild, values = {}, {}
    for mutant, value in scores:
        match = CHANGE.fullmatch(mutant)
        if match is not None and value is not None and math.isfinite(value):
            wild[int(match[2])] = match[1]
            values[int(match[2]), match[3]] = value
    return Map(title, wild, values)


def draw_maps(maps: Sequence[Map]) -> "Figure":
    """Draw maps below each other; long sequences are cut into bands of equal length."""
    from matplotlib.figure import Figure

    bands = [(each, places) for each in maps for places in bands_of(each)]
    widest = max(max(len(places) for _, places in bands), LEAST)
    width = LEFT + CELL * widest + RIGHT
    height = len(bands) * (CELL * len(LETTERS) + BELOW + ABOVE)
    chart = Figure(figsize=(width, height))
    top = height
    for each, places in bands:
        first = places[0] == min(each.wild)
        top -= ABOVE + CELL * len(LETTERS)
        side, tall = CELL * len(places), CELL * len(LETTERS)
        axes = chart.add_axes((LEFT / width, top / height, side / width, tall / height))
        drawn = draw_band(axes, each, places)
        if first:
            axes.set_title(each.title, loc="left", fontsize=9.5, pad=14)
        place = (1 - (RIGHT - 0.15) / width, top / height, 0.13 / width, tall / height)
        bar = chart.colorbar(drawn, cax=chart.add_axes(place))
        bar.ax.tick_params(labelsize=7)
        bar.set_label("log-odds against the wild type", fontsize=7.5)
        bar.outline.set_visible(False)
        top -= BELOW
    return chart


def bands_of(each: Map) -> list[list[int]]:
    """Cut the positions of a map into bands of nearly equal length."""
    places = sorted(each.wild)
    count = math.ceil(len(places) / BAND)
    size = math.ceil(len(places) / max(count, 1))
    return [places[i : i + size] for i in range(0, len(places), size)]


def draw_band(axes: "Axes", each: Map, places: Sequence[int]) -> Any:
    """Draw some positions of a map: red is less likely than the wild type, blue likelier."""
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

    low, high = min(*each.values.values(), -0.01), max(*each.values.values(), 0.01)
    cells = [[each.values.get((p, letter), math.nan) for p in places] for letter in LETTERS]
    colors = LinearSegmentedColormap.from_list("odds", COLORS).with_extremes(bad="0.9")
    drawn = axes.pcolormesh(cells, cmap=colors, norm=TwoSlopeNorm(0.0, low, high))
    across, down = len(places), len(LETTERS)
    axes.vlines(range(across + 1), 0, down, color="white", lw=0.5)
    axes.hlines(range(down + 1), 0, across, color="white", lw=0.5)
    own = [(i, LETTERS.find(each.wild[p])) for i, p in enumerate(places)]
    x, y = ([pair[k] + 0.5 for pair in own if pair[1] >= 0] for k in (0, 1))
    axes.scatter(x, y, s=7, color="0.3", linewidths=0)
    axes.set_yticks([i + 0.5 for i in range(down)], list(LETTERS), fontsize=7.5)
    letters = [each.wild[p] for p in places]
    axes.set_xticks([i + 0.5 for i in range(across)], letters, fontsize=7.5)
    for i, place in enumerate(places):
        if place % 10 == 0 or (i == 0 and places[min(i + 2, across - 1)] % 10 > 2):
            axes.text(i + 0.5, -0.25, str(place), ha="center", fontsize=7.5, color="0.35")
    axes.set(xlim=(0, across), ylim=(down, 0))
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    return drawn


# Pages


def mutants(path: Path) -> dict[str, Any]:
    """Return what a page shows of a table of `softbeam mutants`: the best variants, and maps.

    Raises UserError if the file is no such table.
    """
    rows = list(csv.DictReader(read_texts(path)))
    known = [score.replace("-", "_") for score in SCORES]
    columns = [name for name in known if rows and name in rows[0]]
    if not columns or not {*COLUMNS} <= {*rows[0]}:
        raise UserError(f"{path} is no table of `softbeam mutants`: it has no scores")
    first = columns[0]
    usable = [row for row in rows if is_number(row[first])]
    best = sorted(usable, key=lambda row: -float(row[first]))[:MOST_ROWS]
    shown = [
        {"name": row.get("name") or "", "mutant": row["mutant"] or row["mutated_sequence"]}
        | {name: float(row[name]) if is_number(row[name]) else "–" for name in columns}
        for row in best
    ]
    maps = maps_of(rows, columns)
    source = b64encode(image(draw_maps(maps), "png")).decode() if maps else ""
    note = f"The {len(shown)} best of {len(rows)} variants by {first}; 0 is the wild type."
    title = f"Variants: {readable(path.name)}"
    return {"name": readable(path.name), "table": ResultTable(title, shown, note), "map": source}


def maps_of(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[Map]:
    """Make the maps of a table: for each sequence and score, the first few of them."""
    names = list(dict.fromkeys(row.get("name") or "" for row in rows))
    maps = []
    for name in names:
        own = [row for row in rows if (row.get("name") or "") == name]
        for column in columns:
            scores = ((r["mutant"], float(r[column])) for r in own if is_number(r[column]))
            each = map_of(
                " ".join([f"{name}:" if name else "", column.replace("_", " ")]).strip(), scores
            )
            maps += [each] if each.values else []
    return maps[:MOST]
