"""What a sampler is told: a frozen dataclass, whose fields are the flags of `softbeam sample`."""

import math
from dataclasses import dataclass
from typing import Literal

from softbeam.errors import LARGEST_SEED, UserError, limited
from softbeam.schedules import Constant, Linear, Schedule


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Target, proposals, kernel and sweeps of chains over the texts of a masked language model.

    Args:
        chains: for each text
        sweeps: passes over the free positions, burn-in included
        burn_in: sweeps at the start that no statistics count
        forced: sweeps of the burn-in that accept every proposal; they are not exact
        energy: the target is exp(-energy): local, of log-probabilities, or raw, of logits
        temperature: of the target
        anneal: start,slope,floor of the target's temperature by the sweep; not one target then
        kernel: mh, exact; exact-gibbs, exact and dear; delayed, mh with a cheap energy first; gibbs
            accepts everything, and is not exact
        proposal: masked, the model's conditionals; or uniform
        proposal_temperature: of the proposals alone
        nucleus: propose out of the smallest set of this probability
        epsilon: share of the whole conditionals; without it a nucleus leaves texts unreached
        block: positions masked together: a number; linear, from half of them down to 1; or random
        order: of the positions in a sweep
        start: how chains begin: gaps filled in-turn (dispersed, as R-hat wants it), greedy, random;
            or text, as given
        free: positions that are sampled: those of each [MASK], or all
        near: a text to stay near to; self is each text itself
        near_weight: energy of each position, or edit, that differs from --near
        near_distance: hamming, of a text of the same length, or edit, of any
        lexicon: words to favour
        lexicon_weight: energy that each occurrence of a word of the lexicon takes away
        allowed: tokens that alone may be sampled
        seed: of all randomness
        dtype: of the model's numbers
        rows: largest number of masked rows given to the model at once
        at_once: chains run side by side; further texts wait, or are other processes'
    """

    chains: int = 8
    sweeps: int = 50
    burn_in: int = 10
    forced: int = 0
    energy: Literal["local", "raw"] = "local"
    temperature: float = 1.0
    anneal: tuple[float, float, float] | None = None
    kernel: Literal["mh", "gibbs", "exact-gibbs", "delayed"] = "mh"
    proposal: Literal["masked", "uniform"] = "masked"
    proposal_temperature: float = 1.0
    nucleus: float = 1.0
    epsilon: float = 0.0
    block: int | Literal["linear", "random"] = 1
    order: Literal["random", "sequential"] = "random"
    start: Literal["in-turn", "greedy", "random", "text"] = "in-turn"
    free: Literal["mask", "all"] = "mask"
    near: str | None = None
    near_weight: float = 1.0
    near_distance: Literal["hamming", "edit"] = "hamming"
    lexicon: tuple[str, ...] = ()
    lexicon_weight: float = 1.0
    allowed: tuple[str, ...] = ()
    seed: int = 1
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    rows: int = 256
    at_once: int = 64

    def __post_init__(self) -> None:
        for name in ("chains", "sweeps", "rows", "at_once"):
            limited(flag(name), getattr(self, name), least=1)
        limited("--seed", self.seed, least=0, most=LARGEST_SEED)
        for name in ("temperature", "proposal_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{flag(name)} {getattr(self, name)}: must be above 0")
        for name in ("near_weight", "lexicon_weight"):
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"{flag(name)} {getattr(self, name)}: must be finite")
        if not 0 < self.nucleus <= 1:
            raise UserError(f"--nucleus {self.nucleus}: must be above 0 and at most 1")
        if not 0 <= self.epsilon <= 1:
            raise UserError(f"--epsilon {self.epsilon}: must be from 0 to 1")
        if isinstance(self.block, int) and self.block < 1:
            raise UserError(f"--block {self.block}: must be at least 1")
        if not 0 <= self.burn_in < self.sweeps:
            raise UserError(f"--burn-in {self.burn_in}: must be from 0 to {self.sweeps - 1}")
        if not 0 <= self.forced <= self.burn_in:
            raise UserError(f"--forced {self.forced}: must be from 0 to {self.burn_in}, --burn-in")
        self._check_temperatures()
        self._check_kernel()

    def _check_temperatures(self) -> None:
        if self.anneal is None:
            return
        if self.temperature != 1:
            raise UserError(f"--temperature {self.temperature}: --anneal gives the temperature")
        start, _, floor = self.anneal
        if not (0 < floor <= start):
            raise UserError(f"--anneal: its floor {floor} must be above 0 and at most {start}")

    def _check_kernel(self) -> None:
        if self.kernel == "exact-gibbs" and self.block != 1:
            raise UserError(
                f"--block {self.block}: --kernel exact-gibbs takes 1 position at a time"
            )
        if self.kernel == "gibbs" and (self.temperature != 1 or self.anneal):
            raise UserError("--kernel gibbs has no target to temper; use --proposal-temperature")

    @property
    def target_temperature(self) -> Schedule:
        """The target's temperature by the sweep."""
        if self.anneal is None:
            return Constant(value=self.temperature)
        start, slope, floor = self.anneal
        return Linear(start=start, slope=slope, floor=floor)

    def stream(self, number: int) -> int:
        """The seed of a text, or of texts side by side; that of the first is the seed itself."""
        return (self.seed + 1_000_003 * number) % (LARGEST_SEED + 1)

    def caveats(self) -> list[str]:
        """What keeps the samples from being those of exp(-energy / temperature), a sentence each.

        Chains that have not mixed are another matter: R-hat is about them.
        """
        found = []
        if self.kernel == "gibbs":
            found.append(
                "--kernel gibbs accepts every proposal: its samples are not those of exp(-energy)"
            )
        if self.anneal is not None:
            found.append("--anneal changes the target by the sweep: the last sweeps are its modes")
        if self.proposal == "masked" and self.nucleus < 1 and self.epsilon == 0:
            found.append(
                f"--nucleus {self.nucleus} leaves some texts unreached and does not leave tokens "
                "outside of their nucleus (stuck); --epsilon 0.05 mends both"
            )
        return found


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")
