"""Tokens to numbers and back: words or labels (`Vocabulary`), or subwords (`Subwords`)."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from softbeam.errors import UserError
from softbeam.runtime.files import read_object, write_text

PAD, BOS, EOS, UNK, MASK = "<pad>", "<s>", "</s>", "<unk>", "<mask>"
SOURCE = (PAD, UNK)
TARGET = (PAD, EOS, UNK)
MASKED = (PAD, BOS, EOS, UNK, MASK)
LABELS = ()  # a label set is closed: nothing but labels can be predicted


@runtime_checkable
class Codec(Protocol):
    """What training and decoding need of either kind."""

    specials: tuple[str, ...]

    def __len__(self) -> int: ...
    def id(self, special: str) -> int | None: ...
    def encode(self, tokens: Sequence[str]) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> list[str]: ...
    def to_json(self) -> dict[str, Any]: ...


class Vocabulary:
    """A list of distinct tokens, specials first; padding, where there is any, has the number 0.

    An unknown token becomes <unk>; in a closed set (labels) it becomes -1, which batches leave
    out of every loss, so that a label never seen in training can only count as an error.
    """

    def __init__(self, tokens: Sequence[str], specials: Sequence[str] = LABELS):
        self.specials = tuple(specials)
        self.tokens = [*self.specials, *tokens]
        self.index = {token: i for i, token in enumerate(self.tokens)}
        if len(self.index) != len(self.tokens):
            twice = next(t for t, n in Counter(self.tokens).items() if n > 1)
            raise UserError(f"a vocabulary needs distinct tokens, but {twice!r} stands in it twice")

    @classmethod
    def build(
        cls,
        sequences: Iterable[Sequence[str]],
        *,
        specials: Sequence[str] = LABELS,
        min_count: int = 1,
        max_size: int | None = None,
    ) -> "Vocabulary":
        """The tokens seen at least `min_count` times, most frequent first, ties in code order."""
        counts = Counter(token for sequence in sequences for token in sequence)
        for special in specials:
            counts.pop(special, None)
        kept = sorted(
            (t for t, n in counts.items() if n >= min_count), key=lambda t: (-counts[t], t)
        )
        return cls(kept[:max_size], specials)

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, special: str) -> int | None:
        """The number of a special token, None where this vocabulary has none."""
        return self.index[special] if special in self.specials else None

    def encode(self, tokens: Sequence[str]) -> list[int]:
        unknown = self.index[UNK] if UNK in self.specials else -1
        return [self.index.get(token, unknown) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The tokens, up to the end mark; padding left out."""
        tokens = []
        for i in ids:
            token = self.tokens[i]
            if token == EOS and EOS in self.specials:
                break
            if not (token == PAD and PAD in self.specials):
                tokens.append(token)
        return tokens

    def to_json(self) -> dict[str, Any]:
        body = self.tokens[len(self.specials) :]
        return {"kind": "words", "specials": list(self.specials), "tokens": body}


class Subwords:
    """Byte-pair encoding of space-separated words by `tokenizers`; decoding gives words back.

    A model that `tokenizers` cannot read, or without the specials, is a ValueError.
    """

    def __init__(self, model: str, specials: Sequence[str] = TARGET):
        from tokenizers import Tokenizer

        self.specials = tuple(specials)
        try:
            self.tokenizer = Tokenizer.from_str(model)
        except Exception as error:  # of no class of its own
            raise ValueError(f"not a model of subwords: {error}") from None
        if lacking := [name for name in specials if self.id(name) is None]:
            raise ValueError(f"a model of subwords without {lacking[0]}")

    @classmethod
    def train(
        cls, sequences: Iterable[Sequence[str]], *, size: int, specials: Sequence[str]
    ) -> "Subwords":
        """At most `size` units learnt from the text; punctuation is never joined to a word.

        A size that does not hold the specials and all letters of the text is refused.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE(unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(specials), show_progress=False
        )
        tokenizer.train_from_iterator((" ".join(s) for s in sequences), trainer)
        if (found := tokenizer.get_vocab_size()) > size:
            needed = (
                f"the text needs at least {found} units, for its letters and {len(specials)} marks"
            )
            raise UserError(f"subwords {size}: {needed}")
        return cls(tokenizer.to_str(), specials)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def id(self, special: str) -> int | None:
        found = self.tokenizer.token_to_id(special) if special in self.specials else None
        return None if found is None else int(found)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        return list(self.tokenizer.encode(" ".join(tokens), add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> list[str]:
        eos, kept = self.id(EOS), []
        for i in ids:
            if i == eos:
                break
            kept.append(int(i))
        return str(self.tokenizer.decode(kept, skip_special_tokens=True)).split()

    def to_json(self) -> dict[str, Any]:
        model = json.loads(self.tokenizer.to_str())
        return {"kind": "subwords", "specials": list(self.specials), "model": model}


def codec_from_json(value: dict[str, Any]) -> Codec:
    """The inverse of `to_json` of either kind; what is none of them is a ValueError."""
    kind, specials, tokens = value.get("kind"), value.get("specials"), value.get("tokens", [])
    if not isinstance(kind, str) or KINDS.get(kind) not in value:
        known = ", or ".join(f"{kind} with {field}" for kind, field in KINDS.items())
        raise ValueError(f"it is of the kind {kind!r}; there are {known}")
    if specials is None or not (is_text(specials) and is_text(tokens)):
        raise ValueError("specials and tokens must be lists of texts")
    if kind == "words":
        return Vocabulary(tokens, specials)
    return Subwords(json.dumps(value["model"]), specials)


KINDS = {"words": "tokens", "subwords": "model"}


def is_text(value: Any) -> bool:
    """True for a list of strings that UTF-8 can write."""
    try:
        return isinstance(value, list) and all(each.encode() or True for each in value)
    except (AttributeError, UnicodeEncodeError):
        return False


def save_codec(codec: Codec, path: Path) -> None:
    write_text(path, json.dumps(codec.to_json(), ensure_ascii=False))


def load_codec(path: Path) -> Codec:
    """The codec in a file, or a sentence that says what is wrong with it."""
    value = read_object(path, what := "a vocabulary that softbeam wrote")
    try:
        return codec_from_json(value)
    except (ValueError, UserError) as error:
        raise UserError(f"{path} is not {what}: {error}") from None
