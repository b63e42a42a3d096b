"""A run is a folder: its configuration, vocabularies, metrics, weights and birth certificate."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from torch import nn

from softbeam.data.batches import Encoded
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example
from softbeam.data.task import Corpus, Pair, checked_pairs
from softbeam.data.vocabulary import save_codec
from softbeam.errors import UserError
from softbeam.models.building import build
from softbeam.runtime import inputs, outputs
from softbeam.runtime.allowed import allowing
from softbeam.runtime.devices import device_of
from softbeam.runtime.environment import environment, working_folder
from softbeam.runtime.files import remove, remove_parts, write_text
from softbeam.runtime.progress import Progress
from softbeam.training import baselines, publishing
from softbeam.training.cards import README, Figure, upload
from softbeam.training.checkpoint import NAME as CHECKPOINT
from softbeam.training.config import CONFIG, METRICS, SUMMARY, RunConfig, from_yaml, to_yaml
from softbeam.training.decoding import Output, best, decode, decode_encoded
from softbeam.training.evaluation import Evaluation
from softbeam.training.kinds import Comparison, Kind, Problems, kind_of
from softbeam.training.own_search import own_search, training_title
from softbeam.training.run_files import (
    BEGINNING,
    EARLIER,
    ENVIRONMENT,
    SOURCE,
    TARGET,
    WEIGHTS,
    choices_of as choices_of,
    load_weights,
    read_metrics as read_metrics,
    read_summary,
    save_weights as save_weights,
)
from softbeam.training.searches import Search
from softbeam.training.vocabularies import load_codecs


@dataclass(frozen=True, eq=False)
class Run:
    """A trained run: its settings, vocabularies and model."""

    config: RunConfig
    codecs: Codecs
    model: nn.Module
    summary: dict[str, Any]
    folder: Path
    _given: dict[str, list[Example]] = field(default_factory=dict, repr=False)
    _titles: dict[str, str] = field(default_factory=dict, repr=False)
    _encoded: dict[str, list[Encoded]] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> Kind:
        """The kind of the run's task."""
        return kind_of(self.config.data)

    def warning(self) -> str | None:
        """Return a warning if the run is no better on dev than counting, or than its first stage.

        None if it is better than both.
        """
        figures = self.summary.get("baselines")  # runs of earlier versions have none
        text = figures and baselines.warning(self.kind, self.summary["metrics"], figures)
        return text or baselines.stage_warning(self.kind, self.summary.get("stages", {}))

    def with_split(
        self, split: str, examples: Iterable[Pair], *, title: str = "given examples"
    ) -> "Run":
        """Return the run with other examples as one of its splits, to be scored on them.

        Raises UserError if there are none, or if one cannot be of the run's task.

        Args:
            split: train, dev or test.
            examples: pairs of source and target.
            title: where they are from.
        """
        given = checked_pairs(split, self.config.data.kind, examples)
        if not given:
            raise UserError(f"{split}: there are no examples")
        titles = self._titles | {split: title}
        return replace(self, _given=self._given | {split: given}, _titles=titles, _encoded={})

    def baselines(self, split: str) -> dict[str, float]:
        """Score on a split what counting in the training split gives; empty if that is gone."""
        try:
            train = self.config.data.load().split("train")
        except UserError:
            return {}
        return baselines.baselines(self.kind, train, self.problems(split))

    def problems(self, split: str) -> Problems:
        """Return the problems of a split of the run's data, which is read once a process."""
        given = self._given.get(split)
        return self.kind.problems(given or self.config.data.load().split(split))

    def own_search(self, name: str | None = None, **settings: Any) -> Search:
        """Return the search that the run was trained for, with these changes.

            run.decode(lines, run.own_search(k=5, nbest=3))

        Args:
            name: of another search, such as beam or soft-beam.
            settings: fields of the search; `k` alone makes a beam search of a greedy one.
        """
        return own_search(self.folder, self.config, name, settings)

    def encoded(self, split: str) -> list[Encoded]:
        """Return each problem of a split with its first reference, encoded once."""
        if split not in self._encoded:
            pairs = zip(*self.problems(split), strict=True)
            firsts = [Example(source, references[0]) for source, references in pairs]
            self._encoded[split] = encode(firsts, self.codecs)
        return self._encoded[split]

    def decode(
        self,
        lines: Sequence[str | Sequence[str]],
        search: Search | None = None,
        *,
        quiet: bool = True,
    ) -> list[list[Output]]:
        """Decode new inputs; returns the outputs of each, best first.

        Args:
            lines: inputs as the task's files have them, or as sequences of tokens.
            search: what finds the outputs; the run's own if not given (see `own_search`).
            quiet: show no progress.
        """
        read = self.config.data.tokens
        sources = [read(line) if isinstance(line, str) else tuple(line) for line in lines]
        empty = [number for number, source in enumerate(sources, 1) if not source]
        if empty:
            place = f"input line {empty[0]}"
            raise UserError(f"{place}: expected at least one token, found an empty line")
        with Progress("decode", len(sources), quiet=quiet) as progress:
            return decode(
                self.model,
                sources,
                self.codecs,
                search or self.config.select,
                on_batch=progress.advance,
            )

    def evaluate(
        self,
        split: str = "dev",
        search: Search | None = None,
        *,
        examples: Iterable[Pair] | None = None,
        quiet: bool = True,
    ) -> Evaluation:
        """Decode a split of the run's data, or other examples, and score the outputs.

        Args:
            split: train, dev or test.
            search: what finds the outputs; the run's own if not given (see `own_search`).
            examples: pairs of source and target to score instead of the split.
            quiet: show no progress.
        """
        if examples is not None:
            return self.with_split(split, examples).evaluate(split, search, quiet=quiet)
        search, started = search or self.config.select, time.monotonic()
        sources, references = self.problems(split)
        with Progress(f"decode {split}", len(sources), quiet=quiet) as progress:
            outputs = best(
                decode_encoded(
                    self.model,
                    self.encoded(split),
                    self.codecs.target,
                    search,
                    on_batch=progress.advance,
                )
            )
        metrics = self.kind.score(outputs, references, [len(source) for source in sources])
        trained = training_title(self.folder, self.config)
        seconds = round(time.monotonic() - started, 2)
        return Evaluation(
            split, self.corpus_title(split), trained, search, metrics, outputs, seconds
        )

    def corpus_title(self, split: str) -> str:
        """Name the corpus of the run's data, or the files of the split."""
        if split in self._given:
            return self._titles[split]
        data = self.config.data
        return data.corpus_name or data.load().origin(split)

    def compare(
        self,
        other: "Run",
        split: str = "dev",
        search: Search | None = None,
        *,
        other_search: Search | None = None,
        quiet: bool = True,
        evaluation: Evaluation | None = None,
    ) -> Comparison:
        """Test the difference of this run from another on a split of this run's data.

        Raises UserError if the other run is of another kind of task.

        Args:
            other: the run to compare with.
            split: train, dev or test.
            search: of both runs; each run's own if not given.
            other_search: of the other run, if that is to be searched in another way.
            quiet: show no progress.
            evaluation: this run's, if it has been evaluated on the split already.
        """
        self.check_kind(other)
        if evaluation is None:
            evaluation = self.evaluate(split, search, quiet=quiet)
        sources, references = self.problems(split)
        theirs = best(other.decode(sources, other_search or search, quiet=quiet))
        return self.kind.compare(references, [evaluation.outputs], [theirs])

    def figures(self, split: str | None = "auto", *, quiet: bool = True) -> list[Figure]:
        """Return the figure on dev that was recorded, and that of a split, scored now.

        The intervals are of a bootstrap over sentences.

        Args:
            split: train, dev or test; auto is test if it can be read, None is no other split.
            quiet: show no progress.
        """
        try:
            splits = self.config.data.load().splits
            if split == "auto":
                split = "test" if splits.get("test") else None
        except UserError:  # the data are gone
            if split not in ("auto", None):
                raise
            split = None
        figures = [publishing.recorded_figure(self.folder, self.config)]
        if split is not None:
            done = self.evaluate(split, quiet=quiet)
            metric, signed = self.kind.main_metric(done.metrics)
            interval = self.kind.interval(self.problems(split).references, done.outputs)
            corpus = publishing.corpus_of(self.folder, self.config)
            value, count = self.kind.sign * signed, len(done.outputs)
            figures.append(Figure(metric, value, split, corpus, interval, count))
        return [f for f in figures if f is not None]

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        split: str | None = "auto",
        license: str | None = None,
        repo_id: str | None = None,
        overwrite: bool = False,
        quiet: bool = True,
    ) -> None:
        """Write a folder for others: what `load_run` needs, and a model card (README.md).

        Data and checkpoints are not copied. Raises UserError if the folder is not empty.

        Args:
            folder: to be written.
            split: scored for the card, beside the figure on dev that was recorded; see `figures`.
            license: of the model, as the hub names it, such as apache-2.0.
            repo_id: where it will be on the hub, for the card.
            overwrite: replace an exported run in the folder.
            quiet: show no progress.
        """
        with outputs.folder(
            Path(folder),
            describe=publishing.exported_in,
            inputs=[self.folder],
            overwrite=overwrite,
            hint="--overwrite replaces it",
        ) as place:
            figures = self.figures(split, quiet=quiet)  # may fail: before anything is written
            publishing.copy_run(self.folder, place)
            publishing.run_card(
                self.folder,
                self.config,
                figures,
                name=PurePosixPath(repo_id or Path(folder).resolve().name).name,
                license=license,
                repo_id=repo_id,
                warning=self.warning(),
            ).save(place / README)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        split: str | None = "auto",
        license: str | None = None,
        private: bool = False,
        token: str | None = None,
        commit_message: str = "Upload a run of softbeam",
        quiet: bool = True,
    ) -> Any:
        """Upload the folder that `save_pretrained` writes to the Hugging Face hub.

        Returns the hub's CommitInfo. Raises UserError if the hub refuses it.

        Args:
            repo_id: the model's name, as user/name; it is made if need be.
            split: as in `save_pretrained`.
            license: as in `save_pretrained`.
            private: make a private repository.
            token: of the hub; that of `hf auth login` if not given.
            commit_message: on the hub.
            quiet: show no progress.
        """
        with TemporaryDirectory() as temporary:
            out = Path(temporary) / "run"
            self.save_pretrained(out, split=split, license=license, repo_id=repo_id, quiet=quiet)
            return upload(out, repo_id, message=commit_message, private=private, token=token)

    def check_kind(self, other: "Run") -> None:
        """Raises UserError if another run is of another kind of task."""
        if other.kind is not self.kind:
            kinds = f"is a run of {other.kind.name}, not of {self.kind.name}"
            raise UserError(f"{other.folder} {kinds}")


def run_folder(
    out: Path, read: Iterable[Path], *, resume: bool, overwrite: bool
) -> AbstractContextManager[Path]:
    """Own a run's folder, and give the path to write to; `read` is what the run depends on."""
    return outputs.folder(out, describe=content_of, inputs=read, resume=resume, overwrite=overwrite)


def content_of(folder: Path) -> str | None:
    """Say what training left in a folder; None if it holds anything else."""
    present = [name for name in (*BEGINNING, inputs.NAME, CHECKPOINT) if (folder / name).is_file()]
    if (folder / CONFIG).is_file() and len(present) >= 3:  # one may be lost
        finished = (folder / SUMMARY).is_file()
        return "a finished run" if finished else "a run that has not finished"
    names = [path.name for path in folder.iterdir()]
    begun = all(name in BEGINNING or EARLIER.fullmatch(name) for name in names)
    return "a run that has hardly begun" if begun else None


def files_read(config: RunConfig, corpus: Corpus) -> dict[str, Path]:
    """What a run depends on, by what it is for: data, files of its model, and other runs."""
    model = {f"model.{name}": path for name, path in config.model.files.items()}
    return (
        corpus.paths
        | model
        | {
            f"{role} {name}": path
            for role, folder in runs_read(config).items()
            for name, path in own_files(folder).items()
        }
    )


def runs_read(config: RunConfig) -> dict[str, Path]:
    """The folders of other runs that a run depends on, by what they are for."""
    start = {"warm_start": Path(config.warm_start)} if config.warm_start else {}
    teachers = {
        f"{name}.objective": folder
        for name, stage in config.stages
        if stage.objective is not None
        for folder in stage.objective.run_folders
    }
    return start | teachers


def own_files(out: Path) -> dict[str, Path]:
    """Return the files in a run's folder that only softbeam may change."""
    return {name: out / name for name in (WEIGHTS, SOURCE, TARGET)}


def write_start(
    out: Path,
    config: RunConfig,
    codecs: Codecs,
    corpus: Corpus,
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write everything that is known of a run before its first update.

    The configuration comes last, so that a folder with one is whole.

    Args:
        out: the run's folder.
        config: its settings.
        codecs: its vocabularies.
        corpus: its data.
        chosen: settings that were chosen from the data or on the machine, by flag.
    """
    remove(*(out / left for left in (CONFIG, SUMMARY, CHECKPOINT, WEIGHTS, inputs.NAME)))
    remove_parts(out)
    sizes = {name: len(split) for name, split in corpus.splits.items()}
    facts = environment() | {"folder": working_folder()}
    facts |= {"files": corpus.described, "examples": sizes, "chosen": dict(chosen)}
    write_text(out / ENVIRONMENT, json.dumps(facts, indent=1) + "\n")
    write_text(out / METRICS, "")
    save_codec(codecs.source, out / SOURCE)
    save_codec(codecs.target, out / TARGET)
    inputs.record(out, files_read(config, corpus) | own_files(out))
    write_text(out / CONFIG, to_yaml(config))


def load_run(folder: str | Path, *, device: str = "auto", allow_modules: Iterable[str] = ()) -> Run:
    """Load a finished run from its folder, ready to decode.

    Args:
        folder: of the run.
        device: where the model runs: auto (an accelerator if there is one), cpu, cuda, cuda:1 or
            mps.
        allow_modules: modules of your own whose classes the run's configuration may name. Loading
            imports them, so name only modules that you trust.
    """
    folder, place = Path(folder), device_of(device)
    with allowing(allow_modules):
        config = from_yaml(folder / CONFIG)
    codecs = load_codecs(folder, config)
    model = build(config.model, codecs)
    load_weights(model, folder / WEIGHTS)
    return Run(config, codecs, model.to(place).eval(), read_summary(folder), folder)
