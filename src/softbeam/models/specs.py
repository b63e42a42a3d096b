"""Descriptions of models, as configurations name them. Nothing here loads torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from softbeam.data.vectors import read_vectors
from softbeam.data.vocabulary import (
    BOS,
    EOS,
    MASK,
    PAD,
    TARGET,
    UNK,
    Codec,
    Pieces,
    Spelled,
    Vocabulary,
)
from softbeam.errors import UserError, check_range

if TYPE_CHECKING:
    from torch import nn

    from softbeam.data.encoding import Codecs

Texts = Mapping[str, Sequence[tuple[str, ...]]]  # the sources of train and dev

WIDEST, DEEPEST = 10**6, 1000  # of layers, and their number


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """A description of a model; `build` makes it for two vocabulary sizes."""

    specials: ClassVar[tuple[str, ...]] = TARGET  # of the target's vocabulary
    left_to_right: ClassVar[bool] = True  # a decoder; else a masked language model

    @property
    def usual_lr(self) -> float:
        """The learning rate of a first stage that does not say its own."""
        return 1e-3

    @abstractmethod
    def build(self, source_vocab: int, target_vocab: int) -> "nn.Module": ...

    def build_for(self, codecs: "Codecs") -> "nn.Module":
        """Build the model for the vocabularies of a run."""
        return self.build(len(codecs.source), len(codecs.target))

    def source_codec(self, words: Vocabulary | None, texts: Texts) -> Codec | None:
        """Return the vocabulary of sources that the model needs; None for the usual one.

        Args:
            words: the usual one; None if it is one of subwords.
            texts: the sources of train and dev.
        """
        return None

    def initialize(self, model: "nn.Module", codecs: "Codecs", texts: Texts) -> str:
        """Put what files of the user hold into a new model; returns what to say of it, if anything.

        Args:
            model: from `build_for`.
            codecs: the vocabularies of both sides.
            texts: the sources of train and dev.
        """
        return ""

    @property
    def files(self) -> dict[str, Path]:
        """The files that a new model is made from, by the setting that names them."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Lstm(Model):
    """LSTM encoder and decoder (thesis 3.3.3 and 5.4.2).

    Args:
        encoder: uni sees only the past of the input, bi all of it.
        attention: fixed feeds the i-th input to the i-th output; bahdanau learns where to look.
        embedding: width of the input embeddings.
        label_embedding: width of the output embeddings, as the inputs' if not given.
        hidden: width of each LSTM direction and of the decoder.
        layers: LSTM layers on each side.
        dropout: on embeddings, between layers, and before the output layer.
        tied: share the output layer with the output embeddings.
        characters: width of what a convolution reads from the characters of each word, beside its
            embedding; 0 for embeddings alone.
        vectors: a file of word vectors (word2vec, GloVe or fastText as text, plain or .gz) that the
            input embeddings begin with and take their width from.
        label_noise: share of gold outputs in place of which the next step sees other ones of the
            batch, in training; a decoder that trusts them less recovers from its own errors.
        shortcut: give the decoder the words themselves beside their encoding.
    """

    encoder: Literal["uni", "bi"] = "bi"
    attention: Literal["fixed", "bahdanau"] = "fixed"
    embedding: int = 128
    label_embedding: int | None = None
    hidden: int = 128
    layers: int = 1
    dropout: float = 0.0
    tied: bool = False
    characters: int = field(default=0, metadata={"added": True})
    vectors: str | None = field(default=None, metadata={"added": True})
    label_noise: float = field(default=0.0, metadata={"added": True})
    shortcut: bool = field(default=False, metadata={"added": True})

    def __post_init__(self) -> None:
        for name in ("embedding", "label_embedding", "hidden"):
            check_range(name, getattr(self, name), least=1, most=WIDEST)
        check_range("layers", self.layers, least=1, most=DEEPEST)
        check_range("characters", self.characters, least=0, most=WIDEST)
        check_range("dropout", self.dropout, least=0, below=1)
        check_range("label_noise", self.label_noise, least=0, most=1)
        labels = self.label_embedding or self.embedding
        if self.tied and self.attention == "fixed" and self.hidden != labels:
            limit = f"hidden {self.hidden} must be as wide as the output embeddings, {labels}"
            raise UserError(f"tied true: {limit}")

    @property
    def usual_lr(self) -> float:
        return 4e-3 if self.attention == "fixed" else 2e-3

    def build(self, source_vocab: int, target_vocab: int) -> "nn.Module":
        return self.sized(source_vocab, target_vocab)

    def sized(
        self,
        source_vocab: int,
        target_vocab: int,
        *,
        alphabet: int | None = None,
        vector_width: int | None = None,
    ) -> "nn.Module":
        """Build the model for sizes of vocabularies and of vectors."""
        from softbeam.models.lstm import Seq2Seq

        knobs = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "vectors"}
        if vector_width is not None:
            labels = self.label_embedding or self.embedding
            knobs |= {"embedding": vector_width, "label_embedding": labels}
        return Seq2Seq(source_vocab, target_vocab, alphabet=alphabet, **knobs)

    def build_for(self, codecs: "Codecs") -> "nn.Module":
        source = codecs.source
        spelled = isinstance(source, Spelled)
        if spelled != bool(self.characters):
            has = "has" if spelled else "has no"
            raise UserError(f"characters {self.characters}: the run's vocabulary {has} characters")
        return self.sized(
            len(source),
            len(codecs.target),
            alphabet=len(source.characters) if isinstance(source, Spelled) else None,
            vector_width=getattr(words_of(source), "vector_width", None),
        )

    def source_codec(self, words: Vocabulary | None, texts: Texts) -> Codec | None:
        own = {"characters": self.characters, "vectors": self.vectors}
        for name, value in own.items():
            if value and words is None:
                raise UserError(
                    f"--model.{name} {value}: is for whole words; add --data.subwords 0"
                )
        if words is not None and self.vectors is not None:
            words = self.with_vectors(words, texts)
        if words is not None and self.characters:
            return Spelled.build(texts["train"], words)
        return words

    def with_vectors(self, words: Vocabulary, texts: Texts) -> Vocabulary:
        """Add the words of train and dev that have a vector to the vocabulary."""
        vectors = read_vectors(self.vectors or "", words_in(texts))
        more = [w for w in words_in(texts) if w not in words.index and vectors.of(w)]
        tokens = [*words.tokens[len(words.specials) :], *more]
        return Vocabulary(tokens, words.specials, vector_width=vectors.width)

    def initialize(self, model: "nn.Module", codecs: "Codecs", texts: Texts) -> str:
        if self.vectors is None:
            return ""
        from softbeam.models.lstm import put_vectors

        words = words_of(codecs.source)
        assert isinstance(words, Vocabulary)
        every = words_in(texts)
        vectors = read_vectors(self.vectors, every)
        put_vectors(model, {words.index[w]: v for w in every if (v := vectors.of(w))})
        exact, lower = (
            sum(w in vectors.rows for w in every),
            sum(w not in vectors.rows and w.lower() in vectors.rows for w in every),
        )
        share = 100 * (exact + lower) / len(every)
        repeated = f"; {vectors.repeated} lines repeat a word" if vectors.repeated else ""
        return (
            f"{self.vectors}: vectors of width {vectors.width} for {share:.1f}% of the "
            f"{len(every):,} words of train and dev, {lower:,} of them in lower case{repeated}"
        )

    @property
    def files(self) -> dict[str, Path]:
        return {"vectors": Path(self.vectors)} if self.vectors else {}


def words_in(texts: Texts) -> list[str]:
    """Return the distinct words of texts, in the order in which they occur."""
    return list(dict.fromkeys(word for split in texts.values() for text in split for word in text))


def words_of(codec: Codec) -> Codec:
    """Return a vocabulary without its characters."""
    return codec.words if isinstance(codec, Spelled) else codec


@dataclass(frozen=True, kw_only=True)
class HfEncoder(Model):
    """A Hugging Face encoder (BERT, RoBERTa, ...) under the LSTM decoder of `Lstm`.

    The run keeps the encoder, and decodes without the folder.

    Args:
        name: folder of the encoder, with weights in safetensors.
        frozen: leave the encoder's weights as they are; each sentence is then encoded once.
        lr: learning rate of the encoder's weights; those above it have the stage's.
        pooling: state of a word: of its first piece, or the mean of its pieces.
        lstm_layers: LSTM layers in both directions between encoder and decoder; 0 for none.
        attention: fixed feeds the i-th input to the i-th output; bahdanau learns where to look.
        label_embedding: width of the output embeddings.
        hidden: width of each LSTM direction and of the decoder.
        layers: LSTM layers of the decoder.
        dropout: on the states of words, between layers, and before the output layer.
        label_noise: share of gold outputs in place of which the next step sees other ones of the
            batch, in training.
    """

    name: str = ""
    frozen: bool = False
    lr: float = 3e-5
    pooling: Literal["first", "mean"] = "first"
    lstm_layers: int = 1
    attention: Literal["fixed", "bahdanau"] = "fixed"
    label_embedding: int = 128
    hidden: int = 128
    layers: int = 1
    dropout: float = 0.3
    label_noise: float = 0.5

    def __post_init__(self) -> None:
        for name in ("label_embedding", "hidden"):
            check_range(name, getattr(self, name), least=1, most=WIDEST)
        check_range("layers", self.layers, least=1, most=DEEPEST)
        check_range("lstm_layers", self.lstm_layers, least=0, most=DEEPEST)
        check_range("dropout", self.dropout, least=0, below=1)
        check_range("label_noise", self.label_noise, least=0, most=1)
        check_range("lr", self.lr, above=0)

    def build(self, source_vocab: int, target_vocab: int) -> "nn.Module":
        raise UserError("--model HfEncoder: is built for the tokenizer of --model.name")

    def build_for(self, codecs: "Codecs") -> "nn.Module":
        from softbeam.models.huggingface.words import HfWordEncoder
        from softbeam.models.lstm import Seq2Seq

        if not isinstance(codecs.source, Pieces):
            raise UserError("--model HfEncoder: the run's vocabulary is not that of an encoder")
        own = ("pooling", "frozen", "lr", "hidden")
        encoder = HfWordEncoder(
            codecs.source,
            layers=self.lstm_layers,
            **{name: getattr(self, name) for name in own},
        )
        shared = ("attention", "label_embedding", "hidden", "layers", "dropout", "label_noise")
        knobs = {name: getattr(self, name) for name in shared}
        return Seq2Seq(len(codecs.source), len(codecs.target), encoder=encoder, **knobs)

    def source_codec(self, words: Vocabulary | None, texts: Texts) -> Codec | None:
        from softbeam.models.huggingface.words import read_pieces

        return read_pieces(self.name)

    def initialize(self, model: "nn.Module", codecs: "Codecs", texts: Texts) -> str:
        from softbeam.models.huggingface.words import HfWordEncoder, load_encoder

        assert isinstance(model.encoder, HfWordEncoder)
        return load_encoder(model.encoder, self.name)

    @property
    def files(self) -> dict[str, Path]:
        from softbeam.models.catalogue import model_files

        files = model_files(self.name) if self.name else {}
        return {f"name {file}": path for file, path in files.items()}


@dataclass(frozen=True, kw_only=True)
class Transformer(Model):
    """Transformer encoder and decoder.

    Args:
        width: of the embeddings and of each layer; the output layer is the output embeddings.
        layers: on each side.
        heads: of each attention.
        hidden: width of the feed-forward layers, four times the width if not given.
        longest: largest number of tokens on each side, of searched outputs too.
        dropout: of the embeddings and of each part of a layer.
        norm_first: normalize before each part of a layer instead of after it.
    """

    width: int = 256
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    longest: int = 256
    dropout: float = 0.2
    norm_first: bool = True

    def __post_init__(self) -> None:
        check_transformer(self)

    def build(self, source_vocab: int, target_vocab: int) -> "nn.Module":
        from softbeam.models.layers import TransformerShape
        from softbeam.models.transformer import TransformerSeq2Seq

        knobs = {f.name: getattr(self, f.name) for f in fields(self)}
        return TransformerSeq2Seq(source_vocab, target_vocab, TransformerShape(**knobs))


def check_transformer(model: "Transformer | Cmlm") -> None:
    for name in ("width", "heads", "hidden"):
        check_range(name, getattr(model, name), least=1, most=WIDEST)
    check_range("layers", model.layers, least=1, most=DEEPEST)
    # a token and a length, or an end mark
    check_range("longest", model.longest, least=2, most=WIDEST)
    check_range("dropout", model.dropout, least=0, below=1)
    if model.width % model.heads:
        raise UserError(f"heads {model.heads}: must divide the width, {model.width}")


@dataclass(frozen=True, kw_only=True)
class Cmlm(Model):
    """A conditional masked language model: Transformers on both sides (Mask-Predict).

    Args:
        width: of the embeddings and of each layer.
        layers: on each side.
        heads: of each attention.
        hidden: width of the feed-forward layers, four times the width if not given.
        longest: largest number of tokens on each side.
        dropout: of the embeddings and of each part of a layer.
        norm_first: normalize before each part of a layer instead of after it.
        eps: added to variances when normalizing.
    """

    specials: ClassVar[tuple[str, ...]] = (PAD, UNK, MASK)
    left_to_right: ClassVar[bool] = False
    width: int = 256
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    longest: int = 128
    dropout: float = 0.2
    norm_first: bool = True
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_transformer(self)
        check_range("eps", self.eps, above=0)

    def build(self, source_vocab: int, target_vocab: int) -> "nn.Module":
        from softbeam.models.conditional_masked import ConditionalMlm
        from softbeam.models.layers import TransformerShape

        knobs = {f.name: getattr(self, f.name) for f in fields(self)}
        never = [i for i, name in enumerate(self.specials) if name != EOS]  # specials come first
        mask_id = self.specials.index(MASK)
        shape = TransformerShape(**knobs)
        return ConditionalMlm(source_vocab, target_vocab, shape, mask_id=mask_id, specials=never)


@dataclass(frozen=True, kw_only=True)
class PublishedCmlm(Cmlm):
    """A `Cmlm` in the form of fairseq's Mask-Predict models: texts of both sides end with </s>."""

    specials: ClassVar[tuple[str, ...]] = (PAD, UNK, MASK, BOS, EOS)


MODELS: tuple[type[Model], ...] = (Lstm, HfEncoder, Transformer, Cmlm, PublishedCmlm)
