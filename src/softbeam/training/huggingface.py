"""Search-aware fine-tuning of Hugging Face models: a trainer, and a loss for your own loop.

Any of `softbeam.objectives` trains any encoder-decoder or causal language model. The model stays
an ordinary one: its checkpoints can be used without softbeam.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from transformers import Seq2SeqTrainer, Trainer

from softbeam.errors import UserError
from softbeam.objectives.base import Objective, SearchObjective
from softbeam.objectives.soft_beam import SoftBeamObjective
from softbeam.runtime import ranks as processes
from softbeam.schedules import Moment
from softbeam.tensors import flushed_denormals
from softbeam.training.cards import README, write_card
from softbeam.training.hf_batches import adapted, as_batch, end_mark, main_input, padded
from softbeam.training.rewards import own_function, tokenizer_texts
from softbeam.training.trained_models import carry_beam, trained_card
from softbeam.types import Loss


def search_aware_loss(
    model: Any,
    inputs: Mapping[str, Tensor],
    objective: Objective,
    *,
    now: Moment | None = None,
    rng: Generator | None = None,
    eos: int | None = None,
    tokenizer: Any = None,
    prefix: int = 0,
) -> Loss:
    """Compute an objective of a Hugging Face model on a batch as its collators make it.

    `loss.total / loss.size` is a mean per target token. The labels of a causal model are ignored
    (-100) over a prompt, which is the source; the target follows.

    Args:
        model: an encoder-decoder or a causal language model.
        inputs: `labels` with `input_ids` and `attention_mask`, or with what else the model's
            encoder reads, such as the `input_features` of Whisper.
        objective: any of `softbeam.objectives`.
        now: epoch and update, which drive schedules; the first of both if not given.
        rng: source of all random choices but dropout; seeded with 0 if not given.
        eos: the tokenizer's number of the end mark, for objectives with `finish`; if not given,
            that of the model's generation_config.
        tokenizer: anything with `batch_decode`, for a reward or the word error rate.
        prefix: how many labels of each row are given to the search and not trained, such as the
            language and the task of Whisper.
    """
    adapter = adapted(model, inputs, prefix=prefix)
    number = end_mark(adapter, eos) if objective.finish else None
    batch = as_batch(adapter, inputs, eos=number, prefix=prefix)
    if objective.reads_texts and tokenizer is not None:
        objective = objective.reading(tokenizer_texts(tokenizer, adapter), own_function)
    rng = rng or Generator().manual_seed(0)
    return objective(adapter, batch, now=now or Moment(), rng=rng)


def smoothed(objective: Objective, factor: float) -> Objective:
    """Give an objective the label smoothing of `TrainingArguments`.

    Raises UserError if the objective has no cross-entropy to smooth, or another smoothing.
    """
    own = getattr(objective, "smoothing", None)
    name = f"label_smoothing_factor={factor}: {type(objective).__name__}"
    if own is None or "smoothing" not in {f.name for f in fields(objective)}:
        raise UserError(f"{name} has no smoothing; set label_smoothing_factor to 0")
    if isinstance(objective, SearchObjective) and not objective.cross_entropy:
        raise UserError(
            f"{name} smooths only the cross-entropy added to it; give cross_entropy=1.0"
        )
    if own not in (0.0, factor):
        raise UserError(f"{name} has smoothing={own}; give one of the two")
    return replace(objective, smoothing=factor)  # type: ignore[call-arg]


class SearchAwareTrainer(Seq2SeqTrainer):
    """A `Seq2SeqTrainer` that minimizes a softbeam objective instead of the model's own loss.

    Evaluation reports the model's own loss (cross-entropy), so that runs with other objectives can
    be compared, and decodes with `predict_with_generate` as usual. Under `torchrun` or `accelerate
    launch` (DDP, FSDP), the loss of several processes is that of one with their batches together,
    as far as nothing is drawn at random. Random choices depend on the
    seed and the step alone: a resumed run repeats them. Without a `data_collator`, examples of
    unequal lengths are padded. The numbers that an objective logs, such as `objective_alpha`,
    `objective_beam_entropy` and `objective_gold_on_beam`, are in `state.log_history` and go to the
    trackers of `report_to`.

    The model's generation_config gets the beam of the objective, unless that of the arguments is
    given: a saved model's `generate` searches as it was trained to. `save_model`, `push_to_hub` and
    `create_model_card` write a card with data, objective, search and figures; the intervals of
    these are over the sentences of the last evaluation with `predict_with_generate`.

    Args:
        objective: what training minimizes; its schedules follow the trainer's epoch and step.
        eval_objective: report the objective as `eval_loss` instead of the model's own loss.
        prefix: how many labels of each row are given to the search and not trained, such as the
            language and the task of Whisper.
        args: all of `Seq2SeqTrainer`'s. `label_smoothing_factor` smooths the cross-entropy of the
            objective, and `gradient_checkpointing` computes the decoder's steps twice.
    """

    def __init__(
        self,
        *args: Any,
        objective: Objective,
        eval_objective: bool = False,
        prefix: int = 0,
        **named: Any,
    ):
        super().__init__(*args, **named)
        if self.args.n_gpu > 1:
            raise UserError(f"{self.args.n_gpu} GPUs in one process: start one process for each")
        if len(args) < 3 and named.get("data_collator") is None:
            pad: Any = getattr(self.processing_class, "pad_token_id", None)
            pad = adapted(self.model).pad_id if pad is None else pad
            self.data_collator = partial(padded, pad=pad, main=main_input(self.model))
        if self.args.label_smoothing_factor:
            objective = smoothed(objective, self.args.label_smoothing_factor)
            self.label_smoother: Any = None  # the objective smooths; eval_loss is without
        self.stated = objective  # for the card
        self.objective: Objective = logged_with(objective, self.args)
        self.eval_objective, self.prefix = eval_objective, prefix
        self.evaluated: tuple[Any, Any] | None = None  # outputs and labels, for intervals
        settings: Any = self.args
        if settings.generation_config is None and self.model is not None:
            longest = settings.generation_max_length
            carry_beam(self.model.generation_config, objective, max_length=longest)
        self.model_accepts_loss_kwargs = True  # targets are counted over the accumulated batch
        self.seen: dict[str, float] = {}  # the objective's numbers for the log
        self.drawn: dict[int, int] = {}  # number of generators given out in the last step

    def train(self, *args: Any, **named: Any) -> Any:
        """Train as `Seq2SeqTrainer` does, with denormal numbers flushed, which slow soft beams.

        Of several processes, one that has stopped is named by the others after two minutes.
        """
        if self.accelerator.num_processes > 1:
            processes.watch()
        with flushed_denormals():
            return super().train(*args, **named)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **named: Any) -> Any:
        """The batches of an update; copies that fill up the last one of several processes go."""
        batches = map(self.without_copies, epoch_iterator)
        return super().get_batch_samples(batches, *args, **named)

    def without_copies(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The rows of this process's batch that are not there a second time; maybe none.

        At the end of the data accelerate gives each process a batch of the same size, and begins
        with the data anew for that: in one process these rows are not there.
        """
        state, rows = self.accelerator.gradient_state, len(batch["labels"])
        if self.accelerator.num_processes == 1 or not state.end_of_dataloader:
            return batch
        if state.remainder <= 0:
            return batch
        own = max(0, min(rows, state.remainder - rows * self.accelerator.process_index))
        return {name: value[:own] for name, value in batch.items()}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective per target token in training, the model's own loss in evaluation."""
        if not model.training:
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss
        inner = self.accelerator.unwrap_model(model)

        def mean_loss() -> Tensor:
            if not len(inputs["labels"]):  # gradients of zero, which other processes wait for
                used = [p.sum() for p in inner.parameters() if p.requires_grad]
                return 0.0 * torch.stack(used).sum()
            loss = self.loss_of(inner, inputs, self.next_rng())
            self.seen |= loss.log
            return loss.total / (num_items_in_batch or loss.size)

        ranks = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return through(model, inner, mean_loss) * ranks

    def loss_of(self, model: nn.Module, inputs: Mapping[str, Tensor], rng: Generator) -> Loss:
        """The objective on a batch, at the present epoch and step."""
        now = Moment(int(self.state.epoch or 0), self.state.global_step)
        eos = getattr(self.processing_class, "eos_token_id", None)
        tokenizer = self.processing_class
        tokenizer = tokenizer if hasattr(tokenizer, "batch_decode") else None
        return search_aware_loss(
            model,
            inputs,
            self.objective,
            now=now,
            rng=rng,
            eos=eos,
            tokenizer=tokenizer,
            prefix=self.prefix,
        )

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **named: Any
    ) -> Any:
        """Evaluate a batch as `Seq2SeqTrainer` does; the loss is the objective's if asked for."""
        loss, *others = super().prediction_step(model, inputs, *args, **named)
        if self.eval_objective and "labels" in inputs:
            batch = self._prepare_inputs(inputs)
            rng = Generator().manual_seed(self.args.seed)
            with torch.no_grad():
                ours = self.loss_of(self.accelerator.unwrap_model(model), batch, rng)
            return ours.total / ours.size, *others
        return loss, *others

    def evaluation_loop(self, *args: Any, **named: Any) -> Any:
        """Evaluate as `Seq2SeqTrainer` does, and keep generated outputs for the card."""
        done = super().evaluation_loop(*args, **named)
        arrays = isinstance(done.predictions, np.ndarray) and isinstance(done.label_ids, np.ndarray)
        whole = named.get("metric_key_prefix", "eval") == "eval"  # not predict, nor one of several
        settings: Any = self.args
        if settings.predict_with_generate and arrays and whole:
            self.evaluated = done.predictions, done.label_ids
        return done

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as `Seq2SeqTrainer` does, with a card unless there is another README."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and not _internal_call:
            folder = Path(output_dir or self.args.output_dir or ".")
            write_card(trained_card(self, model_name=folder.resolve().name), folder)

    def create_model_card(self, *args: Any, **named: Any) -> None:
        """Write a card to the output folder; the arguments are those of `Trainer`'s."""
        if self.is_world_process_zero():
            given = dict(zip(CARD_ARGUMENTS, args, strict=False)) | named
            trained_card(self, **given).save(Path(self.args.output_dir or ".") / README)

    def next_rng(self) -> Generator:
        """A generator for this batch of this step."""
        step = self.state.global_step
        count = self.drawn.get(step, 0)
        self.drawn = {step: count + 1}
        seed = hash((self.args.seed, step, count, self.accelerator.process_index))
        return Generator().manual_seed(seed % 2**63)

    def log(self, logs: dict[str, float], *args: Any, **named: Any) -> None:
        """Log the trainer's numbers with those of the objective."""
        more: dict[str, float] = {}
        if "loss" in logs:
            more, self.seen = {f"objective_{name}": v for name, v in self.seen.items()}, {}
        super().log(logs | more, *args, **named)


CARD_ARGUMENTS = [*inspect.signature(Trainer.create_model_card).parameters][1:]


def logged_with(objective: Objective, args: Any) -> Objective:
    """Let the beam be diagnosed at the steps that are logged, unless the objective says when."""
    every = int(args.logging_steps) if args.logging_steps >= 1 else 0
    if isinstance(objective, SoftBeamObjective) and every:
        default = SoftBeamObjective.diagnose_every
        if objective.diagnose_every == default:
            return replace(objective, diagnose_every=every)
    return objective


def through(wrapper: nn.Module, module: nn.Module, function: Callable[[], Tensor]) -> Tensor:
    """Call `function` inside `wrapper(...)`, which gathers gradients of `module` only then."""
    if wrapper is module:
        return function()
    own = vars(module).get("forward")  # of the instance, where something has replaced the class's

    def restore() -> None:
        vars(module).pop("forward", None)
        if own is not None:
            vars(module)["forward"] = own

    def instead(*_: Any, **__: Any) -> Tensor:
        restore()
        return function()

    vars(module)["forward"] = instead
    try:
        loss: Tensor = wrapper()
        return loss
    finally:
        restore()
