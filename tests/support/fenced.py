"""Python without network where one folder alone can be written, and data for the demo there."""

import os
import random
import subprocess
import sys
from pathlib import Path

import softbeam
from softbeam.data import catalogue

SOURCE = Path(softbeam.__file__).parents[1]
FENCES = Path(__file__).parent / "fences"


def fenced(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Python with these words where only the folder can be written."""
    (folder / "a-file").touch()  # below which other programs, too, can make nothing
    nowhere = str(folder / "a-file" / "home")
    home = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), nowhere)
    own = {"FENCE_WRITABLE": str(folder), "TMPDIR": str(folder)} | home | more
    path = os.pathsep.join([str(FENCES), str(SOURCE)])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SOFTBEAM_", "HF_", "MPL"))}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=kept | own | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )


def write_dictionary(folder: Path) -> Path:
    """A pronouncing dictionary of words that do not exist, as large as the demo needs."""
    draw, lines = random.Random(1), []
    while len(lines) < 3000:
        parts = draw.choices(("b ae", "k ih", "t ah", "m ow", "s iy"), k=draw.randint(4, 8))
        if len(lines) % 3 == 0:
            parts = [draw.choice("bdfgklmnprstvz") + " " + draw.choice(("ae", "ih", "ah"))]
            last = draw.choice("bdfgklmnprstvz")
            lines.append(f"{parts[0].replace(' ', '')}{last} {parts[0].upper()}1 {last.upper()}")
            continue
        stress = draw.randrange(len(parts))
        sounds = [f"{p.upper()}{int(i == stress)}" for i, p in enumerate(parts)]
        lines.append(f"{''.join(parts).replace(' ', '')} {' '.join(sounds)}")
    place = folder / catalogue.CORPORA["cmudict"].editions("cmudict")[-1].place
    place.parent.mkdir(parents=True)
    place.write_text("".join(f"{line}\n" for line in lines))
    return folder
