"""Descriptions of models, as configurations name them. Nothing here loads torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from softbeam.data.vocabulary import (
    BOS,
    EOS,
    MASK,
    PAD,
    TARGET,
    UNK,
    Codec,
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
    usual_lr: ClassVar[float] = 1e-3  # the learning rate of a first stage that does not say its own

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
    """

    usual_lr: ClassVar[float] = 2e-3
    encoder: Literal["uni", "bi"] = "bi"
    attention: Literal["fixed", "bahdanau"] = "fixed"
    embedding: int = 128
    label_embedding: int | None = None
    hidden: int = 128
    layers: int = 1
    dropout: float = 0.0
    tied: bool = False
    characters: int = field(default=0, metadata={"added": True})

    def __post_init__(self) -> None:
        for name in ("embedding", "label_embedding", "hidden"):
            check_range(name, getattr(self, name), least=1, most=WIDEST)
        check_range("layers", self.layers, least=1, most=DEEPEST)
        check_range("characters", self.characters, least=0, most=WIDEST)
        check_range("dropout", self.dropout, least=0, below=1)
        labels = self.label_embedding or self.embedding
        if self.tied and self.attention == "fixed" and self.hidden != labels:
            limit = f"hidden {self.hidden} must be as wide as the output embeddings, {labels}"
            raise UserError(f"tied true: {limit}")

    def build(
        self, source_vocab: int, target_vocab: int, *, alphabet: int | None = None
    ) -> "nn.Module":
        from softbeam.models.lstm import Seq2Seq

        knobs = {f.name: getattr(self, f.name) for f in fields(self)}
        return Seq2Seq(source_vocab, target_vocab, alphabet=alphabet, **knobs)

    def build_for(self, codecs: "Codecs") -> "nn.Module":
        source = codecs.source
        spelled = isinstance(source, Spelled)
        if spelled != bool(self.characters):
            has = "has" if spelled else "has no"
            raise UserError(f"characters {self.characters}: the run's vocabulary {has} characters")
        alphabet = len(source.characters) if isinstance(source, Spelled) else None
        return self.build(len(source), len(codecs.target), alphabet=alphabet)

    def source_codec(self, words: Vocabulary | None, texts: Texts) -> Codec | None:
        if not self.characters:
            return None
        if words is None:
            raise UserError(
                f"--model.characters {self.characters}: is for whole words; add --data.subwords 0"
            )
        return Spelled.build(texts["train"], words)


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


MODELS: tuple[type[Model], ...] = (Lstm, Transformer, Cmlm, PublishedCmlm)
