"""Metropolis-Hastings over texts of different lengths: replace, insert and delete tokens.

A step draws a move and a place, and for a replacement or an insertion a token. Inserting a token at
place i and deleting the token at place i are the two directions of one move, and both probabilities
are computed from a single row of the model: the text with a mask at place i. So the kernel is
reversible for any energy that is defined for all these lengths.

The energy decides how likely each length is. A sum over tokens, such as `LocalEnergy`, favours
short texts; `LengthEnergy` is a term that states the offset of each length.
"""

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from softbeam.sampling.kernels import (
    Temperature,
    check_temperature,
    energy_of,
    log_acceptance,
    log_uniform,
    starting_with,
)
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.tensors import draw
from softbeam.types import ChainState, Energy, Kernel, StepInfo

REPLACE, INSERT, DELETE = range(3)
REVERSE = torch.tensor([REPLACE, DELETE, INSERT])


def length_metropolis_hastings(
    energy: Energy,
    propose: MaskedConditionals,
    *,
    lengths: tuple[int, int] | None = None,
    frame: tuple[int, int] = (0, 0),
    moves: tuple[float, float, float] = (1.0, 1.0, 1.0),
    temperature: Temperature = 1.0,
) -> Kernel:
    """Make a kernel that replaces, inserts or deletes a token; the target is exp(-E / temperature).

    Texts are padded on the right to the width of the longest. A step draws the place itself; of the
    positions that it gets, it only reads whether a chain has any. Among the moves that are possible
    at a length, each is drawn in proportion to its weight, then a place for it uniformly. Padding
    is never sampled, and a nucleus of the proposals is not read.

    Args:
        energy: the energy of the target; texts of all these lengths must have one.
        propose: the conditionals that new tokens are drawn from.
        lengths: the smallest and the largest number of tokens, without the frame; by default from 0
            to what the width holds.
        frame: the numbers of fixed tokens before and after the text, such as those of a tokenizer.
        moves: the weights of replacement, insertion and deletion.
        temperature: the temperature of the target.
    """
    check_temperature(temperature)
    if lengths is not None and not 0 <= lengths[0] <= lengths[1] >= 1:
        raise ValueError(f"lengths={lengths} must be from 0 to at least 1, smallest first")
    if min(moves) < 0 or sum(moves) <= 0 or (moves[INSERT] > 0) != (moves[DELETE] > 0):
        raise ValueError(f"moves={moves}: must be 0 or more, and insertion needs deletion")
    kernel = _LengthKernel(energy, propose, lengths, frame, moves, temperature)
    return Kernel(starting_with(energy), kernel.step)


def cgmh(energy: Energy, propose: MaskedConditionals) -> Kernel:
    """Make the kernel of CGMH with its published rule of acceptance (Miao et al. 2019): wrong.

    A word of the text is chosen uniformly, and replaced, deleted, or another is inserted before it.
    The rule has the probabilities of the moves and of the tokens, but not that of the choice of the
    word: 1 / n for an insertion into n words, 1 / (n + 1) for its reverse. Nor can a word that was
    deleted at the end come back there.
    """
    kernel = _PublishedCgmh(energy, propose, None, (0, 0), (1.0, 1.0, 1.0), 1.0)
    return Kernel(starting_with(energy), kernel.step)


class _LengthKernel:
    """The step of `length_metropolis_hastings`, and its settings."""

    def __init__(
        self,
        energy: Energy,
        propose: MaskedConditionals,
        lengths: tuple[int, int] | None,
        frame: tuple[int, int],
        moves: tuple[float, float, float],
        temperature: Temperature,
    ):
        self.energy, self.propose, self.lengths, self.frame = energy, propose, lengths, frame
        self.moves, self.temperature = torch.tensor(moves, dtype=torch.float64), temperature

    @torch.no_grad()
    def step(
        self, state: ChainState, positions: Tensor, rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """Draw a move, a place and a token; accept or refuse the new text."""
        tokens, pad = state.tokens, self.propose.mlm.pad_id
        n, room = (tokens != pad).sum(-1) - sum(self.frame), tokens.shape[1] - sum(self.frame)
        usable = torch.arange(room + 1) < self.places(n)[:, :, None]  # chain, move, place
        cell = draw((usable * self.log_choices(n, room).exp()[:, :, None]).flatten(1), rng)
        move, at = cell // (room + 1), self.frame[0] + cell % (room + 1)
        inserts, deletes = move == INSERT, move == DELETE
        site = one_hot(at[:, 0], tokens.shape[1]).bool()
        gap = torch.where(inserts, opened(tokens, at, pad), tokens)
        log_p = self.propose.log_probs(gap, site).double().to(tokens.device)
        token, old = draw(log_p.exp(), rng), tokens.gather(1, at)
        new = torch.where(deletes, closed(tokens, at, pad), gap.masked_scatter(site, token))
        after = n + inserts[:, 0].long() - deletes[:, 0].long()
        forward = self.accounted(n, room).gather(1, move) + log_p.gather(1, token) * ~deletes
        reverse = self.accounted(after, room).gather(1, REVERSE[move])
        reverse = (reverse + torch.where(inserts, 0.0, log_p.gather(1, old)))[:, 0]
        repeated = (new == tokens).all(-1) | ~positions.any(-1)
        novel = (~repeated).nonzero()[:, 0]
        scored = energy_of(self.energy, new[novel], novel, like=state.energy)
        energy = state.energy.index_copy(0, novel, scored)
        log_a = log_acceptance(
            state.energy / self.temperature, energy / self.temperature, forward[:, 0], reverse
        ).masked_fill(repeated, 0.0)
        accepted = log_uniform(log_a, rng) < log_a
        moved = accepted & ~repeated
        return (
            ChainState(
                torch.where(moved[:, None], new, tokens), torch.where(moved, energy, state.energy)
            ),
            StepInfo(log_a, accepted, moved, repeated, reverse.isneginf()),
        )

    def places(self, n: Int[Tensor, " chain"]) -> Int[Tensor, "chain moves"]:
        """The number of places of each move in a text of n tokens."""
        return torch.stack([n, n + 1, n], -1)

    def log_choices(self, n: Int[Tensor, " chain"], room: int) -> Float[Tensor, "chain moves"]:
        """log of the probability of a move at one of its places, -inf if it is impossible."""
        low, high = self.lengths or (0, room)
        possible = torch.stack([n > 0, n < min(high, room), n > low], -1)
        weight = self.moves.where(possible, 0.0)
        share = weight / weight.sum(-1, keepdim=True).clamp_min(1e-300)
        return (share / self.places(n).clamp_min(1)).log()

    def accounted(self, n: Int[Tensor, " chain"], room: int) -> Float[Tensor, "chain moves"]:
        """log of what the rule of acceptance takes for the probabilities of `log_choices`."""
        return self.log_choices(n, room)


class _PublishedCgmh(_LengthKernel):
    """The step of `cgmh`."""

    def places(self, n: Int[Tensor, " chain"]) -> Int[Tensor, "chain moves"]:
        """The words of the text; an empty one has a place for an insertion."""
        return torch.stack([n, n.clamp_min(1), n], -1)

    def accounted(self, n: Int[Tensor, " chain"], room: int) -> Float[Tensor, "chain moves"]:
        """The weights of the moves alone, without the choice of the word."""
        return self.moves.log().expand(len(n), -1)


def opened(
    tokens: Int[Tensor, "chain time"], at: Int[Tensor, "chain 1"], pad_id: int
) -> Int[Tensor, "chain time"]:
    """Move the tokens from `at` on to the right by one; padding is left in the gap."""
    place = torch.arange(tokens.shape[1])
    shifted = tokens.gather(1, (place - (place > at).long()).clamp_min(0))
    return shifted.scatter(1, at, pad_id)


def closed(
    tokens: Int[Tensor, "chain time"], at: Int[Tensor, "chain 1"], pad_id: int
) -> Int[Tensor, "chain time"]:
    """Leave out the token at `at`, and move those after it to the left."""
    place = torch.arange(tokens.shape[1])
    longer = torch.cat([tokens, torch.full_like(at, pad_id)], 1)
    return longer.gather(1, place + (place >= at).long())
