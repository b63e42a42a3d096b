"""Convert tokens to numbers and back: words or labels (`Vocabulary`), or subwords (`Subwords`)."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from softbeam._lazy import lazy
from softbeam.errors import UserError
from softbeam.runtime.files import read_object, write_text

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
else:
    tokenizers, decoders = lazy("tokenizers"), lazy("tokenizers.decoders")
    models, trainers = lazy("tokenizers.models"), lazy("tokenizers.trainers")
    pre_tokenizers = lazy("tokenizers.pre_tokenizers")

PAD, BOS, EOS, UNK, MASK = "<pad>", "<s>", "</s>", "<unk>", "<mask>"
SOURCE = (PAD, UNK)
TARGET = (PAD, EOS, UNK)
MASKED = (PAD, BOS, EOS, UNK, MASK)
LABELS = ()  # a label set is closed: nothing but labels can be predicted


@runtime_checkable
class Codec(Protocol):
    """A vocabulary of words or of subwords, as training and decoding see it."""

    specials: tuple[str, ...]

    def __len__(self) -> int: ...
    def id(self, special: str) -> int | None: ...
    def encode(self, tokens: Sequence[str]) -> Sequence[int | tuple[int, ...]]: ...
    def decode(self, ids: Iterable[int]) -> list[str]: ...
    def to_json(self) -> dict[str, Any]: ...


class Vocabulary:
    """A list of distinct tokens, specials first; padding, if there is any, has the number 0.

    An unknown token becomes <unk>. In a closed set (labels) it becomes -1, which batches leave out
    of every loss; a label that training never saw thus always counts as an error.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        specials: Sequence[str] = LABELS,
        *,
        vector_width: int | None = None,
    ):
        self.vector_width = vector_width  # of the vectors that the tokens were given from a file
        self.specials = tuple(specials)
        self.tokens = [*self.specials, *tokens]
        self.index = {token: i for i, token in enumerate(self.tokens)}
        if len(self.index) != len(self.tokens):
            twice = next(t for t, n in Counter(self.tokens).items() if n > 1)
            raise UserError(f"a vocabulary needs distinct tokens, but {twice!r} is in it twice")

    @classmethod
    def build(
        cls,
        sequences: Iterable[Sequence[str]],
        *,
        specials: Sequence[str] = LABELS,
        min_count: int = 1,
        max_size: int | None = None,
    ) -> "Vocabulary":
        """Collect the tokens seen at least `min_count` times, the most frequent first.

        Tokens with equal counts are sorted by their code points.
        """
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
        """Return the number of a special token, or None if the vocabulary lacks it."""
        return self.index[special] if special in self.specials else None

    def encode(self, tokens: Sequence[str]) -> list[int]:
        unknown = self.index[UNK] if UNK in self.specials else -1
        return [self.index.get(token, unknown) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens before the end mark, without padding."""
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
        value = {"kind": "words", "specials": list(self.specials), "tokens": body}
        return value | ({"vector_width": self.vector_width} if self.vector_width else {})


class Spelled:
    """A vocabulary of words that also numbers their characters, so that unknown words differ.

    A word becomes its own number, then those of a mark, its characters and another mark. Of a word
    of more than `LONGEST_WORD` characters the middle is left out.
    """

    def __init__(self, words: Vocabulary, characters: Vocabulary):
        self.words, self.characters, self.specials = words, characters, words.specials
        if characters.specials != CHARACTERS or words.id(PAD) != 0:
            raise ValueError(f"{PAD} must be the first token, of words and of characters")

    @classmethod
    def build(cls, sequences: Iterable[Sequence[str]], words: Vocabulary) -> "Spelled":
        """Collect the characters of texts; those of a single word train the unknown character."""
        distinct = {word for sequence in sequences for word in sequence}
        spelled = [sorted(set(word)) for word in distinct]
        least = 2 if len(distinct) > 1000 else 1
        return cls(words, Vocabulary.build(spelled, specials=CHARACTERS, min_count=least))

    def __len__(self) -> int:
        return len(self.words)

    def id(self, special: str) -> int | None:
        return self.words.id(special)

    def encode(self, tokens: Sequence[str]) -> list[tuple[int, ...]]:
        numbers = self.words.encode(tokens)
        return [(n, *self.spelling(token)) for n, token in zip(numbers, tokens, strict=True)]

    def spelling(self, word: str) -> tuple[int, ...]:
        """Return the numbers of a word's characters, with a mark on either side."""
        half = LONGEST_WORD // 2
        cut = word if len(word) <= LONGEST_WORD else word[:half] + word[-half:]
        index = self.characters.index
        return (index[BOS], *self.characters.encode(cut), index[EOS])

    def decode(self, ids: Iterable[int]) -> list[str]:
        return self.words.decode(ids)

    def to_json(self) -> dict[str, Any]:
        body = self.characters.tokens[len(CHARACTERS) :]
        return self.words.to_json() | {"characters": body}


CHARACTERS = (PAD, BOS, EOS, UNK)
LONGEST_WORD = 40  # characters


class Subwords:
    """Byte-pair encoding of space-separated words by `tokenizers`; decoding returns words.

    Raises ValueError if `tokenizers` cannot read the model, or if the model lacks a special.
    """

    def __init__(self, model: str, specials: Sequence[str] = TARGET):
        self.specials = tuple(specials)
        self.tokenizer = read_tokenizer(model)
        if lacking := [name for name in specials if self.id(name) is None]:
            raise ValueError(f"a model of subwords without {lacking[0]}")

    @classmethod
    def train(
        cls, sequences: Iterable[Sequence[str]], *, size: int, specials: Sequence[str]
    ) -> "Subwords":
        """Learn at most `size` units from the text; punctuation is never joined to a word.

        Raises UserError if `size` is too small for the specials and all letters of the text.
        """
        tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(specials), show_progress=False
        )
        tokenizer.train_from_iterator((" ".join(s) for s in sequences), trainer)
        if (least := tokenizer.get_vocab_size()) > size:
            raise UserError(
                f"subwords {size}: the text needs at least {least} units, for its letters and "
                f"{len(specials)} marks"
            )
        return cls(tokenizer.to_str(), specials)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def id(self, special: str) -> int | None:
        number = self.tokenizer.token_to_id(special) if special in self.specials else None
        return None if number is None else int(number)

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


class Pieces:
    """The tokenizer of a Hugging Face encoder, and all that is needed to build that encoder again.

    A word becomes the numbers of its pieces, each one higher than the tokenizer has it, since 0 is
    padding. Of a word of more than `MOST_PIECES` pieces the rest is left out.

    Raises ValueError if `tokenizers` cannot read the tokenizer.

    Args:
        tokenizer: the tokenizer, as `tokenizers` writes it.
        encoder: the configuration of the encoder, as transformers writes it.
        frame: the tokens before and after a text.
        unknown: the token of a word without pieces.
        longest: tokens that the encoder takes, with the frame; None without a limit.
    """

    specials: tuple[str, ...] = SOURCE

    def __init__(
        self,
        tokenizer: str,
        encoder: dict[str, Any],
        *,
        frame: tuple[list[int], list[int]],
        unknown: int,
        longest: int | None,
    ):
        self.tokenizer = read_tokenizer(tokenizer)
        self.encoder, self.frame, self.unknown = encoder, frame, unknown
        self.longest = longest
        self.pieces: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size()) + 1

    def id(self, special: str) -> int | None:
        return {PAD: 0, UNK: self.unknown + 1}.get(special)

    def encode(self, tokens: Sequence[str]) -> list[tuple[int, ...]]:
        if len(self.pieces) > MOST_WORDS:
            self.pieces.clear()
        for word in set(tokens) - self.pieces.keys():
            ids = self.tokenizer.encode(word, add_special_tokens=False).ids[:MOST_PIECES]
            self.pieces[word] = tuple(i + 1 for i in ids or [self.unknown])
        return [self.pieces[word] for word in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        return str(self.tokenizer.decode([i - 1 for i in ids if i > 0])).split()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "pieces",
            "specials": list(self.specials),
            "tokenizer": json.loads(self.tokenizer.to_str()),
            "encoder": self.encoder,
            "frame": self.frame,
            "unknown": self.unknown,
            "longest": self.longest,
        }


MOST_PIECES = 16  # of a word
MOST_WORDS = 10**6  # whose pieces are kept in memory


def read_tokenizer(text: str) -> "tokenizers.Tokenizer":
    """Read a tokenizer from its JSON; raises ValueError if it is not one."""
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers has no class of its own for errors
        raise ValueError(f"not a model of subwords: {error}") from None


def codec_from_json(value: dict[str, Any]) -> Codec:
    """Build a vocabulary from the value of `to_json`; raises ValueError if it is not one."""
    kind, specials, tokens = value.get("kind"), value.get("specials"), value.get("tokens", [])
    characters = value.get("characters")
    if not isinstance(kind, str) or KINDS.get(kind) not in value:
        kinds = ", or ".join(f"{kind} with {field}" for kind, field in KINDS.items())
        raise ValueError(f"its kind is {kind!r}; there are {kinds}")
    if specials is None or not (is_text(specials) and is_text(tokens)):
        raise ValueError("specials and tokens must be lists of strings")
    if characters is not None and not is_text(characters):
        raise ValueError("characters must be a list of strings")
    if kind == "pieces":
        return pieces_from_json(value)
    if kind == "words":
        width = value.get("vector_width")
        if width is not None and not (is_count(width) and width):
            raise ValueError(f"its vector_width is {str(width)[:60]!r}")
        words = Vocabulary(tokens, specials, vector_width=width)
        return words if characters is None else Spelled(words, Vocabulary(characters, CHARACTERS))
    return Subwords(json.dumps(value["model"]), specials)


KINDS = {"words": "tokens", "subwords": "model", "pieces": "tokenizer"}


def pieces_from_json(value: dict[str, Any]) -> Pieces:
    longest, unknown, frame = value.get("longest"), value.get("unknown", -1), value.get("frame", 0)
    right = isinstance(frame, list) and len(frame) == 2 and is_count(unknown)
    right = right and all(isinstance(side, list) and all(map(is_count, side)) for side in frame)
    if not right or not (longest is None or is_count(longest)):
        raise ValueError("its frame, unknown and longest must be whole numbers")
    if not isinstance(value.get("encoder"), dict):
        raise ValueError("it has no encoder")
    return Pieces(
        json.dumps(value["tokenizer"]),
        value["encoder"],
        frame=(frame[0], frame[1]),
        unknown=unknown,
        longest=longest,
    )


def is_count(value: Any) -> bool:
    """Tell whether the value is a whole number that is not negative."""
    return type(value) is int and 0 <= value < 2**31


def is_text(value: Any) -> bool:
    """Tell whether the value is a list of strings that UTF-8 can encode."""
    try:
        return isinstance(value, list) and all(each.encode() or True for each in value)
    except (AttributeError, UnicodeEncodeError):
        return False


def save_codec(codec: Codec, path: Path) -> None:
    """Write a vocabulary to a file."""
    write_text(path, json.dumps(codec.to_json(), ensure_ascii=False))


def load_codec(path: Path) -> Codec:
    """Read a vocabulary from a file; raises UserError if the file is not one."""
    value = read_object(path, what := "a vocabulary that softbeam wrote")
    try:
        return codec_from_json(value)
    except (ValueError, UserError) as error:
        raise UserError(f"{path} is not {what}: {error}") from None
