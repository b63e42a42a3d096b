"""Enumeration of small spaces: log Z, marginals, entropy, the best, true conditionals.

This is the oracle for search, relaxation and sampling, with which it shares no code. A scorer is
any function from a chunk of sequences to their log-potentials, `rows time -> *batch rows`; leading
axes (several sources at once) pass through. Sums are kept in logs and in float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softbeam.tensors import map_state
from softbeam.types import Decoder, State

Score = Callable[[Tensor], Tensor]  # rows time -> *batch rows

CHUNK = 2**14


@dataclass(frozen=True, kw_only=True)
class Space:
    """Every sequence of `time` tokens; with `eos`, every one that ends there or at `time`.

    Args:
        vocab: number of tokens.
        time: length, with `eos` the largest.
        eos: end mark; what follows it is padded with 0.
        forbidden: tokens that occur in no sequence (specials).
        chunk: largest number of sequences held at once.
    """

    vocab: int
    time: int
    eos: int | None = None
    forbidden: tuple[int, ...] = ()
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if min(self.vocab, self.time, self.chunk) < 1:
            raise ValueError(f"{self}: vocab, time and chunk must be at least 1")
        if self.eos is not None and not 0 <= self.eos < self.vocab:
            raise ValueError(f"eos={self.eos} is not one of the {self.vocab} tokens")

    @property
    def symbols(self) -> list[int]:
        """The tokens that may stand before the end."""
        return [v for v in range(self.vocab) if v != self.eos and v not in self.forbidden]

    @property
    def size(self) -> int:
        """The number of sequences."""
        n = len(self.symbols)
        ended = sum(n**t for t in range(self.time)) if self.eos is not None else 0
        return ended + n**self.time

    def __iter__(self) -> Iterator[Int[Tensor, "rows time"]]:
        """The sequences in chunks: shorter ones first, then in the order of their tokens."""
        if self.eos is not None:
            for length in range(self.time):
                for head in words(self.symbols, length, self.chunk):
                    tokens = head.new_zeros(head.shape[0], self.time)
                    tokens[:, :length] = head
                    tokens[:, length] = self.eos
                    yield tokens
        yield from words(self.symbols, self.time, self.chunk)


def words(symbols: list[int], length: int, chunk: int) -> Iterator[Int[Tensor, "rows length"]]:
    """All words of a length over the symbols, counted in base len(symbols)."""
    base = len(symbols)
    powers = torch.tensor([base**i for i in reversed(range(length))], dtype=torch.long)
    for first in range(0, base**length, chunk):
        number = torch.arange(first, min(first + chunk, base**length))
        yield torch.tensor(symbols, dtype=torch.long)[number[:, None] // powers % max(base, 1)]


def real(tokens: Int[Tensor, "rows time"], eos: int | None = None) -> Bool[Tensor, "rows time"]:
    """True up to and with the first `eos`; everywhere without one."""
    if eos is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    ended = (tokens == eos).cumsum(1)
    return ended - (tokens == eos).long() == 0


def log_partition(score: Score, space: Space) -> Float[Tensor, "*batch"]:
    """log Z = log sum_y exp s(y) (thesis, Sec. 2.4), in one pass.

    Differentiable: its gradient is the model's expectation of the gradient of s. Where the space
    takes several chunks, each is scored again in the backward pass, so that memory stays bounded.
    """
    parts = [rescored(score, tokens, space).logsumexp(-1) for tokens in space]
    return torch.stack(parts).logsumexp(0)


def rescored(score: Score, tokens: Tensor, space: Space) -> Tensor:
    """A chunk's scores; with several chunks, what the backward pass needs is not kept."""
    if torch.is_grad_enabled() and space.size > space.chunk:
        return checkpoint(score, tokens, use_reentrant=False).double()
    return score(tokens).double()


@torch.no_grad()
def distribution(
    score: Score, space: Space
) -> Iterator[tuple[Int[Tensor, "rows time"], Float[Tensor, "*batch rows"]]]:
    """Yield chunks of sequences with their log-probabilities s(y) - log Z, in a second pass."""
    log_z = log_partition(score, space)
    for tokens in space:
        yield tokens, score(tokens).double() - log_z[..., None]


def marginals(score: Score, space: Space) -> Float[Tensor, "*batch time vocab"]:
    """p(y_t = v). Each row sums to one; with `eos`, to the probability of being that long."""
    total = torch.zeros(())
    for tokens, log_p in distribution(score, space):
        counts = torch.nn.functional.one_hot(tokens, space.vocab).double()
        counts = counts * real(tokens, space.eos)[:, :, None]
        total = total + torch.einsum("...r,rtv->...tv", log_p.exp(), counts)
    return total


def entropy(score: Score, space: Space) -> Float[Tensor, "*batch"]:
    """-sum_y p(y) log p(y), in nats; a sequence without probability adds nothing."""
    total = torch.zeros(())
    for _, log_p in distribution(score, space):
        total = total + torch.special.entr(log_p.exp()).sum(-1)
    return total


def total_variation(score_a: Score, score_b: Score, space: Space) -> Float[Tensor, "*batch"]:
    """Half the sum of |p_a(y) - p_b(y)|: 0 for equal distributions, 1 for disjoint ones."""
    total = torch.zeros(())
    pairs = zip(distribution(score_a, space), distribution(score_b, space), strict=True)
    for (_, log_a), (_, log_b) in pairs:
        total = total + (log_a.exp() - log_b.exp()).abs().sum(-1) / 2
    return total


@torch.no_grad()
def best(
    score: Score, space: Space, n: int = 1
) -> tuple[Int[Tensor, "*batch n time"], Float[Tensor, "*batch n"]]:
    """The n sequences of highest score and their scores; equal ones in the order of the space."""
    if not 1 <= n <= space.size:
        raise ValueError(f"n={n} must be between 1 and the {space.size} sequences of the space")
    kept: tuple[Tensor, Tensor] | None = None
    for tokens in space:
        scores = score(tokens).double()
        rows = tokens.expand(*scores.shape, -1)
        if kept is not None:
            rows, scores = torch.cat([kept[0], rows], -2), torch.cat([kept[1], scores], -1)
        scores, order = scores.sort(dim=-1, descending=True, stable=True)
        order = order[..., :n, None].expand(*order.shape[:-1], -1, space.time)
        kept = rows.gather(-2, order), scores[..., :n]
    assert kept is not None
    return kept


@torch.no_grad()
def conditionals(
    score: Score, tokens: Int[Tensor, "rows time"], space: Space
) -> Float[Tensor, "rows time vocab"]:
    """log p(y_t = v | all other tokens) by scoring every substitution (thesis, Sec. 6.2).

    For sequences of one length. A forbidden token has log-probability -inf.
    """
    if space.eos is not None:
        raise ValueError(f"conditionals need sequences of one length, without eos={space.eos}")
    rows, time = tokens.shape
    substituted = tokens[:, None, None].repeat(1, time, space.vocab, 1)
    for t in range(time):
        substituted[:, t, :, t] = torch.arange(space.vocab)
    parts = substituted.flatten(0, 2).split(space.chunk)
    scores = torch.cat([score(part).double() for part in parts]).view(rows, time, space.vocab)
    scores[..., list(space.forbidden)] = float("-inf")
    return scores.log_softmax(-1)


def sequence_scores(
    decoder: Decoder, tokens: Int[Tensor, "rows time"], *, eos: int | None = None
) -> Float[Tensor, "batch rows"]:
    """Total scores of whole sequences under each source, teacher forced; none after `eos`.

    Scores are the decoder's: wrap it in `LocallyNormalized` for log-probabilities.
    """
    state, emb = decoder.start()
    batch, rows = emb.shape[0], tokens.shape[0]
    state = map_state(lambda tensor: tensor.repeat_interleave(rows, 0), state)
    emb, counted = emb.repeat_interleave(rows, 0), real(tokens, eos)
    total = emb.new_zeros(batch, rows)
    for t in range(tokens.shape[1]):
        scores, state = decoder.step(state, emb)
        column = tokens[:, t].repeat(batch)
        chosen = scores.gather(1, column[:, None]).view(batch, rows)
        total = total + torch.where(counted[:, t], chosen, 0.0)
        emb = decoder.embedding[column]
    return total


def scorer(decoder: Decoder, *, eos: int | None = None) -> Score:
    """A decoder as a scorer of whole sequences: rows time -> batch rows."""
    return lambda tokens: sequence_scores(decoder, tokens, eos=eos)


def localize(
    decoder: Decoder, *, time: int, eos: int | None = None, forbidden: tuple[int, ...] = ()
) -> "Localized":
    """The autoregressive model equal to a globally normalized one (thesis, Sec. 2.5).

    Its steps are log p(y_t | y_<t), by summing over all completions up to `time`. They sum to one,
    and their totals are s(y) - log Z of `decoder` over the whole space.
    """
    vocab = decoder.embedding.shape[0]
    space = Space(vocab=vocab, time=time, eos=eos, forbidden=forbidden)
    return Localized(prefix_masses(scorer(decoder, eos=eos), space), vocab)


@torch.no_grad()
def prefix_masses(score: Score, space: Space) -> list[Float[Tensor, "batch prefixes"]]:
    """For t = 0 ... time: log sum_{y_>t} exp s(y) of each prefix y_<=t, read in base vocab."""
    powers = torch.tensor([space.vocab**i for i in reversed(range(space.time))])
    pairs = [((tokens * powers).sum(1), score(tokens).double()) for tokens in space]
    batch = pairs[0][1].shape[0]
    mass = torch.full((batch, space.vocab**space.time), float("-inf"), dtype=torch.float64)
    for code, scores in pairs:
        mass[:, code] = scores
    masses = [mass]
    for _ in range(space.time):
        masses.append(masses[-1].unflatten(-1, (-1, space.vocab)).logsumexp(-1))
    return masses[::-1]


class Localized:
    """A `Decoder` that looks its steps up in a table; see `localize`. For hard search only.

    Its embedding is the identity, so that a token can be read from what is fed. A row's state is
    its prefix, as a number in base vocab. After `eos` all mass is on padding; after a prefix of
    probability zero the step is uniform.
    """

    def __init__(self, masses: list[Float[Tensor, "batch _"]], vocab: int):
        self.masses = masses
        self.vocab = vocab

    @property
    def embedding(self) -> Float[Tensor, "vocab vocab"]:
        return torch.eye(self.vocab, dtype=torch.float64)

    def start(self) -> tuple[State, Float[Tensor, "batch emb"]]:
        batch = self.masses[0].shape[0]
        code = torch.zeros(batch, dtype=torch.long)
        return (code, 0), torch.zeros(batch, self.vocab, dtype=torch.float64)

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        code, t = state
        if t + 1 >= len(self.masses):
            raise ValueError(f"step {t + 1}: localized for {len(self.masses) - 1} steps")
        if t > 0:
            code = code * self.vocab + emb.argmax(-1)
        beam = code.shape[0] // self.masses[0].shape[0]
        source = torch.arange(code.shape[0]) // beam
        following = self.masses[t + 1].unflatten(-1, (-1, self.vocab))[source, code]
        log_p = following - self.masses[t][source, code][:, None]
        return torch.where(log_p.isnan(), 0.0, log_p).log_softmax(-1), (code, t + 1)
