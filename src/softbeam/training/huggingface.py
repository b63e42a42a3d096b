"""Search-aware fine-tuning of Hugging Face models: a trainer, and a loss for your own loop.

Any of `softbeam.objectives` trains any encoder-decoder or causal language model. The model stays
an ordinary one: its checkpoints can be used without softbeam.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Seq2SeqTrainer

from softbeam.errors import UserError
from softbeam.models.huggingface.causal import HfCausalLM
from softbeam.models.huggingface.decoder import HfModel, setting
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.objectives.base import Objective, SearchObjective
from softbeam.objectives.soft_beam import SoftBeamObjective
from softbeam.runtime import ranks as processes
from softbeam.schedules import Moment
from softbeam.tensors import flushed_denormals, length_mask
from softbeam.training.rewards import own_function, tokenizer_texts
from softbeam.types import Batch, Loss

IGNORED = -100  # of labels: no token is expected there


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


def adapted(model: Any, inputs: Mapping[str, Tensor] | None = None, *, prefix: int = 0) -> HfModel:
    """Wrap a model so that calling it on sources gives a `Decoder`; nothing is copied.

    Args:
        model: an encoder-decoder or a causal language model.
        inputs: a batch, for a model that does not read token numbers, or with a prefix.
        prefix: as in `search_aware_loss`.
    """
    if not model.config.is_encoder_decoder:
        if prefix:
            raise UserError(f"prefix={prefix}: a causal model's prompt is its prefix")
        return HfCausalLM(model)
    main = main_input(model)
    if inputs is None or (main == "input_ids" and not prefix):
        return HfSeq2Seq(model)
    check_inputs(inputs, main)
    read = {name: inputs[name] for name in (main, "attention_mask") if name in inputs}
    if main == "input_ids":
        read.setdefault("attention_mask", torch.ones_like(read[main]))
    return HfSeq2Seq(model, inputs=read, prefix=beginnings(model, inputs["labels"], prefix))


def main_input(model: Any) -> str:
    """What the model calls that which its encoder reads."""
    return getattr(model, "main_input_name", "input_ids")


def check_inputs(inputs: Mapping[str, Tensor], main: str) -> None:
    """Raises UserError if a batch lacks the model's input or the labels."""
    if missing := {main, "labels"} - inputs.keys():
        raise UserError(f"a batch needs {sorted(missing)[0]}; it has {', '.join(inputs)}")


def beginnings(model: Any, labels: Tensor, prefix: int) -> Tensor:
    """The model's start token and the first labels of each row.

    Raises UserError if a row has no more labels than these.
    """
    if short := (labels[:, : prefix + 1] == IGNORED).any(1).nonzero()[:, 0].tolist():
        raise UserError(f"prefix={prefix}: row {short[0]} of a batch has no more labels")
    start = setting(model, "decoder_start_token_id")
    return torch.cat([torch.full_like(labels[:, :1], start), labels[:, :prefix]], 1)


def end_mark(adapter: HfModel, eos: int | None) -> int:
    """The adapter's number of the end mark. Raises UserError if it is also the padding."""
    number = adapter.eos if eos is None else int(adapter.order[eos])
    if number == 0:
        raise UserError(f"eos {adapter.pad_id} is also the padding: finish needs two tokens")
    return number


def as_batch(
    adapter: HfModel, inputs: Mapping[str, Tensor], *, eos: int | None = None, prefix: int = 0
) -> Batch:
    """A collator's batch in the adapter's numbers, in which padding is 0 and to the right.

    Args:
        eos: the adapter's number of the end mark.
        prefix: as in `search_aware_loss`.
    """
    check_inputs(inputs, main_input(adapter.model))
    labels = inputs["labels"][:, prefix:]
    wanted = labels != IGNORED
    if not wanted.any(1).all():
        raise UserError(f"row {int(wanted.any(1).int().argmin())} of a batch has no label")
    if isinstance(adapter, HfSeq2Seq) and adapter.inputs is not None:
        target, lengths = packed(adapter.renumbered(labels.clamp(min=0)), wanted)
        return Batch.of(adapter.rows, target, lengths, eos=eos)
    ids = inputs["input_ids"]
    real = inputs.get("attention_mask", torch.ones_like(ids)).bool()
    if not adapter.model.config.is_encoder_decoder:
        check_prompts(ids, real, wanted)
        source, _ = packed(adapter.renumbered(ids), real & ~wanted)
        target, lengths = packed(adapter.renumbered(ids), wanted)
    else:
        source = torch.where(real, adapter.renumbered(ids), 0)
        target, lengths = packed(adapter.renumbered(labels.clamp(min=0)), wanted)
    return Batch.of(source, target, lengths, eos=eos)


def check_prompts(ids: Tensor, real: Tensor, wanted: Tensor) -> None:
    """Raises UserError unless the labels of each row are one stretch at the end, after a prompt."""
    target = wanted.int().cumsum(1) > 0
    broken = ((target & real) != wanted).any(1)
    if broken.any():
        raise UserError(f"row {int(broken.int().argmax())}: labels are not one stretch at the end")


def packed(tokens: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The kept tokens of each row, moved to its beginning, and how many there are."""
    order, lengths = (~kept).int().argsort(stable=True, dim=1), kept.sum(1)
    mask = length_mask(lengths, int(lengths.max()))
    return torch.where(mask, tokens.gather(1, order)[:, : mask.shape[1]], 0), lengths


def padded(
    examples: Sequence[Mapping[str, Any]], *, pad: int, main: str = "input_ids"
) -> dict[str, Tensor]:
    """Make a batch of examples of unequal lengths: padding on the right, labels ignored there.

    Args:
        examples: rows of numbers by name, such as `input_ids` and `labels`; anything else, such as
            the text itself, is left out. Without an `attention_mask`, all tokens count.
        pad: the number of the padding token.
        main: what the model reads; unless token numbers, it may have any shape.
    """
    fill = {"input_ids": pad, "decoder_input_ids": pad, "labels": IGNORED}
    rows = [numbers_of(example, main) for example in examples]
    for row in rows:
        if "input_ids" in row:
            row.setdefault("attention_mask", torch.ones_like(row["input_ids"]))
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {
        name: pad_sequence(
            [r[name] for r in rows], batch_first=True, padding_value=fill.get(name, 0)
        )
        for name in names
    }


def numbers_of(example: Mapping[str, Any], main: str) -> dict[str, Tensor]:
    """The rows of whole numbers of an example, and what the model reads, as tensors."""
    tensors = {}
    for name, value in example.items():
        if isinstance(value, Tensor) or name == main or (value and isinstance(value[0], int)):
            tensors[name] = torch.as_tensor(value)
    return tensors


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
        self.objective: Objective = logged_with(objective, self.args)
        self.eval_objective, self.prefix = eval_objective, prefix
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
