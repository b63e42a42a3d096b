"""Generate data from known distributions: label-bias tasks, palindromes, hidden Markov models.

The same seed gives the same data on every platform and version, because numpy has frozen
`RandomState`. This module does not need torch.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softbeam.data.readers import Example

Joint = Mapping[Example, float]  # a distribution over pairs; its values sum to one
Pair = tuple[Example, float]
Tokens = tuple[int, ...]

CUE_LABEL = "o"  # what every cue of `future_decides` is labelled
RIB_ROB = {"rib": ("1", "2", "3"), "rob": ("4", "5", "3")}


# Label bias


def future_decides(
    *, labels: int = 3, words: int = 2, run: int = 2, runs: int = 2, noise: float = 0.0
) -> Joint:
    """Return a task in which a cue after each run of words decides the labels of the run.

    "w1 w0 C" is labelled "c c o". Words and cues are independent and uniform, so that before its
    cue a run's labellings "a a", "b b", "c c" are equally likely; the cue's own label is always
    "o". A locally normalized model with a unidirectional encoder therefore cannot use the cue
    (thesis, Sec. 5.1.1), while a globally normalized one can score "o" low after a wrong run.

    Args:
        labels: number of cues, and of labels other than "o".
        words: number of different words.
        run: words before each cue.
        runs: number of runs in a sentence.
        noise: share of runs labelled against their cue. If positive, "o" is certain after every
            pair of run and cue, so that the best local model gains nothing from exact search.
    """
    if not 0 <= noise < 1 - 1 / labels or min(labels - 1, words, run, runs) < 1:
        raise ValueError(
            f"labels={labels}, words={words}, run={run}, runs={runs}, noise={noise}: need two "
            f"labels, one of the others, and 0 <= noise < 1 - 1 / labels"
        )
    single: dict[Example, float] = {}  # of one run
    for heard in itertools.product([f"w{i}" for i in range(words)], repeat=run):
        for cue, label in itertools.product(letters(labels), repeat=2):
            p = 1 - noise if cue == label else noise / (labels - 1)
            if p > 0:
                pair = Example((*heard, cue.upper()), (*[label] * run, CUE_LABEL))
                single[pair] = p / (labels * words**run)
    return repeated(single, runs)


def letters(n: int) -> list[str]:
    """Return n label names that differ from the cue's label."""
    return [name for name in map(chr, range(ord("a"), ord("a") + n + 15)) if name != CUE_LABEL][:n]


def repeated(single: Joint, runs: int) -> Joint:
    """Return the distribution of `runs` independent draws, concatenated."""
    joint: dict[Example, float] = {Example((), ()): 1.0}
    for _ in range(runs):
        joint = {
            Example(a.source + b.source, a.target + b.target): p * q
            for a, p in joint.items()
            for b, q in single.items()
        }
    return joint


def rib_rob(*, keep: float = 29 / 32) -> Joint:
    """Return the task of the words "rib" and "rob" with noise, labelled 1 2 3 and 4 5 3.

    Lafferty, McCallum and Pereira (2001), Sec. 5.1: each state emits its own letter with
    probability 29/32 and each of the other three with 1/32. The first label must be chosen before
    the vowel is seen.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep={keep} must be in (0, 1]")
    joint = {}
    for word, target in RIB_ROB.items():
        for source in itertools.product("riob", repeat=3):
            same = sum(a == b for a, b in zip(word, source, strict=True))
            if p := keep**same * ((1 - keep) / 3) ** (3 - same) / 2:
                joint[Example(source, target)] = p
    return joint


def draw(joint: Joint, n: int, *, seed: int) -> list[Example]:
    """Draw n independent examples."""
    examples = list(joint)
    rng = np.random.RandomState(seed)
    chosen = rng.choice(len(examples), n, p=normalized(list(joint.values())))
    return [examples[i] for i in chosen]


def whole_input_bound(joint: Joint) -> float:
    """Return the largest possible share of sentences without error, given the whole input."""
    best: dict[tuple[str, ...], float] = defaultdict(float)
    for example, p in joint.items():
        best[example.source] = max(best[example.source], p)
    return sum(best.values())


def online_bound(joint: Joint) -> float:
    """Return the largest possible share of sentences without error if y_t may use x_1 ... x_t only.

    It is computed exactly, by backward induction: 1 / labels**runs for `future_decides`, one half
    for `rib_rob`. No greedy decoder with a unidirectional encoder and fixed attention does better.
    Neither does a wider search with the limit of cross-entropy training, if the labels after the
    cue are certain. Local models trained in other ways can do better: if a model is uncertain
    after a wrong run, search helps.
    """
    return online_value(list(joint.items()), 0)


def online_value(pairs: list[Pair], t: int) -> float:
    """Return the best share from position t on, for pairs that agree in x_<t and y_<t."""
    total = 0.0
    for group in grouped(pairs, lambda e: e.source[t : t + 1]).values():
        if t >= len(group[0][0].source):
            total += sum(p for _, p in group)
        else:
            choices = grouped(group, lambda e: e.target[t : t + 1])
            total += max(online_value(choice, t + 1) for choice in choices.values())
    return total


def grouped(pairs: list[Pair], key: Callable[[Example], Hashable]) -> dict[Hashable, list[Pair]]:
    """Group the pairs by the key of their example."""
    groups: dict[Hashable, list[Pair]] = defaultdict(list)
    for example, p in pairs:
        groups[key(example)].append((example, p))
    return groups


# Unconditional sequences


@dataclass(frozen=True, kw_only=True)
class Palindromes:
    """A palindrome with probability p, uniform within each of the two sets (thesis, Sec. 6.2.3).

    The entropy is 5.964 nats for the thesis's settings; its Table 6.1 has 5.32 (resolutions D5).
    """

    vocab: int = 5
    time: int = 5
    p: float = 0.8

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of palindromes and of other sequences, by default 125 and 3,000."""
        palindromes = self.vocab ** ((self.time + 1) // 2)
        return palindromes, self.vocab**self.time - palindromes

    @property
    def entropy(self) -> float:
        """H(p) + p log(palindromes) + (1 - p) log(others), in nats."""
        parts = zip((self.p, 1 - self.p), self.counts, strict=True)
        return sum(q * (math.log(n) - math.log(q)) for q, n in parts if q > 0)

    def log_prob(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Return log p of each row."""
        rows = np.asarray(tokens)
        same = (rows == rows[:, ::-1]).all(-1)
        with np.errstate(divide="ignore"):
            yes, no = np.log([self.p, 1 - self.p]) - np.log(self.counts)
        return np.where(same, yes, no)

    def sample(self, n: int, *, seed: int) -> list[Tokens]:
        """Draw n independent sequences."""
        rng = np.random.RandomState(seed)
        return [self.draw(rng, rng.random_sample() < self.p) for _ in range(n)]

    def draw(self, rng: np.random.RandomState, palindrome: bool) -> Tokens:
        """Draw a palindrome, or a sequence that is none."""
        while True:
            row = rng.randint(self.vocab, size=self.time)
            if palindrome:
                row[self.time - self.time // 2 :] = row[: self.time // 2][::-1]
            if palindrome or (row != row[::-1]).any():
                return tuple(row.tolist())


@dataclass(frozen=True, kw_only=True)
class HiddenMarkov:
    """A hidden Markov model over symbols 0 ... symbols - 1, for sequences of any length."""

    start: NDArray[np.float64]  # states
    transition: NDArray[np.float64]  # states, states: rows sum to one
    emission: NDArray[np.float64]  # states, symbols: rows sum to one

    @classmethod
    def dirichlet(
        cls, *, states: int = 4, symbols: int = 5, moving: float, emitting: float, seed: int
    ) -> "HiddenMarkov":
        """Draw parameters with the given concentrations; small ones give low entropy."""
        rng = np.random.RandomState(seed)
        return cls(
            start=rng.dirichlet([moving] * states),
            transition=rng.dirichlet([moving] * states, size=states),
            emission=rng.dirichlet([emitting] * symbols, size=states),
        )

    def log_prob(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Return log p of each row, by the forward algorithm with rescaling at every step."""
        rows = np.asarray(tokens)
        alpha, total = np.tile(self.start, (len(rows), 1)), np.zeros(len(rows))
        for t in range(rows.shape[1]):
            alpha = (alpha @ self.transition if t else alpha) * self.emission[:, rows[:, t]].T
            scale = alpha.sum(1, keepdims=True)
            with np.errstate(divide="ignore"):
                total += np.log(scale[:, 0])
            alpha = alpha / np.where(scale > 0, scale, 1.0)
        return total

    def sample(self, n: int, *, time: int, seed: int) -> list[Tokens]:
        """Draw n independent sequences of length `time`."""
        rng = np.random.RandomState(seed)
        tokens = np.zeros((n, time), dtype=np.int64)
        state = chosen(np.tile(self.start, (n, 1)), rng)
        for t in range(time):
            tokens[:, t] = chosen(self.emission[state], rng)
            state = chosen(self.transition[state], rng)
        return [tuple(row) for row in tokens.tolist()]


def chosen(p: NDArray[np.float64], rng: np.random.RandomState) -> NDArray[np.int64]:
    """Draw an index for each row of probabilities."""
    below = rng.random_sample(len(p))[:, None] >= p.cumsum(1)
    return np.minimum(below.sum(1), p.shape[1] - 1)


def normalized(weights: Sequence[float]) -> NDArray[np.float64]:
    """Scale weights to sum to one."""
    values = np.asarray(weights, dtype=np.float64)
    return values / values.sum()


def low_entropy_hmm() -> HiddenMarkov:
    """Return a model of 4 states and 5 symbols with 4.997 nats at length 5 (resolutions D5)."""
    return HiddenMarkov.dirichlet(moving=0.2, emitting=0.3, seed=36)


def high_entropy_hmm() -> HiddenMarkov:
    """Return a model of 4 states and 5 symbols with 6.398 nats at length 5 (resolutions D5)."""
    return HiddenMarkov.dirichlet(moving=0.5, emitting=0.5, seed=55)
