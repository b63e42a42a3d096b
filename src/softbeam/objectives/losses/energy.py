r"""Losses of whole-sequence random fields, one number for each row.

A model of E_raw(y) = -sum_t f(y_t, h(y\t)) is a `Field`: it gives f(v, h(y\t)) for every t and v.
Each length is a space of its own, normalized by itself. Rows are padded on the right; `mask` is
True at the real positions, and tokens at other positions are not read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import logsigmoid, one_hot
from torch.utils.checkpoint import checkpoint

from softbeam import exact

CHUNK = 2**14


@runtime_checkable
class Field(Protocol):
    """A Gibbs random field over the sequences of each length (thesis, Sec. 6.2.1)."""

    @property
    def vocab(self) -> int: ...
    def potentials(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]: ...  # log phi_t with each token at t; 0 past the end


@runtime_checkable
class SharingField(Field, Protocol):
    """A field that shares work between sequences with a part in common."""

    def substituted(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]: ...  # -E_raw with v instead of y_t
    def log_partition(self, time: int, *, chunk: int | None) -> Float[Tensor, ""]: ...


@runtime_checkable
class EnergyModel(Protocol):
    """A model of whole sequences that gives energies and no potentials, as `Residual`."""

    @property
    def vocab(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def allowed(self) -> Bool[Tensor, " vocab"]: ...  # tokens that a sequence may hold
    def energy(self, tokens: Int[Tensor, "rows time"]) -> Float[Tensor, " rows"]: ...


# Likelihood (thesis, Sec. 2.4 and 6.2.2)


def log_phi(
    field: Field | EnergyModel, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
) -> Float[Tensor, " rows"]:
    """-E: the sum of the tokens' potentials, or what the model says itself."""
    if not isinstance(field, Field):
        return -field.energy(tokens.where(mask, field.pad_id))
    scores = field.potentials(tokens, mask).gather(-1, tokens.where(mask, 0)[:, :, None])
    return (scores[:, :, 0] * mask).sum(-1)


def log_partition(
    field: Field | EnergyModel, time: int, *, chunk: int | None = None
) -> Float[Tensor, ""]:
    """log Z of the sequences of a length, at most `chunk` of them held at once.

    A `SharingField` computes it by its own method; any other field is enumerated.
    """
    if isinstance(field, SharingField):
        return field.log_partition(time, chunk=chunk)
    specials = tuple({*range(field.vocab)} - {*words_of(field).tolist()})
    size = CHUNK if chunk is None else chunk
    space = exact.Space(vocab=field.vocab, time=time, chunk=size, forbidden=specials)
    return exact.log_partition(lambda rows: log_phi(field, rows, exact.real(rows)), space)


def words_of(field: Field | EnergyModel) -> Int[Tensor, " words"]:
    """The tokens that sequences hold: all of them, or those that an `EnergyModel` allows."""
    if isinstance(field, Field):
        return torch.arange(field.vocab)
    return field.allowed.nonzero()[:, 0]


def for_each_length(
    mask: Bool[Tensor, "rows time"], value: Callable[[int], Tensor]
) -> Float[Tensor, " rows"]:
    """`value(length)` of each row, evaluated once for each length; 0 for empty rows."""
    lengths, which = mask.sum(1).unique(return_inverse=True)
    zero = torch.zeros((), dtype=torch.float64, device=mask.device)
    return torch.stack([value(n) if n else zero for n in lengths.tolist()])[which]


def nll(
    field: Field | EnergyModel,
    tokens: Int[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
    *,
    chunk: int | None = None,
) -> Float[Tensor, " rows"]:
    """E_raw(y) + log Z of y's length, by enumeration."""
    log_z = for_each_length(mask, lambda time: log_partition(field, time, chunk=chunk))
    return log_z - log_phi(field, tokens, mask)


# Conditionals (thesis, Sec. 6.2.1)


def free_conditionals(
    field: Field, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
) -> Float[Tensor, "rows time vocab"]:
    r"""log p_mlm(y_t = v | y\t) = log softmax f(v, h(y\t)): in general those of no joint."""
    return field.potentials(tokens, mask).log_softmax(-1)


def true_conditionals(
    field: Field | EnergyModel,
    tokens: Int[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
    *,
    chunk: int = CHUNK,
) -> Float[Tensor, "rows time vocab"]:
    r"""log p(y_t = v | y\t) under E_raw: all potentials change with y_t, not that of t alone.

    At most `chunk` substituted sequences are held at once, but at least one sentence's; with
    several chunks, each is evaluated again in the backward pass.
    """
    substituted = field.substituted if isinstance(field, SharingField) else one_by_one(field)
    sentences = max(1, chunk // (tokens.shape[1] * field.vocab))
    parts = list(zip(tokens.split(sentences), mask.split(sentences), strict=True))
    if len(parts) > 1 and torch.is_grad_enabled():
        scores = [checkpoint(substituted, *part, use_reentrant=False) for part in parts]
    else:
        scores = [substituted(*part) for part in parts]
    return torch.cat(scores).log_softmax(-1)


def one_by_one(field: Field | EnergyModel) -> Callable[[Tensor, Tensor], Tensor]:
    """-E_raw with v instead of y_t, every substituted sequence evaluated whole, in one batch."""

    def substituted(
        tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time vocab"]:
        rows, time = tokens.shape
        words = words_of(field).to(tokens.device)
        shape = (rows, time, len(words), time)
        here = torch.eye(time, dtype=torch.bool, device=tokens.device)[:, None]  # time, 1, time
        changed = torch.where(here, words[:, None], tokens[:, None, None])
        masks = mask[:, None, None].expand(shape)
        scores = log_phi(field, changed.flatten(0, 2), masks.flatten(0, 2)).view(shape[:3])
        empty = scores.new_full((rows, time, field.vocab), float("-inf"))
        return empty.index_copy(2, words, scores).masked_fill(~mask[:, :, None], 0.0)

    return substituted


def gold_nll(
    log_probs: Float[Tensor, "rows time vocab"],
    tokens: Int[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
) -> Float[Tensor, " rows"]:
    """-sum_t log p(y_t | ...) over the real positions: a pseudo- or masked likelihood."""
    chosen = log_probs.gather(-1, tokens.where(mask, 0)[:, :, None])[:, :, 0]
    return -(chosen * mask).sum(-1)


def divergence(
    log_p: Float[Tensor, "rows time vocab"],
    log_q: Float[Tensor, "rows time vocab"],
    mask: Bool[Tensor, "rows time"],
) -> Float[Tensor, " rows"]:
    """sum_t KL(p_t || q_t) over the real positions (thesis, Sec. 6.2.2)."""
    return ((log_p.exp() * (log_p - log_q)).sum(-1) * mask).sum(-1)


# What estimators remember


class Memory(nn.Module):
    """Numbers that estimators of the gradient keep between updates: estimates of log Z, and chains.

    Set it on the model (`model.memory = Memory(...)`): then the optimizer trains `log_z`, and every
    checkpoint holds both. Chains start uniform, or from a noise; like weights, they are drawn from
    torch's own generator.

    Args:
        vocab: number of tokens.
        longest: largest length.
        chains: how many for each length.
        noise: what chains start from; None for uniform tokens.
    """

    def __init__(self, vocab: int, *, longest: int, chains: int = 0, noise: "Noise | None" = None):
        super().__init__()
        if min(vocab, longest, chains + 1) < 1:
            raise ValueError(
                f"vocab={vocab}, longest={longest}, chains={chains}: need a token, a position, and "
                f"no fewer than 0 chains"
            )
        lengths = torch.arange(longest + 1, dtype=torch.get_default_dtype())
        self.log_z = nn.Parameter(lengths * math.log(vocab))  # where E_raw = 0
        self.chains: Tensor
        self.register_buffer("chains", torch.randint(vocab, (longest + 1, chains, longest)))
        if noise is not None:
            for length in range(1, longest + 1):
                each = torch.full((chains,), length)
                self.chains[length, :, :length] = noise.sample(each, torch.default_generator)


def memory_of(model: nn.Module, *, longest: int, chains: int = 0) -> Memory:
    """The model's memory, if it is long and wide enough."""
    memory = getattr(model, "memory", None)
    if not isinstance(memory, Memory):
        raise ValueError(
            f"{type(model).__name__} has no memory; set model.memory = Memory(vocab, "
            f"longest={longest}, chains={chains}) before the optimizer is made"
        )
    if longest >= len(memory.log_z):
        limit = len(memory.log_z) - 1
        raise ValueError(f"a sequence of length {longest}: the model's memory has longest={limit}")
    if chains > memory.chains.shape[1]:
        raise ValueError(f"chains={chains}: the model's memory has {memory.chains.shape[1]}")
    return memory


# Noise-contrastive estimation (Gutmann and Hyvärinen 2010; Ma and Collins 2018; thesis, chapter 7)


@runtime_checkable
class Noise(Protocol):
    """A distribution over the sequences of each length that can be drawn from and evaluated."""

    def sample(
        self, lengths: Int[Tensor, " rows"], rng: Generator
    ) -> Int[Tensor, "rows time"]: ...  # one of each length, padded with anything
    def log_prob(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, " rows"]: ...


@dataclass(frozen=True)
class UnigramNoise:
    """Independent tokens with frequencies that depend on the length. A `Noise`."""

    probs: Float[Tensor, "lengths vocab"]  # row n belongs to length n, and sums to one

    @classmethod
    def fit(
        cls,
        tokens: Int[Tensor, "rows time"],
        mask: Bool[Tensor, "rows time"],
        *,
        vocab: int,
        smoothing: float = 1.0,
    ) -> "UnigramNoise":
        """Relative frequencies; `smoothing` is added to each count. Without data: uniform."""
        if not smoothing > 0:
            raise ValueError(f"smoothing={smoothing} must be above 0: noise reaches every sequence")
        counts = one_hot(tokens.where(mask, 0), vocab).double() * mask[:, :, None]
        by_length = counts.new_full((tokens.shape[1] + 1, vocab), smoothing)
        by_length.index_add_(0, mask.sum(1), counts.sum(1))
        return cls(by_length / by_length.sum(-1, keepdim=True))

    def sample(self, lengths: Int[Tensor, " rows"], rng: Generator) -> Int[Tensor, "rows time"]:
        time = max(1, int(lengths.max()))
        p = self.of(lengths.to(rng.device))
        return torch.multinomial(p, time, replacement=True, generator=rng).to(lengths.device)

    def log_prob(
        self, tokens: Int[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, " rows"]:
        log_p = self.of(mask.sum(1)).log().gather(1, tokens.where(mask, 0))
        return (log_p * mask).sum(-1)

    def of(self, lengths: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        if int(lengths.max()) >= len(self.probs):
            raise ValueError(
                f"length {int(lengths.max())}: the noise ends at {len(self.probs) - 1}"
            )
        return self.probs.to(lengths.device)[lengths]


def nce(
    data: Float[Tensor, " rows"], noise: Float[Tensor, "rows samples"], *, nu: float
) -> Float[Tensor, " rows"]:
    """-log P(D=1 | y) - nu mean_i log P(D=0 | y_i), each from log p(y) - log q(y).

    P(D=1 | y) = p(y) / (p(y) + nu q(y)). The minimum is at the data's distribution, which is
    normalized; as nu grows the gradient tends to that of the likelihood.
    """
    log_nu = math.log(nu)
    return -logsigmoid(data - log_nu) - nu * logsigmoid(log_nu - noise).mean(-1)
