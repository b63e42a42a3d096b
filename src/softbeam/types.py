"""Types that all packages share: protocols of models, and tuples that functions pass on.

This module has no algorithm and imports nothing of softbeam.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

State = Any  # a (nested) tuple; every tensor in it has rows as its first axis


@runtime_checkable
class Decoder(Protocol):
    """A left-to-right scorer bound to its encoded source; rows are batch-major.

    `step` may be called with batch * n rows for any n: rows i*n to (i+1)*n - 1 belong to
    source i, so that a beam of n needs no copy of the encoder's memory.
    """

    @property
    def embedding(self) -> Float[Tensor, "vocab emb"]: ...  # E in the papers
    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]: ...  # h0 and e0 = E[<s>]
    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]: ...  # f(h, .) and h


@runtime_checkable
class FusedDecoder(Decoder, Protocol):
    """A decoder that can also score a whole given target in one call (teacher forcing)."""

    def forced(
        self, target: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time vocab"]: ...  # scores of step t given target[:, :t]


@runtime_checkable
class FedDecoder(Decoder, Protocol):
    """A decoder that can also be fed the embeddings of all steps in one call."""

    def fed(
        self, emb: Float[Tensor, "batch time emb"]
    ) -> Float[Tensor, "batch time vocab"]: ...  # scores of step t given emb[:, : t + 1]; e0 first


@runtime_checkable
class SelectingDecoder(Decoder, Protocol):
    """A decoder that can be bound to some of its sources alone: others are finished."""

    def select(self, sentences: Int[Tensor, " left"]) -> Decoder: ...


class Ends(NamedTuple):
    """Where outputs end: at a limit for each row and, if there is an end mark, right after it."""

    lengths: Int[Tensor, " batch"]
    eos: int | None = None


class Batch(NamedTuple):
    """Examples side by side, padded on the right.

    The mask is False at padding and also inside a target, at a label that the vocabulary does not
    know. So the lengths are not sums of the mask: `ends` carries them from the examples, and with
    them the end mark from the vocabulary.
    """

    #: 0 is padding; a token may have several numbers: its own and its characters', or its pieces'
    source: Int[Tensor, "batch source_time *pieces"]
    target: Int[Tensor, "batch time"]
    mask: Bool[Tensor, "batch time"]  #: True where target is a known token
    ends: Ends  #: lengths of the targets, and the token that ends them if there is one

    @classmethod
    def of(
        cls,
        source: Int[Tensor, "batch source_time *pieces"],
        target: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        eos: int | None = None,
    ) -> "Batch":
        """Make a batch in which every token is known; without `lengths` there is no padding."""
        time = target.shape[1]
        if lengths is None:
            lengths = torch.full_like(target[:, 0], time)
        mask = torch.arange(time, device=target.device) < lengths[:, None]
        return cls(source, target, mask, Ends(lengths, eos))

    def to(self, device: torch.device | str) -> "Batch":
        """Move the tensors to a device."""
        source, target, mask = (tensor.to(device) for tensor in self[:3])
        return Batch(source, target, mask, Ends(self.ends.lengths.to(device), self.ends.eos))


class Loss(NamedTuple):
    """A summed loss and the number of its terms; training minimizes total / size.

    Keeping the two apart makes gradient accumulation and data parallelism exact: gradients of
    totals add up, and are divided once by the sum of the sizes.
    """

    total: Float[Tensor, ""]
    size: int
    log: Mapping[str, float]


class Hypotheses(NamedTuple):
    """The outputs of a search, best first; tokens past a length are padding (0)."""

    tokens: Int[Tensor, "batch nbest time"]
    lengths: Int[Tensor, "batch nbest"]
    scores: Float[Tensor, "batch nbest"]  # sum of the step scores, without length penalty


@runtime_checkable
class MaskedLM(Protocol):
    """A model that scores tokens at masked positions given all others, for its sources if any.

    Rows may have different lengths, filled up with `pad_id`, which occurs nowhere else. The logits
    are those before any softmax, since a raw energy is a sum of them.
    """

    @property
    def pad_id(self) -> int: ...
    @property
    def allowed(self) -> Bool[Tensor, " vocab"]: ...  # tokens that a text may hold: no specials
    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],  # hidden together; `tokens` is not read there
        owner: Int[Tensor, " rows"],  # the source that a row belongs to; unread without sources
    ) -> Float[Tensor, "cells vocab"]: ...  # at the masked cells alone, row by row


@runtime_checkable
class OnePassMlm(MaskedLM, Protocol):
    """A masked language model that scores every position given all others in one pass.

    Optional: its output at a position does not depend on the token there, so that the energy of a
    text costs one row instead of one for each position.
    """

    @property
    def mask_id(self) -> int: ...
    def every_logits(
        self, tokens: Int[Tensor, "rows time"], owner: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows time vocab"]: ...  # as `logits` with each position masked alone


class Prompts(NamedTuple):
    """Texts as tokens, padded on the right."""

    tokens: Int[Tensor, "chain time"]
    hidden: Bool[Tensor, "chain time"]  # the gaps: a mask stands there
    frozen: Bool[Tensor, "chain time"]  # the tokenizer's frame (cls, sep) and padding


class WordParts(NamedTuple):
    """Where words begin and end: a word goes on from an `inner` end to a `joined` beginning."""

    inner: Bool[Tensor, " vocab"]  # the token ends with a letter or digit
    joined: Bool[Tensor, " vocab"]  # the token begins with one, without a space before it
    first: Bool[Tensor, " vocab"]  # a whole word, or the first piece of one, inside of a text
    opening: Bool[Tensor, " vocab"]  # the same of a word that a text begins with

    def boundaries(self, tokens: Int[Tensor, "chain time"]) -> Bool[Tensor, "chain edges"]:
        """True before each token, and after the last, if no word goes on there."""
        free = ~(self.inner[tokens[:, :-1]] & self.joined[tokens[:, 1:]])
        edge = free.new_ones(len(tokens), 1)
        return torch.cat([edge, free, edge], 1)


@runtime_checkable
class TextModel(MaskedLM, Protocol):
    """A masked language model with a tokenizer, for sampling and scoring of texts."""

    @property
    def mask_id(self) -> int: ...
    def encode(self, texts: str | Sequence[str]) -> Prompts: ...  # `[MASK]` is a gap of one token
    def decode(self, tokens: Int[Tensor, "chain time"]) -> list[str]: ...
    def token_names(self, ids: Sequence[int]) -> list[str]: ...
    def token_id(self, name: str) -> int | None: ...
    def word_ids(self, text: str) -> list[int]: ...
    @property
    def alphabet(self) -> Bool[Tensor, " vocab"]: ...  # of `allowed`, what is sampled by default
    @property
    def word_parts(self) -> "WordParts": ...


@runtime_checkable
class ReadingModel(TextModel, Protocol):
    """A masked language model that also scores the tokens of texts in which nothing is masked."""

    def read(
        self, tokens: Int[Tensor, "rows time"], cells: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "cells vocab"]: ...  # of the cells, row by row


@runtime_checkable
class Energy(Protocol):
    """An energy E of texts: p(y) is proportional to exp(-E(y)) over the allowed texts."""

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]: ...


@runtime_checkable
class BoundEnergy(Energy, Protocol):
    """An energy whose rows belong to chains, with a source or frozen words for each."""

    def chosen(self, chains: Int[Tensor, " rows"]) -> Energy: ...  # row i belongs to chains[i]


class Proposed(NamedTuple):
    """A proposal y' for each chain, with the probabilities of proposing it and of its reverse."""

    tokens: Int[Tensor, "chain time"]  #: y'
    log_q_forward: Float[Tensor, " chain"]  #: log q(y'; y)
    log_q_reverse: Float[Tensor, " chain"]  #: log q(y; y')


class ChainState(NamedTuple):
    """The state of chains between two steps."""

    tokens: Int[Tensor, "chain time"]
    energy: Float[Tensor, " chain"]  #: carried, so that no step computes it twice


class StepInfo(NamedTuple):
    """The outcome of a step for each chain."""

    log_accept: Float[Tensor, " chain"]
    accepted: Bool[Tensor, " chain"]
    moved: Bool[Tensor, " chain"]  #: accepted and different: a novel transition
    repeated: Bool[Tensor, " chain"]  #: the proposal is the text itself: always accepted
    stuck: Bool[Tensor, " chain"]  #: q(y; y') = 0: the text here is never proposed, nor left
    proposed: Int[Tensor, "chain time"] | None = None  #: y', for those who watch; None: not told


Propose = Callable[[Tensor, Tensor, Generator], Proposed]  # (tokens, positions, rng)


class Kernel(NamedTuple):
    """A step of a Markov chain; each fixed set of positions gives a kernel."""

    init: Callable[[Tensor], ChainState]
    step: Callable[[ChainState, Tensor, Generator], tuple[ChainState, StepInfo]]


@runtime_checkable
class ReadoutDecoder(Decoder, Protocol):
    """A decoder whose step is `advance`, then one linear layer: scores = hidden W^T + b.

    Optional: with it, the fast forms gather the layer's gradient over the steps, and a candidate
    pool touches only the candidates' rows of W. It also works inside `LocallyNormalized`.
    """

    @property
    def output_layer(self) -> tuple[Tensor, Tensor | None]: ...  # W (vocab hidden), b (vocab)
    def advance(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows hidden"], State]: ...


@runtime_checkable
class ProjectingDecoder(ReadoutDecoder, Protocol):
    """A decoder whose steps may begin with a linear map of the embedding.

    Optional: where a vocabulary is small, the fast forms apply the map once to all embeddings.
    """

    def projected(self) -> ReadoutDecoder: ...  # over mapped embeddings, or the decoder itself
