"""Encode words with any Hugging Face encoder (BERT, RoBERTa, XLM-R, DeBERTa, ...) under a tagger.

A run keeps the tokenizer, the configuration and the weights, so that it decodes without the folder
that the encoder came from. No code of that folder is run, and its weights are read from
safetensors alone.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import huggingface_hub
import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from softbeam.data.vocabulary import Pieces
from softbeam.errors import UserError
from softbeam.models.huggingface.masked import longest, quiet
from softbeam.models.lstm import Encoded, encoded_by, lstm_layers
from softbeam.runtime.files import LARGEST_TENSORS, check_input
from softbeam.runtime.memory import memory
from softbeam.tensors import length_mask, real_tokens, with_pieces

Sentence = tuple[tuple[int, ...], ...]  # the pieces of each word
KEPT = 0.25  # share of the memory for the outputs of a frozen encoder


class Window(NamedTuple):
    """Words that the encoder reads together, and those of them whose states are used."""

    words: range
    used: range


def windows(sizes: Sequence[int], limit: int) -> list[Window]:
    """Cut a sentence into windows of at most `limit` pieces, or of one word.

    Each window starts in the middle of the one before it. The state of a word comes from the
    window in which the word has most words on its shorter side.
    """
    spans: list[range] = []
    start = stop = total = 0
    while True:
        while stop < len(sizes) and (total + sizes[stop] <= limit or stop == start):
            total, stop = total + sizes[stop], stop + 1
        spans.append(range(start, stop))
        if stop == len(sizes):
            break
        middle = start + max((stop - start) // 2, 1)
        total -= sum(sizes[start:middle])
        start = middle
    edges = [0, *((b.start + a.stop) // 2 for a, b in pairs(spans)), len(sizes)]
    return [Window(span, range(edges[i], edges[i + 1])) for i, span in enumerate(spans)]


def pairs(spans: list[range]) -> Iterator[tuple[range, range]]:
    return zip(spans, spans[1:], strict=False)


class HfWordEncoder(nn.Module):
    """A Hugging Face encoder whose states are pooled for each word, then LSTM layers if asked for.

    A frozen encoder has no dropout and no gradient. It reads each sentence by itself, once, and its
    outputs are kept in memory, so that they never depend on the batch.

    Args:
        pieces: the vocabulary, which has the encoder's configuration.
        pooling: the state of a word: of its first piece, or the mean of its pieces.
        frozen: leave the encoder's weights as they are.
        lr: learning rate of the encoder's weights.
        hidden: width of each LSTM.
        layers: LSTM layers in both directions; 0 for none.
    """

    def __init__(
        self,
        pieces: Pieces,
        *,
        pooling: Literal["first", "mean"],
        frozen: bool,
        lr: float,
        hidden: int,
        layers: int,
    ):
        super().__init__()
        self.model = empty_encoder(pieces.encoder)
        self.frame, self.pooling, self.frozen = pieces.frame, pooling, frozen
        around = sum(map(len, pieces.frame))
        self.limit = 10**9 if pieces.longest is None else max(pieces.longest - around, 1)
        self.pad = self.model.config.pad_token_id or 0
        states = int(self.model.config.hidden_size)
        self.layers = lstm_layers(([states] + [2 * hidden] * layers)[:layers], hidden, 2)
        self.width = 2 * hidden if layers else states
        self.kept: dict[Sentence, Tensor] = {}
        self.room = int((memory() or 4 << 30) * KEPT)
        if frozen:
            self.model.requires_grad_(False)
        else:
            self.model.own_lr = lr  # `make_optimizer` reads it

    def train(self, mode: bool = True) -> "HfWordEncoder":
        super().train(mode)
        if self.frozen:
            self.model.eval()
        return self

    def forward(
        self, source: Int[Tensor, "batch source_time *pieces"], dropout: nn.Dropout
    ) -> Encoded:
        mask = real_tokens(source)
        source = with_pieces(source)
        sentences = [
            tuple(tuple(piece - 1 for piece in word if piece) for word in row if word[0])
            for row in source.tolist()
        ]
        states = self.frozen_states(sentences) if self.frozen else self.states(sentences)
        if states:
            words = pad_sequence(states, batch_first=True)
            words = nn.functional.pad(words, (0, 0, 0, source.shape[1] - words.shape[1]))
        else:
            width = self.model.config.hidden_size
            words = next(self.model.parameters()).new_zeros(*mask.shape, width)
        if len(self.layers):
            return encoded_by(self.layers, words, mask, dropout)
        summary = words.sum(1) / mask.sum(1).clamp(min=1)[:, None]
        return Encoded(dropout(words), mask, summary)

    def frozen_states(self, sentences: list[Sentence]) -> list[Float[Tensor, "words states"]]:
        """Encode the sentences that are not in memory, one at a time, and keep their states."""
        device = next(self.model.parameters()).device
        states: list[Tensor] = []
        for sentence in sentences:
            if (state := self.kept.get(sentence)) is None:
                with torch.inference_mode(False), torch.no_grad():
                    state = self.states([sentence])[0]
                size = state.numel() * state.element_size()
                if size <= self.room:
                    self.room -= size
                    self.kept[sentence] = state.cpu()  # not in the memory of an accelerator
            states.append(state.to(device))
        return states

    def states(self, sentences: list[Sentence]) -> list[Float[Tensor, "words states"]]:
        """Encode sentences in one batch; returns the states of the words of each."""
        device = next(self.model.parameters()).device
        rows: list[Tensor] = []
        cells: list[tuple[int, int, int]] = []  # row, column, and word over all sentences
        before, after = self.frame
        first = 0
        for sentence in sentences:
            cut = [word[: self.limit] for word in sentence]
            for window in windows([len(word) for word in cut], self.limit):
                ids = list(before)
                for number in window.words:
                    used = 1 if self.pooling == "first" else len(cut[number])
                    if number in window.used:
                        columns = range(len(ids), len(ids) + used)
                        cells += [(len(rows), column, first + number) for column in columns]
                    ids += cut[number]
                rows.append(torch.tensor([*ids, *after], device=device))
            first += len(sentence)
        if not rows:
            return []
        lengths = torch.tensor([len(row) for row in rows], device=device)
        table = pad_sequence(rows, batch_first=True, padding_value=self.pad)
        hidden = self.run(table, length_mask(lengths, table.shape[1]).long())
        row, column, word = torch.tensor(cells, device=device).T
        total = hidden.new_zeros(first, hidden.shape[-1]).index_add(0, word, hidden[row, column])
        counts = torch.bincount(word, minlength=first).clamp(min=1)
        return list((total / counts[:, None]).split([len(sentence) for sentence in sentences]))

    def run(self, ids: Int[Tensor, "rows time"], mask: Int[Tensor, "rows time"]) -> Tensor:
        """Compute the states of padded texts; an encoder without a mask reads one at a time."""
        if "attention_mask" in inspect.signature(self.model.forward).parameters:
            states: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            return states
        alone = [row[real.bool()][None] for row, real in zip(ids, mask, strict=True)]
        return pad_sequence(
            [self.model(input_ids=row).last_hidden_state[0] for row in alone], batch_first=True
        )


def empty_encoder(settings: dict[str, Any]) -> Any:
    """Build an encoder from its configuration; raises UserError if transformers has no such one."""
    kind = str(settings.get("model_type", ""))
    own = {name: value for name, value in settings.items() if name not in NOT_SETTINGS}
    try:
        with quiet():
            config = transformers.AutoConfig.for_model(kind, **own)
            return encoder_part(transformers.AutoModel.from_config(config))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"the encoder {kind!r} cannot be built: {reason}") from None


# Names of code, and number formats: weights are trained in float32
NOT_SETTINGS = ("model_type", "auto_map", "dtype", "torch_dtype", "architectures", "_name_or_path")


def encoder_part(model: Any) -> Any:
    """Return what reads texts of an encoder-decoder, without a head over the whole text."""
    part = model.get_encoder() if model.config.is_encoder_decoder else model
    if getattr(part, "pooler", None) is not None:
        part.pooler = None
    return part


def folder_of(name: str) -> Path:
    """Return the folder of an encoder; raises UserError if there is none.

    Args:
        name: a folder, or the name of a model that was downloaded from the hub before.
    """
    if not name:
        raise UserError("--model HfEncoder: give the folder of the encoder, --model.name DIR")
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except Exception:  # also for what cannot be a name
        raise UserError(
            f"--model.name {name}: is not a folder, and no model of that name has been downloaded"
        ) from None


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Raise UserError for whatever transformers says of a folder."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # transformers raises any class of error for a broken folder
        reason = " ".join(str(error).split())[:300]
        if "trust_remote_code" in reason:
            reason = "it brings code of its own, which is never run"
        raise UserError(f"--model.name {folder}: cannot be loaded: {reason}") from None


LOCAL = {"local_files_only": True, "trust_remote_code": False}


def read_pieces(name: str) -> Pieces:
    """Read the tokenizer and the configuration of an encoder from its folder.

    Raises UserError if they cannot be read without code of the folder, or if the tokenizer is not
    a fast one.
    """
    folder = folder_of(name)
    for path in folder.iterdir():
        if not path.is_dir():  # a pipe would be waited for
            check_input(path, LARGEST_TENSORS)
    with reading(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
        settings = transformers.AutoConfig.from_pretrained(folder, **LOCAL).to_dict()
        if not tokenizer.is_fast:
            raise UserError(f"--model.name {folder}: its tokenizer has no tokenizer.json")
        with torch.device("meta"):
            limit = longest(empty_encoder(settings), tokenizer)
    ids = tokenizer("a")["input_ids"]
    inside = tokenizer("a", add_special_tokens=False)["input_ids"]
    at = next((i for i in range(len(ids)) if ids[i : i + len(inside)] == inside), 0)
    unknown = tokenizer.unk_token_id
    return Pieces(
        with_spaces(tokenizer.backend_tokenizer).to_str(),
        {key: value for key, value in settings.items() if key not in NOT_SETTINGS[1:]},
        frame=(ids[:at], ids[at + len(inside) :]),
        unknown=inside[0] if unknown is None else unknown,
        longest=limit,
    )


def with_spaces(tokenizer: Any) -> Any:
    """Let a tokenizer read each word as one with a space before it, and never cut or pad a text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    steps = tokenizer.pre_tokenizer
    try:
        every = list(steps) if type(steps).__name__ == "Sequence" else [steps]
    except TypeError:
        every = [steps]
    for step in every:
        if hasattr(step, "add_prefix_space"):
            step.add_prefix_space = True
        if hasattr(step, "prepend_scheme"):
            step.prepend_scheme = "always"
    return tokenizer


def load_encoder(encoder: HfWordEncoder, name: str) -> str:
    """Put the weights of a folder into an encoder; returns what to say of it.

    Raises UserError if the folder has no safetensors file, or one that lacks weights.
    """
    folder = folder_of(name)
    with reading(folder):
        model, info = transformers.AutoModel.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            **LOCAL,
        )
        own = encoder.model.state_dict()
        weights = encoder_part(model).state_dict()
    lacking = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if lacking or own.keys() - weights.keys():
        names = ", ".join(lacking[:3] or sorted(own.keys() - weights.keys())[:3])
        raise UserError(f"--model.name {folder}: its weights lack {names}")
    encoder.model.load_state_dict({key: weights[key] for key in own})
    count = sum(weight.numel() for weight in encoder.model.parameters())
    kind = "frozen" if encoder.frozen else "fine-tuned"
    return f"{folder}: a {kind} encoder of {count / 1e6:.1f} M parameters"
