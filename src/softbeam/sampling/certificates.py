"""Check that a Markov kernel, one of this package or your own, leaves its target invariant.

On a space small enough to list, `certify` builds the whole transition matrix of a kernel from the
code that runs: it replaces the kernel's random draws, tries every outcome, and adds up the
probabilities. A kernel whose draws cannot be replaced is tested with large samples.

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
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from softbeam.sampling.chains import partition, sweep_once
from softbeam.types import ChainState, Energy, Kernel, StepInfo

EXACT = 1e-7  # the largest error of a probability
CHANCE = 1e-5  # the smallest p-value
FINEST = 2.0**-46  # the precision of a probability of acceptance
MOST = 10**6  # the largest number of rows of one enumeration


class Certificate(NamedTuple):
    """One claim about a kernel, and whether it holds."""

    name: str
    holds: bool
    value: float
    limit: float
    detail: str


class NotEnumerable(Exception):
    """Raised for a kernel that draws random numbers in a way that cannot be enumerated."""


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
    """Check that a kernel leaves exp(-energy) invariant on a listed space, and reaches all of it.

    - closed: the kernel stays within `states`, and changes only the given positions;
    - bookkeeping: flags, reported acceptance and carried energy agree with what the kernel does;
    - reversible, at each set of positions: pi(y) P(y, y') = pi(y') P(y', y);
    - invariant, over a sweep: pi P = pi;
    - irreducible: sweeps lead from every text to every other;
    - long run: the histogram of chains from random starts fits pi (chi-square test).

    With the exact method, values are errors of probabilities. With samples, which start from exact
    draws of pi, they are p-values of chi-square tests (for reversibility, Bowker's test of
    symmetry), and a text counts as reachable if some sample reached it.

    Args:
        kernel: the kernel to check. It is run on many rows, so it must not depend on the number of
            chains.
        energy: the energy of its target, computed separately from the kernel.
        states: all texts of the space; positions where they agree are frozen.
        block: the largest number of positions that the kernel gets together.
        method: exact, sampled, or auto: exact if the kernel's draws can be enumerated.
        samples: the size of each sample.
        chains: the number of chains of the long run, which is longer if the kernel mixes slowly.
        patience: the largest number of sweeps between two texts of the long run.
        seed: the seed of all samples.
    """
    if method not in ("auto", "exact", "sampled"):
        raise ValueError(f"method={method!r} must be auto, exact or sampled")
    case = Case(kernel, states)
    pi = target(energy, states)
    rng = torch.Generator().manual_seed(seed)
    result = None
    if method != "sampled":
        try:
            result = exact_certificates(case, pi, block)
        except NotEnumerable:
            if method == "exact":
                raise
    if result is None:
        result = sampled_certificates(case, pi, block, samples, rng)
    certificates, whole = result
    pace = min(patience, forgetting(whole))
    return [*certificates, long_run(case, pi, block, chains, pace, rng)]


def target(energy: Energy, states: Int[Tensor, "state time"]) -> Float[Tensor, " state"]:
    """pi = exp(-E) / Z over the listed states."""
    return (-energy(states).double()).softmax(0)


class Case(NamedTuple):
    """A kernel on a listed space. If `states` has an axis of rungs, a state is several rows."""

    kernel: Kernel
    states: Int[Tensor, "state *rungs time"]

    def sets(self, block: int) -> Iterator[Bool[Tensor, " time"]]:
        """Yield every set of at most `block` positions at which states differ."""
        free = self.free()
        for size in range(1, block + 1):
            for chosen in combinations(free.nonzero()[:, 0].tolist(), size):
                yield torch.zeros_like(free).index_fill(0, torch.tensor(chosen), True)

    def sweep(self, block: int) -> list[Bool[Tensor, " time"]]:
        """The blocks of a sweep from left to right."""
        rng = torch.Generator()  # not used
        size = torch.tensor([block])
        return [b[0] for b in partition(self.free()[None], size, order="sequential", rng=rng)]

    def free(self) -> Bool[Tensor, " time"]:
        """The positions at which states differ."""
        rows = self.states.flatten(0, -2)
        return (rows != rows[0]).any(0)

    def step(
        self, index: Int[Tensor, " row"], positions: Bool[Tensor, " time"], rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """Run the kernel for one step from the indexed states."""
        tokens = self.states[index].flatten(0, -2)
        return self.kernel.step(self.kernel.init(tokens), positions.expand(tokens.shape), rng)

    def find(self, tokens: Int[Tensor, "rows time"]) -> Int[Tensor, " row"]:
        """Find the index of the state in these rows; len(states) if it is not listed."""
        words = self.states.flatten(1)
        base = int(max(words.max(), tokens.max())) + 1
        power = base ** torch.arange(words.shape[1])
        codes, order = (words * power).sum(-1).sort()
        code = (tokens.reshape(-1, words.shape[1]) * power).sum(-1)
        place = torch.searchsorted(codes, code).clamp_max(len(codes) - 1)
        return order[place].where(codes[place] == code, len(words))


# The exact method: the transition matrix of the code that runs


class Transitions(NamedTuple):
    """Transition probabilities of a kernel at fixed positions, from each state."""

    matrix: Float[Tensor, "state state"]
    outside: Float[Tensor, " state"]  # probability of leaving the listed states
    misreported: float  # largest error of flags, acceptance or carried energy


def transitions(
    kernel: Kernel, states: Int[Tensor, "state *rungs time"], positions: Bool[Tensor, " time"]
) -> Transitions:
    """Compute the exact transition matrix of any kernel by running it.

    Every outcome of its `torch.multinomial` is tried and weighted by its probability. Acceptance,
    which depends on its `torch.rand`, is found by bisection: below some number one state follows,
    above it another. Raises NotEnumerable if the kernel draws in another way.

    If `states` has an axis of rungs, a state is several rows (`replica_exchange`).
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
    """Every state, with every possible outcome of its choices."""

    start: Int[Tensor, " row"]  # index of the state
    choices: Int[Tensor, "row draws"]
    weight: Float[Tensor, " row"]  # probability of the choices


def every_way(case: Case, positions: Bool[Tensor, " time"]) -> Ways:
    """List all ways from all states; a first run shows which choices there are."""
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
    """Find the uniform number below which `below` follows, else `above`; 1 if both are equal."""
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
    """A scripted step: the states that followed, and what the kernel reported."""

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
    """Run a step in each of these ways, with these uniform numbers."""
    rng = torch.Generator()
    before = rng.get_state(), torch.get_rng_state()
    with Script(None if probing else ways.choices, u) as script:
        state, info = case.step(ways.start, positions, rng)
    if not all(map(torch.equal, before, (rng.get_state(), torch.get_rng_state()))):
        raise NotEnumerable("draws other than multinomial and rand")
    wrong = misreported(case, ways.start, state, info)
    return Played(script, case.find(state.tokens), info, wrong)


class Script(TorchFunctionMode):
    """Replace `torch.multinomial(p, 1)` by given choices, and `torch.rand` by given numbers.

    `weight` is the probability of each row's choices. A row may have several choices, but only one
    uniform number.
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
        if self.choices is None:  # a first run, to see what is drawn
            return p.argmax(-1, keepdim=True)
        chosen = self.choices[:, used : used + each].reshape(-1, 1)
        share = (p / p.sum(-1, keepdim=True)).double().gather(-1, chosen)
        self.weight = self.weight * share.view(self.rows, each).prod(-1)
        # an impossible choice has weight 0; the kernel gets a possible one instead
        return torch.where(share > 0, chosen, p.argmax(-1, keepdim=True))

    def uniform(self, like: Tensor) -> Tensor:
        self.uniforms += 1
        if self.uniforms > 1 or like.numel() != self.rows:
            raise NotEnumerable(f"call {self.uniforms} of rand, of {like.numel()} numbers")
        below_one = 1 - torch.finfo(like.dtype).eps / 2
        return self.u.to(like.dtype).clamp_max(below_one).view(like.shape)


def misreported(case: Case, index: Int[Tensor, " row"], state: ChainState, info: StepInfo) -> float:
    """The largest error of the carried energy of listed texts; 1 if a flag is wrong."""
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
    """Make the certificates, with errors of probabilities, and the matrix of a sweep."""
    moves = {spelled(at): transitions(case.kernel, case.states, at) for at in case.sets(block)}
    leaves = max(float(t.outside.max()) for t in moves.values())
    wrong = max(t.misreported for t in moves.values())
    whole = torch.eye(len(pi), dtype=torch.float64)
    for at in case.sweep(block):
        whole = whole @ moves[spelled(at)].matrix
    moved = float((pi @ whole - pi).abs().sum() / 2)
    certificates = [
        Certificate("closed", leaves <= EXACT, leaves, EXACT, "leaves the listed texts"),
        Certificate("bookkeeping", wrong <= 1e-6, wrong, 1e-6, "flags, acceptance, energy"),
        *(reversible(name, t.matrix, pi) for name, t in moves.items()),
        Certificate("invariant", moved <= EXACT, moved, EXACT, "total variation of pi and pi P"),
        irreducible(whole > 1e-12, pi),
    ]
    return certificates, whole


def reversible(name: str, matrix: Tensor, pi: Tensor) -> Certificate:
    """Certify detailed balance."""
    flow = pi[:, None] * matrix
    worst = float((flow - flow.T).abs().max())
    return Certificate(
        f"reversible at {name}", worst <= EXACT, worst, EXACT, "|pi(y) P(y, y') - pi(y') P(y', y)|"
    )


def irreducible(leads: Bool[Tensor, "state state"], pi: Float[Tensor, " state"]) -> Certificate:
    """Certify that sweeps lead from every possible text to every other."""
    _, group = connected_components(leads.numpy(), connection="strong")
    groups = len(set(group[(pi > 0).numpy()].tolist()))
    detail = f"groups of the {len(pi)} texts that sweeps do not connect"
    return Certificate("irreducible", groups == 1, groups, 1, detail)


def spelled(positions: Bool[Tensor, " time"]) -> str:
    return ", ".join(map(str, positions.nonzero()[:, 0].tolist()))


# The sampled method, for kernels that draw in other ways


def sampled_certificates(
    case: Case, pi: Float[Tensor, " state"], block: int, samples: int, rng: Generator
) -> tuple[list[Certificate], Float[Tensor, "state state"]]:
    """Make the certificates, with p-values, and an estimate of the matrix of a sweep."""
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
        irreducible(seen(case, block, rng), pi),
    ]
    return certificates, pairs[:, :-1] / pairs.sum(-1, keepdim=True).clamp_min(1)


def tally(
    case: Case, start: Int[Tensor, " row"], tokens: Int[Tensor, "row time"]
) -> Int[Tensor, "state ends"]:
    """Count how often each state follows each; the last column is for unlisted states."""
    n = len(case.states)
    return (start * (n + 1) + case.find(tokens)).bincount(minlength=n * (n + 1)).view(n, n + 1)


def swept(
    case: Case, tokens: Int[Tensor, "row time"], block: int, rng: Generator, *, sweeps: int = 1
) -> ChainState:
    """Run some sweeps, and return the state after them."""
    blocks = [at.expand(tokens.shape) for at in case.sweep(block)]
    state = case.kernel.init(tokens)
    for _ in range(sweeps):
        state, _ = sweep_once(case.kernel, state, blocks, rng)
    return state


def seen(
    case: Case, block: int, rng: Generator, *, copies: int = 256, sweeps: int = 4
) -> Bool[Tensor, "state state"]:
    """True for the states that followed each state in a number of trials."""
    n = len(case.states)
    start = torch.arange(n).repeat_interleave(copies)
    reached = torch.zeros(n, n + 1, dtype=torch.bool)
    tokens = case.states[start]
    for _ in range(sweeps):
        tokens = swept(case, tokens, block, rng).tokens
        reached[start, case.find(tokens)] = True
    return reached[:, :n]


def forgetting(whole: Float[Tensor, "state state"]) -> int:
    """The number of sweeps that forget 99% of the start, by the second eigenvalue."""
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
    """Test chains from random starts: texts `pace` sweeps apart, after a burn-in of 2 * `pace`."""
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
    """The p-value of counts against pi; the last cell counts texts that should not occur.

    Cells whose expected count is below 5 are merged.
    """
    expected = pi * counts.sum()
    if bool((counts[:-1][pi == 0] > 0).any() or counts[-1] > 0):
        return 0.0
    small = expected < 5
    e = torch.cat([expected[~small], expected[small].sum()[None]])
    n = torch.cat([counts[:-1][~small], counts[:-1][small].sum()[None]])
    return chi_square(((n - e).square() / e)[e > 0])


def symmetry(pairs: Int[Tensor, "state state"]) -> float:
    """The p-value of Bowker's test of symmetry: as many moves from y to y' as from y' to y."""
    there, back = (part[torch.ones_like(part).triu(1).bool()] for part in (pairs, pairs.T))
    often = there + back >= 10
    return chi_square(((there - back).square() / (there + back))[often], constraints=0)


def chi_square(terms: Float[Tensor, " terms"], *, constraints: int = 1) -> float:
    """The p-value of a sum of squares; 1 without a degree of freedom."""
    freedom = len(terms) - constraints
    return 1.0 if freedom < 1 else float(chi2.sf(float(terms.double().sum()), freedom))
