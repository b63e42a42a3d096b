"""Certificates that a kernel samples what it says: of ours, and of anyone's.

On a space small enough to list, `certify` builds the whole transition matrix of a kernel out of
the very code that runs: it answers the kernel's random draws itself, tries every answer, and adds
up their probabilities. A kernel that draws in ways it cannot answer is judged by large samples.

    mlm = TinyMLM()
    energy = LocalEnergy(mlm)
    kernel = metropolis_hastings(energy, MaskedConditionals(mlm))
    certify(kernel, energy, every_text(mlm, time=3))
"""

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, Literal, NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from softbeam.sampling.chains import partition, sweep_once
from softbeam.types import ChainState, Energy, Kernel, StepInfo

EXACT = 1e-7  # largest error of a probability
CHANCE = 1e-5  # smallest p-value
FINEST = 2.0**-46  # to which a probability of acceptance is searched
MOST = 10**6  # rows of one enumeration


class Certificate(NamedTuple):
    """One claim about a kernel, and whether it holds."""

    name: str
    holds: bool
    value: float
    limit: float
    detail: str


class NotEnumerable(Exception):
    """A kernel draws its random numbers in a way that cannot be enumerated."""


def certify(
    kernel: Kernel,
    energy: Energy,
    states: Int[Tensor, "state time"],
    *,
    block: int = 1,
    method: Literal["auto", "exact", "sampled"] = "auto",
    samples: int = 20_000,
    chains: int = 2000,
    patience: int = 50,
    seed: int = 0,
) -> list[Certificate]:
    """Whether a kernel leaves exp(-energy) invariant on a listed space, and reaches all of it.

    - closed: it stays within `states`, and changes nothing but the given positions;
    - bookkeeping: flags, reported acceptance and carried energy are those of what it does;
    - reversible, at each set of positions: pi(y) P(y, y') = pi(y') P(y', y);
    - invariant, over a sweep: pi P = pi;
    - irreducible: sweeps lead from every text to every other;
    - long run: the histogram of real chains from anywhere fits pi (chi-square).

    Exactly, values are errors of probabilities. By samples, which start from exact draws of pi,
    they are p-values of chi-square tests (reversibility is Bowker's test of symmetry), and what was
    seen to be reached counts as reachable.

    Args:
        kernel: the kernel to judge. It is run on many rows, so nothing in it may be bound to a
            number of chains.
        energy: of its target, computed apart from the kernel.
        states: all texts of the space; positions where they agree are frozen.
        block: largest number of positions that the kernel is given together.
        method: how; auto is exact where the kernel's draws can be enumerated.
        samples: size of each sample.
        chains: number of chains of the long run, which is as long as the kernel mixes slowly.
        patience: most sweeps that the long run waits for a start to be forgotten.
        seed: of all samples.
    """
    if method not in ("auto", "exact", "sampled"):
        raise ValueError(f"method={method!r}; there are auto, exact and sampled")
    case = Case(kernel, states)
    pi = target(energy, states)
    rng = torch.Generator().manual_seed(seed)
    found = None
    if method != "sampled":
        try:
            found = exact_certificates(case, pi, block)
        except NotEnumerable:
            if method == "exact":
                raise
    if found is None:
        found = sampled_certificates(case, pi, block, samples, rng)
    certificates, whole = found
    pace = min(patience, forgetting(whole))
    return [*certificates, long_run(case, pi, block, chains, pace, rng)]


def target(energy: Energy, states: Int[Tensor, "state time"]) -> Float[Tensor, " state"]:
    """pi = exp(-E) / Z over the listed states."""
    return (-energy(states).double()).softmax(0)


class Case(NamedTuple):
    """A kernel on a listed space. With an axis of rungs, a state is an ensemble of rows."""

    kernel: Kernel
    states: Int[Tensor, "state *rungs time"]

    def sets(self, block: int) -> Iterator[Bool[Tensor, " time"]]:
        """Every set of at most `block` positions at which states differ."""
        free = self.free()
        for size in range(1, block + 1):
            for chosen in combinations(free.nonzero()[:, 0].tolist(), size):
                yield torch.zeros_like(free).index_fill(0, torch.tensor(chosen), True)

    def sweep(self, block: int) -> list[Bool[Tensor, " time"]]:
        """The blocks of a sweep from left to right."""
        rng = torch.Generator()  # not drawn from
        size = torch.tensor([block])
        return [b[0] for b in partition(self.free()[None], size, order="sequential", rng=rng)]

    def free(self) -> Bool[Tensor, " time"]:
        rows = self.states.flatten(0, -2)
        return (rows != rows[0]).any(0)

    def step(
        self, index: Int[Tensor, " row"], positions: Bool[Tensor, " time"], rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """The kernel's step from the indexed states."""
        tokens = self.states[index].flatten(0, -2)
        return self.kernel.step(self.kernel.init(tokens), positions.expand(tokens.shape), rng)

    def find(self, tokens: Int[Tensor, "rows time"]) -> Int[Tensor, " row"]:
        """The index of the state in these rows; len(states) if it isn't listed."""
        words = self.states.flatten(1)
        base = int(max(words.max(), tokens.max())) + 1
        power = base ** torch.arange(words.shape[1])
        codes, order = (words * power).sum(-1).sort()
        code = (tokens.reshape(-1, words.shape[1]) * power).sum(-1)
        place = torch.searchsorted(codes, code).clamp_max(len(codes) - 1)
        return order[place].where(codes[place] == code, len(words))


# Exactly: the transition matrix of the code that runs


class Transitions(NamedTuple):
    """What a kernel does at fixed positions, from each state."""

    matrix: Float[Tensor, "state state"]
    outside: Float[Tensor, " state"]  # probability of leaving the listed states
    misreported: float  # largest error of flags, acceptance or carried energy


def transitions(
    kernel: Kernel, states: Int[Tensor, "state *rungs time"], positions: Bool[Tensor, " time"]
) -> Transitions:
    """The exact transition matrix of a kernel, whoever wrote it, by running it.

    Every way in which its `torch.multinomial` may fall is tried and weighed. What then depends on
    its `torch.rand`, an acceptance, is found by bisection: below some number one state follows,
    above it another. `NotEnumerable` for a kernel that draws otherwise.

    With an axis of rungs, a state is an ensemble of rows (`replica_exchange`).
    """
    case = Case(kernel, states)
    ways = every_way(case, positions)
    below, above = (play(case, positions, ways, torch.full_like(ways.weight, u)) for u in (0, 1))
    reported = below.info.log_accept.exp().double().unflatten(0, (len(ways.start), -1))[:, 0]
    share = threshold(case, positions, ways, below.end, above.end, guess=reported)

    full = torch.zeros(len(states), len(states) + 1, dtype=torch.float64)
    full = full.index_put((ways.start, below.end), ways.weight * share, accumulate=True)
    full = full.index_put((ways.start, above.end), ways.weight * (1 - share), accumulate=True)
    errors = (share - reported)[below.end != above.end].abs().tolist()
    wrong = max([below.misreported, above.misreported, *errors])
    return Transitions(full[:, :-1], full[:, -1], wrong)


class Ways(NamedTuple):
    """Every state with every outcome of its choices that is possible."""

    start: Int[Tensor, " row"]  # index of the state
    choices: Int[Tensor, "row draws"]
    weight: Float[Tensor, " row"]  # probability of the choices


def every_way(case: Case, positions: Bool[Tensor, " time"]) -> Ways:
    """All ways from all states; a first run shows which choices there are."""
    states = torch.arange(len(case.states))
    first = Ways(states, torch.zeros(len(states), 0, dtype=torch.long), torch.ones(len(states)))
    sizes = play(case, positions, first, torch.zeros(len(states)), probing=True).script.sizes
    each = torch.tensor(list(product(*map(range, sizes))), dtype=torch.long)
    rows = len(states) * len(each)
    if rows > MOST:
        raise ValueError(f"{len(states)} states, {len(each)} outcomes: {rows} rows exceed {MOST}")
    index, choices = states.repeat_interleave(len(each)), each.repeat(len(states), 1)
    ways = Ways(index, choices, torch.ones(rows))
    weight = play(case, positions, ways, torch.zeros(rows)).script.weight
    return Ways(index[weight > 0], choices[weight > 0], weight[weight > 0])


def threshold(
    case: Case,
    positions: Bool[Tensor, " time"],
    ways: Ways,
    below: Int[Tensor, " row"],
    above: Int[Tensor, " row"],
    *,
    guess: Float[Tensor, " row"],
) -> Float[Tensor, " row"]:
    """Up to which uniform number `below` follows, and from which on `above`; 1 if they agree."""
    lo, hi = torch.zeros_like(ways.weight), torch.ones_like(ways.weight)
    depends = below != above
    guesses = iter((guess - FINEST, guess + FINEST))
    while bool(depends.any()) and float((hi - lo)[depends].max()) > 4 * FINEST:
        u = next(guesses, (lo + hi) / 2).maximum(lo).minimum(hi)
        same = play(case, positions, ways, u).end == below
        lo, hi = torch.where(same, u, lo), torch.where(same, hi, u)
    for u in torch.tensor([0.07, 0.31, 0.52, 0.74, 0.96]).double():
        tried = play(case, positions, ways, u.expand_as(hi))
        if not torch.equal(tried.end, torch.where(u < hi, below, above)):
            raise NotEnumerable("what follows depends on a uniform number in several steps")
        if not torch.allclose(tried.script.weight, ways.weight):
            raise NotEnumerable("a choice depends on a uniform number")
    return hi


class Played(NamedTuple):
    """A scripted step: which states followed, and what was said about it."""

    script: "Script"
    end: Int[Tensor, " row"]
    info: StepInfo
    misreported: float


def play(
    case: Case,
    positions: Bool[Tensor, " time"],
    ways: Ways,
    u: Float[Tensor, " row"],
    *,
    probing: bool = False,
) -> Played:
    """A step in each of these ways, with these uniform numbers."""
    rng = torch.Generator()
    before = rng.get_state(), torch.get_rng_state()
    with Script(None if probing else ways.choices, u) as script:
        state, info = case.step(ways.start, positions, rng)
    if not all(map(torch.equal, before, (rng.get_state(), torch.get_rng_state()))):
        raise NotEnumerable("draws other than multinomial and rand")
    wrong = misreported(case, ways.start, state, info)
    return Played(script, case.find(state.tokens), info, wrong)


class Script(TorchFunctionMode):
    """Answers `torch.multinomial(p, 1)` with given choices and `torch.rand` with given numbers.

    It keeps the probability of each row's choices. There may be several choices for each row, but
    one uniform number.
    """

    def __init__(self, choices: Int[Tensor, "rows draws"] | None, u: Float[Tensor, " rows"]):
        super().__init__()
        self.choices, self.u, self.rows = choices, u, len(u)
        self.weight = torch.ones(self.rows, dtype=torch.float64)
        self.sizes: list[int] = []  # of the choices so far
        self.uniforms = 0

    @no_type_check  # called for every operation
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.multinomial, Tensor.multinomial):
            return self.choose(*args, **kwargs)
        if func is torch.rand:
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
            return self.uniform(torch.empty(*args, **kwargs))
        return func(*args, **kwargs)

    def choose(self, p: Tensor, num_samples: int, *_: Any, generator: Any = None) -> Tensor:
        if num_samples != 1 or p.dim() != 2 or len(p) % self.rows:
            raise NotEnumerable(f"multinomial of {num_samples} from {tuple(p.shape)}")
        each, used = len(p) // self.rows, len(self.sizes)
        self.sizes += [p.shape[-1]] * each
        if self.choices is None:  # only to see what is drawn
            return p.argmax(-1, keepdim=True)
        chosen = self.choices[:, used : used + each].reshape(-1, 1)
        share = (p / p.sum(-1, keepdim=True)).double().gather(-1, chosen)
        self.weight = self.weight * share.view(self.rows, each).prod(-1)
        # what cannot be drawn has weight 0; a kernel need not bear to see it, so it gets another
        return torch.where(share > 0, chosen, p.argmax(-1, keepdim=True))

    def uniform(self, like: Tensor) -> Tensor:
        self.uniforms += 1
        if self.uniforms > 1 or like.numel() != self.rows:
            raise NotEnumerable(f"call {self.uniforms} of rand, of {like.numel()} numbers")
        below_one = 1 - torch.finfo(like.dtype).eps / 2
        return self.u.to(like.dtype).clamp_max(below_one).view(like.shape)


def misreported(case: Case, index: Int[Tensor, " row"], state: ChainState, info: StepInfo) -> float:
    """The largest error of the carried energy; 1 if a flag is wrong. Unlisted texts aside."""
    old = case.states[index].flatten(0, -2)
    changed = (state.tokens != old).any(-1)
    if bool((info.moved != changed).any() | (changed & ~info.accepted).any()):
        return 1.0
    listed = (case.find(state.tokens) < len(case.states)).repeat_interleave(len(old) // len(index))
    if not bool(listed.any()):
        return 0.0
    fresh = case.kernel.init(state.tokens[listed]).energy
    return float((fresh - state.energy[listed]).abs().nan_to_num(0.0).max())


def exact_certificates(
    case: Case, pi: Float[Tensor, " state"], block: int
) -> tuple[list[Certificate], Float[Tensor, "state state"]]:
    """The certificates, with errors of probabilities as values, and the matrix of a sweep."""
    found = {spelled(at): transitions(case.kernel, case.states, at) for at in case.sets(block)}
    leaves = max(float(t.outside.max()) for t in found.values())
    wrong = max(t.misreported for t in found.values())
    whole = torch.eye(len(pi), dtype=torch.float64)
    for at in case.sweep(block):
        whole = whole @ found[spelled(at)].matrix
    moved = float((pi @ whole - pi).abs().sum() / 2)
    missing = unreachable(whole > 1e-12, pi)
    certificates = [
        Certificate("closed", leaves <= EXACT, leaves, EXACT, "leaves the listed texts"),
        Certificate("bookkeeping", wrong <= 1e-6, wrong, 1e-6, "flags, acceptance, energy"),
        *(reversible(name, t.matrix, pi) for name, t in found.items()),
        Certificate("invariant", moved <= EXACT, moved, EXACT, "total variation of pi and pi P"),
        reaches_all(missing, len(pi)),
    ]
    return certificates, whole


def reversible(name: str, matrix: Tensor, pi: Tensor) -> Certificate:
    flow = pi[:, None] * matrix
    worst = float((flow - flow.T).abs().max())
    return Certificate(
        f"reversible at {name}", worst <= EXACT, worst, EXACT, "|pi(y) P(y, y') - pi(y') P(y', y)|"
    )


def unreachable(leads: Bool[Tensor, "state state"], pi: Float[Tensor, " state"]) -> int:
    """Pairs of possible states of which the second is never reached from the first."""
    possible = pi > 0
    reach = leads | torch.eye(len(leads), dtype=torch.bool)
    for _ in range(len(leads).bit_length()):
        reach = (reach.double() @ reach.double()) > 0
    return int((~reach[possible][:, possible]).sum())


def reaches_all(missing: int, states: int) -> Certificate:
    detail = f"pairs of {states} texts of which one never leads to the other"
    return Certificate("irreducible", missing == 0, missing, 0, detail)


def spelled(positions: Bool[Tensor, " time"]) -> str:
    return ", ".join(map(str, positions.nonzero()[:, 0].tolist()))


# By samples, for a kernel that draws as it likes


def sampled_certificates(
    case: Case, pi: Float[Tensor, " state"], block: int, samples: int, rng: Generator
) -> tuple[list[Certificate], Float[Tensor, "state state"]]:
    """The certificates, with p-values as values, and the matrix of a sweep as far as seen."""
    start = torch.multinomial(pi, samples, replacement=True, generator=rng)
    outside, wrong, symmetric = 0.0, 0.0, []
    for at in case.sets(block):
        state, info = case.step(start, at, rng)
        wrong = max(wrong, misreported(case, start, state, info))
        pairs = tally(case, start, state.tokens)
        outside = max(outside, float(pairs[:, -1].sum() / samples))
        p = symmetry(pairs[:, :-1])
        detail = "chi-square of how often y to y' and back (Bowker)"
        symmetric.append(
            Certificate(f"reversible at {spelled(at)}", p >= CHANCE, p, CHANCE, detail)
        )
    pairs = tally(case, start, swept(case, case.states[start], block, rng).tokens)
    p = fit(pairs.sum(0), pi)
    certificates = [
        Certificate("closed", outside == 0, outside, 0, "leaves the listed texts"),
        Certificate("bookkeeping", wrong <= 1e-6, wrong, 1e-6, "flags and energy"),
        *symmetric,
        Certificate("invariant", p >= CHANCE, p, CHANCE, "chi-square after a sweep from pi"),
        reaches_all(unreachable(seen(case, block, rng), pi), len(pi)),
    ]
    return certificates, pairs[:, :-1] / pairs.sum(-1, keepdim=True).clamp_min(1)


def tally(
    case: Case, start: Int[Tensor, " row"], tokens: Int[Tensor, "row time"]
) -> Int[Tensor, "state ends"]:
    """How often each state was followed by each; in the last column, by one that isn't listed."""
    n = len(case.states)
    return (start * (n + 1) + case.find(tokens)).bincount(minlength=n * (n + 1)).view(n, n + 1)


def swept(
    case: Case, tokens: Int[Tensor, "row time"], block: int, rng: Generator, *, sweeps: int = 1
) -> ChainState:
    """The state some sweeps later."""
    blocks = [at.expand(tokens.shape) for at in case.sweep(block)]
    state = case.kernel.init(tokens)
    for _ in range(sweeps):
        state, _ = sweep_once(case.kernel, state, blocks, rng)
    return state


def seen(
    case: Case, block: int, rng: Generator, *, copies: int = 256, sweeps: int = 4
) -> Bool[Tensor, "state state"]:
    """Which states were seen to follow each state, in a number of trials."""
    n = len(case.states)
    start = torch.arange(n).repeat_interleave(copies)
    found = torch.zeros(n, n + 1, dtype=torch.bool)
    tokens = case.states[start]
    for _ in range(sweeps):
        tokens = swept(case, tokens, block, rng).tokens
        found[start, case.find(tokens)] = True
    return found[:, :n]


def forgetting(whole: Float[Tensor, "state state"]) -> int:
    """Sweeps after which less than a hundredth of the start is left: by the second eigenvalue."""
    second = float(torch.linalg.eigvals(whole.double()).abs().sort().values[-2])
    return math.ceil(math.log(0.01) / math.log(min(max(second, 0.01), 1 - 1e-9)))


def long_run(
    case: Case,
    pi: Float[Tensor, " state"],
    block: int,
    chains: int,
    pace: int,
    rng: Generator,
) -> Certificate:
    """Chi-square of chains that start anywhere: texts `pace` sweeps apart, after as many twice."""
    possible = (pi > 0).double()
    start = torch.multinomial(possible, chains, replacement=True, generator=rng)
    tokens = swept(case, case.states[start], block, rng, sweeps=2 * pace).tokens
    counts = torch.zeros(len(pi) + 1, dtype=torch.long)
    for _ in range(2):
        tokens = swept(case, tokens, block, rng, sweeps=pace).tokens
        counts += case.find(tokens).bincount(minlength=len(counts))
    p = fit(counts, pi)
    detail = f"chi-square of {int(counts.sum())} texts, {pace} sweeps apart"
    return Certificate("long run", p >= CHANCE, p, CHANCE, detail)


def fit(counts: Int[Tensor, " cells"], pi: Float[Tensor, " state"]) -> float:
    """The p-value of counts against pi; the last cell counts what should not occur.

    Cells that expect less than 5 are thrown together.
    """
    expected = pi * counts.sum()
    if bool((counts[:-1][pi == 0] > 0).any() or counts[-1] > 0):
        return 0.0
    small = expected < 5
    e = torch.cat([expected[~small], expected[small].sum()[None]])
    n = torch.cat([counts[:-1][~small], counts[:-1][small].sum()[None]])
    return chi_square(((n - e).square() / e)[e > 0])


def symmetry(pairs: Int[Tensor, "state state"]) -> float:
    """The p-value of Bowker's test: as many from y to y' as from y' to y."""
    there, back = (part[torch.ones_like(part).triu(1).bool()] for part in (pairs, pairs.T))
    often = there + back >= 10
    return chi_square(((there - back).square() / (there + back))[often], constraints=0)


def chi_square(terms: Float[Tensor, " terms"], *, constraints: int = 1) -> float:
    """The probability of a sum of so many squares, or a larger one, by chance."""
    freedom = len(terms) - constraints
    if freedom < 1:
        return 1.0
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, terms.double().sum() / 2))
