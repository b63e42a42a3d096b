"""Settings of a sampler: a frozen dataclass, whose fields are the flags of `softbeam sample`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from softbeam.errors import LARGEST_SEED, TEMPERATURES, UserError, check_range
from softbeam.schedules import Constant, Linear, Schedule

MOST_ROWS = 100_000  # chains, rows, or positions
MOST_PIECES = 20  # of a word
HEAVIEST = 1e6  # weight of a term of the energy
# Fields that infilling has no use for, or decides itself.
NOT_OF_INFILL = (
    *("sweeps", "forced", "anneal", "kernel", "order", "start", "at_once"),
    *("lengths", "length_offset"),
)


Rows = int | Literal["auto"]  # auto: as many as fit into the memory


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Target, proposals, kernel and sweeps of chains over the texts of a masked language model.

    Args:
        chains: Markov chains for each text
        sweeps: passes over the free positions, including the burn-in
        burn_in: sweeps at the start that are left out of samples and statistics
        forced: sweeps of the burn-in that accept every proposal, so they are not exact
        energy: the target is exp(-energy); local sums log-probabilities, raw sums logits, strided
            is a cheaper target of its own, for long texts; chain-rule is the probability of what
            stands in the gaps, from left to right
        temperature: temperature of the target
        anneal: start,slope,floor of a temperature of the target that changes with every sweep
        kernel: mh (exact); exact-gibbs (exact, slow); gibbs (accepts every proposal, not exact)
        proposal: masked (the model's conditional distributions) or uniform
        proposal_temperature: temperature of the proposals alone
        nucleus: propose only tokens of the smallest set that has this probability
        epsilon: probability of proposing from all tokens in spite of --nucleus; with 0, some texts
            are never reached
        block: positions masked together; a number, linear (from half of them down to 1) or random
        order: order of the positions in a sweep
        start: how chains start; gaps filled in-turn (dispersed, as R-hat assumes), greedy or
            random, or the text as it is
        free: positions that are sampled; those of each [MASK], all, or as 26-33,51-57 (from 1)
        fix: positions that stay as they are, as 95-102; without --free, all others are sampled
        near: a text to stay close to; self is the text itself
        near_weight: energy of each position, or edit, that differs from --near
        near_distance: hamming (needs a text of the same length) or edit (any length)
        lexicon: words to favour, which count only as whole words
        lexicon_weight: how much each occurrence of a word of the lexicon lowers the energy
        allowed: the only tokens that may be sampled; by default all, of proteins the 20 amino acids
        allowed_at: the only tokens at some positions, each line as 26-33 ASTG
        term: functions of your own, as module:function, that give each text of a list a number
        term_weight: what the numbers of each --term are multiplied by before they are added to the
            energy; 1, or 0 with a limit
        term_limit: the largest number that each --term may have; none is no limit
        repetition_weight: energy of each phrase that has occurred before in the text
        repetition_size: tokens of such a phrase
        seed: seed of all random numbers
        dtype: number format of the model; energies are summed in float32 or float64
        rows: largest number of masked rows that the model gets at once; auto is what fits
        at_once: chains that run side by side; more texts run after them, or in other processes
        lengths: sample texts of A-B tokens, which grow and shrink by inserted and deleted tokens
        length_offset: energy that each token adds to the target of --lengths; a negative number
            favours long texts
        stride: distance of the positions that --energy strided masks together; a text takes that
            many rows
        pieces: largest number of tokens of a [WORD], a gap that is filled with one whole word
    """

    chains: int = 8
    sweeps: int = 50
    burn_in: int = 10
    forced: int = 0
    energy: Literal["local", "raw", "strided", "chain-rule"] = "local"
    temperature: float = 1.0
    anneal: tuple[float, float, float] | None = None
    kernel: Literal["mh", "gibbs", "exact-gibbs"] = "mh"
    proposal: Literal["masked", "uniform"] = "masked"
    proposal_temperature: float = 1.0
    nucleus: float = 1.0
    epsilon: float = 0.0
    block: int | Literal["linear", "random"] = 1
    order: Literal["random", "sequential"] = "random"
    start: Literal["in-turn", "greedy", "random", "text"] = "in-turn"
    free: str = "mask"
    fix: str | None = None
    near: str | None = None
    near_weight: float = 1.0
    near_distance: Literal["hamming", "edit"] = "hamming"
    lexicon: tuple[str, ...] = ()
    lexicon_weight: float = 1.0
    allowed: tuple[str, ...] = ()
    allowed_at: tuple[str, ...] = ()
    term: tuple[str, ...] = ()
    term_weight: tuple[float, ...] = ()
    term_limit: tuple[float | None, ...] = ()
    repetition_weight: float = 0.0
    repetition_size: int = 3
    seed: int = 1
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    rows: Rows = 256
    at_once: int = 64
    lengths: str | None = None
    length_offset: float = 0.0
    stride: int = 8
    pieces: int = 3

    def __post_init__(self) -> None:
        for f in fields(self):
            if get_origin(f.type) is Literal:
                check_choice(flag(f.name), getattr(self, f.name), get_args(f.type))
        check_range("--sweeps", self.sweeps, least=1)
        for name in ("chains", "at_once"):
            check_range(flag(name), getattr(self, name), least=1, most=MOST_ROWS)
        check_range("--stride", self.stride, least=1, most=MOST_ROWS)
        check_range("--pieces", self.pieces, least=1, most=MOST_PIECES)
        check_rows(self.rows)
        for name in ("temperature", "proposal_temperature"):
            check_range(flag(name), getattr(self, name), **TEMPERATURES)
        for name in ("near_weight", "lexicon_weight", "length_offset", "repetition_weight"):
            check_range(flag(name), getattr(self, name), least=-HEAVIEST, most=HEAVIEST)
        check_range("--seed", self.seed, least=0, most=LARGEST_SEED)
        check_range("--nucleus", self.nucleus, above=0, most=1)
        check_range("--epsilon", self.epsilon, least=0, most=1)
        check_range("--burn-in", self.burn_in, least=0, below=self.sweeps)
        check_range("--forced", self.forced, least=0, most=self.burn_in)
        if isinstance(self.block, int):
            check_range("--block", self.block, least=1, most=MOST_ROWS)
        else:
            check_choice("--block", self.block, ("linear", "random"))
        if self.anneal is not None:
            self._check_anneal(*self.anneal)
        check_range("--repetition-size", self.repetition_size, least=1, most=MOST_ROWS)
        self._check_kernel()
        self._check_positions()
        self._check_terms()

    def _check_anneal(self, start: float, slope: float, floor: float) -> None:
        if self.temperature != 1:
            raise UserError(f"--temperature {self.temperature}: --anneal gives the temperature")
        check_range("--anneal: its start", start, **TEMPERATURES)
        check_range("--anneal: its slope", slope, least=-HEAVIEST, most=HEAVIEST)
        check_range("--anneal: its floor", floor, least=TEMPERATURES["least"], most=start)

    def _check_kernel(self) -> None:
        if self.kernel == "exact-gibbs" and self.block != 1:
            raise UserError(
                f"--block {self.block}: --kernel exact-gibbs takes 1 position at a time"
            )
        if self.lengths is not None:
            self._check_lengths()
        if self.kernel == "gibbs" and (self.temperature != 1 or self.anneal):
            raise UserError("--kernel gibbs has no target to temper; use --proposal-temperature")

    def _check_lengths(self) -> None:
        fixed = {"kernel": "mh", "block": 1, "proposal": "masked", "nucleus": 1.0, "forced": 0}
        for name, value in fixed.items():
            if getattr(self, name) != value:
                raise UserError(f"{flag(name)} {getattr(self, name)}: --lengths needs {value}")
        if self.energy == "chain-rule":
            raise UserError("--energy chain-rule: --lengths needs local, raw or strided")
        if self.allowed_at or self.fix or self.free not in ("mask", "all"):
            raise UserError("--lengths: positions move; give no --free, --fix or --allowed-at")
        if self.near is not None and self.near_distance == "hamming":
            raise UserError("--near with --lengths: add --near-distance edit")
        low, high = self.length_range
        check_range("--lengths: its smaller number", low, least=1, most=high)
        check_range("--lengths: its larger number", high, least=1, most=MOST_ROWS)

    @property
    def length_range(self) -> tuple[int, int]:
        """The smallest and the largest number of tokens of `lengths`."""
        numbers = re.fullmatch(r"(\d{1,9})-(\d{1,9})", self.lengths or "")
        if numbers is None:
            raise UserError(f"--lengths {self.lengths}: must be two numbers, as 100-130")
        return int(numbers[1]), int(numbers[2])

    def _check_positions(self) -> None:
        if self.free not in ("mask", "all"):
            positions_in("--free", self.free, "mask, all or ")
        if self.fix is not None:
            positions_in("--fix", self.fix)

    def _check_terms(self) -> None:
        for name in ("term_weight", "term_limit"):
            values = getattr(self, name)
            if values and len(values) != len(self.term):
                raise UserError(
                    f"{flag(name)} has {len(values)} numbers and --term {len(self.term)} functions"
                )
            for value in values:
                if value is not None:
                    check_range(flag(name), value, least=-HEAVIEST, most=HEAVIEST)
        if any(limit is not None for limit in self.term_limit) and (
            self.kernel == "gibbs" or self.forced
        ):
            raise UserError("--term-limit: --kernel gibbs and --forced accept texts beyond it")

    def named_terms(self) -> list[tuple[str, float, float | None]]:
        """List the terms of the user's own: name, weight and limit of each."""
        limits = self.term_limit or (None,) * len(self.term)
        weights = self.term_weight or tuple(float(limit is None) for limit in limits)
        return list(zip(self.term, weights, limits, strict=True))

    @property
    def target_temperature(self) -> Schedule:
        """The target's temperature in each sweep."""
        if self.anneal is None:
            return Constant(value=self.temperature)
        start, slope, floor = self.anneal
        return Linear(start=start, slope=slope, floor=floor)

    def stream(self, number: int) -> int:
        """The seed of a text, or of a group of texts; number 0 has the seed itself."""
        return (self.seed + 1_000_003 * number) % (LARGEST_SEED + 1)

    def caveats(self) -> list[str]:
        """List the reasons why samples are not those of exp(-energy / temperature).

        Chains that have not mixed yet are not among them; R-hat shows those.
        """
        reasons = []
        if self.kernel == "gibbs":
            reasons.append(
                "--kernel gibbs accepts every proposal: its samples are not those of exp(-energy)"
            )
        if self.anneal is not None:
            reasons.append(
                "--anneal changes the target in every sweep: the last sweeps are near its modes"
            )
        if self.proposal == "masked" and self.nucleus < 1 and self.epsilon == 0:
            reasons.append(
                f"--nucleus {self.nucleus} never reaches some texts, and cannot leave tokens "
                "outside of their nucleus (stuck); --epsilon 0.05 solves both"
            )
        return reasons


def infill_settings(overrides: dict[str, Any]) -> SamplingConfig:
    """Make settings for infilling, which finds the number of sweeps itself."""
    burn_in = overrides.get("burn_in", SamplingConfig.burn_in)
    check_range("--burn-in", burn_in, least=0)
    settings = SamplingConfig(burn_in=0, sweeps=burn_in + 1)
    return overridden(settings, {"burn_in": burn_in} | overrides, without=NOT_OF_INFILL)


def overridden(
    settings: SamplingConfig, overrides: dict[str, Any], *, without: Sequence[str] = ()
) -> SamplingConfig:
    """Replace fields of the settings. Raises TypeError if a name is not one of them."""
    names = [f.name for f in fields(SamplingConfig) if f.name not in without]
    if unknown := [name for name in overrides if name not in names]:
        raise TypeError(f"{unknown[0]!r} is not a setting; there are {', '.join(names)}")
    return replace(settings, **overrides)


def positions_in(option: str, text: str, others: str = "") -> list[int]:
    """Read `26-33,51` as positions. Raises UserError if this is no list of them."""
    positions: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        if match is None:
            raise UserError(f"{option} {text}: must be {others}positions, as 26-33,51-57")
        first, last = int(match[1]), int(match[2] or match[1])
        check_range(f"{option} {text}: position", first, least=1, most=last)
        check_range(f"{option} {text}: position", last, most=MOST_ROWS)
        positions.update(range(first, last + 1))
    return sorted(positions)


def check_rows(rows: Rows) -> None:
    """Raise UserError if this is no number of rows, and not auto."""
    if isinstance(rows, int):
        check_range("--rows", rows, least=1, most=MOST_ROWS)
    else:
        check_choice("--rows", rows, ("auto",))


def row_limit(rows: Rows) -> int:
    """The number of rows that a model gets at once; one that takes what fits gets all."""
    return MOST_ROWS if isinstance(rows, str) else rows


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise UserError that lists the choices if a value is none of them."""
    if value not in choices:
        raise UserError(f"{name} {value}: must be one of {', '.join(choices)}")


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")
