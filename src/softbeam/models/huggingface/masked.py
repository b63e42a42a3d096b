"""Adapter of Hugging Face masked language models, with their tokenizers.

The output layer, most of the work for a large vocabulary, runs only at the masked cells: the
encoder's states at these cells are gathered before the model's own head reads them. This is exact
if the head treats every position separately. Some architectures have a faster form (`fast_rows`).
Each model is tested on a small input, in single precision, when it is wrapped: a form whose scores
are not those of the model is not used, and if the head mixes positions, it is evaluated everywhere.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from softbeam.errors import UserError
from softbeam.models.huggingface.alphabets import word_parts
from softbeam.models.huggingface.fast_rows import FastRows
from softbeam.models.huggingface.hub import loading_options
from softbeam.models.residues import amino_acids
from softbeam.runtime.files import LARGEST_TENSORS, check_input
from softbeam.tensors import length_mask, lengths_of, may_stand, moved
from softbeam.types import Prompts, WordParts

# Rows of an embedding that no text ever used: BERT's, Gemma's, fairseq's, ESM's.
UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|madeupword\d+|<null_\d+>")
GAP = re.compile(r"\[MASK\]|<mask>")  # either form, whichever of them the tokenizer knows


class HfMaskedLM:
    """A `TextModel` made of an `AutoModelForMaskedLM` and its tokenizer, without gradients.

    Tokens and sets of tokens are on the CPU, wherever the model is; logits are on its device.

    `allowed` excludes special tokens, rows that no text ever used, and rows without a token. A
    model in half precision still returns logits in float32.

    `alphabet` is `allowed`, except for models of proteins, whose tokens for unknown, ambiguous and
    rare residues and for gaps of alignments are allowed in texts but not sampled by default.

    `fast` is True if the scores are those of `FastRows`, whose batches have rows of one length.
    Otherwise `separable` is True if the output layer runs only at the masked cells; `paddable`, if
    rows of different lengths may share a batch. If padding would change a number (FNet, ConvBERT),
    each length is a separate batch.

    Args:
        model: the model; it is switched to evaluation, and its parameters are frozen.
        tokenizer: a tokenizer with a padding and a mask token.
    """

    def __init__(self, model: Any, tokenizer: Any):
        for name in ("pad", "mask"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise UserError(f"{tokenizer.name_or_path or 'the'} tokenizer has no {name} token")
        check_finite(model)
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.pad_id = int(tokenizer.pad_token_id)
        self.mask_id = int(tokenizer.mask_token_id)
        self.longest = longest(model, tokenizer)
        check_rows(model, tokenizer)
        usable = usable_ids(tokenizer)
        trial = self._trial(usable)
        self._check_runs(*trial)
        with single_precision(self.model):
            plain = self._plain(*trial)
            check_numbers(plain)
            self.separable = self._is_separable(*trial, plain)
            self.paddable = self._is_paddable(*trial, plain)
            self._fast = self._fast_rows(*trial, plain)
        vocab = plain.shape[-1]
        self._allowed = torch.zeros(vocab, dtype=torch.bool)
        self._allowed[[i for i in usable if i < vocab]] = True
        self._glue = letters_stand_alone(tokenizer, usable)
        self._alphabet = amino_acids(tokenizer.convert_ids_to_tokens, self._allowed)
        self._word_parts = word_parts(tokenizer, self._allowed)

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        trust_remote_code: bool = False,
    ) -> "HfMaskedLM":
        """Load the model in a folder, or of that name on the hub.

        Raises UserError if the checkpoint has no output layer for masked tokens, since transformers
        would fill it with random numbers.

        Args:
            name: a folder, or a name on the hub.
            dtype: number format of the model.
            device: where the model runs.
            trust_remote_code: run the code that the folder or repository brings, if any. Without
                it no such code is run, and a model that needs it is refused.
        """
        for path in Path(name).iterdir() if Path(name).is_dir() else ():
            if not path.is_dir():  # a pipe would be waited for
                check_input(path, LARGEST_TENSORS)
        if not Path(name).is_dir() and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", str(name)) is None:
            raise UserError(f"{str(name)!r} is neither a folder nor a name on the hub")
        options = loading_options(name) | {"trust_remote_code": trust_remote_code}
        try:
            with quiet():
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
                model, info = transformers.AutoModelForMaskedLM.from_pretrained(
                    name,
                    dtype=dtype,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                    **options,
                )
        except Exception as error:  # transformers raises any class of error for a broken folder
            reason = " ".join(str(error).split())
            if "trust_remote_code" in reason:
                reason = "it brings code of its own, which is run only with --trust-remote-code"
            raise UserError(
                f"{str(name)!r} cannot be loaded as a masked LM: {reason[:400]}"
            ) from error
        if lacking := sorted(info["missing_keys"]):
            raise UserError(
                f"{str(name)!r} is not a masked LM: its checkpoint lacks {', '.join(lacking[:3])}"
            )
        if other := sorted(info["mismatched_keys"]):
            key, actual, wanted = other[0]
            shapes = f"{key} has the shape {tuple(actual)}; config.json says {tuple(wanted)}"
            raise UserError(f"{str(name)!r} does not fit its configuration: {shapes}")
        try:
            return cls(model.to(device), tokenizer)
        except UserError as error:
            raise UserError(f"{str(name)!r} cannot be used: {error}") from None

    def to(self, device: str | torch.device) -> "HfMaskedLM":
        """Move the model to a device; returns itself."""
        self.model.to(device)
        return self

    @property
    def fast(self) -> bool:
        return self._fast is not None and self.model.device.type == "cpu"

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self._allowed

    @property
    def alphabet(self) -> Bool[Tensor, " vocab"]:
        return self._alphabet

    @property
    def word_parts(self) -> WordParts:
        return self._word_parts

    # Scores

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        """Score the masked cells, each given the unmasked ones; `owner` is not read."""
        lengths = lengths_of((tokens != self.pad_id) | masked)
        return self._by_length(tokens.masked_fill(masked, self.mask_id), masked, lengths)

    def read(
        self, tokens: Int[Tensor, "rows time"], cells: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "cells vocab"]:
        """Score cells of texts as they are, with nothing masked."""
        return self._by_length(tokens, cells, lengths_of(tokens != self.pad_id))

    def _by_length(
        self,
        ids: Int[Tensor, "rows time"],
        cells: Bool[Tensor, "rows time"],
        lengths: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        if self.paddable or self.fast:
            return self._cells(ids, cells, lengths)
        row = cells.nonzero()[:, 0]
        alike = [lengths == length for length in lengths.unique()]
        parts = [self._cells(ids[rows], cells[rows], lengths[rows]) for rows in alike]
        order = torch.cat([rows[row].nonzero()[:, 0] for rows in alike])
        return torch.cat(parts)[order.argsort()]

    def _cells(
        self,
        ids: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        lengths: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        width = int(lengths.max()) if len(lengths) else 0
        if self.longest is not None and width > self.longest:
            raise UserError(f"a text has {width} tokens; the model's limit is {self.longest}")
        if self.fast and bool(masked.any()):
            if self._fast is None or not self._fast.current():
                self._fast = FastRows(self.model)
            logits = self._fast(ids, masked, lengths)
        else:
            call = self._gathered if self.separable else self._plain
            logits = call(ids[:, :width], masked[:, :width], length_mask(lengths, width))
        if logits.device.type == "cpu":  # elsewhere it would wait; energies are checked later
            check_numbers(logits)
        return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()

    def _plain(self, ids: Tensor, masked: Tensor, real: Tensor) -> Tensor:
        """Run the head everywhere, then select the cells."""
        return self._run(ids, real)[self._index(masked)]

    def _gathered(self, ids: Tensor, masked: Tensor, real: Tensor) -> Tensor:
        """Select the cells, then run the head on one row whose positions are these cells."""
        with gathering(self.model.base_model, self._index(masked)):
            return self._run(ids, real)[0]

    def _run(self, ids: Tensor, real: Tensor) -> Tensor:
        device = self.model.device
        reads_padding = "attention_mask" in inspect.signature(self.model.forward).parameters
        if device.type != "cpu" and bool(real.all()):
            reads_padding = False  # transformers would ask the device whether there is any
        mask = {"attention_mask": moved(real.long(), device)} if reads_padding else {}
        logits: Tensor = self.model(input_ids=moved(ids, device), **mask).logits
        return logits

    def _index(self, masked: Bool[Tensor, "rows time"]) -> tuple[Tensor, ...]:
        """The rows and columns of the masked cells, on the model's device."""
        return tuple(moved(part, self.model.device) for part in masked.nonzero(as_tuple=True))

    # Properties of the model, tested on a small input

    def _trial(self, usable: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """A small input: two rows of five tokens, which are masked, and which are real."""
        ids = torch.tensor([(list(usable) * 10)[i : i + 5] for i in (0, 5)])
        masked = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]]).bool()
        return ids.masked_fill(masked, self.mask_id), masked, torch.ones_like(masked)

    def _check_runs(self, ids: Tensor, masked: Tensor, real: Tensor) -> None:
        """Raise UserError if the model cannot run in its number format."""
        try:
            self._plain(ids, masked, real)
        except RuntimeError as error:
            reason = (str(error).splitlines() or [""])[0]
            raise UserError(f"the model does not run in {self.model.dtype}: {reason}") from error

    def _is_separable(self, ids: Tensor, masked: Tensor, real: Tensor, plain: Tensor) -> bool:
        if self.model.base_model is self.model:
            return False
        try:
            return agree(self._gathered(ids, masked, real), plain)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False  # the head needs whole rows

    def _is_paddable(self, ids: Tensor, masked: Tensor, real: Tensor, plain: Tensor) -> bool:
        ids = pad(ids, (0, 3), value=self.pad_id)
        return agree(self._plain(ids, pad(masked, (0, 3)), pad(real, (0, 3))), plain)

    def _fast_rows(
        self, ids: Tensor, masked: Tensor, real: Tensor, plain: Tensor
    ) -> FastRows | None:
        try:
            if self.model.device.type != "cpu":  # its many small steps are for a processor
                return None
            fast = FastRows(self.model)
            return fast if agree(fast(ids, masked, real.sum(-1)), plain) else None
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError):
            return None  # another architecture, or parts that this version names differently

    # Texts

    def encode(self, texts: str | Sequence[str]) -> Prompts:
        """Convert texts to tokens; `[MASK]` or `<mask>` is a gap of one token.

        Raises UserError if the model has no token for a part of a text, or a text is too long.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        rows = [self._ids(text) for text in texts]
        time = max((len(row) for row in rows), default=0)
        padded = [row + [self.pad_id] * (time - len(row)) for row in rows]
        tokens = torch.tensor(padded).reshape(len(rows), time)
        hidden = tokens == self.mask_id
        return Prompts(tokens, hidden, ~hidden & ~may_stand(tokens, self.allowed))

    def _ids(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"the text {text[:40]!r} is not UTF-8") from None
        text = GAP.sub(lambda _: self.tokenizer.mask_token, text)
        ids = [int(i) for i in self.tokenizer(text, verbose=False)["input_ids"]]
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids:
            raise UserError(
                f"the model has no token for a part of {text!r}: it reads "
                f"{' '.join(self.tokenizer.convert_ids_to_tokens(ids))}"
            )
        if self.pad_id in trimmed(ids, self.pad_id):
            pad = self.tokenizer.pad_token
            raise UserError(f"the text {text[:40]!r} holds {pad}, which is only for padding")
        if self.longest is not None and len(ids) > self.longest:
            raise UserError(
                f"a text has {len(ids)} tokens; the model's limit is {self.longest}: {text[:40]!r}…"
            )
        return ids

    def decode(self, tokens: Int[Tensor, "chain time"]) -> list[str]:
        """Convert tokens to texts, without padding and the tokens that the tokenizer adds."""
        shown = may_stand(tokens, self.allowed) | (tokens == self.mask_id)
        rows = zip(tokens, shown, strict=True)
        return [self._text(row[kept].tolist()) for row, kept in rows]

    def token_names(self, ids: Sequence[int]) -> list[str]:
        """The names of tokens in the vocabulary."""
        names: list[str] = self.tokenizer.convert_ids_to_tokens(list(ids))
        return names

    def token_id(self, name: str) -> int | None:
        """The number of the token of this name; None if there is none."""
        number: int | None = self.tokenizer.get_vocab().get(name)
        return number

    def word_ids(self, text: str) -> list[int]:
        """The tokens of a piece of text, without those that the tokenizer adds around it."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _text(self, ids: list[int]) -> str:
        if self._glue:
            return "".join(self.tokenizer.convert_ids_to_tokens(ids))
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()


@contextmanager
def gathering(encoder: nn.Module, masked: tuple[Tensor, ...]) -> Iterator[None]:
    """Make the encoder return the states of the masked cells, as a single row."""

    def gather(module: nn.Module, inputs: Any, output: Any) -> Any:
        cells = output[0][masked][None]
        if isinstance(output, tuple):
            return (cells, *output[1:])
        output.last_hidden_state = cells
        return output

    handle = encoder.register_forward_hook(gather)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def single_precision(model: nn.Module) -> Iterator[None]:
    """Run a model of half precision in float32, where rounding hides no difference.

    Afterwards the model has its own tensors again.
    """
    tensors = [*model.parameters(), *model.buffers()]
    half = [t for t in tensors if t.is_floating_point() and torch.finfo(t.dtype).bits < 32]
    own = [t.data for t in half]
    for tensor in half:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, data in zip(half, own, strict=True):
            tensor.data = data


def check_finite(model: nn.Module) -> None:
    """Raise UserError if some weights are not finite."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise UserError(f"the weights {name} are not all finite")


def check_numbers(logits: Tensor) -> None:
    """Raise UserError if a score is not a number: finite weights can still overflow."""
    if logits.numel() and not bool(logits.amax().isfinite()):  # the largest is NaN if one is
        raise UserError("the model's scores are not finite; try --dtype float64")


def check_rows(model: Any, tokenizer: Any) -> None:
    """Raise UserError if the tokenizer has tokens for which the model has no row."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return
    rows = f"the model has rows for {table.num_embeddings}"
    if len(tokenizer) > table.num_embeddings:
        raise UserError(f"the tokenizer has {len(tokenizer)} tokens, but {rows}")
    token, number = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if number >= table.num_embeddings:
        raise UserError(f"the tokenizer's token {token!r} has the number {number}, but {rows}")


def trimmed(ids: list[int], last: int) -> list[int]:
    """The tokens without those at the end that are `last`."""
    while ids and ids[-1] == last:
        ids = ids[:-1]
    return ids


def agree(actual: Tensor, expected: Tensor) -> bool:
    """True for tensors that are equal up to rounding."""
    near = 100 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=0, atol=near)


def usable_ids(tokenizer: Any) -> list[int]:
    """The numbers of the tokens that a text may hold. Raises UserError if there is none."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_ids) | {
        i for i, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    usable = [
        i
        for i, token in enumerate(tokens)
        if token is not None and i not in special and UNUSED.fullmatch(token) is None
    ]
    if not usable:
        raise UserError(f"all {len(tokens)} tokens of the tokenizer are special or unused")
    return usable


def longest(model: nn.Module, tokenizer: Any) -> int | None:
    """The largest number of tokens, including those of the tokenizer; None without a limit."""
    given = tokenizer.model_max_length
    if not isinstance(given, int | float):
        raise UserError(f"the tokenizer's model_max_length is {given!r}, not a number")
    limits = [int(given)] if given < 10**6 else []
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - offset)
    return min(limits, default=None)


def letters_stand_alone(tokenizer: Any, usable: Sequence[int]) -> bool:
    """True if all tokens are single letters, and texts need no spaces between them.

    Such tokenizers decode with a space between letters, which protein sequences do not have.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(usable))
    if any(len(token) > 1 for token in tokens):
        return False
    read = tokenizer("".join(tokens), add_special_tokens=False, verbose=False)["input_ids"]
    return [int(i) for i in read] == list(usable)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and log messages of transformers."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
