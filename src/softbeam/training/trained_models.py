"""What a model that `SearchAwareTrainer` has trained carries: its beam, and its card."""

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import ModelCard
from transformers import EvalPrediction

from softbeam.objectives.base import Objective
from softbeam.schedules import Moment
from softbeam.training import cards
from softbeam.training.cards import Facts, Figure
from softbeam.training.significance import Rows, resampled_intervals

SAMPLING = "temperature top_p top_k min_p top_h typical_p epsilon_cutoff eta_cutoff".split()
CLOCKS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")
LONGEST = 60.0  # seconds that intervals may take
SAMPLES = 200  # of the bootstrap


def carry_beam(config: Any, objective: Objective, *, max_length: int | None) -> None:
    """Let `generate` search with the objective's beam, for the highest sum of log-probabilities.

    Objectives without a beam leave everything as it is.

    Args:
        config: the model's generation_config, which is changed.
        objective: what the model is trained by.
        max_length: of outputs, if it is known.
    """
    k = getattr(objective, "k", None)
    if k is None:
        return
    config.num_beams, config.do_sample, config.early_stopping = k, False, False
    config.length_penalty = 0.0 if k > 1 else None  # greedy search takes no penalty
    for name in SAMPLING:
        setattr(config, name, None)
    if max_length is not None:
        config.max_length = max_length


def trained_card(
    trainer: Any,
    *,
    language: str | None = None,
    license: str | None = None,
    tags: str | Sequence[str] | None = None,
    model_name: str | None = None,
    finetuned_from: str | None = None,
    tasks: str | Sequence[str] | None = None,
    dataset_tags: str | Sequence[str] | None = None,
    dataset: str | Sequence[str] | None = None,
    dataset_args: str | Sequence[str] | None = None,
) -> ModelCard:
    """Make the card of a trainer's model; it takes what `Trainer.create_model_card` does."""
    model, objective = trainer.accelerator.unwrap_model(trainer.model), trainer.stated
    base = finetuned_from or getattr(model.config, "_name_or_path", "") or None
    name = model_name or Path(trainer.args.output_dir).name
    corpus = ", ".join(listed(dataset)) or ", ".join(listed(dataset_tags)) or "data of the user"
    figures = figures_of(trainer, corpus)
    note = cards.INTERVALS if any(figure.interval for figure in figures) else NO_INTERVALS
    kind = type(model).__name__
    facts = Facts(
        about=f"{kind}, trained with softbeam for the search below: {cards.short(objective)}.",
        data={"corpus": corpus, "arguments": ", ".join(listed(dataset_args)) or None}
        | {f"{k} examples": size_of(getattr(trainer, f"{k}_dataset")) for k in ("train", "eval")},
        training=training_facts(trainer, base),
        search=search_facts(trainer, model.generation_config),
        figures=figures,
        note=note,
        use=use_of(model, getattr(trainer, "hub_model_id", None)),
        versions={"python": platform.python_version()} | cards.versions(),
        objectives=[objective],
    )
    on_hub = base is not None and not Path(base).exists()
    return cards.card(
        facts,
        name=name,
        task=next(iter(listed(tasks)), None),
        language=language,
        license=license,
        tags=listed(tags),
        base_model=base if on_hub else None,
        datasets=listed(dataset_tags) or None,
        library_name="transformers",
    )


NO_INTERVALS = (
    "No intervals: they need `predict_with_generate`, and a `compute_metrics` that is quick enough "
    f"to be called {SAMPLES} times."
)


def listed(given: str | Sequence[str] | None) -> list[str]:
    """One word, several or none, as a list."""
    return [given] if isinstance(given, str) else list(given or ())


def size_of(dataset: Any) -> str | None:
    """The number of examples, if it is known."""
    return f"{len(dataset):,}" if hasattr(dataset, "__len__") else None


def training_facts(trainer: Any, base: str | None) -> dict[str, Any]:
    """Describe what was trained, how and for how long."""
    args, objective = trainer.args, trainer.stated
    name = None if base is None else Path(base).name if Path(base).exists() else base
    return {
        "started from": name,
        "objective": f"`{cards.short(objective)}`. {cards.about(objective)}",
        "updates": trainer.state.global_step,
        "optimizer": f"{getattr(args.optim, 'value', args.optim)}, rate {args.learning_rate:g}",
        "batch size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "seed": args.seed,
    }


def search_facts(trainer: Any, generation: Any) -> dict[str, Any]:
    """Describe the search that the objective trains for, and what `generate` does."""
    objective, state = trainer.objective, trainer.state
    beam, raw = getattr(objective, "k", None), not getattr(objective, "normalize", True)
    schedule = getattr(objective, "alpha", None)
    now = Moment(int(state.epoch or 0), max(state.global_step - 1, 0))
    generate = f"num_beams={generation.num_beams or 1}"
    if (generation.num_beams or 1) > 1:
        generate += f", length_penalty={generation.length_penalty}"
    return {
        "beam size": beam,
        "scores": "raw (globally normalized); `generate` normalizes them" if raw else "normalized",
        "alpha": None if beam is None or schedule is None else f"{schedule(now):.4g}",
        "`generate` by the generation_config": generate,
    }


def figures_of(trainer: Any, corpus: str) -> list[Figure]:
    """Return the figures of the last evaluation, with intervals where they can be computed."""
    rows = [r for r in trainer.state.log_history if any(k.startswith("eval_") for k in r)]
    last = {k.removeprefix("eval_"): v for k, v in rows[-1].items()} if rows else {}
    intervals = intervals_of(trainer.compute_metrics, trainer.evaluated)
    count = None if trainer.evaluated is None else len(trainer.evaluated[1])
    return [
        Figure(metric, float(value), "eval", corpus, intervals.get(metric), count)
        for metric, value in last.items()
        if metric not in (*CLOCKS, "step") and isinstance(value, int | float)
    ]


def intervals_of(
    compute: Callable[[EvalPrediction], dict[str, Any]] | None,
    evaluated: tuple[Any, Any] | None,
) -> dict[str, tuple[float, float]]:
    """Compute intervals of metrics over sentences drawn with replacement; none if it takes long."""
    if compute is None or evaluated is None:
        return {}
    predictions, labels = evaluated

    def score(rows: Rows) -> dict[str, float]:
        named = compute(EvalPrediction(predictions=predictions[rows], label_ids=labels[rows]))
        numbers = {name.removeprefix("eval_"): value for name, value in named.items()}
        return {n: float(v) for n, v in numbers.items() if isinstance(v, int | float | np.number)}

    began = time.monotonic()
    score(np.arange(len(labels)))
    if (time.monotonic() - began) * SAMPLES > LONGEST:
        return {}
    return resampled_intervals(score, len(labels), samples=SAMPLES)


def use_of(model: Any, repo_id: str | None) -> str:
    """Write the Python that generates with a model."""
    name = repo_id or "."
    reads = getattr(model, "main_input_name", "input_ids")
    kind = "AutoModelForSeq2SeqLM" if model.config.is_encoder_decoder else "AutoModelForCausalLM"
    reader, call = "AutoTokenizer", 'reader("a line of input", return_tensors="pt")'
    if reads != "input_ids":
        kind, reader = "AutoModelForSpeechSeq2Seq", "AutoProcessor"
        call = 'reader(audio, sampling_rate=16000, return_tensors="pt")  # audio: numbers'
    return "\n".join(
        [
            f"from transformers import {kind}, {reader}",
            "",
            f'model = {kind}.from_pretrained("{name}")',
            f'reader = {reader}.from_pretrained("{name}")',
            f"inputs = {call}",
            "outputs = model.generate(**inputs)  # with the beam of its generation_config",
            "print(reader.batch_decode(outputs, skip_special_tokens=True))",
        ]
    )
