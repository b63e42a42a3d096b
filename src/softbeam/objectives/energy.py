r"""Training of energy-based sequence models (thesis, Sec. 6.2.2 and chapter 7).

Frozen dataclasses of knobs like those of `objectives`, and as cheap to import; the algorithms are
in `energy_training`. The model is a `Field` of E_raw; the sequences are the batch's targets, and
its source is not read. Losses are sums over sequences, and logs are means over them, in nats.

An objective has no state. What an estimator keeps from update to update (an estimate of log Z,
chains) is in the model's `memory`, a module, and all chance comes from `rng`: so a checkpoint of
weights, buffers and generator is one of the whole training.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam.objectives.base import Objective, size
from softbeam.objectives.likelihood import Load, frozen_teacher
from softbeam.schedules import Moment

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.types import Batch, Loss

CHUNK = 2**14
Log = dict[str, float]


def at_least_one(**knobs: int) -> None:
    for name, value in knobs.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class EnergyObjective(Objective):
    """What the objectives of energy-based models share."""

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.objectives.losses.energy import Field
        from softbeam.types import Loss

        if not isinstance(model, Field):
            raise ValueError(
                f"{type(self).__name__} needs a model with potentials, such as BiLstmMrf; "
                f"{type(model).__name__} has none"
            )
        rows, log = self.rows(model, batch, rng)
        return Loss(rows.sum(), size(batch), log)

    @abstractmethod
    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        """The loss of each sequence, and what to log."""


@dataclass(frozen=True, kw_only=True)
class Likelihood(EnergyObjective):
    """LL: exact negative log-likelihood, E_raw(y) + log Z, by enumeration (thesis, Sec. 6.2.2).

    Each length that occurs is normalized by itself, over all vocab^length sequences.

    Args:
        chunk: largest number of sequences held at once; the model's own choice if not given.
    """

    chunk: int | None = None

    def __post_init__(self) -> None:
        at_least_one(chunk=1 if self.chunk is None else self.chunk)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.energy import nll

        rows = nll(model, batch.target, batch.mask, chunk=self.chunk)
        return rows, {"nll": rows.mean().item()}


@dataclass(frozen=True, kw_only=True)
class Pseudolikelihood(EnergyObjective):
    r"""PLL: -sum_t log p(y_t | y\t) with the true conditionals of E_raw (thesis, Sec. 6.2.2).

    Args:
        chunk: largest number of substituted sequences held at once, but at least one sentence's.
    """

    chunk: int = CHUNK

    def __post_init__(self) -> None:
        at_least_one(chunk=self.chunk)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.energy import gold_nll, true_conditionals

        log_probs = true_conditionals(model, batch.target, batch.mask, chunk=self.chunk)
        rows = gold_nll(log_probs, batch.target, batch.mask)
        return rows, {"pseudo_nll": rows.mean().item()}


@dataclass(frozen=True, kw_only=True)
class MaskedLikelihood(EnergyObjective):
    r"""MLM: -sum_t log softmax f(y_t, h(y\t)), the degenerate pseudolikelihood (Sec. 6.2.1).

    One pass instead of |V|. Not the pseudolikelihood of E_raw: substituting y_t changes the other
    potentials too, and this one leaves them out.

    Args:
        hide: share of the positions whose token is hidden from all others behind the model's mask
            symbol. 0 is the thesis's; more trains what block proposals read.
    """

    hide: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.hide < 1:
            raise ValueError(f"hide={self.hide} must be at least 0 and below 1")

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        import torch

        from softbeam.objectives.losses.energy import free_conditionals, gold_nll

        tokens = batch.target
        if self.hide > 0:
            hidden = torch.rand(tokens.shape, generator=rng, device=rng.device) < self.hide
            tokens = tokens.masked_fill(hidden & batch.mask, model.mask_id)
        log_probs = free_conditionals(model, tokens, batch.mask)
        rows = gold_nll(log_probs, batch.target, batch.mask)
        return rows, {"masked_nll": rows.mean().item()}


@dataclass(frozen=True, kw_only=True)
class KlProjection(EnergyObjective):
    r"""sum_t KL(p_mlm(. | y\t) || p(. | y\t)): a masked LM made a joint (thesis, Sec. 6.2.2).

    p_mlm are the teacher's free conditionals, p the true ones of the model's E_raw. The thesis
    starts the model from the teacher's weights.

    Args:
        teacher: a model, which is not changed, or the folder of a run.
        load: from that folder to the model: softbeam.training.runs.load_run.
        pseudolikelihood: weight of PLL added to it; 0 for KL alone. The thesis gives none.
        chunk: as in Pseudolikelihood.
    """

    teacher: Any
    load: Load | None = None
    pseudolikelihood: float = 1.0
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        at_least_one(chunk=self.chunk)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        import torch

        from softbeam.objectives.losses.energy import (
            divergence,
            free_conditionals,
            gold_nll,
            true_conditionals,
        )

        with torch.no_grad():
            log_mlm = free_conditionals(self.frozen(model), batch.target, batch.mask)
        log_p = true_conditionals(model, batch.target, batch.mask, chunk=self.chunk)
        if log_mlm.shape != log_p.shape:
            raise ValueError(f"teacher has {log_mlm.shape[-1]} tokens, not {log_p.shape[-1]}")
        kl = divergence(log_mlm, log_p, batch.mask)
        pll = gold_nll(log_p, batch.target, batch.mask)
        log = {"divergence": kl.mean().item(), "pseudo_nll": pll.mean().item()}
        return kl + self.pseudolikelihood * pll, log

    def frozen(self, model: "nn.Module") -> Any:
        """The teacher: a model that is not the one in training."""
        if self.teacher is model:
            raise ValueError("teacher is the model in training; give a copy of it")
        if not isinstance(self.teacher, str | Path):
            return self.teacher
        if self.load is None:
            raise ValueError(f"teacher={self.teacher} is a folder: load must say how it is read")
        return frozen_teacher(self.load, Path(self.teacher))


@dataclass(frozen=True, kw_only=True)
class NoiseContrastive(EnergyObjective):
    """NCE of whole sequences: tell data from noise of the same length (thesis, chapter 7).

    The classifier's log-odds are log p(y) - log q(y) - log nu, log p(y) = -E_raw(y) - log Z with
    log Z a number for each length learned with the weights (`memory.log_z` of the model).

    Args:
        noise: q, something that samples and evaluates: `softbeam.objectives.losses.energy.Noise`,
        such
            as `UnigramNoise.fit(...)`.
        nu: noise sequences for each of data.
        self_normalized: log Z is 0, and the energies have to see to it.
    """

    noise: Any
    nu: int = 10
    self_normalized: bool = False

    def __post_init__(self) -> None:
        at_least_one(nu=self.nu)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.energy import memory_of, nce
        from softbeam.tensors import length_mask

        lengths = batch.ends.lengths
        data = self.log_ratio(model, batch.target, batch.mask)
        if not bool(data.isfinite().all()):
            raise ValueError("noise: it gives a sequence of the data the probability 0")
        each = lengths.repeat_interleave(self.nu)
        drawn = self.noise.sample(each, rng)
        noise = self.log_ratio(model, drawn, length_mask(each, drawn.shape[1]))
        noise = noise.unflatten(0, (len(lengths), self.nu))
        if not self.self_normalized:
            log_z = memory_of(model, longest=int(lengths.max())).log_z[lengths]
            data, noise = data - log_z, noise - log_z[:, None]
        rows = nce(data, noise, nu=float(self.nu))
        found = {"data_found": data > math.log(self.nu), "noise_found": noise < math.log(self.nu)}
        log = {name: right.double().mean().item() for name, right in found.items()}
        return rows, {"nce": rows.mean().item()} | log

    def log_ratio(self, model: Any, tokens: "Tensor", mask: "Tensor") -> "Tensor":
        """-E_raw(y) - log q(y)."""
        from softbeam.objectives.losses.energy import log_phi

        scores = log_phi(model, tokens, mask)
        return scores - self.noise.log_prob(tokens, mask).to(scores)


@dataclass(frozen=True, kw_only=True)
class PersistentContrastiveDivergence(EnergyObjective):
    """The likelihood's gradient with chains in place of the enumeration (Tieleman 2008).

    E_raw(y) minus the mean E_raw of chains of y's length, which go on from update to update
    (`memory.chains` of the model). Its value says nothing, its gradient is that of the likelihood
    as far as the chains follow the model.

    Args:
        kernel: from the model to a `softbeam.types.Kernel` that leaves exp(-E_raw) as it is.
        sweeps: passes of the chains over their positions before each update.
    """

    kernel: Callable[..., Any]
    sweeps: int = 1

    def __post_init__(self) -> None:
        at_least_one(sweeps=self.sweeps)

    def rows(self, model: Any, batch: "Batch", rng: "Generator") -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.energy import for_each_length, log_phi, memory_of, swept

        chains = memory_of(model, longest=int(batch.ends.lengths.max()), chains=1).chains
        kernel, moved = self.kernel(model), []

        def expected(time: int) -> "Tensor":
            """The mean -E_raw of the chains of a length, moved on and remembered."""
            tokens, rate = swept(
                kernel, chains[time, :, :time].clone(), sweeps=self.sweeps, rng=rng
            )
            chains[time, :, :time] = tokens
            moved.append(rate)
            return log_phi(model, tokens, tokens >= 0).mean()

        of_model = for_each_length(batch.mask, expected)
        of_data = log_phi(model, batch.target, batch.mask)
        energies = {"energy": -of_data.mean().item(), "chain_energy": -of_model.mean().item()}
        return of_model - of_data, energies | {"moved": sum(moved) / max(len(moved), 1)}
