"""Batches of Hugging Face collators in the numbers of an adapter, and a collator."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from softbeam.errors import UserError
from softbeam.models.huggingface.causal import HfCausalLM
from softbeam.models.huggingface.decoder import HfModel, setting
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.tensors import length_mask
from softbeam.types import Batch

IGNORED = -100  # of labels: no token is expected there


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
