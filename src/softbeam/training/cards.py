"""Model cards: what the Hugging Face hub shows of a model, from the records of its training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData

from softbeam.errors import UserError, reason
from softbeam.objectives.base import Objective
from softbeam.objectives.likelihood import SelfNormalized
from softbeam.objectives.scheduled_sampling import FeedbackObjective
from softbeam.objectives.soft_beam import SoftBeamObjective
from softbeam.runtime.environment import PACKAGES, installed

README = "README.md"
MADE = "<!-- made by softbeam from the records of the training -->"
TAGS = ("softbeam", "search-aware-training")
BIBLIOGRAPHY = Path(__file__).with_name("citations.bib")
INTERVALS = "Intervals are 95 % intervals over sentences drawn with replacement (bootstrap)."


class Figure(NamedTuple):
    """A figure of a model on a split, with its 95 % interval if there is one."""

    metric: str
    value: float
    split: str
    corpus: str
    interval: tuple[float, float] | None = None
    sentences: int | None = None

    def result(self, task: str) -> EvalResult:
        """Write the figure as the hub's metadata have it."""
        ends = self.interval
        return EvalResult(
            task_type=task,
            dataset_type=re.sub(r"[^\w.-]+", "-", self.corpus).strip("-.") or "data",
            dataset_name=self.corpus,
            dataset_split=self.split,
            metric_type=self.metric,
            metric_name=self.metric.replace("_", " "),
            metric_value=self.value,
            metric_args=None if ends is None else {"interval_95": [*ends]},
        )

    def row(self) -> list[str]:
        """Write the figure as a row of the card's table."""
        ends = "none" if self.interval is None else " to ".join(f"{x:.4g}" for x in self.interval)
        count = "" if self.sentences is None else f"{self.sentences:,}"
        return [self.corpus, self.split, self.metric, f"{self.value:.4g}", ends, count]


class Facts(NamedTuple):
    """What a card says, section by section."""

    about: str
    data: Mapping[str, Any]
    training: Mapping[str, Any]
    search: Mapping[str, Any]
    figures: Sequence[Figure]
    note: str  # after the figures
    use: str  # Python
    versions: Mapping[str, Any]
    objectives: Sequence[Objective]


def card(facts: Facts, *, name: str, task: str | None, **metadata: Any) -> ModelCard:
    """Make a card with the hub's metadata.

    Args:
        facts: what the card says.
        name: of the model.
        task: the hub's name of the task, such as translation.
        metadata: other fields of `ModelCardData`, such as license.
    """
    results = [figure.result(task or "other") for figure in facts.figures]
    tags = [*TAGS, *(metadata.pop("tags", None) or ())]
    data = ModelCardData(
        model_name=name, pipeline_tag=task, tags=tags, eval_results=results or None, **metadata
    )
    header = ["corpus", "split", "metric", "value", "95 % interval", "sentences"]
    parts = [
        MADE,
        f"# {name}",
        facts.about,
        section("Data", table(facts.data)),
        section("Training", table(facts.training)),
        section("The search it was trained for", table(facts.search)),
        section("Figures", grid([header, *(f.row() for f in facts.figures)]), facts.note)
        if facts.figures
        else section("Figures", "None were recorded."),
        section("How to load it", f"```python\n{facts.use.strip()}\n```"),
        section("Versions", table(facts.versions)),
        citation(facts.objectives),
    ]
    body = "\n\n".join(part for part in parts if part)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n")


def section(title: str, *parts: str) -> str:
    """Write a section of a card."""
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


def table(rows: Mapping[str, Any]) -> str:
    """Write a table of names and values; values that are None are left out."""
    return grid([["", ""], *([k, str(v)] for k, v in rows.items() if v is not None)])


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown, whose first row is its head."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, f"|{' --- |' * len(rows[0])}", *rest])


def short(value: Any) -> str:
    """Write settings with the fields that differ from their defaults: DirectLoss(k=5)."""
    if not is_dataclass(value):
        return f"{value:g}" if isinstance(value, float) else str(value)
    changed = [
        f"{f.name}={short(getattr(value, f.name))}"
        for f in fields(value)
        if f.default is MISSING or getattr(value, f.name) != f.default
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def about(objective: Objective) -> str:
    """The first line of an objective's documentation, which names its paper."""
    line = (type(objective).__doc__ or "").strip().partition("\n")[0]
    return re.sub(r"\((201[789])\b", r"(Goyal et al. \1", line)


def papers(objectives: Sequence[Objective]) -> list[str]:
    """Return the entries of the papers whose methods are used; docs/citing.md says which."""
    used = {
        "goyal2017differentiable": any(isinstance(o, FeedbackObjective) for o in objectives),
        "goyal2017continuous": any(isinstance(o, SoftBeamObjective) for o in objectives),
        "goyal2019empirical": any(
            isinstance(o, SelfNormalized) or (isinstance(o, SoftBeamObjective) and not o.normalize)
            for o in objectives
        ),
    }
    entries = BIBLIOGRAPHY.read_text(encoding="utf-8").strip().split("\n\n")
    return [entry for entry in entries if used[entry.partition("{")[2].partition(",")[0]]]


def citation(objectives: Sequence[Objective]) -> str:
    """Write the section with the papers to cite; empty if none is due to a method used here."""
    entries = papers(objectives)
    if not entries:
        return ""
    bibtex = "\n\n".join(entries)
    return section("Citation", "The method is that of", f"```bibtex\n{bibtex}\n```")


def versions() -> dict[str, str | None]:
    """The installed versions of the packages that matter."""
    return {name: installed(name) for name in PACKAGES}


def write_card(made: ModelCard, folder: Path) -> None:
    """Write a card, unless a README is there that somebody else wrote."""
    path = folder / README
    if not path.exists() or MADE in path.read_text(encoding="utf-8", errors="replace"):
        made.save(path)


def upload(folder: Path, repo_id: str, *, message: str, private: bool, token: str | None) -> Any:
    """Upload a folder to a model repository of the hub, which is made if need be.

    Returns what `HfApi.upload_folder` does. Raises UserError if the hub refuses it or cannot be
    reached.
    """
    try:
        api = HfApi(token=token)
        repo = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        return api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    except Exception as error:  # of the name, the token, the hub or the connection
        raise UserError(f"{repo_id} cannot be pushed: {reason(error)}") from error
