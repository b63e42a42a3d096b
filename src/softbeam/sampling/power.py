"""Sample p^alpha of a causal language model, or its product with an energy ("power sampling").

A low temperature sharpens each token given those before it. p^alpha sharpens whole texts: a token
whose continuations are many and unlikely loses against one with a single good continuation (Karan
and Du 2025). Sampling it takes Metropolis-Hastings: a step cuts a text at some position, resamples
everything after it token by token, and accepts or refuses the new text.

The model reads every text once. What it computed for the present text is kept: a proposal begins to
cost when its first token differs, and what stands before that is never read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.kernels import checked, energy_of, log_acceptance, log_uniform
from softbeam.tensors import draw
from softbeam.types import ChainState, Energy, Kernel, StepInfo

Past = Any  # what a model keeps of the tokens that it has read


class CausalLM(Protocol):
    """A left-to-right language model that reads one text, and can go back to a prefix of it."""

    def start(self) -> tuple[Float[Tensor, " vocab"], Past]: ...  # before the first token
    def step(
        self, past: Past, tokens: Sequence[int]
    ) -> tuple[Float[Tensor, "new vocab"], Past]: ...  # the logits after each of the new tokens
    def cut(self, past: Past, length: int) -> Past: ...  # after the first `length` tokens


class CountedCausal:
    """A causal language model that counts the tokens that it reads."""

    def __init__(self, lm: CausalLM, *, prompt: int = 0):
        self.lm, self.prompt, self.tokens = lm, prompt, 0

    def start(self) -> tuple[Tensor, Past]:
        self.tokens += self.prompt
        return self.lm.start()

    def step(self, past: Past, tokens: Sequence[int]) -> tuple[Tensor, Past]:
        self.tokens += len(tokens)
        return self.lm.step(past, tokens)

    def cut(self, past: Past, length: int) -> Past:
        return self.lm.cut(past, length)


class Read(NamedTuple):
    """A text that the model has read but for its last token."""

    tokens: list[int]
    logits: list[Float[Tensor, " vocab"]]  # before each token
    past: Past


def power_metropolis_hastings(
    lm: CausalLM,
    *,
    alpha: float,
    energy: Energy | None = None,
    proposal_alpha: float | None = None,
    eos: int | None = None,
    reuse: bool = True,
) -> Kernel:
    """Make a kernel for the target p(y)^alpha exp(-E(y)) over texts of a fixed number of tokens.

    A step resamples each text from the first of its positions to the end. For a fixed position the
    kernel is reversible. After `eos` only `eos` may follow, with probability 1.

    Args:
        lm: the language model, with its prompt.
        alpha: the power of the model's probability.
        energy: another energy of texts; by default 0.
        proposal_alpha: the inverse temperature of each proposed token; by default `alpha`.
        eos: the token that ends a text.
        reuse: keep what the model has read. Without it every proposal reads the prompt and the
            whole text again; the chain is the same.
    """
    if not alpha > 0:
        raise ValueError(f"alpha={alpha} must be above 0")
    kernel = _PowerKernel(lm, alpha, energy, proposal_alpha or alpha, eos, reuse)
    return Kernel(kernel.init, kernel.step)


@dataclass
class _PowerKernel:
    """The two functions of `power_metropolis_hastings`, and what they share."""

    lm: CausalLM
    alpha: float
    energy: Energy | None
    proposal_alpha: float
    eos: int | None
    reuse: bool

    def __post_init__(self) -> None:
        self.kept: list[Read] = []

    @torch.no_grad()
    def init(self, tokens: Int[Tensor, "chain time"]) -> ChainState:
        """Read the texts."""
        self.kept = [self.read(row) for row in tokens.tolist()]
        return ChainState(tokens, self.energies(tokens, self.kept))

    @torch.no_grad()
    def step(
        self, state: ChainState, positions: Bool[Tensor, "chain time"], rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """Resample the texts from their first positions on; accept or refuse the new ones."""
        rows = state.tokens.tolist()
        if [text.tokens for text in self.kept] != rows:
            self.kept = [self.read(row) for row in rows]
        time = state.tokens.shape[1]
        first = torch.where(positions.any(-1), positions.long().argmax(-1), time).tolist()
        new = self.proposed(first, rng)
        tokens = torch.tensor([text.tokens for text in new]).reshape(state.tokens.shape)
        forward, reverse = (
            torch.stack([self.log_q(text, start) for text, start in zip(texts, first, strict=True)])
            for texts in (new, self.kept)
        )
        repeated = (tokens == state.tokens).all(-1)
        energy = torch.where(repeated, state.energy, self.energies(tokens, new))
        log_a = log_acceptance(state.energy, energy, forward, reverse).masked_fill(repeated, 0.0)
        accepted = log_uniform(log_a, rng) < log_a
        moved = accepted & ~repeated
        choices = zip(new, self.kept, moved.tolist(), strict=True)
        self.kept = [text if move else old for text, old, move in choices]
        info = StepInfo(log_a, accepted, moved, repeated, reverse.isneginf())
        return (
            ChainState(
                torch.where(moved[:, None], tokens, state.tokens),
                torch.where(moved, energy, state.energy),
            ),
            info,
        )

    def read(self, tokens: list[int]) -> Read:
        """Read a text from the beginning."""
        logits, past = self.lm.start()
        end = tokens.index(self.eos) if self.eos in tokens else len(tokens) - 1
        more, past = self.lm.step(past, tokens[:end]) if end else (logits[None, :][:0], past)
        after = [self.ended(logits) for _ in range(len(tokens) - 1 - end)]
        return Read(tokens, [logits, *more, *after], past)

    def proposed(self, first: list[int], rng: Generator) -> list[Read]:
        """Draw the rest of each text; a text reads the model only after its first new token."""
        drafts = [Draft(self, text, start) for text, start in zip(self.kept, first, strict=True)]
        for site in range(min(first), len(self.kept[0].tokens)):
            p = torch.stack([draft.probabilities(site) for draft in drafts])
            for draft, token in zip(drafts, draw(p, rng)[:, 0].tolist(), strict=True):
                draft.put(site, token)
        return [Read(draft.tokens, draft.logits, draft.past) for draft in drafts]

    def ended(self, like: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        """The logits after the end of a text: only `eos` is possible."""
        assert self.eos is not None
        return torch.full_like(like, -torch.inf).index_fill(0, torch.tensor([self.eos]), 0.0)

    def log_p(self, text: Read, *, alpha: float = 1.0, start: int = 0) -> Float[Tensor, ""]:
        """log of the probability of the tokens from `start` on, each at an inverse temperature."""
        if start >= len(text.tokens):
            return torch.zeros((), dtype=torch.float64)
        logits = alpha * torch.stack(text.logits[start:]).double().cpu()
        place = torch.tensor(text.tokens[start:])[:, None]
        return logits.log_softmax(-1).gather(1, place).sum()

    def log_q(self, text: Read, start: int) -> Float[Tensor, ""]:
        """log of the probability of proposing a text's tokens from `start` on."""
        return self.log_p(text, alpha=self.proposal_alpha, start=start)

    def energies(
        self, tokens: Int[Tensor, "chain time"], texts: Sequence[Read]
    ) -> Float[Tensor, " chain"]:
        """The energies of the target."""
        own = -self.alpha * torch.stack([self.log_p(text) for text in texts])
        if self.energy is None:
            return checked(own)
        every = torch.arange(len(tokens))
        return checked(own + energy_of(self.energy, tokens, every, like=own))


class Draft:
    """A proposal that grows token by token from a text that the model has read."""

    def __init__(self, kernel: _PowerKernel, text: Read, first: int):
        self.kernel, self.first = kernel, first
        self.tokens, self.logits, self.past = [*text.tokens], [*text.logits], text.past
        self.differs = False
        if not kernel.reuse and first < len(text.tokens):
            self.differs = True
            before, past = kernel.lm.start()
            known = text.tokens[:first]
            if kernel.eos in known:
                return
            more, self.past = kernel.lm.step(past, known) if known else (before[None], past)
            self.logits[first] = more[-1]

    def probabilities(self, site: int) -> Float[Tensor, " vocab"]:
        """The distribution of the next token; before the first position it is what it was."""
        logits = self.logits[site].double().cpu()
        if site < self.first:
            return torch.zeros_like(logits).index_fill(0, torch.tensor([self.tokens[site]]), 1.0)
        return (self.kernel.proposal_alpha * logits).softmax(-1)

    def put(self, site: int, token: int) -> None:
        """Add a token, and read it if it is new."""
        if site < self.first:
            return
        if not self.differs and token != self.tokens[site]:
            self.differs, self.past = True, self.kernel.lm.cut(self.past, site)
        self.tokens[site] = token
        if not self.differs or site + 1 == len(self.tokens):
            return
        if token == self.kernel.eos:
            self.logits[site + 1] = self.kernel.ended(self.logits[site])
        else:
            more, self.past = self.kernel.lm.step(self.past, [token])
            self.logits[site + 1] = more[0]


def sharpened(
    lm: CausalLM, time: int, rng: Generator, *, alpha: float, eos: int | None = None
) -> list[int]:
    """Draw a text token by token at the temperature 1 / alpha, which is not a sample of p^alpha."""
    logits, past = lm.start()
    tokens: list[int] = []
    while len(tokens) < time:
        token = int(draw((alpha * logits.double().cpu()).softmax(-1)[None], rng))
        tokens.append(token)
        if token == eos:
            return tokens + [token] * (time - len(tokens))
        if len(tokens) < time:
            more, past = lm.step(past, [token])
            logits = more[0]
    return tokens
