"""Train and decode the runs behind Tables 3.1 to 5.6, each a cell of a grid.

A cell is a run of `search_aware.runs` with a seed. Its result has the metrics of several searches.
The scores of each sentence are kept in a file of their own, for tests that compare two runs
sentence by sentence. Results and scores are small, and tell all if the runs are deleted.
"""

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from softbeam.data.encoding import encode
from softbeam.data.readers import Example
from softbeam.data.task import Corpus
from softbeam.experiments.identities import identity
from softbeam.experiments.search_aware.planned import FULL
from softbeam.experiments.search_aware.planned_tables import BEAMS
from softbeam.experiments.search_aware.presets import runs
from softbeam.reports.headroom import headroom
from softbeam.runtime.cells import Result, key, read_result
from softbeam.runtime.files import write_atomic, write_text
from softbeam.training.config import RunConfig
from softbeam.training.evaluation import evaluate_outputs, log_z
from softbeam.training.kinds import STATISTICS, Kind, Scored, kind_of
from softbeam.training.many import train
from softbeam.training.own_search import trained_alpha
from softbeam.training.runs import SUMMARY, load_run
from softbeam.training.searches import Beam, Greedy, Search, SoftBeamSearch

SPLITS = ("dev", "test")
PROBED = 500  # sentences of the training split whose log Z is measured
Searches = Mapping[str, Search]
SENTENCES = {"tiny": 20}  # sentences of dev and test that are decoded; else all


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run with a seed.

    Args:
        preset: a preset of `search_aware.runs.runs`.
        run: the run's name in that preset.
        seed: seed of everything random.
        settings: a hash of the settings of the run and of its start; other settings make another
            cell.
    """

    preset: str
    run: str
    seed: int
    settings: str

    def __str__(self) -> str:
        return f"{self.run}, seed {self.seed}"

    @property
    def start(self) -> "Training | None":
        """The cell whose weights this one starts from."""
        name = runs(self.preset)[self.run].start
        return None if name is None else training(self.preset, name, self.seed)

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.run / f"{self.settings}-{self.seed}"

    def config(self, out: Path) -> RunConfig:
        """The settings of the run, which starts from another run below the same folder."""
        warm = None if self.start is None else str(self.start.folder(out))
        plan = runs(self.preset)[self.run]
        return replace(plan.config, seed=self.seed, warm_start=warm)


def training(preset: str, run: str, seed: int) -> Training:
    """The cell of a run."""
    return Training(preset=preset, run=run, seed=seed, settings=settings_of(preset, run))


@cache
def settings_of(preset: str, run: str) -> str:
    plan = runs(preset)[run]
    before = "" if plan.start is None else settings_of(preset, plan.start)
    return hashlib.sha256((before + identity(plan.config)).encode()).hexdigest()[:12]


def with_starts(cells: Iterable[Training]) -> list[list[Training]]:
    """The cells and their starts, each once, in rounds: starts before the cells that need them."""
    rounds: list[dict[Training, None]] = []  # as sets that keep the order

    def add(cell: Training) -> int:
        place = 0 if cell.start is None else add(cell.start) + 1
        rounds.extend({} for _ in range(place + 1 - len(rounds)))
        rounds[place][cell] = None
        return place

    for cell in cells:
        add(cell)
    return [list(some) for some in rounds]


def searches(cell: Training, kind: Kind, config: RunConfig, alpha: float | None) -> Searches:
    """The searches that a run is decoded with, on raw or normalized scores as it was trained.

    Soft beams have the alpha that training ended with; 1 if there was none. In the preset `full`
    they are also for outputs that end, and there are beams of raw scores and of other sizes.
    """
    own, relaxed = config.select, {} if alpha is None else {"alpha": alpha}
    found: dict[str, Search] = {"greedy": own.to(Greedy), "beam": own.to(Beam, k=3)}
    if not kind.has_end or cell.preset == FULL:
        found["soft"] = own.to(SoftBeamSearch, k=3, **relaxed)
    if cell.preset != FULL:
        return found
    raw = replace(own, normalize=False)
    found["raw"] = raw.to(Beam, k=3)
    if cell.run.startswith("g2p/"):
        del found["soft"]
        for k in BEAMS:
            found |= {f"beam{k}": own.to(Beam, k=k), f"raw{k}": raw.to(Beam, k=k)}
    elif isinstance(own, Beam) and own.k > 3:
        found[f"beam{own.k}"] = own
    return found


def compute(cell: Training, out: Path) -> Result:
    """Train a cell's run, or find it trained, and decode dev and test with every search.

    Starts of the preset `full` are also measured for what training for the search could gain.
    """
    config, folder = cell.config(out), cell.folder(out)
    summary = train(config, folder, quiet=True, resume=True)
    loaded = load_run(folder)
    corpus = config.data.load()
    kind = kind_of(config.data)
    decodes: dict[str, Any] = {}
    sentences: dict[str, tuple[str, list[Any]]] = {}
    for split in SPLITS:
        examples = decoded(cell.preset, corpus, split)
        references = kind.problems(examples).references
        ways = searches(cell, kind, config, trained_alpha(folder, config))
        for name, search in ways.items():
            values, outputs = evaluate_outputs(loaded.model, examples, kind, loaded.codecs, search)
            if "sequence_error_rate" in values:
                values["word_accuracy"] = 100 - values["sequence_error_rate"]
                values["token_accuracy"] = 100 - values["token_error_rate"]
            scored = kind.per_sentence(references, outputs)
            decodes[f"{split} {name}"] = values
            sentences[f"{split} {name}"] = scored.metric, list(scored.scores)
            write_text(folder / f"outputs-{split}-{name}.json", json.dumps(outputs))
    write_sentences(cell, sentences, out)
    parts = {"train": corpus.split("train")[:PROBED], "dev": decoded(cell.preset, corpus, "dev")}
    normalizers = {
        name: log_z(loaded.model, encode(part, loaded.codecs)) for name, part in parts.items()
    }
    result = {"decodes": decodes, "log_z": normalizers, "seconds": summary["seconds"]}
    if cell.preset == FULL and cell.start is None:
        result["headroom"] = headroom(loaded, "dev", sentences=len(parts["dev"]))
    return result


def decoded(preset: str, corpus: Corpus, split: str) -> list[Example]:
    """The sentences of a split that a preset decodes."""
    return corpus.split(split)[: SENTENCES.get(preset)]


def sentences_path(cell: Training, out: Path) -> Path:
    return out / "sentences" / f"{key(cell)}.json.gz"


def write_sentences(cell: Training, scores: Mapping[str, Any], out: Path) -> None:
    """Keep the metric and the scores of each sentence, by decode."""
    text = json.dumps(scores, separators=(",", ":"))
    write_atomic(sentences_path(cell, out), gzip.compress(text.encode(), mtime=0))


def has_sentences(cell: Training, out: Path) -> bool:
    """Whether the scores of a finished cell's sentences are there."""
    return sentences_path(cell, out).is_file()


@cache
def sentence_scores(cell: Training, decode: str, out: Path) -> Scored:
    """The scores of a finished run's outputs, sentence by sentence."""
    kept = json.loads(gzip.decompress(sentences_path(cell, out).read_bytes()))
    metric, scores = kept[decode]
    return Scored(metric, scores, STATISTICS[metric])


def lost_starts(cells: Iterable[Training], out: Path) -> list[Training]:
    """The starts of unfinished cells whose weights are not there, or no longer."""
    lost: dict[Training, None] = {}  # as a set that keeps the order
    for cell in cells:
        start = cell.start if read_result(cell, out) is None else None
        while start is not None and not (start.folder(out) / SUMMARY).is_file():
            lost[start] = None
            start = start.start
    return list(lost)
